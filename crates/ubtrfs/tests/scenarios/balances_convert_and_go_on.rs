//! A balance moves the chunks that its filters select, converts them to other profiles, and
//! continues where it was paused, also after the end of the mount.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::{Errno, Filesystem, NewInode, Options, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, SINGLE};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Exclusive, FaultyDevice, FileDevice, Lasting, OpenMode, OpenOptions, Operation, Volume};

use crate::common::memory::new_volume;
use crate::common::tree::tree_of;
use crate::common::{image, pattern};

fn options() -> Options {
    Options { no_atime: true, ..Options::default() }
}

fn filled(path: &Path) -> Arc<Filesystem> {
    image::make(path, 1 << 30, |_| {});
    let fs = image::open(path, options());
    for number in 0..300 {
        let name = format!("file{number}");
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let id = fs.directories().create(fs.root(), name.as_bytes(), &new).unwrap();
        let len = if number % 10 == 0 { 6 << 20 } else { 30_000 };
        fs.files().write(id, WriteAt::Offset(0), &pattern(number, len), false).unwrap();
    }
    fs.durability().sync().unwrap();
    fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"copy", false).unwrap();
    fs
}

fn check(fs: Arc<Filesystem>, path: &Path) -> Arc<Filesystem> {
    fs.close().unwrap();
    drop(fs);
    assert_ubtrfs_check_clean(path);
    assert_btrfs_check_clean(path);
    image::open(path, options())
}

/// The profiles of a type's chunks.
fn profiles(fs: &Filesystem, kind: BlockGroupFlags) -> Vec<u64> {
    let chunks = fs.volume().chunk_map().all().into_iter().filter(|(_, chunk)| chunk.flags.contains(kind));
    let mut profiles: Vec<u64> = chunks.map(|(_, chunk)| chunk.flags.profile().0).collect();
    profiles.sort_unstable();
    profiles.dedup();
    profiles
}

fn convert(target: u64, flags: u64) -> BalanceItem {
    let args = BalanceArgs { target, filters: BalanceFilters::CONVERT, ..BalanceArgs::default() };
    BalanceItem { flags, data: args, metadata: args, system: args }
}

#[test]
fn chunks_get_another_profile_and_the_old_one_again() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    let mut fs = filled(&path);
    let before = tree_of(&fs);
    let (data, metadata, system) = (BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM);
    let of_metadata = BalanceFlags::METADATA | BalanceFlags::SYSTEM;
    let refused = fs.balancer().start(&convert(SINGLE, of_metadata), &|_| true).unwrap_err();
    assert_eq!(refused.errno(), Errno::INVAL, "fewer copies of metadata are a matter of force");
    let refused = fs.balancer().start(&convert(BlockGroupFlags::RAID1.0, BalanceFlags::DATA), &|_| true).unwrap_err();
    assert_eq!(refused.errno(), Errno::INVAL, "one device holds no RAID1");
    for (balance, expected) in [
        (convert(SINGLE, of_metadata | BalanceFlags::FORCE), [0, 0, 0]),
        (convert(BlockGroupFlags::DUP.0, of_metadata), [0, BlockGroupFlags::DUP.0, BlockGroupFlags::DUP.0]),
        (convert(BlockGroupFlags::DUP.0, BalanceFlags::DATA), [BlockGroupFlags::DUP.0; 3]),
        (convert(SINGLE, BalanceFlags::DATA), [0, BlockGroupFlags::DUP.0, BlockGroupFlags::DUP.0]),
    ] {
        fs.balancer().start(&balance, &|_| true).unwrap();
        assert_eq!(fs.balancer().status(), None);
        let found = [data, metadata, system].map(|kind| profiles(&fs, kind));
        assert_eq!(found, expected.map(|profile| vec![profile]));
        fs = check(fs, &path);
        assert_eq!(tree_of(&fs), before);
    }
}

#[test]
fn a_paused_balance_is_there_at_the_next_mount() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    let fs = filled(&path);
    let before = tree_of(&fs);
    assert_eq!(fs.balancer().resume(&|_| true).unwrap_err().errno(), Errno::NOTCONN);
    assert_eq!(fs.balancer().pause().unwrap_err().errno(), Errno::NOTCONN);
    let everything = BalanceItem {
        flags: BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM,
        ..BalanceItem::default()
    };
    std::thread::scope(|scope| {
        let balance = scope.spawn(|| fs.balancer().start(&everything, &|_| true));
        while fs.balancer().status().is_none_or(|status| status.progress.considered == 0) {
            std::thread::yield_now();
        }
        fs.balancer().pause().unwrap();
        assert_eq!(balance.join().unwrap().unwrap_err().errno(), Errno::CANCELED);
    });
    assert!(!fs.balancer().status().unwrap().running);
    assert_eq!(fs.balancer().start(&everything, &|_| true).unwrap_err().errno(), Errno::INPROGRESS);
    let fs = check(fs, &path);
    let status = fs.balancer().status().unwrap();
    assert_eq!((status.balance, status.running), (everything, false));
    // Mounts do it in the background.
    drop(fs);
    let device = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap());
    let volume = Arc::new(Volume::open(vec![device], OpenOptions { read_only: false }).unwrap());
    let fs = Filesystem::open(volume, Options { resume_balance: true, ..options() }).unwrap();
    let start = Instant::now();
    while fs.balancer().status().is_some() {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", fs.balancer().status());
        std::thread::sleep(Duration::from_millis(5));
    }
    let fs = check(fs, &path);
    assert_eq!(fs.balancer().status(), None);
    assert_eq!(tree_of(&fs), before);
    assert_eq!(fs.balancer().cancel().unwrap_err().errno(), Errno::NOTCONN);
}

#[test]
fn cancelling_a_balance_does_not_wait_for_the_next_one() {
    const ROUNDS: u32 = 30;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| {});
    let fs = image::open(&path, options());
    let data = BalanceItem { flags: BalanceFlags::DATA, ..BalanceItem::default() };
    let wait_for = |what: &AtomicBool| {
        let begun = Instant::now();
        while !what.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        what.load(Ordering::SeqCst)
    };
    for round in 0..ROUNDS {
        let [runs, asked, returned] = [(); 3].map(|()| AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let first = fs.balancer().start(&data, &|_| {
                    runs.store(true, Ordering::SeqCst);
                    // The operation waits by then.
                    let is_asked = wait_for(&asked);
                    std::thread::sleep(Duration::from_millis(3));
                    is_asked
                });
                drop(first);
                let second = fs.balancer().start(&data, &|_| {
                    assert!(wait_for(&returned), "round {round}");
                    true
                });
                drop(second);
            });
            assert!(wait_for(&runs));
            asked.store(true, Ordering::SeqCst);
            drop(if round % 2 == 0 { fs.balancer().cancel() } else { fs.balancer().pause() });
            returned.store(true, Ordering::SeqCst);
        });
        drop(fs.balancer().cancel());
    }
    drop(check(fs, &path));
}

/// A pause waits for the end of the balance, and the balance may end because its item can't be
/// committed.
#[test]
fn nobody_waits_for_a_balance_that_could_not_begin() {
    let device = Arc::new(FaultyDevice::new(Arc::new(new_volume(256 << 20))));
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
    let fs = Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options() }).unwrap();
    // The commit takes so long that the balance is seen to run.
    for number in 0..20_000 {
        let name = format!("file{number}");
        fs.directories().create(fs.root(), name.as_bytes(), &NewInode::default()).unwrap();
    }
    device.fail(Operation::Flush, 0, 5, Lasting::Forever);
    let has_begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| {
            while !has_begun.load(Ordering::Acquire) || fs.balancer().pause().is_ok() {
                let _ = fs.balancer().pause();
            }
        });
        fs.balancer().start(&convert(BlockGroupFlags::DUP.0, 0), &|_| true).unwrap_err();
        has_begun.store(true, Ordering::Release);
        pause.join().unwrap();
    });
    assert!(!fs.balancer().status().is_some_and(|status| status.running));
}

/// After a conversion of metadata that was not completed, commits move the few nodes that are left
/// together, and then nothing is left to do.
#[test]
fn commits_end_after_a_conversion_that_was_not_completed() {
    const FILES: u64 = 40_000;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 1 << 30, |_| {});
    let fs = image::open(&path, options());
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    for number in 0..FILES {
        let id = fs.directories().create(fs.root(), format!("file{number}").as_bytes(), &new).unwrap();
        fs.files().write(id, WriteAt::Offset(0), &[7; 1900], false).unwrap();
        fs.references().forget(id, 1);
    }
    fs.durability().sync().unwrap();
    let args = BalanceArgs {
        target: SINGLE,
        filters: BalanceFilters::CONVERT | BalanceFilters::SOFT | BalanceFilters::LIMIT,
        limit: 1,
        ..BalanceArgs::default()
    };
    let flags = BalanceFlags::METADATA | BalanceFlags::FORCE;
    let balance = BalanceItem { flags, metadata: args, ..BalanceItem::default() };
    let has_both = (0..4).any(|_| {
        fs.balancer().start(&balance, &|_| true).unwrap();
        profiles(&fs, BlockGroupFlags::METADATA).len() == 2
    });
    assert!(has_both, "{:?}", profiles(&fs, BlockGroupFlags::METADATA));
    for number in 0..FILES {
        fs.directories().unlink(fs.root(), format!("file{number}").as_bytes()).unwrap();
    }
    let generation = || fs.volume().superblocks().current().generation;
    let mut last = generation();
    let is_over = (0..100).any(|_| {
        fs.durability().sync().unwrap();
        std::mem::replace(&mut last, generation()) == last
    });
    assert!(is_over, "each of a hundred commits has something to do");
    check(fs, &path);
}
