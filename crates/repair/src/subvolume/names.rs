//! Names: entries of directories and the references of inodes agree.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use ubtrfs_format::items::FileType;
use ubtrfs_format::{Ino, ItemType, Key, TreeId};

use super::Subvolume;
use super::inode::{Entry, Name};
use crate::change::Level;
use crate::error::Result;

/// What says that a name is of an inode.
#[derive(Clone, Copy, Debug, Default)]
struct Witnesses {
    /// The directory's item by the name's hash.
    item: bool,
    /// The number by which the directory lists it.
    index: Option<u64>,
    /// The number that the inode knows.
    reference: Option<u64>,
}

impl Witnesses {
    fn count(self) -> u32 {
        u32::from(self.item) + u32::from(self.index.is_some()) + u32::from(self.reference.is_some())
    }

    fn are_all_there(self) -> bool {
        self.item && self.index.is_some() && self.reference == self.index
    }
}

/// An inode that knows a name, and the number that it knows.
type Knower = (u64, u64);

/// What the directories and the inodes say of names, as it was at the beginning.
#[derive(Default)]
struct Noted {
    /// The entries of each directory, by name.
    entries: HashMap<u64, HashMap<Vec<u8>, Vec<Entry>>>,
    /// The inodes that know a name, and the numbers that they know, by directory and name.
    references: BTreeMap<(u64, Vec<u8>), Vec<Knower>>,
}

impl Subvolume<'_> {
    /// Makes all names agree that the entries and the inodes among the suspects have.
    pub(super) fn settle_names(&mut self, suspects: &BTreeSet<u64>) -> Result<()> {
        let mut noted = Noted::default();
        let mut names: BTreeSet<(u64, Vec<u8>)> = BTreeSet::new();
        for ino in suspects {
            if *ino != Ino::ROOT_DIR.0 {
                self.load(*ino)?.items.remove(&Key::new(*ino, ItemType::INODE_REF, *ino));
            }
            for Name { parent, index, name } in self.load(*ino)?.names() {
                names.insert((parent, name.clone()));
                noted.references.entry((parent, name)).or_default().push((*ino, index));
            }
            names.extend(self.load(*ino)?.entries().into_iter().map(|entry| (*ino, entry.name)));
        }
        for (directory, name) in &names {
            self.settle_name(*directory, name, &mut noted)?;
        }
        for ino in suspects {
            if self.is_directory(*ino)? {
                self.load(*ino)?.remove_misplaced_entries();
                self.keep_one_name(*ino)?;
            } else if self.exists(*ino)? {
                self.remove_entries_of_no_directory(*ino)?;
            }
        }
        Ok(())
    }

    /// Decides what inode a name is of, and makes all that note it say so.
    fn settle_name(&mut self, directory: u64, name: &[u8], noted: &mut Noted) -> Result<()> {
        let by_name = match noted.entries.entry(directory) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(unknown) => {
                let mut by_name: HashMap<Vec<u8>, Vec<Entry>> = HashMap::new();
                for entry in self.load(directory)?.entries() {
                    by_name.entry(entry.name.clone()).or_default().push(entry);
                }
                unknown.insert(by_name)
            }
        };
        let entries = by_name.get(name).map_or(&[][..], Vec::as_slice);
        let references = noted.references.get(&(directory, name.to_vec())).map_or(&[][..], Vec::as_slice);
        if entries.iter().any(|entry| entry.location.item_type == ItemType::ROOT_ITEM) {
            return self.settle_subvolume_entry(directory, name, entries);
        }
        let witnesses = self.witnesses(directory, name, entries, references)?;
        if !self.is_directory(directory)? {
            return self.forget_name(directory, name, &witnesses);
        }
        let Some((child, found)) = self.owner_of(&witnesses)? else {
            self.load(directory)?.remove_entry(name);
            let shown = String::from_utf8_lossy(name);
            let what = format!("the entry \"{shown}\" is removed: nothing is left of its file");
            self.note(Level::Content, directory, what);
            return Ok(());
        };
        for (other, lost) in witnesses.iter().filter(|(other, _)| **other != child) {
            if lost.reference.is_some() {
                self.load(*other)?.remove_name(directory, name);
            }
        }
        let file_type = self.load(child)?.item().map_or(FileType::Unknown, |item| FileType::from_mode(item.mode));
        let location = Key::new(child, ItemType::INODE_ITEM, 0);
        let has_right_type = entries.iter().all(|entry| entry.file_type == file_type && entry.location == location);
        if found.are_all_there() && entries.len() == 2 && has_right_type {
            return Ok(());
        }
        let index = match found.index.or(found.reference) {
            Some(index) if self.may_have_index(directory, name, index)? => index,
            _ => self.load(directory)?.free_index(),
        };
        let transid = self.rules.generation;
        self.load(directory)?.put_entry(name, index, (location, file_type), transid);
        let inode = self.load(child)?;
        inode.remove_name(directory, name);
        inode.add_name(&Name { parent: directory, index, name: name.to_vec() });
        self.note(Level::Names, child, "its name is noted wherever it must be".into());
        Ok(())
    }

    /// Returns what says that a name is of an inode, by inode.
    fn witnesses(
        &mut self,
        directory: u64,
        name: &[u8],
        entries: &[Entry],
        references: &[Knower],
    ) -> Result<BTreeMap<u64, Witnesses>> {
        let mut witnesses: BTreeMap<u64, Witnesses> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.location.item_type == ItemType::INODE_ITEM) {
            let found = witnesses.entry(entry.location.objectid).or_default();
            match entry.index {
                None => found.item = true,
                Some(index) => found.index = found.index.or(Some(index)),
            }
        }
        for child in witnesses.keys().copied().collect::<Vec<_>>() {
            let known = self.load(child)?.names();
            let known = known.iter().find(|one| one.parent == directory && one.name == name);
            witnesses.entry(child).or_default().reference = known.map(|known| known.index);
        }
        for (child, index) in references {
            witnesses.entry(*child).or_default().reference = Some(*index);
        }
        Ok(witnesses)
    }

    /// Returns the inode of which most say that a name is its, among those that exist.
    fn owner_of(&mut self, witnesses: &BTreeMap<u64, Witnesses>) -> Result<Option<(u64, Witnesses)>> {
        let mut best: Option<(u64, Witnesses)> = None;
        for (child, found) in witnesses {
            let is_better = best.is_none_or(|(_, other)| {
                (found.count(), found.reference.is_some()) > (other.count(), other.reference.is_some())
            });
            if is_better && *child != Ino::ROOT_DIR.0 && self.exists(*child)? {
                best = Some((*child, *found));
            }
        }
        Ok(best)
    }

    /// Whether an entry of this name may have this number in a directory.
    fn may_have_index(&mut self, directory: u64, name: &[u8], index: u64) -> Result<bool> {
        let entries = self.load(directory)?.entries();
        let is_taken = entries.iter().any(|entry| entry.index == Some(index) && entry.name != name);
        Ok(index >= ubtrfs_format::DirIndex::FIRST.0 && !is_taken)
    }

    /// Makes both items of the entry of a subvolume agree. If they name different ones, the one
    /// stays that exists.
    fn settle_subvolume_entry(&mut self, directory: u64, name: &[u8], entries: &[Entry]) -> Result<()> {
        let exists = |entry: &&Entry| {
            let is_own = self.session.roots.contains_key(&entry.location);
            let is_possible = is_own || matches!(entry.location.offset, 0 | u64::MAX);
            is_possible && self.session.root_item(TreeId(entry.location.objectid)).is_some()
        };
        let of_subvolume = || entries.iter().filter(|entry| entry.location.item_type == ItemType::ROOT_ITEM);
        let Some(entry) = of_subvolume().find(exists).or_else(|| of_subvolume().next()) else { return Ok(()) };
        let location = entry.location;
        let is_right = |one: &Entry| one.location == location && one.file_type == FileType::Directory;
        let index = entries.iter().find_map(|entry| entry.index);
        if entries.len() == 2 && index.is_some() && entries.iter().all(is_right) {
            return Ok(());
        }
        let transid = self.rules.generation;
        let inode = self.load(directory)?;
        let index = index.unwrap_or_else(|| inode.free_index());
        inode.put_entry(name, index, (location, FileType::Directory), transid);
        let shown = String::from_utf8_lossy(name).into_owned();
        self.note(Level::Names, directory, format!("the entry \"{shown}\" of a subvolume is put right"));
        Ok(())
    }

    /// Removes a name in what is no directory, or does not exist.
    fn forget_name(&mut self, directory: u64, name: &[u8], witnesses: &BTreeMap<u64, Witnesses>) -> Result<()> {
        for child in witnesses.iter().filter(|(_, found)| found.reference.is_some()).map(|(child, _)| *child) {
            self.load(child)?.remove_name(directory, name);
        }
        self.load(directory)?.remove_entry(name);
        Ok(())
    }

    fn remove_entries_of_no_directory(&mut self, ino: u64) -> Result<()> {
        let inode = self.load(ino)?;
        let is_entry = |key: &Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
        inode.items.retain(|key, _| !is_entry(key));
        Ok(())
    }

    /// A directory has one name. Of several, the first one stays.
    fn keep_one_name(&mut self, ino: u64) -> Result<()> {
        let names = self.load(ino)?.names();
        for name in names.iter().skip(1) {
            self.load(ino)?.remove_name(name.parent, &name.name);
            self.load(name.parent)?.remove_entry(&name.name);
            let shown = String::from_utf8_lossy(&name.name).into_owned();
            self.note(Level::Names, ino, format!("its other name \"{shown}\" is removed: a directory has one"));
        }
        Ok(())
    }

    /// Takes a directory out of a loop that has no path.
    pub(super) fn cut_loop(&mut self, ino: u64) -> Result<()> {
        for name in self.load(ino)?.names() {
            self.load(ino)?.remove_name(name.parent, &name.name);
            self.load(name.parent)?.remove_entry(&name.name);
        }
        Ok(())
    }
}
