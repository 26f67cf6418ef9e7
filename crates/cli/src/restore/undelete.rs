//! `ubtrfs restore --undelete`: copies files of older commits that were removed or changed since.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::InodeId;
use ubtrfs_errors::sentence;
use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_tree::{Damage, Snapshot};
use ubtrfs_volume::{Candidate, Device};

use super::report::Report;
use super::source::Source;
use super::walk::Walk;
use crate::args;
use crate::commits;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::host::target::Target;
use crate::output::{note, say};
use crate::trees::Trees;

/// The most files that are copied of one commit; among more, nobody would find a single file.
const MAX_FILES: usize = 1 << 20;

/// Copies files that a newer commit doesn't have in the same version as an older one, into a
/// directory for each commit. If the user has not selected a commit, each one is compared with the
/// next newer one, so that every version is copied once.
pub fn run(
    arguments: &args::Restore,
    paths: &[PathBuf],
    devices: &[Arc<dyn Device>],
    sources: &Sources,
    directory: Option<&Path>,
) -> Result<()> {
    let target = directory.map(|directory| Target::prepare(directory, arguments.go_on)).transpose()?;
    let mut states: Vec<Candidate> = commits::all(devices).into_iter().map(|commit| commit.candidate).collect();
    states.dedup_by_key(|state| state.superblock.generation);
    let shown = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
    if let Some(commit) = arguments.commit {
        let newest = states.first().map(|state| state.superblock.generation);
        states.retain(|state| Some(state.superblock.generation) == newest || state.superblock.generation.0 == commit);
        if states.iter().all(|state| state.superblock.generation.0 != commit) {
            return Err(super::source::no_commit(&shown, commit));
        }
    }
    let mut newer: Option<Source> = None;
    let (mut count, mut is_entire) = (0, true);
    for state in &states {
        let older = match Source::open_candidate(devices, state, arguments) {
            Ok(older) => older,
            Err(error) => {
                note!("ubtrfs: {state}: {error}");
                is_entire = false;
                continue;
            }
        };
        if let Some(newer) = &newer
            && let Some(mut report) = copy_changed(arguments, &older, newer, sources, target.as_ref())?
        {
            count += 1;
            let name = directory_of(state.superblock.generation);
            report.write(directory.map(|directory| directory.join(&name)).as_deref());
            say(&format!("commit {}: {}", state.superblock.generation, report.summary()));
            report.report_problems();
            is_entire &= report.is_entire();
        }
        newer = Some(older);
    }
    if newer.is_none() {
        return Err(Failure::new(format!("{shown}: no state of the volume can be opened")));
    }
    if count == 0 {
        say("no commit that can be read has a file that was removed or changed since\n");
    }
    if is_entire { Ok(()) } else { Err(Failure::Said(1)) }
}

/// Returns the name of the directory for the files of a commit.
fn directory_of(generation: Generation) -> String {
    format!("generation-{generation}")
}

/// Copies the files that a commit has, and a newer one doesn't have in the same version. Returns
/// `None` if there are none.
fn copy_changed(
    arguments: &args::Restore,
    older: &Source,
    newer: &Source,
    sources: &Sources,
    target: Option<&Target>,
) -> Result<Option<Report>> {
    let subvolume = older.fs.root().subvolume;
    let (changed, problem) = changed(older, newer, subvolume);
    if changed.is_empty() && problem.is_none() {
        return Ok(None);
    }
    let mut walk = Walk::new(older, arguments, sources, None)?;
    let mut wanted = Vec::new();
    for ino in changed {
        if let Some(home) = walk.home_of(subvolume, ino)? {
            wanted.push((InodeId::new(subvolume, ino), home));
        }
    }
    if wanted.is_empty() && problem.is_none() {
        return Ok(None);
    }
    let generation = older.volume.superblocks().current().generation;
    // The directory is made in the one that was found empty, and symbolic links that somebody has
    // put there since are not followed.
    let name = directory_of(generation);
    let place = target.map(|target| target.make_target(name.as_bytes(), arguments.go_on)).transpose();
    let place = place.map_err(|error| Failure::about(&name, &error))?;
    let mut walk = Walk::new(older, arguments, sources, place)?;
    if let Some(problem) = problem {
        walk.record.general(&problem);
    }
    for (id, home) in &wanted {
        walk.place_at(*id, home)?;
    }
    Ok(Some(walk.finish()))
}

/// Returns the inodes of files that the newer state doesn't have, or has in another version; and
/// the reason why there may be more of them.
fn changed(older: &Source, newer: &Source, subvolume: TreeId) -> (Vec<Ino>, Option<String>) {
    let damage = Arc::new(Damage::default());
    let old_trees = Trees::passing_over(&older.volume, Arc::clone(&damage));
    // Where the newer state can't be read, files count as removed that are not.
    let new_trees = Trees::passing_over(&newer.volume, Arc::default());
    let tree = |trees: &Trees| -> Option<Snapshot> {
        let item = trees.root_item(subvolume).ok()??;
        (item.refs > 0).then(|| trees.described(subvolume, &item))
    };
    let Some(old) = tree(&old_trees) else { return (Vec::new(), None) };
    let all = Key::MIN..=Key::MAX;
    let mut files = Vec::new();
    let mut problem = None;
    let mut consider = |key: Key, old: &[u8], new: Option<&[u8]>| {
        if key.item_type == ItemType::INODE_ITEM && is_lost(old, new) && files.len() < MAX_FILES {
            files.push(Ino(key.objectid));
        }
    };
    match tree(&new_trees) {
        Some(new) => {
            for difference in old.differences(&new, &all) {
                match difference {
                    Ok(difference) => {
                        if let Some(old) = &difference.old {
                            consider(difference.key, old, difference.new.as_deref());
                        }
                    }
                    Err(error) => problem = Some(sentence(&error)),
                }
            }
        }
        None => {
            for item in old.range(all) {
                match item {
                    Ok(item) => consider(item.key, &item, None),
                    Err(error) => problem = Some(sentence(&error)),
                }
            }
        }
    }
    let unread = damage.sentences().into_iter().next();
    (files, problem.or(unread))
}

/// Whether a file that existed was removed, or has changed.
fn is_lost(old: &[u8], new: Option<&[u8]>) -> bool {
    let Ok(old) = InodeItem::parse(old) else { return false };
    if old.nlink == 0 || FileType::from_mode(old.mode) == FileType::Directory {
        return false;
    }
    let Some(Ok(new)) = new.map(InodeItem::parse) else { return true };
    new.nlink == 0 || new.generation != old.generation || new.size != old.size || new.mtime != old.mtime
}
