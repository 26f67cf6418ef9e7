//! The opcodes, flags and structures of the protocol that crosses `/dev/fuse` and rings, in host
//! byte order.
//!
//! The numbers and layouts are those of the kernel's public header `<linux/fuse.h>`.

pub mod flags;
pub mod messages;
pub mod opcode;
pub mod ring;

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// The newest minor version spoken here.
pub const MINOR: u32 = 45;
/// The oldest minor version of a kernel that is served.
pub const OLDEST_MINOR: u32 = 31;
/// Length of the header of each request, in bytes.
pub const IN_HEADER: usize = size_of::<messages::InHeader>();
/// Length of the header of each reply, in bytes.
pub const OUT_HEADER: usize = size_of::<messages::OutHeader>();
/// Extension type of supplementary groups; the types below are security contexts.
pub const EXT_GROUPS: u32 = 32;
/// The user or group of a request for which the kernel gives none (mounts that allow id mapping).
pub const UNKNOWN_ID: u32 = u32::MAX;

/// `length` rounded up to the alignment of variable-length records.
pub const fn record_align(length: usize) -> usize {
    length.next_multiple_of(8)
}
