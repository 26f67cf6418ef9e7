//! The FUSE protocol and its transports; knows nothing of any file system.
