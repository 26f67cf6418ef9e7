//! The clusters that a dump consists of. `docs/format.md` has the facts and their sources.
//!
//! A cluster is a header of [`CLUSTER_HEADER`] bytes, the contents of its items one after the
//! other, and zeros up to the next multiple of [`CLUSTER_ALIGNMENT`]. The header has the places of
//! the items in the volume. The first item of the first cluster is the superblock.

use ubtrfs_format::{Logical, Physical, SUPERBLOCK_COPIES};

use crate::error::{Error, Result};

/// The first eight bytes of a cluster, as a little-endian number.
pub(crate) const CLUSTER_MAGIC: u64 = 0xbd5c_25e2_7295_668b;
/// The bytes of a cluster's header.
pub(crate) const CLUSTER_HEADER: usize = 1024;
/// Clusters begin at multiples of this many bytes.
pub(crate) const CLUSTER_ALIGNMENT: u64 = 1024;
/// Bytes of the fields of a header before its places: magic, offset in the file, number of items,
/// compression.
const FIXED: usize = 21;
/// Bytes of a place: address and length.
const PLACE: usize = 12;
/// The most items of a cluster: as many as the header has places for.
pub(crate) const MAX_ITEMS: usize = (CLUSTER_HEADER - FIXED) / PLACE;
/// The most bytes of an item that are written: no item of `btrfs-image` is longer.
pub(crate) const MAX_WRITTEN_ITEM: usize = 256 << 10;
/// The most bytes of an item that are read, compressed or not.
pub(crate) const MAX_ITEM: usize = 1 << 20;
/// The address of the item with the superblock: that of the primary superblock on a device.
pub(crate) const SUPERBLOCK_AT: Physical = SUPERBLOCK_COPIES[0];

/// The place of an item in the volume and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its address in the volume.
    pub(crate) logical: Logical,
    /// Where its content begins, in bytes from the beginning of the file.
    pub(crate) at: u64,
    /// Bytes of the content in the file.
    pub(crate) len: u32,
    /// Whether the content is compressed.
    pub(crate) compressed: bool,
}

/// A cluster's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Its items, in the order of their contents.
    pub(crate) places: Vec<Place>,
    /// Where the next cluster begins, or the file ends.
    pub(crate) next: u64,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl Cluster {
    /// Reads the header of the cluster at `at` in the file.
    pub(crate) fn parse(header: &[u8; CLUSTER_HEADER], at: u64) -> Result<Self> {
        let bad = |what| Error::Cluster { cluster: at, what };
        if word(header, 0) != CLUSTER_MAGIC {
            return Err(if at == 0 { Error::NotDump } else { bad("no signature") });
        }
        if word(header, 8) != at {
            return Err(bad("another place in its header"));
        }
        let count = half(header, 16) as usize;
        if count > MAX_ITEMS {
            return Err(bad("too many items"));
        }
        let compressed = match header[20] {
            0 => false,
            1 => true,
            _ => return Err(bad("an unknown compression")),
        };
        let mut end = at + CLUSTER_HEADER as u64;
        let mut places = Vec::with_capacity(count);
        for place in header[FIXED..].chunks_exact(PLACE).take(count) {
            let (logical, len) = (Logical(word(place, 0)), half(place, 8));
            if len == 0 || len as usize > MAX_ITEM {
                return Err(bad("an item of an impossible length"));
            }
            if logical.0.checked_add(MAX_ITEM as u64).is_none() {
                return Err(bad("an impossible address"));
            }
            places.push(Place { logical, at: end, len, compressed });
            end = end.checked_add(len.into()).ok_or_else(|| bad("an impossible place"))?;
        }
        let next = end.checked_next_multiple_of(CLUSTER_ALIGNMENT).ok_or_else(|| bad("an impossible place"))?;
        Ok(Self { places, next })
    }

    /// Returns the header of a cluster at `at` in the file, with these items: their addresses and
    /// the bytes that their contents take in the file.
    pub(crate) fn header(at: u64, items: &[(u64, u32)], compressed: bool) -> [u8; CLUSTER_HEADER] {
        let mut header = [0; CLUSTER_HEADER];
        header[..8].copy_from_slice(&CLUSTER_MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&at.to_le_bytes());
        header[16..20].copy_from_slice(&(items.len() as u32).to_le_bytes());
        header[20] = compressed.into();
        for (place, (logical, len)) in header[FIXED..].chunks_exact_mut(PLACE).zip(items) {
            place[..8].copy_from_slice(&logical.to_le_bytes());
            place[8..].copy_from_slice(&len.to_le_bytes());
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let items = [(65536, 4096), (22_020_096, 16384), (u64::from(u32::MAX) + 1, 300)];
        let header = Cluster::header(3072, &items, true);
        let cluster = Cluster::parse(&header, 3072).unwrap();
        let read: Vec<_> = cluster.places.iter().map(|place| (place.logical.0, place.len)).collect();
        assert_eq!(read, items);
        assert!(cluster.places.iter().all(|place| place.compressed));
        assert_eq!(cluster.places[1].at, 3072 + 1024 + 4096);
        assert_eq!(cluster.next, (3072_u64 + 1024 + 4096 + 16384 + 300).next_multiple_of(1024));
    }

    #[test]
    fn headers_are_refused_when_a_field_is_impossible() {
        let good = Cluster::header(0, &[(65536, 4096)], false);
        assert!(Cluster::parse(&good, 0).is_ok());
        for (at, byte) in [(0, 0), (8, 1), (17, 1), (20, 2), (32, 1), (28, 0xff)] {
            let mut bad = good;
            bad[at] = byte;
            if at == 28 {
                bad[21..29].fill(0xff);
            }
            assert!(Cluster::parse(&bad, 0).is_err(), "byte {at}");
        }
    }
}
