//! `ubtrfs info`: describes a volume and what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use ubtrfs_format::items::{
    BlockGroupItem, DevItem, FileType, RootFlags, RootItem, RootRef, dir_entries, inode_refs, sys_chunks,
};
use ubtrfs_format::{CompatRo, Ino, ItemType, Key, Superblock, TreeId, name_hash};
use ubtrfs_tree::Snapshot;
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::about_volume::is_complete;
use crate::args;
use crate::device::{Seen, about_volume_within, all_of_volume, open_what_can_be_seen};
use crate::failure::{Failure, Result};
use crate::json::{Name, as_json};
use crate::output::say;
use crate::partitions::Partitions;
use crate::show;
use crate::size::show_size;
use crate::trees::{MAX_NAMES, Trees};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Info {
    label: Name,
    uuid: String,
    metadata_uuid: Option<String>,
    generation: u64,
    total_bytes: u64,
    used_bytes: u64,
    node_size: u32,
    sector_size: u32,
    checksum: &'static str,
    incompat_features: Vec<String>,
    compat_ro_features: Vec<String>,
    flags: Vec<String>,
    has_log: bool,
    devices: Vec<Device>,
    /// The numbers of the devices that were not given, as far as they are known, and how many more
    /// are missing.
    missing_devices: Vec<u64>,
    other_missing_devices: u64,
    block_groups: Vec<Groups>,
    /// Absent, as is everything that is read from trees, if the volume can't be opened.
    default_subvolume: Option<u64>,
    subvolumes: Vec<Subvolume>,
}

#[derive(Debug, Serialize)]
struct Device {
    id: u64,
    uuid: String,
    total_bytes: u64,
    /// The bytes that chunks take.
    allocated_bytes: u64,
    /// The device lacks something that the others have.
    lags: bool,
}

/// All block groups of one type and profile.
#[derive(Debug, Default, Serialize)]
pub struct Groups {
    pub kind: String,
    pub profile: String,
    pub count: u64,
    pub total_bytes: u64,
    pub used_bytes: u64,
    /// How many groups have a part that only missing devices hold, which ubtrfs can't read.
    pub incomplete: u64,
}

#[derive(Debug, Serialize)]
struct Subvolume {
    id: u64,
    /// The path from the top level; absent if it can't be found out.
    path: Option<Name>,
    generation: u64,
    uuid: String,
    parent_uuid: String,
    read_only: bool,
    /// The subvolume is being deleted.
    dead: bool,
}

/// `ubtrfs info`
pub fn run(arguments: &args::Info) -> Result<()> {
    let paths = all_of_volume(&arguments.devices, arguments.window)?;
    let (Seen { paths, devices }, away) = open_what_can_be_seen(&paths, arguments.window)?;
    if let ([path], [device], true) = (&*paths, &*devices, arguments.window.is_whole())
        && Volume::superblock_of(&**device).is_none()
        && let Ok(Some(partitions)) = Partitions::of(path)
    {
        say(&if arguments.json { as_json(&partitions)? } else { partitions.as_text() });
        return Ok(());
    }
    let failed = |error| about_volume_within(&paths, arguments.window, &error);
    let (opened, missing) = match Volume::open(devices.clone(), OpenOptions { read_only: true }) {
        Err(error @ VolumeError::MissingDevices { .. }) => (
            Volume::open_degraded(devices.clone(), OpenOptions { read_only: true }).map_err(failed),
            Some(failed(error)),
        ),
        opened => (opened.map_err(failed), None),
    };
    let opened = opened.map(Arc::new);
    // Missing devices explain the other failures, so they are reported first.
    let (info, failure) = match opened.and_then(|volume| gather(&volume, &Trees::new(&volume))) {
        Ok(info) => (info, missing),
        Err(failure) => match at_a_glance(&devices) {
            Some(info) => (info, missing.or(Some(failure))),
            None => return Err(away.unwrap_or(failure)),
        },
    };
    say(&if arguments.json { as_json(&info)? } else { as_text(&info) });
    away.or(failure).map_or(Ok(()), Err)
}

/// Describes a volume that can't be opened, by its superblocks alone.
fn at_a_glance(devices: &[Arc<dyn ubtrfs_volume::Device>]) -> Option<Info> {
    let found: Vec<_> = devices.iter().filter_map(|device| Volume::superblock_of(&**device)).collect();
    let newest = found.iter().max_by_key(|superblock| superblock.generation)?;
    let own: Vec<_> = found.iter().filter(|other| other.fsid == newest.fsid).map(|other| other.dev_item).collect();
    let given: BTreeSet<u64> = own.iter().map(|item| item.devid.0).collect();
    // System chunks are on several of the devices, mostly on all.
    let chunks = sys_chunks(&newest.sys_chunk_array).unwrap_or_default();
    let known: BTreeSet<u64> =
        chunks.iter().flat_map(|(_, chunk)| chunk.stripes.iter().map(|stripe| stripe.devid.0)).collect();
    let missing: Vec<u64> = known.difference(&given).copied().collect();
    let others = newest.num_devices.saturating_sub((given.len() + missing.len()) as u64);
    Some(Info {
        missing_devices: missing,
        other_missing_devices: others,
        ..described(newest, own.iter().map(device).collect())
    })
}

fn gather(volume: &Volume, trees: &Trees) -> Result<Info> {
    let superblock = trees.superblock();
    Ok(Info {
        block_groups: block_groups(volume, trees)?,
        default_subvolume: Some(default_subvolume(trees, superblock)?),
        subvolumes: subvolumes(trees)?,
        missing_devices: volume.devices().missing().iter().map(|item| item.devid.0).collect(),
        ..described(superblock, devices_of(volume))
    })
}

fn devices_of(volume: &Volume) -> Vec<Device> {
    let lagging = volume.devices().lagging();
    let described = |item: &DevItem| Device { lags: lagging.contains(&item.devid), ..device(item) };
    volume.devices().items().iter().map(described).collect()
}

/// Describes a volume by a superblock.
fn described(superblock: &Superblock, devices: Vec<Device>) -> Info {
    let fsid = superblock.fsid;
    Info {
        label: Name(superblock.label_bytes().to_vec()),
        uuid: fsid.to_string(),
        metadata_uuid: (superblock.metadata_fsid() != fsid).then(|| superblock.metadata_fsid().to_string()),
        generation: superblock.generation.0,
        total_bytes: superblock.total_bytes,
        used_bytes: superblock.bytes_used,
        node_size: superblock.node_size,
        sector_size: superblock.sector_size,
        checksum: superblock.checksum.name(),
        incompat_features: superblock.incompat.names(),
        compat_ro_features: superblock.compat_ro.names(),
        flags: superblock.flags.names(),
        has_log: superblock.log_root.0 != 0,
        devices,
        missing_devices: Vec::new(),
        other_missing_devices: 0,
        block_groups: Vec::new(),
        default_subvolume: None,
        subvolumes: Vec::new(),
    }
}

fn device(item: &DevItem) -> Device {
    Device {
        id: item.devid.0,
        uuid: item.uuid.to_string(),
        total_bytes: item.total_bytes,
        allocated_bytes: item.bytes_used,
        lags: false,
    }
}

/// Returns the block groups of a volume, by type and profile.
pub fn block_groups(volume: &Volume, trees: &Trees) -> Result<Vec<Groups>> {
    let tree = if trees.superblock().compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let items = trees.root_item(tree)?.map(|item| trees.described(tree, &item));
    let mut groups: BTreeMap<(u64, u64), Groups> = BTreeMap::new();
    for (start, chunk) in volume.chunk_map().all() {
        let flags = chunk.flags;
        let group = groups.entry((flags.types().0, flags.profile().0)).or_default();
        group.kind = flags.type_name().into();
        group.profile = flags.profile_name().into();
        group.count += 1;
        group.incomplete += u64::from(!is_complete(&chunk, &volume.devices().missing()));
        group.total_bytes = group.total_bytes.saturating_add(chunk.length);
        let key = Key::new(start.0, ItemType::BLOCK_GROUP_ITEM, chunk.length);
        let item = match &items {
            Some(tree) => tree.get(&key).map_err(|error| Failure::of(&error))?,
            None => None,
        };
        if let Some(item) = item {
            let used = BlockGroupItem::parse(&item).map_err(|error| Failure::about(key, &error))?.used;
            group.used_bytes = group.used_bytes.saturating_add(used);
        }
    }
    Ok(groups.into_values().collect())
}

fn default_subvolume(trees: &Trees, superblock: &Superblock) -> Result<u64> {
    let key = Key::new(superblock.root_dir_objectid, ItemType::DIR_ITEM, name_hash(b"default"));
    let item = trees.root_tree().get(&key).map_err(|error| Failure::of(&error))?;
    let entry = item.as_deref().and_then(|item| {
        dir_entries(item).flatten().find(|entry| entry.name == b"default" && entry.file_type == FileType::Directory)
    });
    Ok(entry.map_or(TreeId::FS.0, |entry| entry.location.objectid))
}

fn subvolumes(trees: &Trees) -> Result<Vec<Subvolume>> {
    let mut subvolumes = Vec::new();
    for item in trees.root_tree().range(Key::MIN..=Key::MAX) {
        let item = item.map_err(|error| Failure::of(&error))?;
        let (key, id) = (item.key, TreeId(item.key.objectid));
        if key.item_type != ItemType::ROOT_ITEM || !id.is_subvolume() {
            continue;
        }
        let root = RootItem::parse(&item).map_err(|error| Failure::about(key, &error))?;
        subvolumes.push(Subvolume {
            id: id.0,
            path: path(trees, id).map(Name),
            generation: root.generation.0,
            uuid: root.uuid.to_string(),
            parent_uuid: root.parent_uuid.to_string(),
            read_only: root.flags & RootFlags::RDONLY != 0,
            dead: root.refs == 0,
        });
    }
    Ok(subvolumes)
}

/// Returns the path of a subvolume from the top level, if all of it can be found.
pub fn path(trees: &Trees, id: TreeId) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = id;
    while at != TreeId::FS {
        let range = Key::new(at.0, ItemType::ROOT_BACKREF, 0)..=Key::new(at.0, ItemType::ROOT_BACKREF, u64::MAX);
        let item = trees.root_tree().range(range).next()?.ok()?;
        let entry = RootRef::parse(&item).ok()?;
        names.push(entry.name.to_vec());
        at = TreeId(item.key.offset);
        let tree = trees.described(at, &trees.root_item(at).ok()??);
        let mut dir = entry.dirid;
        while dir != Ino::ROOT_DIR {
            let (parent, name) = name_of(&tree, dir)?;
            names.push(name);
            dir = parent;
            if names.len() > MAX_NAMES {
                return None;
            }
        }
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    names.reverse();
    Some([b"/", names.join(&b'/').as_slice()].concat())
}

/// Returns the parent of a directory, and its name there.
fn name_of(tree: &Snapshot, dir: Ino) -> Option<(Ino, Vec<u8>)> {
    let range = Key::new(dir.0, ItemType::INODE_REF, 0)..=Key::new(dir.0, ItemType::INODE_REF, u64::MAX);
    let item = tree.range(range).next()?.ok()?;
    let name = inode_refs(&item).next()?.ok()?.name.to_vec();
    Some((Ino(item.key.offset), name))
}

fn as_text(info: &Info) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<18} {value}");
    };
    let or_none = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    let label = show::bytes(&info.label.0);
    line("label", if label.is_empty() { "none" } else { &label });
    line("uuid", &info.uuid);
    if let Some(uuid) = &info.metadata_uuid {
        line("metadata uuid", uuid);
    }
    line("generation", &info.generation.to_string());
    line("size", &format!("{} ({} bytes)", show_size(info.total_bytes), info.total_bytes));
    line("used", &format!("{} ({} bytes)", show_size(info.used_bytes), info.used_bytes));
    line("node size", &info.node_size.to_string());
    line("sector size", &info.sector_size.to_string());
    line("checksum", info.checksum);
    line("incompat", &or_none(&info.incompat_features));
    line("compat_ro", &or_none(&info.compat_ro_features));
    line("flags", &or_none(&info.flags));
    line("log", if info.has_log { "yes" } else { "no" });
    for device in &info.devices {
        line(
            &format!("device {}", device.id),
            &format!(
                "{}, {} of it in chunks, uuid {}{}",
                show_size(device.total_bytes),
                show_size(device.allocated_bytes),
                device.uuid,
                if device.lags { "; it lacks something that the others have" } else { "" }
            ),
        );
    }
    for id in &info.missing_devices {
        line(&format!("device {id}"), "missing");
    }
    if info.other_missing_devices > 0 {
        line("other devices", &format!("{} missing", info.other_missing_devices));
    }
    for group in &info.block_groups {
        line(
            &format!("{} {}", group.kind, group.profile),
            &format!(
                "{} used of {} in {} block groups{}",
                show_size(group.used_bytes),
                show_size(group.total_bytes),
                group.count,
                match group.incomplete {
                    0 => String::new(),
                    incomplete => format!(", {incomplete} of which can't be read without the missing devices"),
                }
            ),
        );
    }
    for subvolume in &info.subvolumes {
        let mut value = subvolume.path.as_ref().map_or_else(|| "path unknown".into(), |path| show::bytes(&path.0));
        let _ = write!(value, ", generation {}", subvolume.generation);
        for (holds, what) in [
            (subvolume.read_only, "read-only"),
            (subvolume.dead, "being deleted"),
            (Some(subvolume.id) == info.default_subvolume, "default"),
        ] {
            if holds {
                let _ = write!(value, ", {what}");
            }
        }
        line(&format!("subvolume {}", subvolume.id), &value);
    }
    text
}
