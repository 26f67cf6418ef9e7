//! Entries of subvolumes and the UUID tree: the root tree and directories agree.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_check::{Fault, FaultKind};
use ubtrfs_format::items::{RootRef, uuid_key};
use ubtrfs_format::{Ino, ItemType, Key, TreeId, Uuid};
use ubtrfs_tree::EditBatch;

use crate::change::{Change, Level};
use crate::error::Result;
use crate::session::{Session, is_deleted};

/// The entry of a subvolume, as the root tree has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub parent: TreeId,
    pub child: TreeId,
    pub directory: Ino,
    pub index: u64,
    pub name: Vec<u8>,
}

impl Link {
    fn bytes(&self) -> Vec<u8> {
        RootRef { dirid: self.directory, sequence: self.index, name: &self.name }.to_bytes()
    }

    fn reference(&self) -> Key {
        Key::new(self.parent.0, ItemType::ROOT_REF, self.child.0)
    }

    fn back_reference(&self) -> Key {
        Key::new(self.child.0, ItemType::ROOT_BACKREF, self.parent.0)
    }
}

/// What is done about the entries of subvolumes.
#[derive(Debug, Default)]
pub struct RootEdits {
    pub batch: EditBatch,
    pub changes: Vec<Change>,
    /// Subvolumes whose directories lack an entry that the root tree has.
    pub missing_entries: Vec<Link>,
    /// Subvolumes that have no name.
    pub nameless: Vec<TreeId>,
}

/// Makes the two references of each subvolume agree with each other and with its entry.
pub fn repair_links(session: &Session, faults: &[Fault]) -> Result<RootEdits> {
    let mut edits = RootEdits::default();
    if !faults.iter().any(|fault| is_about_links(&fault.kind)) {
        return Ok(edits);
    }
    let (mut refs, mut backrefs) = (BTreeSet::new(), BTreeSet::new());
    for item in session.tree(session.root_tree(), false).range(Key::MIN..=Key::MAX) {
        let item = item?;
        let (objectid, offset) = (TreeId(item.key.objectid), TreeId(item.key.offset));
        let Ok(found) = RootRef::parse(&item) else { continue };
        let link = |parent, child| Link {
            parent,
            child,
            directory: found.dirid,
            index: found.sequence,
            name: found.name.to_vec(),
        };
        match item.key.item_type {
            ItemType::ROOT_REF => refs.insert(link(objectid, offset)),
            ItemType::ROOT_BACKREF => backrefs.insert(link(offset, objectid)),
            _ => continue,
        };
    }
    let mut good: BTreeMap<TreeId, Link> = BTreeMap::new();
    for link in refs.union(&backrefs).cloned().chain(entries_without_refs(session, faults)?) {
        let exists = session.root_item(link.child).is_some_and(|(key, item)| !is_deleted(key, item));
        let has_parent = session.root_item(link.parent).is_some_and(|(key, item)| !is_deleted(key, item));
        if !exists || !has_parent {
            continue;
        }
        let score = |link: &Link| {
            let both = refs.contains(link) && backrefs.contains(link);
            (has_entry(session, link).unwrap_or(false), both, refs.contains(link))
        };
        match good.get(&link.child) {
            Some(other) if score(other) >= score(&link) => {}
            _ => {
                good.insert(link.child, link);
            }
        }
    }
    for link in refs.iter().filter(|link| good.get(&link.child) != Some(*link)) {
        edits.batch.delete(link.reference());
    }
    for link in backrefs.iter().filter(|link| good.get(&link.child) != Some(*link)) {
        edits.batch.delete(link.back_reference());
    }
    for link in good.values() {
        if !refs.contains(link) || !backrefs.contains(link) {
            edits.batch.put(link.reference(), link.bytes());
            edits.batch.put(link.back_reference(), link.bytes());
            let name = String::from_utf8_lossy(&link.name);
            edits.note(
                link.parent,
                format!("the entry \"{name}\" of subvolume {} is noted wherever it must be", link.child),
            );
        }
        if !has_entry(session, link)? {
            edits.missing_entries.push(link.clone());
        }
    }
    for (key, item) in &session.roots {
        let tree = TreeId(key.objectid);
        if tree.is_subvolume() && tree != TreeId::FS && !is_deleted(key, item) && !good.contains_key(&tree) {
            edits.nameless.push(tree);
        }
    }
    Ok(edits)
}

impl RootEdits {
    fn note(&mut self, tree: TreeId, what: String) {
        let change = Change { level: Level::Names, tree: Some(tree), inode: None, path: None, what };
        self.changes.push(change);
    }

    /// Adds the two references of a link.
    pub fn put(&mut self, link: &Link) {
        self.batch.put(link.reference(), link.bytes());
        self.batch.put(link.back_reference(), link.bytes());
    }
}

fn is_about_links(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::SubvolumeEntryWithoutRef { .. }
            | FaultKind::RootRefWithoutEntry { .. }
            | FaultKind::RootRefWithoutBackref { .. }
            | FaultKind::RootBackrefWithoutRef { .. }
            | FaultKind::SubvolumeNames { .. }
    )
}

/// Returns the entries in directories that have no reference.
fn entries_without_refs(session: &Session, faults: &[Fault]) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for fault in faults {
        let FaultKind::SubvolumeEntryWithoutRef { child, .. } = &fault.kind else { continue };
        let (Some(parent), Some(directory)) = (fault.place.tree, fault.place.inode) else { continue };
        let Some(root) = session.root_of(parent) else { continue };
        let range =
            Key::new(directory.0, ItemType::DIR_INDEX, 0)..=Key::new(directory.0, ItemType::DIR_INDEX, u64::MAX);
        for item in session.tree(root, true).range(range) {
            let item = item?;
            for entry in ubtrfs_format::items::dir_entries(&item).flatten() {
                if entry.location.item_type == ItemType::ROOT_ITEM && entry.location.objectid == *child {
                    let (index, name) = (item.key.offset, entry.name.to_vec());
                    links.push(Link { parent, child: TreeId(*child), directory, index, name });
                }
            }
        }
    }
    Ok(links)
}

/// Whether the directory of a link has its entry.
fn has_entry(session: &Session, link: &Link) -> Result<bool> {
    let Some(root) = session.root_of(link.parent) else { return Ok(false) };
    let key = Key::new(link.directory.0, ItemType::DIR_INDEX, link.index);
    let item = session.tree(root, false).get(&key)?;
    Ok(item.is_some_and(|item| {
        ubtrfs_format::items::dir_entries(&item).flatten().any(|entry| {
            entry.name == link.name
                && entry.location.item_type == ItemType::ROOT_ITEM
                && entry.location.objectid == link.child.0
        })
    }))
}

/// Returns the items that the UUID tree must have.
pub fn uuid_tree(session: &Session) -> EditBatch {
    let mut items: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for (key, item) in session.roots.iter().filter(|(key, item)| !is_deleted(key, item)) {
        if !TreeId(key.objectid).is_subvolume() {
            continue;
        }
        let kinds = [(ItemType::UUID_KEY_SUBVOL, item.uuid), (ItemType::UUID_KEY_RECEIVED_SUBVOL, item.received_uuid)];
        for (item_type, uuid) in kinds.into_iter().filter(|(_, uuid)| *uuid != Uuid::NIL) {
            let ids = items.entry(uuid_key(item_type, &uuid)).or_default();
            ids.extend_from_slice(&key.objectid.to_le_bytes());
        }
    }
    let mut batch = EditBatch::new();
    for (key, bytes) in items {
        batch.put(key, bytes);
    }
    batch
}
