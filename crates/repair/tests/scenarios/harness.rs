//! Damages volumes, repairs them, and compares them with what they were.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use ubtrfs::{Filesystem, Options as FsOptions, Rescue};
use ubtrfs_check::Report;
use ubtrfs_damage::Image;
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, ItemType, TreeId};
use ubtrfs_repair::{Change, Level, Options, RepairPlan};
use ubtrfs_testkit::content::{Digest, Digester};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::walk::{Tree, walk};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

/// The trees whose items are damaged.
pub const TREES: [TreeId; 7] =
    [TreeId::FS, TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::DEV, TreeId::CSUM, TreeId::UUID, TreeId::ROOT];

/// What can be read: the content of each file that can be read as a whole, and each directory.
pub type Readable = BTreeMap<Vec<u8>, Option<Digest>>;

/// A sound volume, copies of which are damaged.
pub struct Sound {
    dir: TempDir,
    pub fixture: Fixture,
    pub image: PathBuf,
    bytes: Vec<u8>,
    readable: Readable,
}

/// What a repair has done.
pub struct Outcome {
    pub what: String,
    /// Whether nothing was written.
    pub is_empty: bool,
    pub changes: Vec<Change>,
    /// What the checker has found before it.
    pub found: Report,
    /// What the checker finds after it.
    pub left: Report,
    /// What the kernel shows after it, if no fault is left.
    pub shown: Option<Tree>,
}

impl Outcome {
    /// Panics unless the volume is as it was before the damage, and the plan says that nothing is
    /// given up.
    pub fn assert_derived(&self, sound: &Sound) {
        assert!(self.left.is_clean(), "{}: {:?}", self.what, self.left.faults.first());
        assert!(!self.loses_content(), "{}: {:?}", self.what, self.changes);
        sound.fixture.assert_shows(self.shown.as_ref().unwrap());
    }

    /// Panics unless no fault is left, and the plan has named what is given up.
    pub fn assert_given_up(&self) {
        assert!(self.left.is_clean(), "{}: {:?}", self.what, self.left.faults.first());
        assert!(self.loses_content(), "{}: {:?}, {:?}", self.what, self.changes, self.found.faults);
    }

    /// Whether the plan gives something up.
    pub fn loses_content(&self) -> bool {
        self.changes.iter().any(|change| change.level == Level::Content)
    }
}

impl Sound {
    pub fn load(name: &str) -> Self {
        let dir = scratch_dir();
        let fixture = Fixture::load(name);
        let image = fixture.unpack(dir.path()).remove(0);
        let (bytes, readable) = (std::fs::read(&image).unwrap(), readable(&image));
        Self { dir, fixture, image, bytes, readable }
    }

    /// Damages a copy, repairs it, and asserts what holds of every repair: it makes nothing worse,
    /// what could be read before can be read after it, and a volume without faults is one for
    /// `btrfs check` and the kernel, too.
    pub fn repair_after(&self, what: &str, damage: impl FnOnce(&Image)) -> Outcome {
        let path = self.dir.path().join("damaged");
        std::fs::write(&path, &self.bytes).unwrap();
        damage(&Image::open(&path));
        let what = format!("{}: {what}", self.fixture.manifest.name);
        // The last line of a test that fails says which case it was.
        println!("{what}");
        let before = readable(&path);
        let plan = RepairPlan::of(devices(&path), &Options { data_checksums: true, ..Options::default() });
        let plan = plan.unwrap_or_else(|error| panic!("{what}: {}", ubtrfs_errors::sentence(&error)));
        let (was, is) = (plan.before.fault_count, plan.after.fault_count);
        assert!(
            plan.is_empty() || plan.helps() || was == 0,
            "{what}: {was} faults, then {is}: {:?}",
            plan.after.faults
        );
        if plan.is_empty() || plan.helps() {
            plan.apply(None).unwrap();
        }
        let (is_empty, changes) = (plan.is_empty(), plan.changes.clone());
        let (found, left) = (plan.before.clone(), plan.after.clone());
        drop(plan);
        let after = readable(&path);
        for (place, content) in &before {
            let now = after.get(place);
            // A file may get back what it had before the damage.
            let is_kept = now == Some(content) || now.is_some() && now == self.readable.get(place);
            assert!(is_kept, "{what}: {} can't be read any more: {:?}", place.escape_ascii(), changes);
        }
        let shown = left.is_clean().then(|| {
            assert_btrfs_check_clean(&path);
            let mount = KernelMount::new(&[&path], &self.fixture.options("noatime"));
            let shown = walk(mount.path());
            assert_eq!(mount.unmount(), Vec::<String>::new(), "{what}");
            shown
        });
        Outcome { what, is_empty, changes, found, left, shown }
    }
}

/// The positions of some items of each type in a tree, of those that are not the first of their
/// leaf: the first, one in the middle, and the last.
pub fn samples(image: &Image, tree: TreeId) -> Vec<(ItemType, usize)> {
    let mut counts: BTreeMap<ItemType, usize> = BTreeMap::new();
    for at in image.leaves(tree) {
        for (key, _) in image.leaf(at).iter().skip(1) {
            *counts.entry(key.item_type).or_default() += 1;
        }
    }
    let sampled = |(item_type, count): (ItemType, usize)| {
        BTreeSet::from([0, count / 2, count - 1]).into_iter().map(move |position| (item_type, position))
    };
    counts.into_iter().flat_map(sampled).collect()
}

/// Changes the leaf of the item of a type at this position. `change` gets its items, and the index
/// of this one.
pub fn edit_at(
    image: &Image,
    tree: TreeId,
    (item_type, position): (ItemType, usize),
    mut change: impl FnMut(&mut ubtrfs_damage::Items, usize),
) {
    let mut left = position;
    image.edit_leaf(tree, |items| {
        let found = items.iter().enumerate().skip(1).filter(|(_, (key, _))| key.item_type == item_type);
        let indexes: Vec<usize> = found.map(|(index, _)| index).collect();
        let Some(index) = indexes.get(left) else {
            left -= indexes.len();
            return false;
        };
        change(items, *index);
        true
    });
}

fn devices(path: &Path) -> Vec<Arc<dyn Device>> {
    vec![Arc::new(FileDevice::open(path, OpenMode::ReadWrite, Exclusive::Yes).unwrap())]
}

/// Reads a volume as far as that is possible.
pub fn readable(path: &Path) -> Readable {
    let mut readable = Readable::new();
    let Ok(volume) = Volume::open(devices(path), OpenOptions { read_only: true }) else { return readable };
    let rescue = Rescue { pass_over: Some(Arc::default()), ..Rescue::default() };
    let options = FsOptions { read_only: true, background_commits: false, rescue, ..FsOptions::default() };
    let Ok(fs) = Filesystem::open(Arc::new(volume), options) else { return readable };
    let mut waiting = vec![(Vec::new(), fs.root())];
    let mut seen = BTreeSet::new();
    while let Some((path, id)) = waiting.pop() {
        let Ok(attributes) = fs.inodes().attributes(id) else { continue };
        match attributes.file_type {
            FileType::Directory => {
                if !seen.insert(id) {
                    continue;
                }
                let last = fs.directories().last_index(id).unwrap_or(DirIndex(u64::MAX));
                let children = fs.directories().list(id, DirIndex(0), last, usize::MAX).unwrap_or_default();
                for child in children {
                    waiting.push(([&path[..], b"/", &child.name].concat(), child.inode));
                }
                readable.insert(path, None);
            }
            FileType::Regular => {
                if let Some(content) = content(&fs, id, attributes.size) {
                    readable.insert(path, Some(content));
                }
            }
            _ => {}
        }
    }
    readable
}

fn content(fs: &Filesystem, id: ubtrfs::InodeId, size: u64) -> Option<Digest> {
    const STEP: usize = 1 << 20;
    let mut digester = Digester::new(size);
    for offset in (0..size).step_by(STEP) {
        digester.add(offset, &fs.files().read(id, offset, STEP).ok()?);
    }
    Some(digester.finish())
}
