//! The structures of a ring: headers and arguments of fixed size besides an entry's payload, and
//! the command in a submission.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Room for the header of a request or a reply, and for arguments of fixed size.
const PART: usize = 128;

/// `FUSE_IO_URING_CMD_REGISTER`: the kernel gets an entry to deliver a request in.
pub const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: an entry holds an answer; the kernel keeps it to deliver
/// the next request in.
pub const COMMIT_AND_FETCH: u32 = 2;
/// How many areas an entry has: [`Headers`] and payload.
pub const AREAS: u32 = 2;
/// The least length of a payload's area.
pub const MIN_PAYLOAD: usize = 8192;

/// `fuse_uring_req_header`: the contents of an entry besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Headers {
    /// The header of the request, and later that of the reply.
    pub header: [u8; PART],
    /// The request's arguments of fixed size.
    pub arguments: [u8; PART],
    /// The payload's size, and the number by which the kernel knows the request.
    pub transfer: Transfer,
}

/// `fuse_uring_ent_in_out`: how much the payload holds, and the number by which the kernel knows
/// the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// Zero.
    pub flags: u64,
    /// The number that [`COMMIT_AND_FETCH`] must repeat.
    pub commit_id: u64,
    /// Bytes in the payload.
    pub payload_size: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}

/// `fuse_uring_cmd_req`: the command's own part of a submission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// Zero.
    pub flags: u64,
    /// The [`commit_id`](Transfer::commit_id) of the request that is answered.
    pub commit_id: u64,
    /// The queue: a processor's number.
    pub queue: u16,
    /// Zero.
    pub padding: [u8; 6],
}

const _: () = assert!(size_of::<Headers>() == 288 && size_of::<Command>() == 24);
