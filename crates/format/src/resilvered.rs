//! How far a device that lags has been brought up to the others, in the padding of the superblock.
//!
//! Only ubtrfs writes and reads this record. Kernels and btrfs-progs write this part of the
//! superblock as they have found it (seen with Linux 6.18 and btrfs-progs 6.2). So the record is
//! valid only in a superblock that ubtrfs has written, whose fingerprint is stored beside it. A
//! commit of the same number may be a kernel's.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DeviceId, Generation, Logical};

/// The magic before the record.
const MAGIC: [u8; 8] = *b"ubResilv";

/// How far a device that lags has been brought up to a commit of the others. Of everything that
/// this commit refers to and that was written after the commit `has`, the device has the tree
/// blocks and the data with checksums at the addresses given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resilvered {
    /// The device.
    pub devid: DeviceId,
    /// The commit of which it has everything: that of its own superblock.
    pub has: Generation,
    /// It has all tree blocks before this logical address.
    pub nodes: Logical,
    /// It has all data with checksums before this logical address.
    pub data: Logical,
}

#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ResilveredBytes {
    magic: [u8; 8],
    devid: U64,
    has: U64,
    nodes: U64,
    data: U64,
    fingerprint: U64,
}

impl Resilvered {
    /// Reads the record. Returns `None` if it was written for another superblock.
    pub(crate) fn parse(bytes: &ResilveredBytes, fingerprint: impl FnOnce() -> u64) -> Option<Self> {
        (bytes.magic == MAGIC && bytes.fingerprint.get() == fingerprint()).then(|| Self {
            devid: DeviceId(bytes.devid.get()),
            has: Generation(bytes.has.get()),
            nodes: Logical(bytes.nodes.get()),
            data: Logical(bytes.data.get()),
        })
    }

    /// Returns the bytes of the record in the superblock with this fingerprint.
    pub(crate) fn to_bytes(self, fingerprint: u64) -> ResilveredBytes {
        let Self { devid, has, nodes, data } = self;
        let number = U64::new;
        ResilveredBytes {
            magic: MAGIC,
            devid: number(devid.0),
            has: number(has.0),
            nodes: number(nodes.0),
            data: number(data.0),
            fingerprint: number(fingerprint),
        }
    }
}
