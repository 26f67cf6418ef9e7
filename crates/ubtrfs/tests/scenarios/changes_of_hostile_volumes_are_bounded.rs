//! A comparison or a merge keeps a limited amount of names and paths, whatever an image holds, and
//! no real tree comes near a limit.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ubtrfs::{Errno, FileChange, Filesystem, InodeId, MergeSides, NewInode, Options, Prefer, WriteAt};
use ubtrfs_format::{DirIndex, Generation, TreeId};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::image;

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;

fn open(path: &Path) -> Arc<Filesystem> {
    image::make(path, 1 << 30, |_| {});
    image::open(path, Options { no_atime: true, ..Options::default() })
}

fn make(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    let made = fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap();
    fs.references().forget(made, 1);
    made
}

/// Makes nested directories, and returns the innermost.
fn nest(fs: &Filesystem, subvolume: TreeId, levels: usize, name: &str) -> InodeId {
    (0..levels).fold(InodeId::root_of(subvolume), |dir, _| make(fs, dir, name, DIR))
}

fn subvolume(fs: &Filesystem, name: &str) -> TreeId {
    fs.subvolumes().create_subvolume(fs.root(), name.as_bytes(), 0o755, (0, 0)).unwrap()
}

fn snapshot(fs: &Filesystem, of: TreeId, name: &str) -> TreeId {
    fs.subvolumes().snapshot(of, fs.root(), name.as_bytes(), false).unwrap()
}

/// Returns the length of the longest changed path, and the number of changed inodes.
fn longest(fs: &Filesystem, old: TreeId, new: TreeId) -> Result<(usize, usize), Errno> {
    let (mut longest, mut count) = (0, 0);
    let mut visit = |change: FileChange| {
        let names = change.new_names.iter().map(|name| name.path.len());
        longest = names.chain([longest]).max().unwrap_or_default();
        count += 1;
        true
    };
    let since = ubtrfs::changes_since(fs, new, Generation(0), |_| true).map_err(|error| error.errno());
    ubtrfs::changes(fs, old, new, &mut visit).map_err(|error| error.errno())?;
    since?;
    Ok((longest, count))
}

#[test]
fn trees_much_deeper_than_a_path_of_a_call_are_compared_and_merged() {
    const LEVELS: usize = 6000;
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let base = subvolume(&fs, "base");
    let deepest = nest(&fs, base, LEVELS, "level");
    let (changed, target) = (snapshot(&fs, base, "changed"), snapshot(&fs, base, "target"));
    make(&fs, InodeId::new(changed, deepest.ino), "file", FILE);
    let depth = LEVELS * 6;
    assert_eq!(longest(&fs, base, changed), Ok((depth + 4, 2)));
    ubtrfs::merge(&fs, MergeSides { base, changed, target }, Prefer::Neither, false, &mut |_| ()).unwrap();
    let found = fs.directories().lookup(InodeId::new(target, deepest.ino), b"file").unwrap();
    fs.references().forget(found, 1);
    let empty = subvolume(&fs, "empty");
    assert_eq!(longest(&fs, empty, changed).map(|(longest, _)| longest), Ok(depth + 4));
    fs.close().unwrap();
}

#[test]
fn paths_that_would_fill_memory_are_refused() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let base = subvolume(&fs, "base");
    let deepest = nest(&fs, base, 20_000, &"n".repeat(255));
    let changed = snapshot(&fs, base, "changed");
    make(&fs, InodeId::new(changed, deepest.ino), "file", FILE);
    assert_eq!(longest(&fs, base, changed), Err(Errno::NAMETOOLONG));
    let sides = MergeSides { base, changed, target: base };
    let refused = ubtrfs::merge(&fs, sides, Prefer::Neither, true, &mut |_| ()).unwrap_err();
    assert_eq!(refused.errno(), Errno::NAMETOOLONG);
    fs.close().unwrap();
}

#[test]
fn long_paths_of_many_files_end_with_an_error_and_not_never() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let base = subvolume(&fs, "base");
    let deepest = nest(&fs, base, 4000, &"n".repeat(200));
    let changed = snapshot(&fs, base, "changed");
    for number in 0..6000 {
        make(&fs, InodeId::new(changed, deepest.ino), &number.to_string(), FILE);
    }
    assert_eq!(longest(&fs, base, changed), Err(Errno::TOOBIG));
    let sides = MergeSides { base, changed, target: base };
    let refused = ubtrfs::merge(&fs, sides, Prefer::Neither, true, &mut |_| ()).unwrap_err();
    assert_eq!(refused.errno(), Errno::TOOBIG);
    fs.close().unwrap();
}

#[test]
fn a_merge_of_a_file_with_very_many_names_takes_no_time_by_their_square() {
    const NAMES: usize = 30_000;
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let base = subvolume(&fs, "base");
    let file = make(&fs, InodeId::root_of(base), "file", FILE);
    let name = |number: usize| format!("link{number}").into_bytes();
    (0..NAMES).for_each(|number| fs.directories().link(file, InodeId::root_of(base), &name(number)).unwrap());
    let (changed, target) = (snapshot(&fs, base, "changed"), snapshot(&fs, base, "target"));
    let sides = MergeSides { base, changed, target };
    for number in 0..NAMES {
        fs.directories().unlink(InodeId::root_of(changed), &name(number)).unwrap();
    }
    fs.directories().unlink(InodeId::root_of(changed), b"file").unwrap();
    let written = fs.files().write(InodeId::new(target, file.ino), WriteAt::Offset(0), b"ours", false);
    assert_eq!(written.unwrap(), 4);
    let began = Instant::now();
    let merged = ubtrfs::merge(&fs, sides, Prefer::Theirs, false, &mut |_| ()).unwrap();
    assert_eq!((merged.conflicts.len(), merged.steps.len()), (1, NAMES + 1));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(fs.directories().list(InodeId::root_of(target), DirIndex(0), DirIndex(u64::MAX), 10).unwrap().is_empty());
    fs.close().unwrap();
}

#[test]
fn the_names_of_one_file_and_all_of_a_merge_have_a_limit_in_bytes() {
    const LEVEL: usize = 200;
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let base = subvolume(&fs, "base");
    let deepest = nest(&fs, base, 1000, &"n".repeat(LEVEL));
    let (changed, target) = (snapshot(&fs, base, "changed"), snapshot(&fs, base, "target"));
    let dir = InodeId::new(changed, deepest.ino);
    let file = make(&fs, dir, "file", FILE);
    // Each path has 200 KB: 300 names of one file, which are 60 MB, are shown, and 400 are not.
    let link = |number: usize| fs.directories().link(file, dir, format!("link{number}").as_bytes()).unwrap();
    (0..300).for_each(link);
    let last = "link299".len();
    assert_eq!(longest(&fs, base, changed), Ok((1000 * (LEVEL + 1) + last, 2)));
    (300..400).for_each(link);
    assert_eq!(longest(&fs, base, changed), Err(Errno::TOOBIG));
    for number in 0..400 {
        fs.directories().unlink(dir, format!("link{number}").as_bytes()).unwrap();
    }
    // As much is shown if it is of many files, but a merge does not keep it.
    for number in 0..1000 {
        make(&fs, dir, &number.to_string(), FILE);
    }
    assert!(longest(&fs, base, changed).is_ok());
    let sides = MergeSides { base, changed, target };
    let refused = ubtrfs::merge(&fs, sides, Prefer::Neither, false, &mut |_| ()).unwrap_err();
    assert_eq!(refused.errno(), Errno::TOOBIG);
    fs.close().unwrap();
}
