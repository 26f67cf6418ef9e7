//! The on-disk structures of btrfs as typed views over bytes.
