//! The crate against the kernel: a filesystem in memory, mounted and used.

#![allow(missing_docs, clippy::unwrap_used, clippy::wildcard_imports)]

mod facts;
mod files;
mod harness;
mod memfs;
mod mounting;
