//! The contents of a new btrfs volume: every block of it, from a few options.
//!
//! [`layout`] is pure: it turns options into bytes and their places. [`Layout::write`] writes them
//! to a [`Medium`] in an order that leaves either no volume or a whole one. The result is the
//! volume that mkfs.btrfs 7.3 makes with the same options; docs/format.md lists the few
//! differences.

mod blocks;
mod chunks;
mod error;
mod layout;
mod options;
mod signature;
mod trees;

pub use chunks::minimum_bytes;
pub use error::{MkfsError, Result};
pub use layout::{DeviceLayout, Layout, Medium, Placed, layout};
pub use options::{MkfsOptions, NewDevice, Profile, Quotas, random_uuid};
pub use signature::existing_signature;
