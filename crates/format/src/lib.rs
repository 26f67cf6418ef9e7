//! The on-disk structures of btrfs as typed views over bytes.
//!
//! The code is pure: it does no I/O, and allocates only the owned values that a caller asks for.
//! Every accessor is checked: a malformed structure gives an [`Error`] of an exact kind, never a
//! panic (invariant 14). `docs/format.md` has the facts and their sources.

mod check_item;
mod checksum;
mod epochs;
mod error;
mod ids;
mod key;
mod leaf_builder;
mod name_hash;
mod node;
mod resilvered;
mod superblock;

pub mod ioctl;
pub mod items;
pub mod posix;
pub mod units;

pub use check_item::{ItemContext, ItemFault, check_chunk, check_header, check_item, check_leaf};
pub use checksum::{Checksum, ChecksumType, MAX_CHECKSUM_SIZE, xxhash64};
pub use epochs::{DevicesWithout, EPOCHS_MAX, Epoch, Epochs, NotContained};
pub use error::{Error, Result};
pub use ids::{DeviceId, DirIndex, Generation, Ino, Logical, Physical, TreeId, Uuid};
pub use key::{ItemType, Key, KeyBytes, objectid};
pub use leaf_builder::{InternalBuilder, LeafBuilder};
pub use name_hash::{data_ref_hash, extref_hash, name_hash};
pub use node::{
    BACKREF_REV_MIXED, CHECKSUM_FIELD, ChildPointer, HEADER_SIZE, Header, HeaderBytes, ITEM_HEADER_SIZE, Internal,
    KEY_POINTER_SIZE, Leaf, MAX_LEVEL, Node, NodeExpectation, NodeFlags, leaf_data_size, max_item_size,
    verify_node_checksum,
};
pub use resilvered::Resilvered;
pub use superblock::{
    BackupRoot, BackupRootBytes, CompatRo, Incompat, LABEL_SIZE, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC,
    SUPERBLOCK_MAGIC_AT, SUPERBLOCK_SIZE, SYS_CHUNK_ARRAY_MAX, Superblock, SuperblockChange, SuperblockFlags,
    WIPED_AT_ENDS,
};
