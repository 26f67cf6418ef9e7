//! A non-blocking request is refused where it would block, and retried in blocking mode. The result
//! is the same as without the first attempt.

use std::sync::Arc;

use crate::common::memory::new_volume;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ubtrfs::scheduling::nonblocking;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, RenameFlags, Result, SetAttributes, WriteAt, XattrMode};
use ubtrfs_format::{DirIndex, Ino, TreeId};
use ubtrfs_volume::{Device, OpenOptions, Volume};

const FILE: u32 = 0o104_755;
const DIR: u32 = 0o040_755;
/// Names of each directory at the beginning: enough for several leaves, but few enough for
/// operations to meet existing names.
const NAMES: u32 = 250;
const DIRS: u32 = 3;
/// Bytes of a volume.
const SIZE: u64 = 128 << 20;
const CASES: u32 = 12;

/// An operation; numbers choose directories, names and sizes.
#[derive(Clone, Debug)]
enum Step {
    Create(u32, u32),
    MakeDir(u32, u32),
    Unnamed(u32),
    Unlink(u32, u32),
    RemoveDir(u32, u32),
    Link(u32, u32, u32, u32),
    Rename(u32, u32, u32, u32, u32),
    Write(u32, u32, u32, u32),
    Resize(u32, u32, u32),
    Owner(u32, u32),
    SetXattr(u32, u32, u32),
    RemoveXattr(u32, u32),
    Read(u32, u32, u32),
    List(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (dir, name) = (0..DIRS, 0..NAMES + 20);
    let at = 0..40_000_u32;
    prop_oneof![
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::Create(dir, name)),
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::MakeDir(dir, name)),
        dir.clone().prop_map(Step::Unnamed),
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::Unlink(dir, name)),
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::RemoveDir(dir, name)),
        (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Step::Link(a, b, c, d)),
        (dir.clone(), name.clone(), dir.clone(), name.clone(), 0..4_u32)
            .prop_map(|(a, b, c, d, how)| Step::Rename(a, b, c, d, how)),
        (dir.clone(), name.clone(), at.clone(), 1..20_000_u32).prop_map(|(a, b, c, d)| Step::Write(a, b, c, d)),
        (dir.clone(), name.clone(), at.clone()).prop_map(|(a, b, c)| Step::Resize(a, b, c)),
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::Owner(dir, name)),
        (dir.clone(), name.clone(), 0..3_u32).prop_map(|(a, b, how)| Step::SetXattr(a, b, how)),
        (dir.clone(), name.clone()).prop_map(|(dir, name)| Step::RemoveXattr(dir, name)),
        (dir.clone(), name, at).prop_map(|(a, b, c)| Step::Read(a, b, c)),
        dir.prop_map(Step::List),
    ]
}

fn open(device: &Arc<dyn Device>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn new(mode: u32) -> NewInode {
    NewInode { mode, ..NewInode::default() }
}

fn name(number: u32) -> Vec<u8> {
    format!("name {number} {}", "x".repeat(60)).into_bytes()
}

/// Returns the initial volume, which is the same for all runs.
fn volume() -> Vec<u8> {
    let device = Arc::new(new_volume(SIZE));
    let shared: Arc<dyn Device> = device.clone();
    let fs = open(&shared);
    for dir in 0..DIRS {
        let dir = fs.directories().create(fs.root(), format!("dir {dir}").as_bytes(), &new(DIR)).unwrap();
        for number in 0..NAMES {
            let mode = if number % 10 == 9 { DIR } else { FILE };
            let id = fs.directories().create(dir, &name(number), &new(mode)).unwrap();
            if number % 3 == 0 && mode == FILE {
                fs.files()
                    .write(id, WriteAt::Offset(0), &vec![number as u8; 100 * number as usize + 1], false)
                    .unwrap();
            }
            if number % 4 == 0 {
                fs.inodes().set_xattr(id, b"user.old", &[1; 200], XattrMode::Set).unwrap();
                fs.inodes().set_xattr(id, b"security.capability", &[1; 20], XattrMode::Set).unwrap();
            }
        }
    }
    fs.close().unwrap();
    drop(fs);
    drop(shared);
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(ubtrfs_format::Physical(0), &mut bytes).unwrap();
    bytes
}

fn dir(fs: &Filesystem, number: u32) -> Result<InodeId> {
    fs.directories().lookup(fs.root(), format!("dir {number}").as_bytes())
}

/// Performs an operation, and returns a number to compare.
fn act(fs: &Filesystem, step: &Step) -> Result<u64> {
    let find = |at: u32, number: u32| {
        let dir = dir(fs, at)?;
        let found = fs.directories().lookup(dir, &name(number));
        fs.references().forget(dir, 1);
        found
    };
    // Works on an inode from an earlier lookup, as a server does.
    let with = |at: u32, number: u32, work: &dyn Fn(InodeId) -> Result<u64>| {
        let id = find(at, number)?;
        let done = work(id);
        fs.references().forget(id, 1);
        done
    };
    match *step {
        Step::Create(at, number) | Step::MakeDir(at, number) => {
            let mode = if matches!(step, Step::Create(..)) { FILE } else { DIR };
            let id = fs.directories().create(dir(fs, at)?, &name(number), &new(mode))?;
            let size = fs.inodes().attributes(id)?.size;
            fs.references().forget(id, 1);
            Ok(size)
        }
        Step::Unnamed(at) => {
            let id = fs.directories().create_unnamed(dir(fs, at)?, &new(FILE))?;
            fs.references().forget(id, 1);
            Ok(0)
        }
        Step::Unlink(at, number) => fs.directories().unlink(dir(fs, at)?, &name(number)).map(|()| 0),
        Step::RemoveDir(at, number) => fs.directories().rmdir(dir(fs, at)?, &name(number)).map(|()| 0),
        Step::Link(at, number, to, new) => {
            with(at, number, &|id| fs.directories().link(id, dir(fs, to)?, &name(new)).map(|()| 0))
        }
        Step::Rename(at, number, to, new, how) => {
            let flags =
                RenameFlags { no_replace: how == 1, exchange: how == 2, whiteout: how == 3, ..RenameFlags::default() };
            fs.directories().rename(dir(fs, at)?, &name(number), dir(fs, to)?, &name(new), flags).map(|()| 0)
        }
        Step::Write(at, number, offset, length) => with(at, number, &|id| {
            let data = vec![length as u8; length as usize];
            fs.files().write(id, WriteAt::Offset(offset.into()), &data, length % 2 == 0).map(|written| written as u64)
        }),
        Step::Resize(at, number, size) => with(at, number, &|id| {
            let size = if size % 2 == 0 { 0 } else { u64::from(size) };
            let changes = SetAttributes { size: Some(size), kill_privileges: true, ..SetAttributes::default() };
            Ok(fs.inodes().set_attributes(id, &changes)?.size)
        }),
        Step::Owner(at, number) => with(at, number, &|id| {
            let changes = SetAttributes { uid: Some(7), mode: Some(0o640), ..SetAttributes::default() };
            Ok(fs.inodes().set_attributes(id, &changes)?.mode.into())
        }),
        Step::SetXattr(at, number, how) => with(at, number, &|id| {
            let how = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][how as usize];
            fs.inodes().set_xattr(id, b"user.old", &[2; 50], how).map(|()| 0)
        }),
        Step::RemoveXattr(at, number) => with(at, number, &|id| fs.inodes().remove_xattr(id, b"user.old").map(|()| 0)),
        Step::Read(at, number, offset) => with(at, number, &|id| Ok(sum(&fs.files().read(id, offset.into(), 5000)?))),
        Step::List(at) => {
            let last = fs.directories().last_index(dir(fs, at)?)?;
            Ok(fs.directories().list(dir(fs, at)?, DirIndex(0), last, usize::MAX)?.len() as u64)
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

/// Appends everything durable, except for times, as text.
fn dump(fs: &Filesystem, dir: InodeId, depth: u32, into: &mut Vec<String>) {
    for entry in fs.directories().list(dir, DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap() {
        let id = entry.inode;
        let is = fs.inodes().attributes(id).unwrap();
        let xattrs: Vec<_> = fs
            .inodes()
            .list_xattrs(id)
            .unwrap()
            .into_iter()
            .map(|name| sum(&fs.inodes().get_xattr(id, &name).unwrap()))
            .collect();
        let content = if is.mode & 0o170_000 == 0o100_000 { sum(&fs.files().read(id, 0, 1 << 20).unwrap()) } else { 0 };
        into.push(format!(
            "{depth} {} {:o} {} {} {} {xattrs:?} {content}",
            String::from_utf8_lossy(&entry.name),
            is.mode,
            is.nlink,
            is.uid,
            is.size
        ));
        if is.mode & 0o170_000 == 0o040_000 {
            dump(fs, id, depth + 1, into);
        }
    }
}

fn reported(result: &Result<u64>) -> std::result::Result<u64, Errno> {
    result.as_ref().map(|reported| *reported).map_err(ubtrfs::Error::errno)
}

#[test]
fn an_attempt_that_is_refused_leaves_no_trace() {
    let image = volume();
    let device = || -> Arc<dyn Device> { Arc::new(ubtrfs_volume::MemoryDevice::from_bytes(image.clone())) };
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new(config);
    // Each step has others before it that read files, so that a part of the trees is in memory.
    let steps = prop::collection::vec((step(), prop::collection::vec(step(), 0..4), any::<bool>()), 1..60);
    let refused = std::cell::Cell::new(0_u32);
    runner
        .run(&steps, |steps| {
            let (tried, plain) = (device(), device());
            let (mut fs, other) = (open(&tried), open(&plain));
            for (step, warm, fresh) in &steps {
                if *fresh {
                    fs.close().unwrap();
                    drop(fs);
                    fs = open(&tried);
                }
                for (warm, _) in warm.iter().zip(0..) {
                    let seen = match *warm {
                        Step::Read(at, number, _) | Step::Unlink(at, number) | Step::Write(at, number, ..) => {
                            Step::Read(at, number, 0)
                        }
                        Step::Create(at, _) => Step::List(at),
                        _ => continue,
                    };
                    let _ = act(&fs, &seen);
                }
                let mut first = nonblocking(|| act(&fs, step));
                if reported(&first) == Err(Errno::AGAIN) {
                    refused.set(refused.get() + 1);
                    first = act(&fs, step);
                }
                let second = act(&other, step);
                prop_assert_eq!(reported(&first), reported(&second), "{:?}", step);
            }
            let (mut one, mut two) = (Vec::new(), Vec::new());
            dump(&fs, InodeId::new(TreeId::FS, Ino::ROOT_DIR), 0, &mut one);
            dump(&other, InodeId::new(TreeId::FS, Ino::ROOT_DIR), 0, &mut two);
            prop_assert_eq!(&one, &two);
            fs.close().unwrap();
            drop(fs);
            let fs = open(&tried);
            let mut one = Vec::new();
            dump(&fs, InodeId::new(TreeId::FS, Ino::ROOT_DIR), 0, &mut one);
            prop_assert_eq!(&one, &two);
            Ok(())
        })
        .unwrap();
    assert!(refused.get() > CASES, "{} refused", refused.get());
}
