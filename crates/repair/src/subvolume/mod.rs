//! Inodes and names of a subvolume: what is damaged is derived from what is not.
//!
//! A name is noted in three places, which one commit writes: by hash (`DIR_ITEM`) and by number
//! (`DIR_INDEX`) in the directory, and in the inode (`INODE_REF`). Each follows from the two
//! others. Attributes follow from names and extents, except owner, permissions and times.

mod content;
mod inode;
mod lost_found;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_check::{Fault, FaultKind};
use ubtrfs_format::items::{FileType, InodeItem, InodeRef, encode_inode_ref};
use ubtrfs_format::{DirIndex, Generation, Incompat, Ino, ItemContext, ItemType, Key, Logical, TreeId, objectid};
use ubtrfs_tree::{EditBatch, Root, Snapshot};

use crate::change::{Change, Level};
use crate::error::Result;
use crate::lost_extents::LostExtents;
use crate::session::Session;
use content::{ContentRules, derived_item, possible_item, type_by_items};
use inode::{Inode, Name};

/// The most directories above an inode that its path names.
const MAX_DEPTH: usize = 64;

/// A subvolume that is being repaired.
pub struct Subvolume<'a> {
    session: &'a Session,
    id: TreeId,
    tree: Snapshot,
    context: ItemContext,
    rules: ContentRules,
    inodes: BTreeMap<u64, Inode>,
    changes: Vec<Change>,
    lost_extents: &'a LostExtents,
    /// The next inode number that is free.
    next_ino: u64,
}

impl<'a> Subvolume<'a> {
    /// A subvolume under this root.
    pub fn new(
        session: &'a Session,
        root: Root,
        generation: Generation,
        lost_extents: &'a LostExtents,
    ) -> Result<Self> {
        let tree = session.tree(root, false);
        let last = Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);
        let last = tree.last_at_or_before(&last)?.map_or(Ino::FIRST_FREE.0, |item| item.key.objectid);
        let rules = ContentRules {
            sector_size: session.geometry.sector_size.into(),
            no_holes: session.superblock.incompat.contains(Incompat::NO_HOLES),
            generation,
        };
        let mut context = ItemContext::from(&session.superblock);
        context.generation = generation;
        Ok(Self {
            session,
            id: root.owner,
            tree,
            context,
            rules,
            inodes: BTreeMap::new(),
            changes: Vec::new(),
            lost_extents,
            next_ino: last.max(Ino::FIRST_FREE.0).saturating_add(1),
        })
    }

    /// Puts the inodes right that these faults are about, and what their names lead to. Returns the
    /// edits of the subvolume's tree and what they mean.
    pub fn repair(mut self, faults: &[&Fault]) -> Result<(EditBatch, Vec<Change>)> {
        let suspects = suspects(faults);
        for ino in &suspects {
            self.load(*ino)?;
        }
        if suspects.contains(&Ino::ROOT_DIR.0) {
            self.settle_root()?;
        }
        for ino in &suspects {
            self.settle_attributes(*ino)?;
        }
        for fault in faults {
            if let (FaultKind::UnreachableDirectory, Some(ino)) = (&fault.kind, fault.place.inode) {
                self.cut_loop(ino.0)?;
            }
        }
        self.settle_names(&suspects)?;
        self.settle_links()?;
        self.settle_contents();
        self.settle_directories();
        self.settle_orphans()?;
        let mut edits = EditBatch::new();
        self.inodes.values().for_each(|inode| inode.add_edits(&mut edits));
        Ok((edits, self.changes))
    }

    /// Reads an inode, unless that has been done.
    fn load(&mut self, ino: u64) -> Result<&mut Inode> {
        if !self.inodes.contains_key(&ino) {
            let inode = Inode::load(&self.tree, ino, &self.context, self.session.geometry.node_size as usize)?;
            self.inodes.insert(ino, inode);
        }
        let node_size = self.session.geometry.node_size as usize;
        Ok(self.inodes.entry(ino).or_insert_with(|| Inode::none(ino, node_size)))
    }

    /// Whether an inode has attributes.
    fn exists(&mut self, ino: u64) -> Result<bool> {
        Ok(self.load(ino)?.item().is_some())
    }

    fn is_directory(&mut self, ino: u64) -> Result<bool> {
        Ok(self.load(ino)?.item().is_some_and(|item| FileType::from_mode(item.mode) == FileType::Directory))
    }

    fn note(&mut self, level: Level, ino: u64, what: String) {
        let path = self.path(ino);
        self.changes.push(Change { level, tree: Some(self.id), inode: Some(ino), path, what });
    }

    /// Returns a path of an inode by the names that inodes know.
    fn path(&mut self, ino: u64) -> Option<String> {
        let (mut at, mut parts) = (ino, Vec::new());
        while at != Ino::ROOT_DIR.0 {
            if parts.len() == MAX_DEPTH {
                return None;
            }
            let name = self.load(at).ok()?.names().into_iter().next()?;
            parts.push(String::from_utf8_lossy(&name.name).into_owned());
            at = name.parent;
        }
        Some(parts.into_iter().rev().fold(String::new(), |path, part| path + "/" + &part))
            .map(|path| if path.is_empty() { "/".into() } else { path })
    }

    /// Makes the root directory, if it is lost.
    fn settle_root(&mut self) -> Result<()> {
        let rules = self.rules;
        let root = self.load(Ino::ROOT_DIR.0)?;
        if root.item().is_none() {
            let item = derived_item(root, FileType::Directory, None, &rules);
            root.set_item(InodeItem { mode: item.mode | 0o055, ..item });
            self.note(Level::Names, Ino::ROOT_DIR.0, "the root directory is rebuilt, as root's".into());
        }
        let own = Key::new(Ino::ROOT_DIR.0, ItemType::INODE_REF, Ino::ROOT_DIR.0);
        let root = self.load(Ino::ROOT_DIR.0)?;
        let mut right = Vec::new();
        encode_inode_ref(&mut right, InodeRef { index: DirIndex(0), name: b".." });
        if root.items.insert(own, right.clone()) != Some(right) {
            self.note(Level::Space, Ino::ROOT_DIR.0, "its reference to itself is put back".into());
        }
        Ok(())
    }

    /// Derives the attributes of an inode that has none, and puts impossible ones right.
    fn settle_attributes(&mut self, ino: u64) -> Result<()> {
        let rules = self.rules;
        let inode = self.load(ino)?;
        let malformed = inode.malformed.len();
        if let Some(item) = inode.item() {
            let possible = possible_item(item, &rules);
            if possible != item {
                inode.set_item(possible);
                self.note(Level::Names, ino, "impossible values of its attributes are put right".into());
            }
        } else if inode.has_content() {
            let names = inode.names();
            let by_items = type_by_items(inode);
            let by_entry = self.type_by_entries(ino, &names)?;
            let file_type = by_items.filter(|known| *known == FileType::Directory).or(by_entry).or(by_items);
            let parent = match names.first() {
                Some(name) => self.load(name.parent)?.item(),
                None => None,
            };
            let file_type = file_type.unwrap_or(FileType::Regular);
            let inode = self.load(ino)?;
            let item = derived_item(inode, file_type, parent, &rules);
            inode.set_item(item);
            let what = "its attributes are lost: its size is derived from its extents, its owner is that of its \
                        directory, and only the owner may use it";
            self.note(Level::Content, ino, what.into());
        }
        if malformed > 0 {
            self.note(Level::Content, ino, format!("{malformed} items that can't be understood are removed"));
        }
        Ok(())
    }

    /// Returns the type of an inode by the entries of the directories in which it has names.
    fn type_by_entries(&mut self, ino: u64, names: &[Name]) -> Result<Option<FileType>> {
        for name in names {
            let entries = self.load(name.parent)?.entries();
            let found = entries.into_iter().find(|entry| {
                entry.name == name.name && entry.location.objectid == ino && entry.file_type != FileType::Unknown
            });
            if let Some(entry) = found {
                return Ok(Some(entry.file_type));
            }
        }
        Ok(None)
    }

    /// Makes link counts those of the names, and gives inodes without a name one in `lost+found`.
    fn settle_links(&mut self) -> Result<()> {
        for ino in self.known() {
            let inode = self.load(ino)?;
            let Some(mut item) = inode.item() else { continue };
            if ino == Ino::ROOT_DIR.0 {
                if item.nlink != 1 {
                    item.nlink = 1;
                    inode.set_item(item);
                }
                continue;
            }
            let names = inode.names().len() as u32;
            if names == 0 {
                if item.nlink != 0 {
                    self.put_into_lost_found(ino)?;
                }
                continue;
            }
            if item.nlink != names {
                let before = item.nlink;
                item.nlink = names;
                inode.set_item(item);
                self.note(Level::Names, ino, format!("its link count is {names} instead of {before}"));
            }
        }
        Ok(())
    }

    /// Puts the content of all inodes right that were looked at.
    fn settle_contents(&mut self) {
        let chunks = self.session.volume.chunk_map().all();
        let mapped = move |at: Logical, length: u64| {
            let index = chunks.partition_point(|(start, _)| *start <= at);
            index.checked_sub(1).and_then(|index| chunks.get(index)).is_some_and(|(start, chunk)| {
                at.0.checked_add(length).is_some_and(|end| end <= start.0.saturating_add(chunk.length))
            })
        };
        for ino in self.known() {
            let rules = self.rules;
            let Some(inode) = self.inodes.get_mut(&ino) else { continue };
            let before = inode.items.clone();
            let nbytes = inode.item().map_or(0, |item| item.nbytes);
            let lost_extents = self.lost_extents.get(&(self.id, ino)).map_or(&[][..], Vec::as_slice);
            let taken_back = content::take_back(inode, lost_extents, &rules);
            let losses = content::settle(inode, &mapped, &rules);
            if inode.items == before {
                continue;
            }
            let now = inode.item().map_or(0, |item| item.nbytes);
            let lost: u64 = losses.iter().map(|loss| loss.length).sum();
            if nbytes > now && nbytes - now > lost {
                let what = format!("{} bytes that its extents had are lost and read as zeros", nbytes - now - lost);
                self.note(Level::Content, ino, what);
            } else if taken_back > 0 {
                let what = format!("{taken_back} bytes that it lacks are found by the extent tree");
                self.note(Level::Names, ino, what);
            } else if losses.is_empty() {
                self.note(Level::Names, ino, "its extents and the sizes that follow from them are put right".into());
            }
            for loss in losses {
                let what = format!("{} bytes at {} are lost and read as zeros", loss.length, loss.offset);
                self.note(Level::Content, ino, what);
            }
        }
    }

    /// Makes the sizes of directories those of their entries.
    fn settle_directories(&mut self) {
        for ino in self.known() {
            let Some(inode) = self.inodes.get_mut(&ino) else { continue };
            let Some(item) = inode.item() else { continue };
            if FileType::from_mode(item.mode) == FileType::Directory {
                let size = inode.entry_bytes();
                if size != item.size {
                    inode.set_item(InodeItem { size, ..item });
                    self.note(Level::Space, ino, format!("its size is {size} instead of {}", item.size));
                }
            }
        }
    }

    /// Gives orphan items to inodes without a name, and removes those of others.
    fn settle_orphans(&mut self) -> Result<()> {
        let node_size = self.session.geometry.node_size as usize;
        let mut orphans = Inode::load(&self.tree, objectid::ORPHAN, &self.context, node_size)?;
        for ino in self.known() {
            let key = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, ino);
            let item = self.load(ino)?.item();
            if item.is_some_and(|item| item.nlink == 0) {
                if orphans.items.insert(key, Vec::new()).is_none() {
                    self.note(Level::Space, ino, "it has no name: the next mount frees its space".into());
                }
            } else if orphans.items.remove(&key).is_some() {
                self.note(Level::Space, ino, "it is no orphan".into());
            }
        }
        self.inodes.insert(objectid::ORPHAN, orphans);
        Ok(())
    }

    /// Returns the numbers of the inodes that were looked at.
    fn known(&self) -> Vec<u64> {
        self.inodes.keys().copied().filter(|ino| *ino != objectid::ORPHAN).collect()
    }
}

/// Returns the inodes that faults of a subvolume name.
fn suspects(faults: &[&Fault]) -> BTreeSet<u64> {
    use FaultKind as Kind;
    let mut suspects = BTreeSet::new();
    for fault in faults {
        suspects.extend(fault.place.inode.map(|ino| ino.0));
        if fault.kind == Kind::EmptyTree {
            suspects.insert(Ino::ROOT_DIR.0);
        }
        if let Some(key) = fault.place.key {
            suspects.insert(key.objectid);
        }
        match &fault.kind {
            Kind::EntryWithoutInode { inode, .. } | Kind::EntryWithoutRef { inode, .. } => {
                suspects.insert(*inode);
            }
            Kind::RefWithoutEntry { parent, .. }
            | Kind::IndexMismatch { parent, .. }
            | Kind::TypeMismatch { parent, .. }
            | Kind::NameMismatch { parent, .. } => {
                suspects.insert(*parent);
            }
            _ => {}
        }
    }
    suspects.retain(|ino| *ino >= Ino::FIRST_FREE.0 && *ino <= Ino::LAST_FREE.0);
    suspects
}
