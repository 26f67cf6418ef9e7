//! btrfs in user space: files, directories, transactions, space, check, mkfs.
