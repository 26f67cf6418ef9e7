//! In non-blocking mode, an operation that needs a device is refused, and has changed nothing.

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::scheduling::nonblocking;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, RenameFlags, Result, WriteAt};
use ubtrfs_format::DirIndex;
use ubtrfs_volume::{Device, OpenOptions, Volume};

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;
const NAMES: usize = 3000;

fn fresh(size: u64) -> Arc<dyn Device> {
    Arc::new(new_volume(size))
}

fn open(device: &Arc<dyn Device>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> Result<InodeId> {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() })
}

fn names(fs: &Filesystem, dir: InodeId) -> usize {
    fs.directories().list(dir, DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap().len()
}

/// Makes a volume with a full directory that is not in memory, and a file with data in it.
fn cold() -> (Arc<Filesystem>, InodeId, Arc<dyn Device>) {
    let device = fresh(128 << 20);
    let fs = open(&device);
    let dir = create(&fs, fs.root(), "dir", DIR).unwrap();
    for number in 0..NAMES {
        create(&fs, dir, &format!("file {number}"), FILE).unwrap();
    }
    let file = create(&fs, fs.root(), "data", FILE).unwrap();
    fs.files().write(file, WriteAt::Offset(0), &vec![7; 100_000], false).unwrap();
    fs.close().unwrap();
    let fs = open(&device);
    let dir = fs.directories().lookup(fs.root(), b"dir").unwrap();
    (fs, dir, device)
}

/// Returns whether some of `attempts` are refused. All others must succeed.
fn some_are_refused<T>(attempts: impl Iterator<Item = Result<T>>) -> bool {
    let refused = attempts.filter(|attempt| match attempt {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.errno(), Errno::AGAIN, "{error:?}");
            true
        }
    });
    refused.count() > 0
}

#[test]
fn operations_that_need_a_device_are_refused_and_change_nothing() {
    let (fs, dir, _device) = cold();
    let (names_before, mut gone) = (names(&fs, dir), 0);
    drop(fs);
    let (fs, dir, device) = cold();
    nonblocking(|| {
        assert!(some_are_refused((0..20).map(|number| {
            let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
            fs.directories().rename(
                dir,
                format!("file {number}").as_bytes(),
                dir,
                format!("moved {number}").as_bytes(),
                flags,
            )
        })));
        assert!(some_are_refused((20..40).map(|number| {
            let done = fs.directories().unlink(dir, format!("file {number}").as_bytes());
            gone += usize::from(done.is_ok());
            done
        })));
        assert!(some_are_refused(
            (40..60).map(|number| fs.directories().lookup(dir, format!("file {number}").as_bytes()))
        ));
    });
    let file = fs.directories().lookup(fs.root(), b"data").unwrap();
    assert_eq!(nonblocking(|| fs.files().read(file, 0, 100_000)).unwrap_err().errno(), Errno::AGAIN);
    assert_eq!(
        nonblocking(|| fs.files().write(file, WriteAt::Offset(5), b"x", false)).unwrap_err().errno(),
        Errno::AGAIN
    );
    assert_eq!(names(&fs, dir), names_before - gone);
    let expected = vec![7; 100_000];
    assert!(fs.files().read(file, 0, 100_000).unwrap() == expected);
    // These operations find all that they need in memory.
    let written = nonblocking(|| fs.files().write(file, WriteAt::Offset(0), &[8; 8192], false));
    assert_eq!(written.unwrap(), 8192);
    assert_eq!(nonblocking(|| fs.files().read(file, 0, 8192)).unwrap(), [8; 8192]);
    assert_eq!(nonblocking(|| fs.files().read(file, 0, 8193)).unwrap_err().errno(), Errno::AGAIN);
    fs.close().unwrap();
    let fs = open(&device);
    let dir = fs.directories().lookup(fs.root(), b"dir").unwrap();
    assert_eq!(names(&fs, dir), names_before - gone);
}
