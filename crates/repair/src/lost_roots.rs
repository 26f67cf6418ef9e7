//! Trees whose root items are lost. The extent tree says which blocks a tree has, and so which of
//! them is its root; what a root item says besides follows from the UUID tree and from the entries
//! of subvolumes, or is given up.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::{ExtentFlags, ExtentItem, FileType, InlineRef, InodeFlags, InodeItem, RootItem};
use ubtrfs_format::{Generation, Ino, ItemType, Key, Logical, TreeId, Uuid};
use ubtrfs_tree::NodeRef;

use crate::change::{Change, Level};
use crate::session::Session;

/// A block that may be the root of a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    level: u8,
    generation: Generation,
    bytenr: Logical,
}

/// Finds the roots of trees that have no root item, and adds these to the session. Returns what
/// that means.
pub fn find(session: &mut Session) -> Vec<Change> {
    let mut changes = Vec::new();
    for (tree, candidate) in candidates(session) {
        let uuid = uuid_of(session, tree);
        let item = root_item(session, candidate, uuid);
        session.roots.insert(Key::new(tree.0, ItemType::ROOT_ITEM, 0), item);
        session.found.insert(tree);
        changes.push(found(tree));
    }
    changes
}

fn found(tree: TreeId) -> Change {
    let (level, what) = if tree.is_subvolume() && tree != TreeId::FS {
        let what = "its root item is lost, and is rebuilt by the extent tree: whether it was read-only, its times, \
                    and of what it is a snapshot is not known any more";
        (Level::Names, what)
    } else {
        (Level::Space, "its root item is lost, and is rebuilt by the extent tree")
    };
    Change { level, tree: Some(tree), inode: None, path: None, what: what.into() }
}

/// Returns the roots of the trees without root items that extent items name.
fn candidates(session: &Session) -> BTreeMap<TreeId, Candidate> {
    let mut candidates: BTreeMap<TreeId, BTreeSet<Candidate>> = BTreeMap::new();
    let Some(root) = session.root_of(TreeId::EXTENT) else { return BTreeMap::new() };
    for item in session.tree(root, true).range(Key::MIN..=Key::MAX) {
        let Ok(item) = item else { break };
        if !matches!(item.key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let Ok(extent) = ExtentItem::parse(&item.key, &item) else { continue };
        if extent.flags & ExtentFlags::TREE_BLOCK == 0 {
            continue;
        }
        let candidate = Candidate {
            level: extent.level(&item.key),
            generation: extent.generation,
            bytenr: Logical(item.key.objectid),
        };
        for reference in &extent.inline_refs {
            if let InlineRef::TreeBlock { root } = reference
                && is_wanted(session, *root)
            {
                let all = candidates.entry(*root).or_default();
                all.insert(candidate);
                // The root is the block of the highest level.
                if all.len() > MAX_CANDIDATES {
                    all.pop_first();
                }
            }
        }
    }
    let usable = candidates.into_iter().filter_map(|(tree, all)| {
        let root = all.into_iter().rev().find(|candidate| is_root_of(session, tree, *candidate))?;
        Some((tree, root))
    });
    usable.collect()
}

/// How many blocks of a tree are looked at.
const MAX_CANDIDATES: usize = 16;

/// Whether a tree should have a root item, and has none.
fn is_wanted(session: &Session, tree: TreeId) -> bool {
    let is_listed =
        tree.is_subvolume() || [TreeId::CSUM, TreeId::DATA_RELOC, TreeId::QUOTA, TreeId::UUID].contains(&tree);
    is_listed && session.root_item(tree).is_none()
}

fn is_root_of(session: &Session, tree: TreeId, candidate: Candidate) -> bool {
    let at = NodeRef {
        tree,
        bytenr: candidate.bytenr,
        generation: candidate.generation,
        level: candidate.level,
        first_key: None,
        upper: None,
    };
    session.cache.get(&at).is_ok_and(|block| block.header().is_ok_and(|header| header.owner == tree))
}

/// Returns the id of a subvolume by the UUID tree.
fn uuid_of(session: &Session, tree: TreeId) -> Uuid {
    let Some(root) = session.root_of(TreeId::UUID).filter(|_| tree.is_subvolume()) else { return Uuid::NIL };
    let mut items = session.tree(root, true).range(Key::MIN..=Key::MAX).filter_map(Result::ok);
    let has = |bytes: &[u8]| bytes.chunks_exact(8).any(|id| id == tree.0.to_le_bytes());
    let item = items.find(|item| item.key.item_type == ItemType::UUID_KEY_SUBVOL && has(item));
    item.map_or(Uuid::NIL, |item| {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&item.key.objectid.to_le_bytes());
        uuid[8..].copy_from_slice(&item.key.offset.to_le_bytes());
        Uuid(uuid)
    })
}

fn root_item(session: &Session, root: Candidate, uuid: Uuid) -> RootItem {
    let node_size = u64::from(session.geometry.node_size);
    RootItem {
        inode: InodeItem {
            generation: Generation(1),
            size: 3,
            nlink: 1,
            nbytes: node_size,
            mode: FileType::Directory.type_bits() | 0o755,
            flags: InodeFlags::ROOT_ITEM_INIT,
            ..InodeItem::default()
        },
        generation: root.generation,
        root_dirid: Ino::ROOT_DIR,
        bytenr: root.bytenr,
        bytes_used: node_size,
        refs: 1,
        level: root.level,
        generation_v2: root.generation,
        uuid,
        ..RootItem::default()
    }
}
