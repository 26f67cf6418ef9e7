//! Reading a damaged volume: any copy of any block, from the devices that are there.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Header, Logical, Physical};
use ubtrfs_volume::{ChunkMap, Device, MappedRange, parity};

use crate::chunks::{Expected, Geometry};

/// How many ways to compute a block from parity are tried, of those that leave out one more stripe.
const MAX_COMBINATIONS: usize = 16;

/// The devices that are there, by their numbers.
pub(crate) type Devices = BTreeMap<u64, Arc<dyn Device>>;

/// A block that was read.
pub(crate) enum Block {
    /// A copy is good.
    Good(Vec<u8>),
    /// No copy is good. The first that can be read at all, and what is wrong with it.
    Bad(Vec<u8>, String),
    /// No copy can be read.
    Unread(String),
}

/// Reads the expected block. Copies are tried one after the other, then what parity gives.
pub(crate) fn read_block(devices: &Devices, map: &ChunkMap, geometry: &Geometry, expected: &Expected) -> Block {
    let len = u64::from(geometry.node_size);
    let pieces = match map.pieces(expected.at, len) {
        Ok(pieces) => pieces,
        Err(error) => return Block::Unread(sentence(&error)),
    };
    let copies = pieces.iter().map(|piece| piece.copies.len()).max().unwrap_or(0);
    let combinations = map.row(expected.at).map_or(0, |row| parity::count(row.data, row.parities()));
    let (mut bad, mut unread) = (None, None);
    for attempt in 0..copies + combinations.min(MAX_COMBINATIONS) {
        let mut block = vec![0; geometry.node_size as usize];
        let read = match attempt.checked_sub(copies) {
            None => read_copy(devices, &pieces, attempt, &mut block),
            Some(number) => compute(devices, map, &pieces, expected.at, number, &mut block),
        };
        if let Err(error) = read {
            unread.get_or_insert_with(|| sentence(&error));
            continue;
        }
        match geometry.check(&block, expected) {
            Ok(()) => return Block::Good(block),
            // What is computed from bad stripes is nothing that was ever on the device.
            Err(_) if attempt >= copies => {}
            // A copy with the right ids says more than one of zeros.
            Err(why) => {
                let is_of_volume = is_of_volume(&block, geometry);
                if bad.as_ref().is_none_or(|(_, _, before)| is_of_volume && !before) {
                    bad = Some((block, why, is_of_volume));
                }
            }
        }
    }
    match (bad, unread) {
        (Some((block, why, _)), _) => Block::Bad(block, why),
        (None, why) => Block::Unread(why.unwrap_or_else(|| "it has no copy".to_owned())),
    }
}

/// Returns whether a block has the id of the volume in its header, so that it is a tree block.
pub(crate) fn is_of_volume(block: &[u8], geometry: &Geometry) -> bool {
    Header::parse(block).is_ok_and(|header| geometry.fsids.contains(&header.fsid))
}

/// Fills `buf` from any copy that can be read.
pub(crate) fn read_any(devices: &Devices, map: &ChunkMap, at: Logical, buf: &mut [u8]) -> io::Result<()> {
    let pieces = map.pieces(at, buf.len() as u64).map_err(io::Error::other)?;
    let copies = pieces.iter().map(|piece| piece.copies.len()).max().unwrap_or(0);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for copy in 0..copies {
        match read_copy(devices, &pieces, copy, buf) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_copy(devices: &Devices, pieces: &[MappedRange], copy: usize, buf: &mut [u8]) -> io::Result<()> {
    let mut rest = buf;
    for piece in pieces {
        let (part, after) = rest.split_at_mut((piece.len as usize).min(rest.len()));
        let place = piece.copies.get(copy).or(piece.copies.last()).ok_or(io::ErrorKind::NotFound)?;
        read(devices, place.devid, place.at, part)?;
        rest = after;
    }
    Ok(())
}

fn compute(
    devices: &Devices,
    map: &ChunkMap,
    pieces: &[MappedRange],
    at: Logical,
    number: usize,
    buf: &mut [u8],
) -> io::Result<()> {
    let mut done = 0;
    for piece in pieces {
        let row = map.row(at.plus(done)).ok_or(io::ErrorKind::NotFound)?;
        let len = piece.len as usize;
        let part = buf.get_mut(done as usize..done as usize + len).ok_or(io::ErrorKind::InvalidData)?;
        let factors = parity::combination(row.data, row.parities(), row.wanted, number);
        let mut stripe = vec![0; len];
        for (factor, place) in factors.into_iter().zip(&row.stripes).filter(|(factor, _)| *factor != 0) {
            read(devices, place.devid, place.at, &mut stripe)?;
            parity::add(part, &stripe, factor);
        }
        done += piece.len;
    }
    Ok(())
}

fn read(devices: &Devices, devid: DeviceId, at: Physical, buf: &mut [u8]) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("device {devid} is missing"));
    devices.get(&devid.0).ok_or_else(missing)?.read_at(at, buf)
}
