//! Opening a damaged volume for reading, by any superblock or older root that is left.

use std::sync::Arc;

use ubtrfs_format::{BackupRoot, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, Uuid};

use crate::buffer::{Buffer, SharedBuffer};
use crate::device::{Device, DeviceWrite};
use crate::error::{Error, Result};
use crate::open::OpenOptions;
use crate::replacing::TARGET;
use crate::superblock_copy::{CopyError, Found, read_copy};
use crate::volume::Volume;

/// A state of a volume that something in a superblock references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// A superblock that references it.
    pub superblock: Superblock,
    /// The address, on its device, of this superblock or of the one that it was made from.
    pub copy: Physical,
    /// What references it.
    pub origin: Origin,
}

/// What references a state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A superblock, whose own state it is.
    Superblock,
    /// A backup root in a superblock.
    Backup,
    /// Nothing any more: its root was found in a block group of metadata.
    Scan,
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { superblock, copy, origin } = self;
        let (generation, root) = (superblock.generation, superblock.root);
        match origin {
            Origin::Superblock => write!(f, "commit {generation}, by the superblock at {copy}"),
            Origin::Backup => write!(f, "commit {generation}, by the backup root in the superblock at {copy}"),
            Origin::Scan => write!(f, "commit {generation}, by its root at {root}"),
        }
    }
}

impl Volume {
    /// Returns the superblock of a device: the primary, or if that is bad the newest good copy.
    pub fn superblock_of(device: &dyn Device) -> Option<Superblock> {
        best_copy(device, None).map(|found| found.superblock)
    }

    /// Returns whether a device has a primary superblock that can be read and is right.
    pub fn has_primary_superblock(device: &dyn Device) -> bool {
        read_copy(device, SUPERBLOCK_COPIES[0]).is_ok()
    }

    /// Returns whether a device has no remains of a superblock. One that is damaged or can't be
    /// read counts as remains.
    pub fn is_without_superblock(device: &dyn Device) -> bool {
        SUPERBLOCK_COPIES.iter().all(|at| matches!(read_copy(device, *at), Err(CopyError::Missing)))
    }

    /// Returns the superblocks of devices that are one volume, in their order, each as
    /// [`superblock_of`](Self::superblock_of) finds it. If a primary is bad, only copies count that
    /// are of the same volume as the good primaries of the others.
    pub fn superblocks_of(devices: &[Arc<dyn Device>]) -> Vec<Option<Superblock>> {
        let fsid = fsid_of(devices);
        devices.iter().map(|device| best_copy(&**device, fsid).map(|found| found.superblock)).collect()
    }

    /// Writes a copy of a device's superblock over its primary, and flushes.
    pub fn restore_primary(device: &dyn Device, copy: &Superblock) -> Result<()> {
        let [at, ..] = SUPERBLOCK_COPIES;
        let devid = copy.dev_item.devid;
        let primary = Superblock { bytenr: at, ..copy.clone() };
        let bytes = primary.to_bytes().map_err(Error::Encode)?;
        let write = DeviceWrite { at, data: SharedBuffer::from(Buffer::from(&bytes[..])) };
        device.submit(vec![write]).wait().map_err(|error| Error::writing(devid, error, None))?;
        device.flush().map_err(|source| Error::Flush { devid, source })
    }

    /// Returns all states that the superblocks on these devices reference, each once, best first:
    /// the superblocks' own states, then their backup roots, whose space may have been reused
    /// since.
    pub fn candidates(devices: &[Arc<dyn Device>]) -> Vec<Candidate> {
        let fsid = fsid_of(devices);
        let found = devices.iter().flat_map(|device| good_copies(&**device, fsid));
        let said = found.map(|Found { superblock, .. }| Candidate {
            copy: superblock.bytenr,
            superblock,
            origin: Origin::Superblock,
        });
        let mut said: Vec<_> = said.collect();
        said.sort_by_key(|candidate| candidate.copy);
        let mut remembered: Vec<Candidate> = said.iter().flat_map(backups).collect();
        // The sort is stable: for the same commit the primary superblock comes first.
        said.sort_by_key(|candidate| std::cmp::Reverse(candidate.superblock.generation));
        remembered.sort_by_key(|candidate| std::cmp::Reverse(candidate.superblock.generation));
        let mut candidates: Vec<Candidate> = Vec::new();
        for candidate in said.into_iter().chain(remembered) {
            let roots = |one: &Candidate| (one.superblock.generation, one.superblock.root, one.superblock.chunk_root);
            if candidates.iter().all(|other| roots(other) != roots(&candidate)) {
                candidates.push(candidate);
            }
        }
        candidates
    }

    /// Opens the volume on these devices in the state of a [candidate](Self::candidates), for
    /// reading only. All devices must be given, and each must have some superblock that is good.
    pub fn open_candidate(devices: Vec<Arc<dyn Device>>, candidate: &Candidate) -> Result<Self> {
        let mut found: Vec<(Arc<dyn Device>, Found)> = Vec::with_capacity(devices.len());
        for device in devices {
            let copies = good_copies(&*device, Some(candidate.superblock.fsid)).into_iter();
            let best = copies.max_by_key(|found| found.superblock.generation).ok_or(Error::NotBtrfs)?;
            found.push((device, best));
        }
        found.retain(|(_, found)| found.superblock.dev_item.devid != TARGET);
        found.sort_by_key(|(_, found)| found.superblock.dev_item.devid);
        Self::open_by(found, candidate.superblock.clone(), OpenOptions { read_only: true }, false)
    }

    /// Opens the volume on these devices in the state of a [candidate](Self::candidates), for
    /// reading only, as far as devices and blocks are there: devices may be missing or lack a good
    /// superblock, and parts of the chunk tree may be unreadable. In that case the chunks of its
    /// other leaves are used, also of old ones, and the error of the chunk tree is returned, too.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open_candidate`], if not even that is possible.
    pub fn open_what_is_left(devices: &[Arc<dyn Device>], candidate: &Candidate) -> Result<(Self, Option<Error>)> {
        let fsid = candidate.superblock.fsid;
        let found = || {
            let best = |device: &Arc<dyn Device>| {
                let copies = good_copies(&**device, Some(fsid)).into_iter();
                let best = copies.max_by_key(|found| found.superblock.generation);
                best.map(|best| (Arc::clone(device), best))
            };
            let mut found: Vec<(Arc<dyn Device>, Found)> = devices.iter().filter_map(best).collect();
            found.retain(|(_, found)| found.superblock.dev_item.devid != TARGET);
            // Of devices with the same number the newest has replaced the others.
            let newest_first = |(_, found): &(Arc<dyn Device>, Found)| {
                (found.superblock.dev_item.devid, std::cmp::Reverse(found.superblock.generation))
            };
            found.sort_by_key(newest_first);
            found.dedup_by(|(_, older), (_, newer)| {
                let is_older = older.superblock.generation < newer.superblock.generation;
                older.superblock.dev_item.devid == newer.superblock.dev_item.devid && is_older
            });
            found
        };
        Self::open_by_what_is_left(found, &candidate.superblock)
    }
}

/// Returns the id of the volume on these devices, if a primary superblock is good. Copies with
/// another id are left over from an older volume.
fn fsid_of(devices: &[Arc<dyn Device>]) -> Option<Uuid> {
    devices.iter().find_map(|device| read_copy(&**device, SUPERBLOCK_COPIES[0]).ok()).map(|found| found.superblock.fsid)
}

/// Returns the good superblocks of a device, in their order. Leaves out those that an older volume
/// has left where the newer one has none: copies with another id than the primary's (or than `fsid`
/// if the primary is bad), and copies behind the end of the volume.
fn good_copies(device: &dyn Device, fsid: Option<Uuid>) -> Vec<Found> {
    let mut good: Vec<_> = SUPERBLOCK_COPIES.iter().filter_map(|at| read_copy(device, *at).ok()).collect();
    let primary = good.first().filter(|first| first.superblock.bytenr == SUPERBLOCK_COPIES[0]);
    let fsid = primary.map(|primary| primary.superblock.fsid).or(fsid);
    let end = primary.map_or(u64::MAX, |primary| primary.superblock.dev_item.total_bytes);
    let is_within = |superblock: &Superblock| {
        let copy_end = superblock.bytenr.0 + SUPERBLOCK_SIZE as u64;
        superblock.bytenr == SUPERBLOCK_COPIES[0] || copy_end < end.min(superblock.dev_item.total_bytes)
    };
    good.retain(|Found { superblock, .. }| fsid.is_none_or(|fsid| superblock.fsid == fsid) && is_within(superblock));
    good
}

/// Returns the superblock of a device that counts: the primary, or else the newest copy.
fn best_copy(device: &dyn Device, fsid: Option<Uuid>) -> Option<Found> {
    let mut good = good_copies(device, fsid).into_iter();
    let first = good.next()?;
    if first.superblock.bytenr == SUPERBLOCK_COPIES[0] {
        return Some(first);
    }
    good.chain([first]).max_by_key(|found| found.superblock.generation)
}

/// Returns the older commits that a superblock has backup roots of.
fn backups(of: &Candidate) -> Vec<Candidate> {
    let newest = of.superblock.generation;
    let usable = |backup: &&BackupRoot| {
        let [(root, generation, _), (chunk_root, _, _), ..] = backup.trees;
        root != Logical(0) && chunk_root != Logical(0) && generation <= newest
    };
    let with = |backup: &BackupRoot| {
        let [(root, generation, root_level), (chunk_root, chunk_root_generation, chunk_root_level), ..] = backup.trees;
        let superblock = Superblock {
            generation,
            root,
            root_level,
            chunk_root,
            chunk_root_generation,
            chunk_root_level,
            log_root: Logical(0),
            log_root_level: 0,
            log_root_transid: 0,
            bytes_used: backup.bytes_used,
            ..of.superblock.clone()
        };
        Candidate { superblock, copy: of.copy, origin: Origin::Backup }
    };
    of.superblock.backup_roots.iter().filter(usable).map(with).collect()
}
