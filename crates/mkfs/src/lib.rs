//! The contents of a new btrfs volume: every block of it, from a few options.
//!
//! [`layout`] is pure: options in, bytes and their places out. [`Layout::write`] brings them onto a
//! [`Medium`] in the order that leaves either no volume or a whole one. The result is the volume
//! that mkfs.btrfs 7.3 makes of the same options; docs/format.md lists the few differences.

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
