//! Subvolumes that one side makes, changes, copies and deletes are whole for the other side, and
//! each side finishes the deletions that the other began.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, FreeingLimits, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_random::Rng;
use ubtrfs_testkit::diff::{self, assert_same};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_testkit::walk::{Tree, walk};

use crate::common::image;
use crate::common::lowmem::assert_lowmem_check_clean;
use crate::common::tree::tree_of;

/// The files of each subvolume by name, with the byte and the length of their content.
type Expected = BTreeMap<String, BTreeMap<String, (u8, usize)>>;

/// One of the two sides, which works on the subvolumes in the top directory.
trait Side {
    fn create(&self, name: &str);
    fn snapshot(&self, source: &str, name: &str, read_only: bool);
    fn delete(&self, name: &str);
    /// Puts a snapshot of `source` in place of a subvolume.
    fn reset(&self, name: &str, source: &str);
    fn write(&self, subvolume: &str, name: &str, content: &[u8]);
    fn unlink(&self, subvolume: &str, name: &str);
}

struct Ours(Arc<Filesystem>);

impl Ours {
    fn top(&self, name: &str) -> InodeId {
        let top = self.0.directories().lookup(self.0.root(), name.as_bytes()).unwrap();
        assert_eq!(top.ino, Ino::ROOT_DIR);
        top
    }
}

impl Side for Ours {
    fn create(&self, name: &str) {
        self.0.subvolumes().create_subvolume(self.0.root(), name.as_bytes(), 0o755, (0, 0)).unwrap();
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        let source = self.top(source).subvolume;
        self.0.subvolumes().snapshot(source, self.0.root(), name.as_bytes(), read_only).unwrap();
    }

    fn delete(&self, name: &str) {
        self.0.subvolumes().delete_subvolume(self.0.root(), name.as_bytes()).unwrap();
    }

    fn reset(&self, name: &str, source: &str) {
        let source = self.top(source).subvolume;
        self.0.subvolumes().reset_subvolume(self.0.root(), name.as_bytes(), source).unwrap();
    }

    fn write(&self, subvolume: &str, name: &str, content: &[u8]) {
        let top = self.top(subvolume);
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let id = self
            .0
            .directories()
            .lookup(top, name.as_bytes())
            .or_else(|_| self.0.directories().create(top, name.as_bytes(), &new))
            .unwrap();
        self.0.files().write(id, WriteAt::Offset(0), content, false).unwrap();
    }

    fn unlink(&self, subvolume: &str, name: &str) {
        self.0.directories().unlink(self.top(subvolume), name.as_bytes()).unwrap();
    }
}

struct Theirs<'a>(&'a Path);

impl Theirs<'_> {
    fn btrfs(words: &[&str], paths: &[&Path]) {
        run(command("btrfs", words).args(paths)).ok();
    }
}

impl Side for Theirs<'_> {
    fn create(&self, name: &str) {
        Self::btrfs(&["subvolume", "create"], &[&self.0.join(name)]);
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        let words: &[&str] = if read_only { &["subvolume", "snapshot", "-r"] } else { &["subvolume", "snapshot"] };
        Self::btrfs(words, &[&self.0.join(source), &self.0.join(name)]);
    }

    fn delete(&self, name: &str) {
        Self::btrfs(&["subvolume", "delete"], &[&self.0.join(name)]);
    }

    fn reset(&self, name: &str, source: &str) {
        self.delete(name);
        self.snapshot(source, name, false);
    }

    fn write(&self, subvolume: &str, name: &str, content: &[u8]) {
        let path = self.0.join(subvolume).join(name);
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(content, 0).unwrap();
    }

    fn unlink(&self, subvolume: &str, name: &str) {
        fs::remove_file(self.0.join(subvolume).join(name)).unwrap();
    }
}

/// Performs some operations, and changes `expected` accordingly.
fn work(side: &dyn Side, expected: &mut Expected, fixed: &mut Vec<String>, rng: &mut Rng, round: usize) {
    for step in 0..14 {
        let names: Vec<String> = expected.keys().cloned().collect();
        let name = format!("s{round}.{step}");
        let source = if names.is_empty() { None } else { Some(rng.pick(&names).clone()) };
        match (rng.below(10), source) {
            (0, _) | (_, None) => {
                side.create(&name);
                expected.insert(name, BTreeMap::new());
            }
            (1..4, Some(source)) if names.len() < 12 => {
                let read_only = rng.one_in(3);
                side.snapshot(&source, &name, read_only);
                expected.insert(name.clone(), expected[&source].clone());
                if read_only {
                    fixed.push(name);
                }
            }
            (4 | 5, Some(source)) if names.len() > 3 => {
                side.delete(&source);
                expected.remove(&source);
            }
            (6, Some(source)) => {
                let free = |name: &&String| **name != source && !fixed.contains(name);
                if let Some(target) = names.iter().find(free) {
                    side.reset(target, &source);
                    expected.insert(target.clone(), expected[&source].clone());
                }
            }
            (_, Some(source)) if !fixed.contains(&source) => {
                let files = expected.get_mut(&source).unwrap();
                for _ in 0..60 {
                    let name = format!("file {}", rng.below(400));
                    if rng.one_in(4) && files.contains_key(&name) {
                        side.unlink(&source, &name);
                        files.remove(&name);
                        continue;
                    }
                    let (byte, len) = (rng.below(256) as u8, *rng.pick(&[100, 3000, 9000, 60_000]));
                    let len = files.get(&name).map_or(len, |(_, before)| len.max(*before));
                    side.write(&source, &name, &vec![byte; len]);
                    files.insert(name, (byte, len));
                }
            }
            _ => {}
        }
    }
}

fn assert_holds(top: &Path, expected: &Expected) {
    let entries = fs::read_dir(top).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = entries.collect();
    found.sort();
    assert_eq!(found, expected.keys().cloned().collect::<Vec<_>>());
    for (subvolume, files) in expected {
        let count = fs::read_dir(top.join(subvolume)).unwrap().count();
        assert_eq!(count, files.len(), "{subvolume}");
        for (name, (byte, len)) in files {
            let content = fs::read(top.join(subvolume).join(name)).unwrap();
            assert!(content == vec![*byte; *len], "{subvolume}/{name}");
        }
    }
}

fn few() -> Options {
    let freeing = FreeingLimits { per_transaction: 25, at_the_end: 1, ..FreeingLimits::default() };
    Options { freeing, subvolume_id: Some(TreeId::FS.0), ..Options::default() }
}

fn assert_clean(path: &Path) {
    assert_ubtrfs_check_clean(path);
    assert_lowmem_check_clean(path);
}

/// Returns what the kernel shows below a path; with `sync`, after it has dropped everything that
/// was deleted.
fn seen_by_the_kernel(path: &Path, act: impl FnOnce(&Path), sync: bool) -> Tree {
    let mount = KernelMount::new(&[path], "");
    act(mount.path());
    if sync {
        run(command("timeout", &["120", "btrfs", "subvolume", "sync", "-s", "1"]).arg(mount.path())).ok();
    }
    let tree = walk(mount.path());
    assert_eq!(mount.unmount(), Vec::<String>::new());
    tree
}

#[test]
fn subvolumes_of_either_side_are_whole_for_the_other() {
    require!(Need::Kernel);
    let layouts: [&[&str]; 4] = [
        &["-n", "4k", "-m", "single"],
        &["-O", "^no-holes", "-R", "^free-space-tree"],
        &["-n", "64k", "-m", "single"],
        &["-n", "4k", "-M", "-O", "^skinny-metadata"],
    ];
    let mut begun = 0;
    for (number, mkfs) in layouts.into_iter().enumerate() {
        let usual = if number < 2 { 2 } else { 1 };
        let rounds = if soaks() { 40 } else { usual };
        eprintln!("{mkfs:?}");
        let dir = scratch_dir();
        let path = dir.path().join("image");
        mkfs_btrfs(&path, 768 << 20, mkfs);
        let (mut expected, mut fixed, mut rng) = (Expected::new(), Vec::new(), Rng::new(number as u64));
        for round in 0..rounds {
            let fs = image::open(&path, few());
            work(&Ours(fs.clone()), &mut expected, &mut fixed, &mut rng, round);
            // Deletions have begun, and the kernel has to finish them.
            fs.durability().sync().unwrap();
            fs.durability().sync().unwrap();
            let ours = tree_of(&fs);
            begun += usize::from(!fs.subvolumes().deleted_subvolumes().is_empty());
            fs.close().unwrap();
            assert_eq!(fs.abort_reason(), None);
            drop(fs);
            assert_clean(&path);
            // The kernel finishes them, or leaves them and its own to us, in turns.
            let finish = round % 2 == 0;
            let seen = seen_by_the_kernel(&path, |top| assert_holds(top, &expected), finish);
            assert_same(&format!("{mkfs:?}, round {round}"), &ours, &seen, diff::Options::SAME_VOLUME);
            let round_of_theirs = |top: &Path| {
                work(&Theirs(top), &mut expected, &mut fixed, &mut rng, 1000 + round);
                assert_holds(top, &expected);
            };
            let seen = seen_by_the_kernel(&path, round_of_theirs, finish);
            assert_clean(&path);
            let fs = image::open(&path, few());
            assert_same(&format!("{mkfs:?}, after {round}"), &seen, &tree_of(&fs), diff::Options::SAME_VOLUME);
            if !finish {
                for _ in 0..4000 {
                    if fs.subvolumes().deleted_subvolumes().is_empty() {
                        break;
                    }
                    fs.durability().sync().unwrap();
                }
                assert_eq!(fs.subvolumes().deleted_subvolumes(), []);
            }
            fs.close().unwrap();
            assert_eq!(fs.abort_reason(), None);
            drop(fs);
            assert_clean(&path);
        }
    }
    eprintln!("{begun} times the kernel found deletions that we had begun");
    assert!(begun > 0);
}
