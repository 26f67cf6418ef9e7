//! Files without copy-on-write: fsynced data is there after a power cut, other data may be, and no
//! other file's data changes.

use std::sync::Arc;

use ubtrfs::{Filesystem, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::make_volume;
use ubtrfs_volume::{Device, Fate, OpenOptions, RecordingDevice, Volume};

fn open(device: Arc<dyn Device>) -> Arc<Filesystem> {
    let volume = Arc::new(Volume::open(vec![device], OpenOptions { read_only: false }).unwrap());
    Filesystem::open(volume, Options { background_commits: false, ..Options::default() }).unwrap()
}

fn new_volume() -> Arc<RecordingDevice> {
    let options = MkfsOptions { metadata_profile: Some(Profile::Single), ..MkfsOptions::new(46 << 20) };
    Arc::new(RecordingDevice::new(make_volume(&options)))
}

fn new_file(fs: &Filesystem, name: &[u8]) -> InodeId {
    fs.directories().create(fs.root(), name, &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

/// Returns the content of a file after a crash now that loses all writes which no barrier has made
/// durable; `check` must find no fault.
fn after_crash(recording: &RecordingDevice, name: &[u8]) -> Vec<u8> {
    let device = recording.crash_state(recording.len(), &mut |_| Fate::Lost);
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device.fork())];
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
    let fs = open(Arc::new(device.fork()));
    let id = fs.directories().lookup(fs.root(), name).unwrap();
    let content = fs.files().read(id, 0, 1 << 20).unwrap();
    fs.close().unwrap();
    content
}

#[test]
fn each_sync_of_overwritten_data_lasts() {
    let recording = new_volume();
    let fs = open(recording.clone());
    let id = new_file(&fs, b"f");
    fs.inodes().set_flags(id, InodeFlags::NODATACOW).unwrap();
    let mut wanted = vec![1; 100_000];
    fs.files().write(id, WriteAt::Offset(0), &wanted, false).unwrap();
    fs.durability().sync().unwrap();
    let committed = fs.stats();
    for round in 2..9_u8 {
        let (at, len) = (usize::from(round) * 3001, 40_000);
        wanted[at..at + len].fill(round);
        fs.files().write(id, WriteAt::Offset(at as u64), &wanted[at..at + len], false).unwrap();
        match round % 4 {
            0 => fs.durability().sync().unwrap(),
            1 => fs.durability().fsync(id).unwrap(),
            _ => fs.durability().fdatasync(id).unwrap(),
        }
        assert!(after_crash(&recording, b"f") == wanted, "round {round}");
    }
    // All of it was overwritten in place, without a new allocation.
    let stats = fs.stats();
    assert!(stats.bytes_placed - committed.bytes_placed >= 7 * 40_000);
    assert_eq!(fs.inodes().attributes(id).unwrap().blocks, 200);
    fs.close().unwrap();
}

#[test]
fn shared_extents_are_not_overwritten() {
    let recording = new_volume();
    let fs = open(recording.clone());
    let (id, copy) = (new_file(&fs, b"f"), new_file(&fs, b"copy"));
    for file in [id, copy] {
        fs.inodes().set_flags(file, InodeFlags::NODATACOW).unwrap();
    }
    let old = vec![1; 100_000];
    fs.files().write(id, WriteAt::Offset(0), &old, false).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.files().clone_range(id, 0, copy, 0, 1 << 20).unwrap(), 100_000);
    // The writes come before a commit that has the clone, and after it.
    for round in 2..5 {
        fs.files().write(id, WriteAt::Offset(8192), &vec![round; 30_000], false).unwrap();
        fs.durability().fsync(id).unwrap();
        fs.durability().fsync(copy).unwrap();
        assert!(after_crash(&recording, b"copy") == old, "round {round}");
        let content = after_crash(&recording, b"f");
        assert!(content[8192..38_192].iter().all(|byte| *byte == round), "round {round}");
        fs.durability().sync().unwrap();
    }
    assert!(fs.files().read(copy, 0, 1 << 20).unwrap() == old);
    fs.close().unwrap();
}

/// Data in preallocated space of a file is in flight when the file is committed: older data never
/// overwrites newer data.
#[test]
fn data_of_two_transactions_in_one_place_keeps_its_order() {
    for flags in [0, InodeFlags::NODATACOW] {
        let recording = new_volume();
        let fs = open(recording.clone());
        let id = new_file(&fs, b"f");
        fs.inodes().set_flags(id, flags).unwrap();
        fs.files().allocate(id, 0, 1 << 20, false).unwrap();
        fs.durability().sync().unwrap();
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| (0..40).for_each(|_| fs.durability().sync().unwrap()));
            let mut round = 0_u8;
            while !committer.is_finished() {
                round = round.wrapping_add(1);
                let at = u64::from(round % 16) << 16;
                fs.files().write(id, WriteAt::Offset(at), &vec![round; 65_536], false).unwrap();
                if round.is_multiple_of(3) {
                    fs.durability().fsync(id).unwrap();
                }
                let read = fs.files().read(id, at, 65_536).unwrap();
                assert!(read.iter().all(|byte| *byte == round), "flags {flags}, round {round}");
            }
        });
        let wanted = fs.files().read(id, 0, 1 << 20).unwrap();
        fs.durability().fsync(id).unwrap();
        assert!(after_crash(&recording, b"f") == wanted, "flags {flags}");
        fs.close().unwrap();
    }
}
