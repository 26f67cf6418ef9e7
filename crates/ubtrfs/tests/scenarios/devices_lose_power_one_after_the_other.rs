//! A power cut reaches two mirrored devices one after the other: in between, what is acknowledged
//! is on the second one alone. All of it is there afterwards, whichever log of the same commit the
//! first one has, and the first one is brought up to the second (invariant 34).

use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, SetAttributes, WriteAt};
use ubtrfs_format::DeviceId;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_random::Rng;
use ubtrfs_testkit::seeds::many_seeds;
use ubtrfs_volume::{Device, Fate, OpenOptions, RecordingDevice, Volume};

use crate::common::pattern;
use crate::common::volumes::{assert_clean, open, root, volume};

/// Files, each with a writer of its own.
const FILES: usize = 3;
/// Fsyncs of a history, and the average number of them between commits.
const FSYNCS: usize = 40;
const COMMIT_AFTER: u64 = 17;
/// The maximum length of a file, in bytes.
const MAX: u64 = 200_000;

/// An acknowledged write: the file's content, and the number of events of the devices until then.
struct Acknowledged {
    file: usize,
    seed: u64,
    len: usize,
    event: usize,
}

struct History {
    recordings: Vec<Arc<RecordingDevice>>,
    /// The acknowledged writes, in the order of their events.
    acknowledged: Vec<Acknowledged>,
    began: usize,
}

fn name(file: usize) -> String {
    format!("file {file}")
}

/// Replaces a file's content, and makes it durable.
fn replace(fs: &Filesystem, file: InodeId, seed: u64, len: usize) {
    fs.inodes().set_attributes(file, &SetAttributes { size: Some(len as u64), ..SetAttributes::default() }).unwrap();
    fs.files().write(file, WriteAt::Offset(0), &pattern(seed, len), false).unwrap();
    fs.durability().fsync(file).unwrap();
}

/// Writes files, of which the first has no checksums, again and again, and records the devices.
fn history(seed: u64) -> History {
    let mut rng = Rng::new(seed);
    let devices = volume(2, Profile::Raid1, Profile::Raid1);
    let recordings: Vec<Arc<RecordingDevice>> = RecordingDevice::together(&devices).into_iter().map(Arc::new).collect();
    let fs = open(recordings.iter().map(|device| Arc::clone(device) as _).collect()).unwrap();
    let files: Vec<InodeId> = (0..FILES)
        .map(|file| {
            fs.directories().create(root(), name(file).as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })
        })
        .collect::<Result<_, _>>()
        .unwrap();
    fs.inodes().set_flags(files[0], InodeFlags::NODATACOW).unwrap();
    let mut acknowledged = Vec::new();
    let now = || recordings[0].events().len();
    for (file, id) in files.iter().enumerate() {
        replace(&fs, *id, file as u64, 1000);
        acknowledged.push(Acknowledged { file, seed: file as u64, len: 1000, event: 0 });
    }
    fs.durability().sync().unwrap();
    let began = now();
    for _ in 0..FSYNCS {
        let (file, seed) = (rng.below(FILES as u64) as usize, rng.below(1 << 32));
        let most = if rng.one_in(4) { MAX } else { 3000 };
        let len = if file == 0 { 1000 } else { 1 + rng.below(most) as usize };
        replace(&fs, files[file], seed, len);
        acknowledged.push(Acknowledged { file, seed, len, event: now() });
        if rng.one_in(COMMIT_AFTER) {
            fs.durability().sync().unwrap();
        }
    }
    History { recordings, acknowledged, began }
}

impl History {
    /// Returns what a device has when its power fails after so many events.
    fn cut(&self, device: usize, event: usize) -> OverlayDevice {
        self.recordings[0].crash_states(event, &mut |_| Fate::Whole).swap_remove(device)
    }

    /// Asserts that each file has the content that was acknowledged last before this event, or the
    /// next one.
    fn assert_kept(&self, fs: &Filesystem, event: usize, what: &str) {
        for file in 0..FILES {
            let of_file = || self.acknowledged.iter().filter(|it| it.file == file);
            let last = of_file().rfind(|it| it.event <= event).unwrap();
            let next = of_file().find(|it| it.event > event);
            let id = fs.directories().lookup(root(), name(file).as_bytes()).unwrap();
            let held = fs.files().read(id, 0, MAX as usize + 1).unwrap();
            let is = |it: &Acknowledged| held == pattern(it.seed, it.len);
            // Where data has no checksums, the write in flight may be there in part.
            let is_kept = is(last) || next.is_some_and(is);
            assert!(
                is_kept || (file == 0 && next.is_some()),
                "{what}: {} has {} bytes of another time",
                name(file),
                held.len()
            );
            fs.references().forget(id, 1);
        }
    }
}

fn alone(device: &OverlayDevice) -> Arc<Filesystem> {
    let read_only = OpenOptions { read_only: true };
    let volume = Volume::open_degraded(vec![Arc::new(device.fork())], read_only).unwrap();
    Filesystem::open(Arc::new(volume), Options { read_only: true, ..Options::default() }).unwrap()
}

/// Returns whether the first device was found to lag.
fn judge(history: &History, cut: [usize; 2], order: [usize; 2], what: &str) -> bool {
    let mut devices: [Arc<OverlayDevice>; 2] = [0, 1].map(|_| Arc::new(history.cut(0, 0)));
    for (device, event) in order.into_iter().zip(cut) {
        devices[device] = Arc::new(history.cut(device, event));
    }
    let both: Vec<Arc<dyn Device>> = devices.iter().map(|device| Arc::clone(device) as _).collect();
    let fs = open(both.clone()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    history.assert_kept(&fs, cut[1], what);
    let lagging = fs.volume().devices().lagging();
    fs.scrubber().catch_up(&mut |_| true).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [], "{what}");
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both, what);
    for (device, number) in devices.iter().zip(1..) {
        history.assert_kept(&alone(device), cut[1], &format!("{what}, device {number} alone"));
    }
    assert!(lagging.iter().all(|devid| *devid == DeviceId(order[0] as u64 + 1)), "{what}: {lagging:?}");
    !lagging.is_empty()
}

#[test]
fn acknowledged_data_survives_power_cuts_one_after_the_other() {
    let mut lagging = 0;
    for seed in many_seeds(3, 1) {
        let history = history(seed);
        let mut rng = Rng::new(seed ^ 0x0ff);
        let last = history.recordings[0].events().len();
        for _ in 0..60 {
            let second = history.began + rng.below((last - history.began) as u64 + 1) as usize;
            let gap = rng.below(200) as usize;
            let first = second.saturating_sub(gap).max(history.began);
            let order = if rng.one_in(2) { [0, 1] } else { [1, 0] };
            let what =
                format!("seed {seed}: device {} ends after {first} events, the other after {second}", order[0] + 1);
            lagging += usize::from(judge(&history, [first, second], order, &what));
        }
    }
    assert!(lagging > 20, "{lagging} lagged");
}
