//! `changes` shows of two subvolumes exactly the differences that a naive walk of both finds, and
//! its cost depends on the differences alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{
    Attributes, ChangedAttribute, ChangedContent, Content, Errno, FileChange, FileName, Filesystem, InodeId,
    MergeSides, NewInode, Options, Prefer, RenameFlags, SetAttributes, WhatChanged, WriteAt, XattrMode,
};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_random::Rng;
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;

use crate::common::image;

const SECTOR: u64 = 4096;

fn options() -> Options {
    Options { no_atime: true, ..Options::default() }
}

/// An inode as a walk finds it.
struct Seen {
    id: InodeId,
    /// Directory, name, path.
    names: BTreeSet<(Ino, Vec<u8>, Vec<u8>)>,
    attributes: Attributes,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
    /// Subvolumes in a directory.
    subvolumes: BTreeSet<Vec<u8>>,
}

type Walked = BTreeMap<Ino, Seen>;

fn walk(fs: &Filesystem, subvolume: TreeId) -> Walked {
    let root = InodeId::new(subvolume, Ino::ROOT_DIR);
    let mut walked = Walked::new();
    let mut waiting = vec![(root, (Ino::ROOT_DIR, Vec::new(), Vec::new()))];
    while let Some((id, name)) = waiting.pop() {
        let path = name.2.clone();
        if let Some(seen) = walked.get_mut(&id.ino) {
            seen.names.insert(name);
            continue;
        }
        let attributes = fs.inodes().attributes(id).unwrap();
        let xattrs = fs.inodes().list_xattrs(id).unwrap().into_iter();
        let xattrs = xattrs.map(|name| (name.clone(), fs.inodes().get_xattr(id, &name).unwrap())).collect();
        let mut seen = Seen {
            id,
            names: BTreeSet::from([name]),
            attributes,
            xattrs,
            content: Vec::new(),
            subvolumes: BTreeSet::new(),
        };
        match attributes.file_type {
            FileType::Regular => seen.content = fs.files().read(id, 0, attributes.size as usize).unwrap(),
            FileType::Directory => {
                for entry in fs.directories().list(id, DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap() {
                    let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    if entry.inode.subvolume == subvolume && entry.inode.ino != Ino(2) {
                        let path = [&path, separator, &entry.name].concat();
                        waiting.push((entry.inode, (id.ino, entry.name, path)));
                    } else {
                        seen.subvolumes.insert(entry.name);
                    }
                }
            }
            _ => {}
        }
        walked.insert(id.ino, seen);
    }
    walked
}

fn triples(names: &[FileName]) -> BTreeSet<(Ino, Vec<u8>, Vec<u8>)> {
    let found: BTreeSet<_> = names.iter().map(|name| (name.parent, name.name.clone(), name.path.clone())).collect();
    assert_eq!(found.len(), names.len(), "a name is shown twice");
    found
}

fn changes(fs: &Filesystem, old: TreeId, new: TreeId) -> Vec<FileChange> {
    let mut shown = Vec::new();
    ubtrfs::changes(fs, old, new, |change| {
        shown.push(change);
        true
    })
    .unwrap();
    assert!(shown.is_sorted_by_key(|change| change.ino), "not in the order of inodes");
    shown
}

fn differing_attributes(old: &Attributes, new: &Attributes) -> Vec<ChangedAttribute> {
    let all = [
        (ChangedAttribute::Mode, old.mode != new.mode),
        (ChangedAttribute::Owner, old.uid != new.uid || old.gid != new.gid),
        (ChangedAttribute::Size, old.size != new.size),
        (ChangedAttribute::Device, old.rdev != new.rdev),
        (ChangedAttribute::Flags, old.flags != new.flags),
        (ChangedAttribute::AccessTime, old.atime != new.atime),
        (ChangedAttribute::ModificationTime, old.mtime != new.mtime),
        (ChangedAttribute::ChangeTime, old.ctime != new.ctime),
        (ChangedAttribute::CreationTime, old.btime != new.btime),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(attribute, _)| attribute).collect()
}

/// Fails unless a range of a file holds only data, or none.
fn assert_holds(fs: &Filesystem, seen: &Seen, range: &Range<u64>, content: Content) {
    let data = match fs.files().seek_data(seen.id, range.start) {
        Ok(data) => data,
        Err(error) => {
            assert_eq!(error.errno(), Errno::NXIO);
            u64::MAX
        }
    };
    if content == Content::Data {
        assert_eq!(data, range.start, "{range:?} of {:?} is no data", seen.id);
        assert!(
            fs.files().seek_hole(seen.id, range.start).unwrap() >= range.end,
            "{range:?} of {:?} has holes",
            seen.id
        );
    } else {
        assert!(data >= range.end, "{range:?} of {:?} has data at {data}", seen.id);
    }
}

fn assert_content(fs: &Filesystem, old: &Seen, new: &Seen, shown: &[ChangedContent]) {
    assert!(shown.is_sorted_by(|a, b| a.range.end <= b.range.start), "{shown:?}");
    let len = old.content.len().max(new.content.len());
    let byte = |seen: &Seen, at: usize| seen.content.get(at).copied().unwrap_or(0);
    let mut ranges = shown.iter().peekable();
    for at in 0..len {
        while ranges.next_if(|change| change.range.end <= at as u64).is_some() {}
        let is_shown = ranges.peek().is_some_and(|change| change.range.contains(&(at as u64)));
        assert!(is_shown || byte(old, at) == byte(new, at), "byte {at} of {:?} differs outside of {shown:?}", new.id);
    }
    for change in shown {
        assert!(!change.range.is_empty());
        assert_holds(fs, old, &change.range, change.old.unwrap());
        assert_holds(fs, new, &change.range, change.new);
    }
}

/// Fails unless `changes` shows what walks of both subvolumes find.
fn assert_exact(fs: &Filesystem, old: TreeId, new: TreeId) -> Vec<FileChange> {
    let all = changes(fs, old, new);
    let (before, after) = (walk(fs, old), walk(fs, new));
    let mut shown: BTreeMap<Ino, &FileChange> = BTreeMap::new();
    for change in &all {
        assert!(shown.insert(change.ino, change).is_none(), "{} is shown twice", change.ino);
    }
    let inodes: BTreeSet<Ino> = before.keys().chain(after.keys()).copied().collect();
    for ino in inodes {
        let change = shown.remove(&ino);
        match (before.get(&ino), after.get(&ino)) {
            (Some(old), None) => {
                let change = change.unwrap();
                assert_eq!((change.what, change.file_type), (WhatChanged::Removed, old.attributes.file_type));
                assert_eq!(triples(&change.names_removed), old.names);
                assert!(change.names_added.is_empty() && change.new.is_none());
                assert_eq!(change.old.unwrap().size, old.attributes.size);
            }
            (None, Some(new)) => {
                let change = change.unwrap();
                assert_eq!((change.what, change.file_type), (WhatChanged::Made, new.attributes.file_type));
                assert_eq!(triples(&change.names_added), new.names);
                assert_eq!(triples(&change.new_names), new.names);
                assert!(change.names_removed.is_empty() && change.old.is_none());
            }
            (Some(old), Some(new)) => assert_changed(fs, old, new, change),
            (None, None) => {}
        }
    }
    assert!(shown.is_empty(), "shown without being there: {shown:?}");
    all
}

fn assert_changed(fs: &Filesystem, old: &Seen, new: &Seen, change: Option<&FileChange>) {
    type Entry = (Ino, Vec<u8>);
    let entries = |names: &BTreeSet<(Ino, Vec<u8>, Vec<u8>)>| -> BTreeSet<Entry> {
        names.iter().map(|(parent, name, _)| (*parent, name.clone())).collect()
    };
    let (old_entries, new_entries) = (entries(&old.names), entries(&new.names));
    let attributes = differing_attributes(&old.attributes, &new.attributes);
    let Some(change) = change else {
        assert_eq!(old_entries, new_entries);
        assert_eq!(attributes, []);
        assert_eq!((&old.xattrs, &old.subvolumes), (&new.xattrs, &new.subvolumes));
        assert!(old.content == new.content, "{:?} has changed", new.id);
        return;
    };
    assert_eq!(change.what, WhatChanged::Changed);
    assert_eq!((triples(&change.old_names), triples(&change.new_names)), (old.names.clone(), new.names.clone()));
    let removed: BTreeSet<Entry> = old_entries.difference(&new_entries).cloned().collect();
    let added: BTreeSet<Entry> = new_entries.difference(&old_entries).cloned().collect();
    assert_eq!(entries(&triples(&change.names_removed)), removed);
    assert_eq!(entries(&triples(&change.names_added)), added);
    assert_eq!(change.attributes, attributes);
    let keys: BTreeSet<_> = old.xattrs.keys().chain(new.xattrs.keys()).cloned().collect();
    let xattrs = keys.into_iter().map(|name| (old.xattrs.get(&name).cloned(), new.xattrs.get(&name).cloned(), name));
    let xattrs: Vec<_> = xattrs.filter(|(old, new, _)| old != new).collect();
    let shown = change.xattrs.iter().map(|xattr| (xattr.old.clone(), xattr.new.clone(), xattr.name.clone()));
    assert_eq!(shown.collect::<Vec<_>>(), xattrs);
    let names: Vec<_> = old.subvolumes.symmetric_difference(&new.subvolumes).collect();
    assert_eq!(change.subvolumes.iter().map(|entry| &entry.name).collect::<Vec<_>>(), names);
    assert_content(fs, old, new, &change.content);
}

/// Makes random changes through the library, and notes the ranges that it wrote, by file.
struct Changer<'a> {
    fs: &'a Filesystem,
    rng: Rng,
    dirs: Vec<InodeId>,
    written: BTreeMap<Ino, Vec<Range<u64>>>,
}

impl Changer<'_> {
    fn name(&mut self) -> Vec<u8> {
        match self.rng.below(10) {
            0 => vec![b'x'; 200],
            1 => b"not \xff UTF-8".to_vec(),
            number => format!("n{number}").into_bytes(),
        }
    }

    /// Notes a written range, in whole sectors. A small file is in one item, and so wholly written.
    fn note(&mut self, id: InodeId, range: Range<u64>) {
        let whole = range.start / SECTOR * SECTOR..range.end.div_ceil(SECTOR) * SECTOR;
        let written = self.written.entry(id.ino).or_default();
        written.push(whole);
        if self.fs.inodes().size(id).is_ok_and(|size| size <= SECTOR) {
            written.push(0..SECTOR);
        }
    }

    fn step(&mut self) {
        let fs = self.fs;
        let (dir, other) = (*self.rng.pick(&self.dirs.clone()), *self.rng.pick(&self.dirs.clone()));
        let (name, other_name) = (self.name(), self.name());
        let (offset, len) = (self.rng.below(60) * 1500, 1 + self.rng.below(30_000));
        let found = fs.directories().lookup(dir, &name);
        let file = found
            .as_ref()
            .ok()
            .copied()
            .filter(|id| fs.inodes().mode(*id).is_ok_and(|mode| mode & 0o170_000 == 0o100_000));
        match self.rng.below(20) {
            0..=2 => {
                let new = NewInode { mode: 0o100_644, ..NewInode::default() };
                if let Ok(id) = fs.directories().create(dir, &name, &new) {
                    let len = if self.rng.one_in(2) { 300 } else { len };
                    let content = self.rng.noise(len as usize);
                    fs.files().write(id, WriteAt::Offset(0), &content, false).unwrap();
                }
            }
            3 => {
                if let Ok(id) =
                    fs.directories().create(dir, &name, &NewInode { mode: 0o040_755, ..NewInode::default() })
                {
                    self.dirs.push(id);
                }
            }
            4 => {
                let target = b"target".to_vec();
                let new = NewInode { mode: 0o120_777, symlink_target: target, ..NewInode::default() };
                let _ = fs.directories().create(dir, &name, &new);
            }
            5 | 6 => {
                let exchange = self.rng.one_in(2);
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                let _ = fs.directories().rename(dir, &name, other, &other_name, flags);
            }
            7 => {
                if let Ok(id) = found {
                    let _ = fs.directories().link(id, other, &other_name);
                }
            }
            8 => drop(fs.directories().unlink(dir, &name)),
            9 => drop(fs.directories().rmdir(dir, &name)),
            10 => {
                if let Ok(id) = found {
                    let name = format!("user.{}", self.rng.below(3));
                    let value = self.rng.noise(len as usize % 50);
                    let _ = if self.rng.one_in(3) {
                        fs.inodes().remove_xattr(id, name.as_bytes())
                    } else {
                        fs.inodes().set_xattr(id, name.as_bytes(), &value, XattrMode::Set)
                    };
                }
            }
            11 => {
                if let Ok(id) = found {
                    let mode = Some(0o600 + self.rng.below(64) as u32);
                    let uid = self.rng.one_in(3).then_some(7);
                    let _ = fs.inodes().set_attributes(id, &SetAttributes { mode, uid, ..SetAttributes::default() });
                }
            }
            _ => {
                if let Some(id) = file {
                    self.change_content(id, offset, len, (other, &other_name));
                }
            }
        }
    }

    fn change_content(&mut self, id: InodeId, offset: u64, len: u64, (other, other_name): (InodeId, &[u8])) {
        let fs = self.fs;
        let size = fs.inodes().size(id).unwrap();
        let end = offset + len;
        self.note(id, offset..end);
        match self.rng.below(6) {
            0 => drop(fs.files().punch_hole(id, offset, len)),
            1 => drop(fs.files().allocate(id, offset, len, self.rng.one_in(2))),
            2 => {
                self.note(id, offset.min(size)..offset.max(size) + SECTOR);
                let _ =
                    fs.inodes().set_attributes(id, &SetAttributes { size: Some(offset), ..SetAttributes::default() });
            }
            3 => {
                let source = fs.directories().lookup(other, other_name);
                let (from, to, len) = (offset / SECTOR * SECTOR, len / SECTOR * SECTOR, len / SECTOR * SECTOR);
                if let Ok(source) = source
                    && fs.files().clone_range(source, from, id, to, len).is_ok()
                {
                    self.note(id, to.min(size)..to + len + SECTOR);
                }
            }
            _ => {
                // The range between the old end and the write is filled with zeros.
                self.note(id, size.min(offset)..size.min(offset) + 1);
                let data = self.rng.noise(len as usize);
                fs.files().write(id, WriteAt::Offset(offset), &data, false).unwrap();
            }
        }
        let size = fs.inodes().size(id).unwrap();
        self.note(id, size..size);
    }

    /// Fails if a range is shown that was not written.
    fn assert_written(&self, shown: &[FileChange]) {
        for change in shown {
            for range in change.content.iter().map(|content| content.range.clone()) {
                let written = self.written.get(&change.ino).unwrap_or_else(|| panic!("{} was not written", change.ino));
                let mut at = range.start;
                while let Some(next) = written.iter().filter(|range| range.contains(&at)).map(|range| range.end).max() {
                    at = next;
                }
                assert!(at >= range.end, "{range:?} of {} is shown, written are {written:?}", change.ino);
            }
        }
    }
}

/// Asserts that `changes_since` shows everything that differs from the state at that generation and
/// still exists.
fn assert_since(fs: &Filesystem, generation: Generation, differing: &[FileChange]) {
    let mut since = BTreeMap::new();
    ubtrfs::changes_since(fs, TreeId::FS, generation, |change| {
        since.insert(change.ino, change);
        true
    })
    .unwrap();
    let walked = walk(fs, TreeId::FS);
    for change in since.values() {
        assert_eq!(triples(&change.new_names), walked[&change.ino].names);
    }
    // The snapshot and its entry are from the commit before.
    let is_since = |change: &&FileChange| change.new.is_some_and(|item| item.transid >= generation);
    for change in differing.iter().filter(is_since) {
        let shown = since.get(&change.ino).unwrap_or_else(|| panic!("{change:?} is not shown"));
        assert_eq!((shown.what, shown.new), (change.what, change.new));
        let (names, added) = (triples(&shown.names_added), triples(&change.names_added));
        assert!(names.is_superset(&added), "{names:?} lacks some of {added:?}");
        for xattr in change.xattrs.iter().filter(|xattr| xattr.new.is_some()) {
            assert!(shown.xattrs.iter().any(|found| (&found.name, &found.new) == (&xattr.name, &xattr.new)));
        }
    }
    let made = |changes: &mut dyn Iterator<Item = &FileChange>| -> BTreeSet<Ino> {
        changes.filter(|change| change.what == WhatChanged::Made).map(|change| change.ino).collect()
    };
    assert_eq!(made(&mut since.values()), made(&mut differing.iter()));
}

fn open(path: &Path) -> Arc<Filesystem> {
    image::open(path, options())
}

#[test]
fn random_changes_are_shown_as_walks_find_them() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let dir = scratch_dir();
        let path = dir.path().join("image");
        image::make(&path, 256 << 20, |_| {});
        let mut fs = open(&path);
        let mut rng = Rng::new(seed);
        let mut snapshots = Vec::new();
        let mut dirs = vec![fs.root()];
        for round in 0..4 {
            let steps = if round == 0 { 300 } else { 1 << rng.below(8) };
            let rng = Rng::new(rng.next_u64());
            let mut changer = Changer { fs: &fs, rng, dirs, written: BTreeMap::new() };
            for step in 0..steps {
                changer.step();
                if step % 97 == 96 {
                    fs.durability().sync().unwrap();
                }
            }
            if let Some((last, generation)) = snapshots.last() {
                let shown = assert_exact(&fs, *last, TreeId::FS);
                changer.assert_written(&shown);
                assert_since(&fs, Generation(*generation), &shown);
            }
            dirs = changer.dirs;
            let name = format!("snapshot{round}");
            let id = fs.subvolumes().snapshot(TreeId::FS, fs.root(), name.as_bytes(), true).unwrap();
            snapshots.push((id, fs.generation().0 + 1));
            if round == 2 {
                fs.close().unwrap();
                drop(fs);
                fs = open(&path);
            }
        }
        for (old, _) in &snapshots {
            for (new, _) in &snapshots {
                let shown = assert_exact(&fs, *old, *new);
                assert!(shown.is_empty() || old != new);
            }
        }
        fs.close().unwrap();
    }
}

fn file(fs: &Filesystem, dir: InodeId, name: &str, len: usize) -> InodeId {
    let id =
        fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.files().write(id, WriteAt::Offset(0), &crate::common::pattern(id.ino.0, len), false).unwrap();
    id
}

#[test]
fn holes_reserved_space_and_many_names_are_distinguished() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| {});
    let fs = open(&path);
    let id = file(&fs, fs.root(), "file", 100_000);
    fs.files().allocate(id, 0x40000, 0x10000, true).unwrap();
    let many = file(&fs, fs.root(), "many", 10);
    for number in 0..300 {
        fs.directories().link(many, fs.root(), format!("{number:0200}").as_bytes()).unwrap();
    }
    let old = fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"old", true).unwrap();
    fs.files().punch_hole(id, 0x2000, 0x2000).unwrap();
    fs.files().write(id, WriteAt::Offset(0x6000), &[1; 0x1000], false).unwrap();
    fs.files().write(id, WriteAt::Offset(0x42000), &[2; 0x1000], false).unwrap();
    fs.files().allocate(id, 0x60000, 0x1000, true).unwrap();
    for number in 100..200 {
        fs.directories().unlink(fs.root(), format!("{number:0200}").as_bytes()).unwrap();
    }
    fs.directories().link(many, fs.root(), b"one more").unwrap();

    let shown = assert_exact(&fs, old, TreeId::FS);
    let of = |id: InodeId| shown.iter().find(|change| change.ino == id.ino).unwrap();
    let ranges: Vec<_> = of(id).content.iter().map(|c| (c.range.clone(), c.old.unwrap(), c.new)).collect();
    let expected = [
        (0x2000..0x4000, Content::Data, Content::Hole),
        (0x6000..0x7000, Content::Data, Content::Data),
        (0x42000..0x43000, Content::Prealloc, Content::Data),
        (0x60000..0x61000, Content::Hole, Content::Prealloc),
    ];
    assert_eq!(ranges, expected);
    assert_eq!((of(many).names_removed.len(), of(many).names_added.len()), (100, 1));
    assert_eq!(of(many).new_names.len(), 202);

    let mut first = 0;
    ubtrfs::changes(&fs, old, TreeId::FS, |_| {
        first += 1;
        false
    })
    .unwrap();
    assert_eq!(first, 1, "the visitor was called again");
    assert_eq!(ubtrfs::changes(&fs, old, TreeId(9999), |_| true).unwrap_err().errno(), Errno::NOENT);
    fs.close().unwrap();
}

#[test]
fn ten_changes_in_a_big_tree_cost_few_reads() {
    ten_changes_cost_few_reads(512 << 20, 20, 2000, 1000);
}

#[test]
#[ignore = "soak: makes a million files"]
fn ten_changes_among_a_million_files_cost_few_reads() {
    ten_changes_cost_few_reads(4 << 30, 500, 2000, 25_000);
}

/// Compares a tree of so many directories, with so many files each and at least so many nodes, with
/// its snapshot.
fn ten_changes_cost_few_reads(size: u64, directories: usize, files_in_each: usize, least_nodes: u64) {
    const MAX_READS: u64 = 80;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, size, |_| {});
    let fs = open(&path);
    let mut files = Vec::new();
    for number in 0..directories {
        let name = format!("dir{number}");
        let dir = fs
            .directories()
            .create(fs.root(), name.as_bytes(), &NewInode { mode: 0o040_755, ..NewInode::default() })
            .unwrap();
        for number in 0..files_in_each {
            let id = file(&fs, dir, &format!("a file with a number {number}"), 100);
            fs.references().forget(id, 1);
            files.push(id);
        }
    }
    let old = fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"old", true).unwrap();
    let next = Generation(fs.generation().0 + 1);
    for number in 0..10 {
        fs.files().write(files[number * (files.len() / 10 - 1)], WriteAt::Offset(10), b"changed", false).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let reads = |read: &dyn Fn(&Filesystem)| {
        let fs = image::open(&path, Options { read_only: true, ..options() });
        let before = fs.stats().cache.misses;
        read(&fs);
        let (reads, bytes) =
            (fs.stats().cache.misses - before, fs.subvolumes().subvolume_info(old).unwrap().bytes_used);
        let nodes = bytes / u64::from(fs.volume().node_size());
        assert!(nodes > least_nodes, "the tree has only {nodes} nodes");
        assert!(reads <= MAX_READS, "{reads} of {nodes} nodes were read");
        fs.close().unwrap();
    };
    reads(&|fs| {
        let shown = changes(fs, old, TreeId::FS);
        // The files, and the root directory, which has the entry of the snapshot.
        assert_eq!(shown.len(), 11, "{shown:?}");
    });
    reads(&|fs| {
        let mut found = 0;
        let all = (Key::new(0, ItemType(0), 0), Key::new(u64::MAX, ItemType(u8::MAX), u64::MAX));
        fs.search_tree_since(TreeId::FS, next, all, &mut |item| {
            assert!(item.generation >= next.0);
            found += u64::from(item.key.item_type == ItemType::EXTENT_DATA);
            true
        })
        .unwrap();
        assert!(found >= 10, "{found} extents");
    });
    // The merge of the new changes into the unchanged snapshot is only planned.
    reads(&|fs| {
        let sides = MergeSides { base: old, changed: TreeId::FS, target: old };
        let merged = ubtrfs::merge(fs, sides, Prefer::Neither, true, &mut |_| ()).unwrap();
        assert_eq!((merged.steps.len(), merged.conflicts.len()), (10, 0));
    });
}

#[test]
fn snapshots_of_the_kernel_are_compared() {
    let fixture = Fixture::load("snapshots");
    let dir = scratch_dir();
    let images = fixture.unpack(dir.path());
    let fs = image::open(&images[0], Options { read_only: true, ..options() });
    let id =
        |path: &str| TreeId(fixture.manifest.subvolumes.iter().find(|subvolume| subvolume.path == path).unwrap().id);
    let paths = ["sv", "snap1", "snap2", "snap3"];
    for old in paths {
        for new in paths {
            assert_exact(&fs, id(old), id(new));
        }
    }
    // Between the two snapshots a name of `inline` was removed, `regular` was appended to, and a
    // file was made; their directories have changed.
    let shown = changes(&fs, id("snap1"), id("snap2"));
    let paths =
        |names: &[FileName]| -> Vec<String> { names.iter().map(|name| name.path.escape_ascii().to_string()).collect() };
    let summary: Vec<_> = shown
        .iter()
        .map(|change| (change.ino.0, change.what, paths(&change.names_removed), paths(&change.names_added)))
        .collect();
    let none = Vec::new;
    let expected = [
        (256, WhatChanged::Changed, none(), none()),
        (257, WhatChanged::Changed, none(), none()),
        (259, WhatChanged::Changed, vec!["dir/hard".to_owned()], none()),
        (260, WhatChanged::Changed, none(), none()),
        (265, WhatChanged::Made, none(), vec!["only-in-snap2".to_owned()]),
    ];
    assert_eq!(summary, expected);
    let content = [
        ChangedContent { range: 36864..40000, old: Some(Content::Data), new: Content::Data },
        ChangedContent { range: 40000..45000, old: Some(Content::Hole), new: Content::Data },
    ];
    assert_eq!(shown[3].content, content);
    assert_eq!(changes(&fs, id("sv"), id("snap3")).len(), 0);
}
