//! Dumping the metadata of a volume that is not mounted, however damaged it is.

use std::io::Write;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{
    HEADER_SIZE, LeafBuilder, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, SuperblockChange,
};
use ubtrfs_volume::{ChunkMap, Device, Volume};

use crate::chunks::{Chunks, Expected, Geometry};
use crate::clean::{LastInode, clean};
use crate::cluster::SUPERBLOCK_AT;
use crate::error::{Error, Result};
use crate::media::{Block, Devices, is_of_volume, read_any, read_block};
use crate::names::Names;
use crate::report::{Dumped, Problems};
use crate::sanitise::{Replacements, sanitise};
use crate::short_names::Gatherer;
use crate::walk::{Visitor, Walk};
use crate::writer::Writer;

/// How to dump.
#[derive(Clone, Copy)]
pub struct DumpOptions<'a> {
    /// Whether names are replaced.
    pub sanitise: bool,
    /// The level of zlib, 0 for none.
    pub level: u32,
    /// How many threads compress.
    pub threads: usize,
    /// Gets how many blocks have been read. It returns false to end the work.
    pub progress: &'a dyn Fn(u64) -> bool,
}

/// Dumps the metadata of the volume on these devices. Devices may be missing.
pub fn dump(devices: &[Arc<dyn Device>], out: &mut dyn Write, options: &DumpOptions<'_>) -> Result<Dumped> {
    let mut dumped = Dumped::default();
    let found = Found::on(devices, &mut dumped.problems)?;
    let Found { superblock, bytes: mut superblock_bytes, devices } = found;
    let mut geometry = Geometry::of(&superblock);
    let chunks = Chunks::read(&superblock, &mut dumped.problems, |map, expected| {
        match read_block(&devices, map, &geometry, expected) {
            Block::Good(block) => Some(block),
            Block::Bad(..) | Block::Unread(_) => None,
        }
    });
    let seeds = chunks.devices.values().map(|device| device.fsid);
    geometry.fsids.extend(seeds.filter(|fsid| *fsid != superblock.metadata_fsid()));
    for number in chunks.devices.keys().filter(|number| !devices.contains_key(number)) {
        dumped.problems.add(|| format!("device {number} is missing"));
    }
    let names = options.sanitise.then(Names::new);
    if let Some(names) = &names {
        let mut label = superblock.label_bytes().to_vec();
        names.fill(&mut label);
        let change = SuperblockChange { label: Some(&label), ..SuperblockChange::default() };
        change.apply(&mut superblock_bytes).map_err(Error::Superblock)?;
    }
    let replacements = match names {
        Some(names) => {
            let mut gatherer = Gatherer::new(&names);
            Walk::new(&devices, &chunks.map, &geometry, &mut gatherer).run(&superblock)?;
            let short = gatherer.finish();
            Some(Replacements { names, short })
        }
        None => None,
    };
    let mut writer = Writer::new(out, options.level, options.threads);
    writer.superblock(SUPERBLOCK_AT.0, &superblock_bytes);
    let mut dumper = Dumper {
        writer,
        map: &chunks.map,
        geometry: &geometry,
        devices: &devices,
        replacements,
        last: LastInode::default(),
        dumped,
        progress: options.progress,
    };
    Walk::new(&devices, &chunks.map, &geometry, &mut dumper).run(&superblock)?;
    let Dumper { writer, mut dumped, .. } = dumper;
    dumped.file_bytes = writer.finish()?;
    Ok(dumped)
}

/// The superblock that counts, and the devices of its volume.
struct Found {
    superblock: Superblock,
    bytes: Vec<u8>,
    devices: Devices,
}

impl Found {
    fn on(devices: &[Arc<dyn Device>], problems: &mut Problems) -> Result<Self> {
        let superblocks = Volume::superblocks_of(devices);
        let mut best: Option<(usize, &Superblock)> = None;
        for (index, superblock) in superblocks.iter().enumerate() {
            let Some(superblock) = superblock else {
                problems.add(|| format!("device {} of those that were given has no good superblock", index + 1));
                continue;
            };
            if superblock.bytenr != SUPERBLOCK_COPIES[0] {
                problems.add(|| {
                    let (devid, at) = (superblock.dev_item.devid, superblock.bytenr);
                    format!("the primary superblock of device {devid} is bad: its copy at {at} is dumped")
                });
            }
            if best.is_none_or(|(_, best)| superblock.moment() > best.moment()) {
                best = Some((index, superblock));
            }
        }
        let (index, superblock) = best.ok_or(Error::NoSuperblock)?;
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        read_superblock(devices.get(index), superblock.bytenr, &mut bytes)?;
        let mut by_number = Devices::new();
        for (device, found) in devices.iter().zip(&superblocks) {
            let Some(found) = found else { continue };
            if found.metadata_fsid() != superblock.metadata_fsid() && found.fsid != superblock.fsid {
                return Err(Error::OtherVolume);
            }
            if found.generation < superblock.generation {
                problems.add(|| format!("device {} lags: it is of commit {}", found.dev_item.devid, found.generation));
            }
            by_number.entry(found.dev_item.devid.0).or_insert_with(|| Arc::clone(device));
        }
        Ok(Self { superblock: superblock.clone(), bytes, devices: by_number })
    }
}

/// Reads a superblock again, as it is on the device, for the place of the primary.
fn read_superblock(device: Option<&Arc<dyn Device>>, at: Physical, bytes: &mut [u8]) -> Result<()> {
    let device = device.ok_or(Error::NoSuperblock)?;
    device.read_at(at, bytes).map_err(|_| Error::NoSuperblock)?;
    if at != SUPERBLOCK_AT {
        let change = SuperblockChange { bytenr: Some(SUPERBLOCK_AT), ..SuperblockChange::default() };
        change.apply(bytes).map_err(Error::Superblock)?;
    }
    Ok(())
}

struct Dumper<'a> {
    writer: Writer<'a>,
    map: &'a ChunkMap,
    geometry: &'a Geometry,
    devices: &'a Devices,
    replacements: Option<Replacements>,
    last: LastInode,
    dumped: Dumped,
    progress: &'a dyn Fn(u64) -> bool,
}

impl Dumper<'_> {
    fn push(&mut self, at: Logical, bytes: &[u8]) -> Result<()> {
        self.dumped.bytes += bytes.len() as u64;
        self.writer.push(at.0, bytes)
    }

    /// Writes a block that was checked.
    fn good(&mut self, expected: &Expected, mut block: Vec<u8>) -> Result<()> {
        let before = self.last;
        let mut changed = clean(&mut block, expected.tree, &mut self.last);
        if let Some(replacements) = &self.replacements {
            changed |= sanitise(&mut block, expected.tree, before, replacements, &mut self.dumped);
        }
        if changed {
            LeafBuilder::seal(&mut block, self.geometry.checksum);
        }
        self.dumped.blocks += 1;
        self.push(expected.at, &block)
    }

    /// Writes a block that is damaged, as it is. If it may be data, or have names that can't be
    /// found in it and are to be replaced, only its header is written.
    fn bad(&mut self, expected: &Expected, mut block: Vec<u8>, why: &str) -> Result<()> {
        let Expected { at, tree, .. } = expected;
        let is_metadata = is_of_volume(&block, self.geometry) || self.is_metadata_only(*at);
        if !is_metadata {
            self.dumped.problems.add(|| format!("tree {tree}: the block at {at} is bad, and may be data: {why}"));
            return Ok(());
        }
        self.dumped.problems.add(|| format!("tree {tree}: the block at {at} is bad: {why}"));
        if self.replacements.is_some() {
            block[HEADER_SIZE..].fill(0);
        }
        self.dumped.bad_blocks += 1;
        self.dumped.blocks += 1;
        self.push(*at, &block)
    }

    /// Returns whether an address is in a chunk that has no data.
    fn is_metadata_only(&self, at: Logical) -> bool {
        let chunk = self.map.iter().filter(|(start, _)| *start <= at).last();
        chunk.is_some_and(|(_, chunk)| !chunk.flags.contains(BlockGroupFlags::DATA))
    }
}

impl Visitor for Dumper<'_> {
    fn block(&mut self, expected: &Expected, block: Block) -> Result<()> {
        match block {
            Block::Good(block) => self.good(expected, block)?,
            Block::Bad(block, why) => {
                self.last.forget();
                self.bad(expected, block, &why)?;
            }
            Block::Unread(why) => {
                self.last.forget();
                let Expected { at, tree, .. } = expected;
                self.dumped.bad_blocks += 1;
                self.dumped.problems.add(|| format!("tree {tree}: the block at {at} can't be read: {why}"));
            }
        }
        if (self.progress)(self.dumped.blocks) { Ok(()) } else { Err(Error::Interrupted) }
    }

    fn passed_over(&mut self) {
        self.last.forget();
    }

    fn cache(&mut self, at: Logical, len: u64) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        match read_any(self.devices, self.map, at, &mut bytes) {
            Ok(()) => self.push(at, &bytes),
            Err(error) => {
                self.dumped.problems.add(|| format!("the free-space cache at {at}: {}", sentence(&error)));
                Ok(())
            }
        }
    }
}
