//! Placing the trees in the chunks, and writing the volume to a medium.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ubtrfs_format::WIPED_AT_ENDS;
use ubtrfs_format::items::{BlockGroupFlags, DevItem, encode_sys_chunk};
use ubtrfs_format::{
    BackupRoot, CompatRo, Epochs, Generation, Incompat, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE,
    Superblock, SuperblockFlags, TreeId, Uuid,
};

use crate::blocks::{Geometry, PlacedTree, block_count, encode};
use crate::chunks::{self, Chunks};
use crate::options::{MkfsOptions, Profile, Quotas};
use crate::trees::{GENERATION, Volume, block_at, chunk_key, tree_ids};
use crate::{MkfsError, Result};

/// Bytes and their place on the device.
pub type Placed = (Physical, Vec<u8>);

/// A new volume, ready to be written: first the zeros, then the blocks, last the superblocks. A
/// flush of all devices follows each of these.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The contents of each device, by the devices' numbers.
    pub devices: Vec<DeviceLayout>,
    /// The first device's primary superblock.
    pub superblock: Superblock,
    /// The chunks: type and profile of each, and its bytes without copies.
    pub chunks: Vec<(BlockGroupFlags, u64)>,
}

/// The contents of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceLayout {
    /// Ranges (start and length in bytes) to be zeroed before anything else is written.
    pub zero: Vec<(Physical, u64)>,
    /// The copies of tree blocks.
    pub blocks: Vec<Placed>,
    /// All copies of the superblock that are within the device, the primary last.
    pub superblocks: Vec<Placed>,
}

/// A medium to which a layout is written.
pub trait Medium {
    /// Writes all bytes at a place.
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable that was written so far.
    fn flush(&mut self) -> io::Result<()>;
}

impl Medium for File {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at.0)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl Layout {
    /// Writes the volume to its devices, given in the order of their numbers. If a device fails or
    /// power is lost in the middle, there is no volume: neither the old one nor half of the new
    /// one. The first device gets its superblocks last, since without them the volume lacks a
    /// device.
    pub fn write(&self, media: &mut [&mut dyn Medium]) -> io::Result<()> {
        if media.len() != self.devices.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the volume has another number of devices"));
        }
        let zeroes = vec![0; 64 << 10];
        for (medium, device) in media.iter_mut().zip(&self.devices) {
            for (start, length) in &device.zero {
                let mut at = 0;
                while at < *length {
                    let len = (length - at).min(zeroes.len() as u64);
                    medium.write_at(start.plus(at), &zeroes[..len as usize])?;
                    at += len;
                }
            }
        }
        flush(media)?;
        let stages: [fn(&DeviceLayout) -> &[Placed]; 2] = [|device| &device.blocks, |device| &device.superblocks];
        for stage in stages {
            for (medium, device) in media.iter_mut().zip(&self.devices).rev() {
                for (at, bytes) in stage(device) {
                    medium.write_at(*at, bytes)?;
                }
            }
            flush(media)?;
        }
        Ok(())
    }
}

fn flush(media: &mut [&mut dyn Medium]) -> io::Result<()> {
    media.iter_mut().try_for_each(|medium| medium.flush())
}

/// Lays out a new volume.
pub fn layout(options: &MkfsOptions) -> Result<Layout> {
    options.check()?;
    let chunks = chunks::plan(options)?;
    let trees = place(options, &chunks);
    let volume = Volume { options, chunks: &chunks, trees: &trees };
    let geometry = Geometry {
        node_size: options.node_size() as usize,
        checksum: options.checksum,
        fsid: options.fsid,
        chunk_tree_uuid: options.chunk_tree_uuid,
        generation: GENERATION,
    };
    let superblock = superblock(&volume)?;
    let mut devices = Vec::new();
    for (devid, device) in options.devices() {
        let item = volume.device(devid, device);
        devices.push((devid, empty_device(item, &superblock)?));
    }
    for tree in &trees {
        let chunk = &chunks.all[if tree.id == TreeId::CHUNK { chunks.system } else { chunks.metadata }];
        for (bytenr, bytes) in encode(tree, &volume.items(tree.id), &geometry)? {
            for (devid, at) in chunk.copies_of(bytenr) {
                if let Some((_, device)) = devices.iter_mut().find(|(id, _)| *id == devid) {
                    device.blocks.push((at, bytes.clone()));
                }
            }
        }
    }
    let chunks = chunks.all.iter().map(|chunk| (chunk.flags, chunk.length)).collect();
    Ok(Layout { devices: devices.into_iter().map(|(_, device)| device).collect(), superblock, chunks })
}

/// Returns the contents of a device without blocks, but with its superblocks.
fn empty_device(item: DevItem, superblock: &Superblock) -> Result<DeviceLayout> {
    let total = item.total_bytes;
    let in_range = |at: &&Physical| at.0 + SUPERBLOCK_SIZE as u64 <= total;
    let mut superblocks = Vec::new();
    for at in SUPERBLOCK_COPIES.iter().filter(in_range).rev() {
        let own = Superblock { bytenr: *at, dev_item: item, ..superblock.clone() };
        superblocks.push((*at, own.to_bytes()?.to_vec()));
    }
    let zero = vec![(Physical(0), WIPED_AT_ENDS), (Physical(total - WIPED_AT_ENDS), WIPED_AT_ENDS)];
    Ok(DeviceLayout { zero, blocks: Vec::new(), superblocks })
}

/// Places the blocks of every tree. How many a tree needs depends on its items, and some items (of
/// the extent tree) depend on how many blocks there are. So the plan is repeated until it is
/// consistent. That ends, since the number of blocks only grows.
fn place(options: &MkfsOptions, chunks: &Chunks) -> Vec<PlacedTree> {
    let node_size = options.node_size();
    let ids = tree_ids(options);
    let mut counts = vec![1; ids.len()];
    loop {
        let (mut in_system, mut in_metadata) = (0, 0);
        let placed = ids.iter().zip(&counts).map(|(id, count)| {
            let (chunk, next) = if *id == TreeId::CHUNK {
                (chunks.system, &mut in_system)
            } else {
                (chunks.metadata, &mut in_metadata)
            };
            let start = chunks.all[chunk].start;
            let blocks = (*next..*next + count).map(|index| block_at(start, index, node_size)).collect();
            *next += count;
            PlacedTree { id: *id, blocks }
        });
        let trees: Vec<PlacedTree> = placed.collect();
        let volume = Volume { options, chunks, trees: &trees };
        let needed = |id: &TreeId| block_count(&volume.items(*id), node_size as usize);
        let needs: Vec<usize> = ids.iter().zip(&counts).map(|(id, count)| needed(id).max(*count)).collect();
        if needs == counts {
            return trees;
        }
        counts = needs;
    }
}

fn incompat(options: &MkfsOptions) -> Incompat {
    let profiles = [options.data_profile(), options.metadata_profile()];
    let has_many_copies = profiles.iter().any(|profile| matches!(profile, Profile::Raid1c3 | Profile::Raid1c4));
    let optional = [
        (options.extended_iref, Incompat::EXTENDED_IREF),
        (options.skinny_metadata, Incompat::SKINNY_METADATA),
        (options.no_holes, Incompat::NO_HOLES),
        (options.mixed, Incompat::MIXED_GROUPS),
        (options.raid56, Incompat::RAID56),
        (options.raid1c34 || has_many_copies, Incompat::RAID1C34),
        (options.quotas == Some(Quotas::Simple), Incompat::SIMPLE_QUOTA),
    ];
    let always = Incompat::MIXED_BACKREF.with(Incompat::BIG_METADATA);
    let set = optional.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(always, |all, (_, feature)| all.with(feature))
}

fn superblock(volume: &Volume<'_>) -> Result<Superblock> {
    let options = volume.options;
    let root_of = |id: TreeId| {
        let tree = volume.trees.iter().find(|tree| tree.id == id);
        tree.map_or((Logical(0), 0), |tree| (tree.root(), tree.level()))
    };
    let (root, root_level) = root_of(TreeId::ROOT);
    let (chunk_root, chunk_root_level) = root_of(TreeId::CHUNK);
    let mut compat_ro = CompatRo::default();
    if options.free_space_tree {
        compat_ro = compat_ro.with(CompatRo::FREE_SPACE_TREE).with(CompatRo::FREE_SPACE_TREE_VALID);
    }
    if options.block_group_tree {
        compat_ro = compat_ro.with(CompatRo::BLOCK_GROUP_TREE);
    }
    let mut label = [0; 256];
    label
        .get_mut(..options.label.len())
        .ok_or(MkfsError::LabelTooLong(options.label.len()))?
        .copy_from_slice(&options.label);
    let mut sys_chunk_array = Vec::new();
    let system = &volume.chunks.all[volume.chunks.system];
    encode_sys_chunk(&mut sys_chunk_array, chunk_key(system), &system.item(options));
    let devices: Vec<_> = options.devices().map(|(devid, device)| volume.device(devid, device)).collect();
    let num_devices = devices.len() as u64;
    let bytes_used = volume.chunks.all.iter().map(|chunk| volume.used(chunk)).sum();
    let backed_up = [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::FS, TreeId::DEV, TreeId::CSUM].map(|id| {
        let (bytenr, level) = root_of(id);
        (bytenr, GENERATION, level)
    });
    let mut backup_roots = [BackupRoot::default(); 4];
    backup_roots[(GENERATION.0 as usize - 1) % 4] =
        BackupRoot { trees: backed_up, total_bytes: options.usable_bytes(), bytes_used, num_devices };
    let mut epochs = Epochs::default();
    if num_devices > 1 {
        epochs.set_of_ubtrfs(GENERATION);
    }
    Ok(Superblock {
        fsid: options.fsid,
        bytenr: SUPERBLOCK_COPIES[0],
        flags: SuperblockFlags::WRITTEN,
        generation: GENERATION,
        root,
        chunk_root,
        log_root: Logical(0),
        total_bytes: options.usable_bytes(),
        bytes_used,
        root_dir_objectid: TreeId::ROOT_TREE_DIR.0,
        num_devices,
        sector_size: options.sector_size,
        node_size: options.node_size(),
        leaf_size: options.node_size(),
        stripe_size: options.sector_size,
        chunk_root_generation: GENERATION,
        compat_flags: 0,
        compat_ro,
        incompat: incompat(options),
        checksum: options.checksum,
        root_level,
        chunk_root_level,
        log_root_level: 0,
        log_root_transid: 0,
        dev_item: devices.first().copied().unwrap_or_default(),
        label,
        // Without a free-space tree the value means "no v1 cache yet" rather than "a cache of
        // generation 0".
        cache_generation: Generation(if options.free_space_tree { 0 } else { u64::MAX }),
        uuid_tree_generation: Generation(0),
        metadata_uuid: Uuid::NIL,
        nr_global_roots: 0,
        sys_chunk_array,
        backup_roots,
        epochs,
        resilvered: None,
    })
}
