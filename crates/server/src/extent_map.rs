//! FIEMAP by an ioctl of ours, since the kernel does not pass FIEMAP to FUSE servers. The argument
//! is that of FIEMAP, with room for as many extents as fit into it.

use ubtrfs::{Errno, FoundExtent};
use ubtrfs_format::Logical;
use ubtrfs_format::ioctl::{EXTENT_MAP, size_of};

use crate::btrfs_ioctls::u64_at;

/// Bytes of the argument of [`EXTENT_MAP`]: `struct fiemap`, and behind it as many `struct
/// fiemap_extent` as there is room for. A request sets only the start; the range always goes to the
/// file's end. Addresses are logical, like those of the kernel's btrfs.
pub const ARGUMENT_SIZE: usize = size_of(EXTENT_MAP);

const HEAD: usize = 32;
const EXTENT: usize = 56;
/// How many extents fit into the argument.
pub(crate) const ROOM: usize = (ARGUMENT_SIZE - HEAD) / EXTENT;

/// The offsets of flags, of the number of extents, and of the room for them.
const FLAGS: usize = 16;
const MAPPED: usize = 20;
const COUNT: usize = 24;
/// The offset of the flags of an extent. Offset, address and length precede them.
const EXTENT_FLAGS: usize = 40;

/// The kernel writes back dirty pages first.
const SYNC: u32 = 1;
const LAST: u32 = 1;
/// The address is unknown, or the data is not written back yet.
const NOWHERE: u32 = 1 << 1 | 1 << 2;
const ENCODED: u32 = 1 << 3;
const NOT_ALIGNED: u32 = 1 << 8;
const INLINE: u32 = 1 << 9;
const UNWRITTEN: u32 = 1 << 11;
const SHARED: u32 = 1 << 13;

/// The extents of a file in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentMap {
    /// The extents, in the order of their offsets.
    pub extents: Vec<FoundExtent>,
    /// The offset in the file from which to ask for the next extents, if there may be more.
    pub next: Option<u64>,
}

/// The argument that asks for the extents of a file from an offset on, for this ioctl and for the
/// kernel's.
pub fn ask(from: u64) -> [u8; ARGUMENT_SIZE] {
    let mut argument = [0; ARGUMENT_SIZE];
    put(&mut argument, 0, from);
    put(&mut argument, 8, u64::MAX - from);
    put_u32(&mut argument, FLAGS, SYNC);
    put_u32(&mut argument, COUNT, ROOM as u32);
    argument
}

/// Reads from an argument the offset in the file at which the extents begin. `EINVAL` if the
/// argument is too short.
pub(crate) fn parse(data: &[u8]) -> Result<u64, Errno> {
    u64_at(data, 0).ok_or(Errno::INVAL)
}

/// The answer with all extents that are left from `from` on, or the first [`ROOM`] of them.
pub(crate) fn encode(from: u64, found: &[FoundExtent]) -> Vec<u8> {
    let mut answer = ask(from);
    put_u32(&mut answer, MAPPED, found.len() as u32);
    for (index, (extent, place)) in found.iter().zip(answer[HEAD..].chunks_exact_mut(EXTENT)).enumerate() {
        let flags = [
            (index + 1 == found.len() && found.len() < ROOM, LAST),
            (extent.is_compressed, ENCODED),
            (extent.address.is_none(), NOT_ALIGNED | INLINE),
            (extent.is_reserved, UNWRITTEN),
            (extent.is_shared, SHARED),
        ];
        put(place, 0, extent.offset);
        put(place, 8, extent.address.map_or(0, |address| address.0));
        put(place, 16, extent.len);
        put_u32(place, EXTENT_FLAGS, flags.iter().filter(|(is_so, _)| *is_so).fold(0, |all, (_, flag)| all | flag));
    }
    answer.to_vec()
}

/// Reads an answer of this ioctl or of the kernel's FIEMAP.
pub fn decode(answer: &[u8; ARGUMENT_SIZE]) -> ExtentMap {
    let number = |data: &[u8], at| u64_at(data, at).unwrap_or_default();
    let mapped = number(answer, MAPPED) as u32 as usize;
    let mut map = ExtentMap::default();
    for extent in answer[HEAD..].chunks_exact(EXTENT).take(mapped) {
        let flags = number(extent, EXTENT_FLAGS) as u32;
        map.next = (flags & LAST == 0).then(|| number(extent, 0).saturating_add(number(extent, 16)));
        if flags & NOWHERE != 0 {
            continue;
        }
        map.extents.push(FoundExtent {
            offset: number(extent, 0),
            len: number(extent, 16),
            address: (flags & INLINE == 0).then(|| Logical(number(extent, 8))),
            is_compressed: flags & ENCODED != 0,
            is_reserved: flags & UNWRITTEN != 0,
            is_shared: flags & SHARED != 0,
        });
    }
    map
}

fn put(data: &mut [u8], at: usize, number: u64) {
    data[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn put_u32(data: &mut [u8], at: usize, number: u32) {
    data[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, address: Option<u64>) -> FoundExtent {
        FoundExtent {
            offset,
            len: 4096,
            address: address.map(Logical),
            is_compressed: offset == 0,
            is_reserved: offset == 4096,
            is_shared: offset == 8192,
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let extents = vec![extent(0, None), extent(4096, Some(1 << 30)), extent(8192, Some(5 << 20))];
        let answer = encode(0, &extents);
        assert_eq!(decode(answer.first_chunk().unwrap()), ExtentMap { extents, next: None });
        assert_eq!(decode(encode(0, &[]).first_chunk().unwrap()), ExtentMap::default());
    }

    #[test]
    fn a_full_answer_is_not_the_end() {
        let extents: Vec<_> = (0..ROOM as u64).map(|index| extent(index * 4096, Some(index << 20))).collect();
        assert_eq!(
            decode(encode(0, &extents).first_chunk().unwrap()),
            ExtentMap { extents, next: Some(ROOM as u64 * 4096) }
        );
    }

    #[test]
    fn what_is_asked_is_read() {
        assert_eq!(parse(&ask(4096)), Ok(4096));
        assert_eq!(parse(&[0; 4]), Err(Errno::INVAL));
    }
}
