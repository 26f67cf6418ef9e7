//! A merge takes subvolumes of one origin. It stops when its caller is gone, or else takes place as
//! a whole, and reports every change that a cache has to know.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Attributes, Errno, Filesystem, InodeId, MergeEffect, MergeSides, NewInode, Options, Prefer};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{FileType, Timespec};
use ubtrfs_format::{DirIndex, Ino, ItemType, Key, TreeId};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::image;
use crate::common::script::{run, tree, walk};

const BASE: &str = "mkdir d; mkdir d/e; make d/e/f; write d/e/f 1 0 9000; make a; write a 2 0 20000; make l; \
                    ln l d/l; make m; ln m d/m; write m 3 0 100; make gone; mkdir empty; sym t s";
const CHANGED: &str = "mv d other; rm l; mv m other/n; write a 9 0 5000; chmod a 600; rm gone; rmdir empty; \
                       mkdir n; make n/f; write n/f 4 0 9000; ln n/f n/g; sym u n/s; ln a n/a; xattr s trusted.k v";
const TARGET: &str = "make d/own; chmod d/e/f 640; make x; write x 5 0 9";

fn open(path: &Path) -> Arc<Filesystem> {
    image::make(path, 512 << 20, |_| {});
    image::open(path, Options { no_atime: true, ..Options::default() })
}

fn subvolume(fs: &Filesystem, name: &str) -> TreeId {
    fs.subvolumes().create_subvolume(fs.root(), name.as_bytes(), 0o755, (0, 0)).unwrap()
}

fn snapshot(fs: &Filesystem, of: TreeId, name: &str) -> TreeId {
    fs.subvolumes().snapshot(of, fs.root(), name.as_bytes(), false).unwrap()
}

fn three(fs: &Filesystem) -> MergeSides {
    let base = subvolume(fs, "base");
    run(fs, base, BASE);
    let sides = MergeSides { base, changed: snapshot(fs, base, "changed"), target: snapshot(fs, base, "target") };
    run(fs, sides.changed, CHANGED);
    run(fs, sides.target, TARGET);
    sides
}

#[test]
fn a_merge_that_nobody_wants_changes_nothing_until_it_has_begun_to() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let sides = three(&fs);
    let before = tree(&walk(&fs, sides.target));
    let (mut stopped, mut is_done) = (0, false);
    while !is_done {
        let (asked, has_changed) = (Cell::new(0), Cell::new(false));
        let is_wanted = || {
            assert!(!has_changed.get(), "asked after the first change");
            asked.set(asked.get() + 1);
            asked.get() <= stopped
        };
        let old = |id: InodeId| walk(&fs, sides.base).contains_key(&id.ino);
        let mut effect = |effect| {
            if let MergeEffect::Inode(id) | MergeEffect::Attributes(id) = effect {
                has_changed.set(has_changed.get() || old(id));
            }
        };
        let done = ubtrfs::merge_while(&fs, sides, Prefer::Neither, false, &mut effect, &is_wanted);
        match done {
            Ok(merged) => {
                assert!(!merged.steps.is_empty());
                is_done = true;
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::INTR);
                assert_eq!(tree(&walk(&fs, sides.target)), before, "stopped at the question {stopped}");
                stopped += 1;
            }
        }
    }
    assert!(stopped > 20, "it could be stopped at {stopped} points only");
    assert_ne!(tree(&walk(&fs, sides.target)), before);
    fs.close().unwrap();
}

/// Permissions, owner, group, names, size, time of change and flags of an inode.
type Known = (u32, (u32, u32), u32, u64, Timespec, u64);

fn known(is: &Attributes) -> Known {
    (is.mode, (is.uid, is.gid), is.nlink, is.size, is.mtime, is.flags)
}

/// What a kernel that looks everything up again and again caches of a subvolume, until it is to
/// forget it.
#[derive(Default)]
struct Cache {
    names: BTreeMap<(InodeId, Vec<u8>), Option<InodeId>>,
    attributes: BTreeMap<InodeId, Known>,
    content: BTreeMap<InodeId, Vec<u8>>,
}

impl Cache {
    fn look(&mut self, fs: &Filesystem, target: TreeId) {
        let mut waiting = vec![InodeId::root_of(target)];
        // Files that are open without a name are examined, too.
        waiting.extend(self.attributes.keys());
        while let Some(id) = waiting.pop() {
            let Ok(is) = fs.inodes().attributes(id) else { continue };
            self.attributes.entry(id).or_insert_with(|| known(&is));
            if is.file_type == FileType::Regular {
                self.content.entry(id).or_insert_with(|| fs.files().read(id, 0, 1 << 20).unwrap());
            }
            if is.file_type == FileType::Directory {
                for entry in fs.directories().list(id, DirIndex(0), DirIndex(u64::MAX), 1000).unwrap() {
                    self.names.entry((id, entry.name)).or_insert(Some(entry.inode));
                    waiting.push(entry.inode);
                }
            }
        }
    }

    fn forget(&mut self, effect: &MergeEffect) {
        match effect {
            MergeEffect::Name(dir, name) => {
                self.names.remove(&(*dir, name.clone()));
                self.attributes.remove(dir);
            }
            MergeEffect::Inode(id) => {
                self.attributes.remove(id);
                self.content.remove(id);
            }
            MergeEffect::Attributes(id) => {
                self.attributes.remove(id);
            }
        }
    }

    fn assert_true(&self, fs: &Filesystem) {
        for ((dir, name), known) in &self.names {
            let found = fs.directories().lookup(*dir, name).ok();
            found.inspect(|found| fs.references().forget(*found, 1));
            // A lookup in a directory that was removed is not possible.
            if fs.inodes().attributes(*dir).is_ok_and(|is| is.nlink > 0) {
                assert_eq!(found, *known, "{} of {dir:?}", name.escape_ascii());
            }
        }
        for (id, before) in &self.attributes {
            let Ok(is) = fs.inodes().attributes(*id) else { continue };
            assert_eq!(*before, known(&is), "attributes of {id:?}");
        }
        for (id, known) in &self.content {
            let Ok(now) = fs.files().read(*id, 0, 1 << 20) else { continue };
            assert!(now == *known, "content of {id:?}");
        }
    }
}

#[test]
fn everything_that_a_cache_has_is_reported_when_it_changes() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    for looks in [false, true] {
        let sides = three(&fs);
        let mut cache = Cache::default();
        cache.look(&fs, sides.target);
        // The absence of a name is cached, too.
        for name in ["n", "other", ".ubtrfs-merge-0"] {
            cache.names.insert((InodeId::root_of(sides.target), name.into()), None);
        }
        let mut effect = |effect: MergeEffect| {
            cache.forget(&effect);
            if looks {
                cache.look(&fs, sides.target);
            }
        };
        ubtrfs::merge(&fs, sides, Prefer::Neither, false, &mut effect).unwrap();
        cache.assert_true(&fs);
        for name in ["base", "changed", "target"] {
            fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
        }
    }
    fs.close().unwrap();
}

#[test]
fn only_subvolumes_of_one_origin_are_merged() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let merge = |base, changed, target| {
        let sides = MergeSides { base, changed, target };
        ubtrfs::merge(&fs, sides, Prefer::Theirs, true, &mut |_| ())
            .map(|merged| merged.steps.len())
            .map_err(|e| e.errno())
    };
    let make = |subvolume, name: &str| {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let made = fs.directories().create(InodeId::root_of(subvolume), name.as_bytes(), &new).unwrap();
        fs.references().forget(made, 1);
    };
    // The changed side is a snapshot of the target, or a snapshot of that.
    let target = subvolume(&fs, "target");
    make(target, "file");
    let base = snapshot(&fs, target, "base");
    let changed = snapshot(&fs, base, "changed");
    make(changed, "new");
    assert_eq!(merge(base, changed, target), Ok(1));
    // Siblings, also those whose common source is deleted.
    let sibling = snapshot(&fs, target, "sibling");
    make(sibling, "new");
    assert_eq!(merge(base, sibling, target), Ok(1));
    fs.subvolumes().delete_subvolume(fs.root(), b"target").unwrap();
    make(sibling, "newer");
    assert_eq!(merge(base, sibling, changed), Ok(1));
    // The snapshot between them is deleted.
    let between = snapshot(&fs, base, "between");
    let last = snapshot(&fs, between, "last");
    make(last, "newest");
    fs.subvolumes().delete_subvolume(fs.root(), b"between").unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(merge(base, last, sibling), Ok(1));
    // Other subvolumes, made in one transaction or not.
    let names: Vec<String> = (0..4).map(|number| format!("other{number}")).collect();
    let others: Vec<TreeId> = std::thread::scope(|scope| {
        let threads: Vec<_> = names.iter().map(|name| scope.spawn(|| subvolume(&fs, name))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let made_in = |id| fs.subvolumes().subvolume_info(id).unwrap().transids[1];
    let pairs = others.iter().flat_map(|one| others.iter().map(move |other| (*one, *other)));
    let mut in_one = 0;
    for (one, other) in pairs.filter(|(one, other)| one != other) {
        in_one += usize::from(made_in(one) == made_in(other));
        assert_eq!(merge(one, one, other), Err(Errno::INVAL));
        let of_other = fs.subvolumes().snapshot(other, fs.root(), b"of other", false).unwrap();
        assert_eq!(merge(one, of_other, one), Err(Errno::INVAL));
        fs.subvolumes().delete_subvolume(fs.root(), b"of other").unwrap();
    }
    println!("{in_one} pairs were made in one transaction");
    assert_eq!(merge(base, others[0], sibling), Err(Errno::INVAL));
    assert_eq!(merge(TreeId::FS, base, sibling), Err(Errno::INVAL));
    let (base, changed) = (snapshot(&fs, TreeId::FS, "top"), snapshot(&fs, TreeId::FS, "top2"));
    make(changed, "new");
    assert_eq!(merge(base, changed, TreeId::FS).map(|steps| steps > 0), Ok(true));
    fs.close().unwrap();
}

/// The offset of the transaction that made the subvolume, in a root item.
const CREATED: usize = 303;

#[test]
fn root_directories_with_equal_times_prove_no_common_origin() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    let fs = open(&path);
    let (one, other) = (subvolume(&fs, "one"), subvolume(&fs, "other"));
    let made_in = fs.subvolumes().subvolume_info(one).unwrap().transids[1];
    fs.close().unwrap();
    drop(fs);
    // Changes them as if both had been made in one transaction, at one tick of the kernel's clock.
    let is_root = |key: &Key| key.objectid == Ino::ROOT_DIR.0 && key.item_type == ItemType::INODE_ITEM;
    let image = Image::open(&path);
    let root = image.items(one).into_iter().find(|(key, _)| is_root(key)).unwrap().1;
    image.edit(other, |key, _| is_root(key), |_, data| data.copy_from_slice(&root));
    let is_item = |key: &Key, _: &[u8]| key.objectid == other.0 && key.item_type == ItemType::ROOT_ITEM;
    image.edit(TreeId::ROOT, is_item, |_, data| data[CREATED..CREATED + 8].copy_from_slice(&made_in.to_le_bytes()));
    let fs = image::open(&path, Options { no_atime: true, ..Options::default() });
    assert_eq!(fs.subvolumes().subvolume_info(other).unwrap().transids[1], made_in);
    let born = |id| fs.inodes().attributes(InodeId::root_of(id)).unwrap().btime;
    assert_eq!(born(one), born(other));
    let of_other = snapshot(&fs, other, "of other");
    for (changed, target) in [(one, other), (other, one), (one, of_other), (of_other, one)] {
        let sides = MergeSides { base: one, changed, target };
        let refused = ubtrfs::merge(&fs, sides, Prefer::Theirs, true, &mut |_| ()).unwrap_err();
        assert_eq!(refused.errno(), Errno::INVAL);
    }
    let sides = MergeSides { base: other, changed: of_other, target: other };
    ubtrfs::merge(&fs, sides, Prefer::Theirs, true, &mut |_| ()).unwrap();
    fs.close().unwrap();
}
