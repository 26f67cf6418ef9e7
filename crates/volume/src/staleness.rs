//! The order of superblocks: which of several devices' counts, and how many the others have missed
//! (invariant 34).
//!
//! A superblock is written for each commit, and for each log that follows it. All logs of a commit
//! have its generation, and so have all their nodes, of which later logs write over those of
//! earlier ones. So a device that has an older log than others lags as one of an older commit does.

use std::collections::HashSet;

use ubtrfs_format::{DeviceId, Generation, Superblock};

use crate::open::FoundDevice;

/// The place of a superblock in the order in which they are written. Of two logs without numbers
/// nothing tells which one is the newer.
fn moment(of: &Superblock) -> (Generation, bool, u32) {
    (of.generation, of.log_root.0 != 0, of.log_number().unwrap_or(0))
}

/// Whether two superblocks are one, but for what is each device's own.
pub(crate) fn is_same(one: &Superblock, other: &Superblock) -> bool {
    Superblock { bytenr: other.bytenr, dev_item: other.dev_item, ..one.clone() } == *other
}

/// The newest superblock of some devices. A seed beside another volume's device is a part of that
/// volume.
pub(crate) fn newest_of<'a>(found: impl Iterator<Item = &'a FoundDevice>) -> Option<Superblock> {
    let newest = found.max_by_key(|(_, found)| (!found.is_seed(), moment(&found.superblock)));
    newest.map(|(_, found)| found.superblock.clone())
}

/// How many superblocks came after `own`, up to `newest`: those of commits, and those of the logs
/// after the last commit. One is certain where the two differ and nothing tells their order.
pub(crate) fn missed(newest: &Superblock, own: &Superblock) -> u64 {
    let logs = |of: &Superblock| if of.log_root.0 == 0 { 0 } else { of.log_number().map_or(1, u64::from) };
    if moment(own) > moment(newest) || is_same(own, newest) {
        return 0;
    }
    match commits_since(newest, own.generation) {
        0 => logs(newest).saturating_sub(logs(own)).max(1),
        commits => commits.saturating_add(logs(newest)),
    }
}

/// How many superblocks each device has missed up to this one; a seed misses none.
pub(crate) fn behind(found: &[FoundDevice], newest: &Superblock) -> Vec<(DeviceId, u64)> {
    let of = |(_, found): &FoundDevice| (found.superblock.dev_item.devid, missed(newest, &found.superblock));
    found.iter().filter(|(_, found)| !found.may_be_seed_of(newest.fsid)).map(of).collect()
}

/// How many commits came after one of this generation. Numbers may be left out: those commits count
/// that the superblock remembers, if it goes that far back.
fn commits_since(newest: &Superblock, own: Generation) -> u64 {
    let by_number = newest.generation.0.saturating_sub(own.0);
    let remembered = newest.backup_roots.iter().map(|backup| backup.trees[0].1).filter(|commit| commit.0 > 0);
    if !remembered.clone().any(|commit| commit <= own) {
        return by_number;
    }
    let later: HashSet<Generation> = remembered.filter(|commit| *commit > own && *commit < newest.generation).collect();
    by_number.min(later.len() as u64 + 1)
}

/// The devices of which the newest commit is another one than that of this superblock: both have
/// one number, and refer to different trees. Logs are of the commit before them.
pub(crate) fn apart_from(found: &[FoundDevice], newest: &Superblock) -> Vec<DeviceId> {
    let state = |it: &Superblock| {
        let chunks = (it.chunk_root, it.chunk_root_level, it.chunk_root_generation);
        (it.root, it.root_level, chunks, it.bytes_used, it.num_devices)
    };
    let own = found.iter().map(|(_, found)| &found.superblock).filter(|own| own.fsid == newest.fsid);
    let apart = own.filter(|own| own.generation == newest.generation && state(own) != state(newest));
    apart.map(|own| own.dev_item.devid).collect()
}

/// Whether two superblocks are of one commit, and its logs alone may differ. What a superblock
/// remembers of earlier commits does not tell whether another one is of one of these: devices that
/// were written apart have their roots at the same addresses as often as not.
pub(crate) fn is_of_one_commit(one: &Superblock, other: &Superblock) -> bool {
    let roots = |of: &Superblock| {
        [(of.root, of.generation, of.root_level), (of.chunk_root, of.chunk_root_generation, of.chunk_root_level)]
    };
    roots(one) == roots(other)
}
