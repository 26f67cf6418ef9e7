//! btrfs in user space: files, directories, transactions, space, check, mkfs.

#[allow(dead_code, reason = "the operations that call it are written on top of it")]
pub(crate) mod file;
