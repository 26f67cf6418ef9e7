//! Files and directories by path, in the manner of [`std::fs`]: a thin layer above
//! [`Filesystem`](ubtrfs_fs::Filesystem).
//!
//! Permissions are not checked, as if root called: the program that embeds a volume decides who may
//! do what. Flags of inodes (immutable, append-only) and read-only subvolumes apply.

mod directory;
mod file;
mod handle;
mod open_options;
mod read_dir;
mod resolve;

pub use directory::Dir;
pub use file::File;
pub use open_options::OpenOptions;
pub use read_dir::{DirEntry, ReadDir};
