//! The superblock of a commit. Its totals are those that this commit has recorded (invariant 9).

use ubtrfs_format::items::{BlockGroupFlags, encode_sys_chunk};
use ubtrfs_format::{BackupRoot, CompatRo, Generation, Incompat, ItemType, Key, Logical, Superblock, TreeId, objectid};
use ubtrfs_tree::Root;

use super::chunks::ChunkChanges;
use super::owner::Committer;
use super::roots::NewRoots;
use crate::committed::Committed;
use ubtrfs_space::NewChunk;

/// Returns the superblock that makes a commit the volume's state.
pub(super) fn next(
    committer: &Committer,
    committed: &Committed,
    generation: Generation,
    root_tree: &Root,
    chunk_tree: &Root,
    roots: &NewRoots,
    chunks: &ChunkChanges,
) -> Superblock {
    let mut next = committed.superblock.clone();
    next.generation = generation;
    next.root = root_tree.bytenr;
    next.root_level = root_tree.level;
    next.chunk_root = chunk_tree.bytenr;
    next.chunk_root_level = chunk_tree.level;
    next.chunk_root_generation = chunk_tree.generation;
    next.drop_log();
    if next.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        next.compat_ro = next.compat_ro.with(CompatRo::FREE_SPACE_TREE_VALID);
    }
    // A v1 cache keeps its old generation, by which every reader detects that it is stale.
    if committed.superblock.uuid_tree_generation == committed.generation {
        next.uuid_tree_generation = generation;
    }
    if roots.has_default_subvolume {
        next.incompat = next.incompat.with(Incompat::DEFAULT_SUBVOL);
    }
    committer.info.features.enter_into(&mut next);
    if let Some(label) = committer.requests.label() {
        next.label = label;
    }
    next.num_devices =
        chunks.devices_changed.number_after(committer.info.volume.superblocks().devices_by(&committed.superblock));
    next.total_bytes = chunks.devices_changed.bytes_after(next.total_bytes);
    next.total_bytes = next.total_bytes.saturating_sub(committer.info.space.lock().devices_mut().take_cut());
    next.bytes_used = committer.info.space.lock().bytes_used();
    drop_removed_system_chunks(committer, &mut next, &chunks.new);
    for NewChunk { start, chunk } in &chunks.new {
        if chunk.flags.contains(BlockGroupFlags::SYSTEM) {
            let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
            encode_sys_chunk(&mut next.sys_chunk_array, key, chunk);
        }
    }
    if let Some(kept) = committer.info.space.newest_kept() {
        // No device has the superblocks of the commits since then, and what these commits refer to
        // is not kept. So a comparison of superblocks must not count them (invariant 34).
        for backup in next.backup_roots.iter_mut().filter(|backup| backup.trees[0].1 > kept) {
            *backup = BackupRoot::default();
        }
    }
    let newest =
        next.backup_roots.iter().enumerate().max_by_key(|(_, backup)| backup.trees[0].1).map_or(0, |(slot, _)| slot);
    let backup = |root: Option<Root>| {
        root.map_or((Logical(0), Generation(0), 0), |root| (root.bytenr, root.generation, root.level))
    };
    let slot = (newest + 1) % next.backup_roots.len();
    next.backup_roots[slot] = BackupRoot {
        trees: [
            backup(Some(*root_tree)),
            backup(Some(*chunk_tree)),
            backup(roots.root(TreeId::EXTENT)),
            backup(roots.root(TreeId::FS)),
            backup(roots.root(TreeId::DEV)),
            backup(roots.root(TreeId::CSUM)),
        ],
        total_bytes: next.total_bytes,
        bytes_used: next.bytes_used,
        num_devices: next.num_devices,
    };
    next
}

/// Removes the system chunks that the commit removes from the superblock's own list.
fn drop_removed_system_chunks(committer: &Committer, next: &mut Superblock, new_chunks: &[NewChunk]) {
    let leaving = committer.info.space.lock().leaving_system_chunks();
    if leaving.is_empty() {
        return;
    }
    // The new chunks of this commit are added afterwards; those made since belong to the next
    // commit.
    let later: Vec<Logical> = committer.info.space.lock().new_chunks().collect();
    let is_new = |start| later.contains(&start) || new_chunks.iter().any(|new| new.start == start);
    next.sys_chunk_array.clear();
    for (start, chunk) in committer.info.volume.chunk_map().all() {
        let stays = !leaving.contains(&start) && !is_new(start);
        if chunk.flags.contains(BlockGroupFlags::SYSTEM) && stays {
            let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
            encode_sys_chunk(&mut next.sys_chunk_array, key, &chunk);
        }
    }
}
