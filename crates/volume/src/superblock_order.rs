//! The order of superblocks: which of several devices' superblocks counts, how many the others have
//! missed, and whether they have missed them at all or have a history of their own (invariant 34).
//!
//! A superblock is written for each commit, and for each log that follows it. All logs of a commit
//! have its generation, and so have all their nodes, and later logs overwrite nodes of earlier
//! ones. So a device that has an older log than the others lags just as one with an older commit
//! does.

use std::collections::HashSet;

use ubtrfs_format::{Generation, Superblock};

use crate::faults::{self, SuperblockFault};

/// How the history of an older superblock relates to that of a newer one on another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descent {
    /// It is a part of the newer one's history.
    Proven,
    /// Nothing shows that it is not a part of it. Kernels note nothing when they write a volume
    /// without some of its devices.
    Plausible,
    /// It has what the newer one lacks: the devices were written without each other.
    Apart,
}

/// Returns whether the history of `newest` includes `own`, which is not newer.
pub(crate) fn descent(newest: &Superblock, own: &Superblock) -> Descent {
    if is_of_one_commit(newest, own) && newest.epochs.last() == own.epochs.last() {
        return Descent::Proven;
    }
    let (generation, _, log) = own.moment();
    match newest.epochs.after(own.epochs.last()) {
        Err(_) => Descent::Apart,
        // Everything that ubtrfs writes without a device is of another epoch. So this superblock is
        // what a crash has left on this device alone while superblocks were written, and it was not
        // acknowledged.
        Ok(Some(next)) if (generation, log) > next.before && own.is_of_ubtrfs() => Descent::Plausible,
        Ok(Some(next)) if (generation, log) > next.before => Descent::Apart,
        Ok(Some(next)) if next.fingerprint == own.fingerprint() => Descent::Proven,
        Ok(_) if is_of_one_commit(newest, own) => Descent::Proven,
        Ok(_) if generation >= newest.generation => Descent::Apart,
        // Kernels do not number logs.
        Ok(Some(next)) if (generation, log) == next.before && own.log_root.0 == 0 => Descent::Apart,
        Ok(_) => Descent::Plausible,
    }
}

/// Returns whether two superblocks are the same except for what each device has of its own.
pub(crate) fn is_same(one: &Superblock, other: &Superblock) -> bool {
    Superblock { bytenr: other.bytenr, dev_item: other.dev_item, ..one.clone() } == *other
}

/// Returns the commit whose tree blocks on a device are believed though the device has missed the
/// commit's superblock, and only that. That is so if a crash came before that superblock and after
/// all that it refers to, or if the device lost power before the others did. Its blocks of that
/// generation are of that commit nevertheless. Blocks of a log are not believed, since a later log
/// may have overwritten them.
pub(crate) fn has_blocks_of(newest: &Superblock, own: &Superblock) -> Option<Generation> {
    if !own.is_of_ubtrfs() {
        return None;
    }
    // Everything that was written without the device is of another epoch.
    let (last, log) = match newest.epochs.after(own.epochs.last()).ok()? {
        Some(next) => (next.before.0, next.before.1 > 0),
        None if newest.is_of_ubtrfs() => (newest.generation, newest.log_root.0 != 0),
        None => return None,
    };
    // A difference of 2 is allowed, since a generation may have been skipped.
    (!log && last > own.generation && last.0 - own.generation.0 <= 2).then_some(last)
}

/// Returns how many superblocks came after `own`, up to `newest`: those of commits, and those of
/// the logs after the last commit. It is at least one if the two differ and nothing shows their
/// order.
pub(crate) fn missed(newest: &Superblock, own: &Superblock) -> u64 {
    let logs = |of: &Superblock| if of.log_root.0 == 0 { 0 } else { of.log_number().map_or(1, u64::from) };
    let is_taken_for_same = faults::has(SuperblockFault::ForgetLogs) && own.generation == newest.generation;
    if own.moment() > newest.moment() || is_same(own, newest) || is_taken_for_same {
        return 0;
    }
    match commits_since(newest, own.generation) {
        0 => logs(newest).saturating_sub(logs(own)).max(1),
        commits => commits.saturating_add(logs(newest)),
    }
}

/// Returns whether the newest superblock says that this one's device was left out since. Then it
/// was not a crash by which the device missed later superblocks.
pub(crate) fn was_left_out(newest: &Superblock, own: &Superblock) -> bool {
    let last = own.epochs.last().map(|epoch| epoch.id);
    let place = newest.epochs.iter().position(|epoch| Some(epoch.id) == last);
    let later = if last.is_some() { place.map(|place| place + 1) } else { Some(0) };
    later.is_some_and(|later| newest.epochs.iter().skip(later).any(|epoch| epoch.without.has(own.dev_item.devid)))
}

/// Returns how many commits came after one of this generation. Since numbers may be skipped, it
/// counts the commits that the superblock has backup roots of, if these go far enough back.
fn commits_since(newest: &Superblock, own: Generation) -> u64 {
    let by_number = newest.generation.0.saturating_sub(own.0);
    let remembered = newest.backup_roots.iter().map(|backup| backup.trees[0].1).filter(|commit| commit.0 > 0);
    if !remembered.clone().any(|commit| commit <= own) {
        return by_number;
    }
    let later: HashSet<Generation> = remembered.filter(|commit| *commit > own && *commit < newest.generation).collect();
    by_number.min(later.len() as u64 + 1)
}

/// Returns whether two superblocks are of one commit and differ at most in its logs: they have the
/// same generation and refer to the same trees. The earlier commits that a superblock lists do not
/// show whether another superblock is of one of them, since devices that were written apart often
/// have their roots at the same addresses.
pub(crate) fn is_of_one_commit(one: &Superblock, other: &Superblock) -> bool {
    let state = |it: &Superblock| {
        let chunks = (it.chunk_root, it.chunk_root_level, it.chunk_root_generation);
        (it.generation, it.root, it.root_level, chunks, it.bytes_used, it.num_devices)
    };
    state(one) == state(other)
}
