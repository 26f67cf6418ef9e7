//! A device of a volume is resized: chunks behind its new end are moved before, and new space is
//! used.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{CommitFault, CommitHook, CommitStep, Faults, OverlayDevice};
use ubtrfs::{Errno, Filesystem, Options};
use ubtrfs_format::{DeviceId, TreeId};
use ubtrfs_volume::{Device, OpenOptions, Volume};

use crate::common::power::{Power, PoweredDevice};
use crate::common::tree::tree_of;
use crate::common::volumes::{SIZE, assert_clean, assert_holds, open, root, volume, write};

const MIB: u64 = 1 << 20;
const FIRST: DeviceId = DeviceId(1);

fn shared(devices: &[OverlayDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as _).collect()
}

/// Fills a volume, and frees most of it again, here and there.
fn fill_and_thin_out(fs: &Filesystem, files: u64) {
    for seed in 1..=files {
        let id = write(fs, &format!("file {seed}"), seed, 2 << 20).unwrap();
        fs.references().forget(id, 1);
        fs.durability().sync().unwrap();
        if seed == files / 2 {
            fs.subvolumes().snapshot(TreeId::FS, root(), b"snapshot", false).unwrap();
        }
    }
    for seed in (1..=files).filter(|seed| seed % 4 != 0 && *seed > files / 2) {
        fs.directories().unlink(root(), format!("file {seed}").as_bytes()).unwrap();
    }
    fs.durability().sync().unwrap();
}

/// Returns the end of the last stripe on a device.
fn last_end(fs: &Filesystem, devid: DeviceId) -> u64 {
    let chunks = fs.volume().chunk_map().all();
    let ends = chunks.iter().flat_map(|(_, chunk)| {
        let raid = chunk.flags.raid().unwrap();
        let length = chunk.length / raid.data_stripes(chunk.stripes.len());
        chunk.stripes.iter().filter(|stripe| stripe.devid == devid).map(move |stripe| stripe.offset.0 + length)
    });
    ends.max().unwrap_or(0)
}

#[test]
fn devices_are_resized_in_every_profile_without_loss() {
    for (count, data, metadata) in [
        (1, Profile::Single, Profile::Dup),
        (1, Profile::Dup, Profile::Single),
        (2, Profile::Raid1, Profile::Raid1),
        (2, Profile::Raid0, Profile::Raid0),
        (4, Profile::Raid10, Profile::Raid1c3),
    ] {
        let what = format!("{count} devices, data {data:?}, metadata {metadata:?}");
        let devices = shared(&volume(count, data, metadata));
        let fs = open(devices.clone()).unwrap();
        fill_and_thin_out(&fs, 30);
        let before = tree_of(&fs);
        let total = fs.volume().superblocks().current().total_bytes;
        let least = 160 * MIB;
        for devid in (1..=count as u64).map(DeviceId) {
            fs.relocator()
                .resize_device(devid, least + 777, &|_| true)
                .unwrap_or_else(|error| panic!("{what}: {error:?}"));
            assert!(last_end(&fs, devid) <= least, "{what}");
        }
        assert_eq!(tree_of(&fs), before, "{what}");
        let superblock = fs.volume().superblocks().current();
        assert_eq!(superblock.total_bytes, total - (SIZE - least) * count as u64, "{what}");
        fs.close().unwrap();
        drop(fs);
        assert_clean(&devices, &what);

        let fs = open(devices.clone()).unwrap();
        assert_eq!(tree_of(&fs), before, "{what}");
        let refused = fs.relocator().resize_device(FIRST, SIZE + 4096, &|_| true).unwrap_err();
        assert_eq!(refused.errno(), Errno::FBIG, "{what}: the device is not that large");
        assert_eq!(fs.relocator().resize_device(FIRST, 4 << 20, &|_| true).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(fs.relocator().resize_device(DeviceId(9), SIZE, &|_| true).unwrap_err().errno(), Errno::NODEV);
        for devid in (1..=count as u64).map(DeviceId) {
            fs.relocator().resize_device(devid, SIZE, &|_| true).unwrap();
        }
        assert_eq!(fs.volume().superblocks().current().total_bytes, total, "{what}");
        let mut seed = 100;
        while last_end(&fs, FIRST) <= least {
            write(&fs, &format!("more {seed}"), seed, 4 << 20).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            fs.durability().sync().unwrap();
            seed += 1;
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&devices, &what);
    }
}

#[test]
fn a_device_that_has_grown_is_used_as_a_whole() {
    let small = OverlayDevice::zeroed(2 * SIZE);
    let devices = volume(1, Profile::Single, Profile::Dup);
    let mut bytes = vec![0; MIB as usize];
    for at in (0..SIZE).step_by(MIB as usize) {
        devices[0].read_at(ubtrfs_format::Physical(at), &mut bytes).unwrap();
        let data = ubtrfs_volume::SharedBuffer::from(ubtrfs_volume::Buffer::from(&bytes[..]));
        small.submit(vec![ubtrfs_volume::DeviceWrite { at: ubtrfs_format::Physical(at), data }]).wait().unwrap();
    }
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(small)];
    let fs = open(devices.clone()).unwrap();
    fs.relocator().resize_device(FIRST, 2 * SIZE, &|_| true).unwrap();
    assert_eq!(fs.device_bytes(), 2 * SIZE);
    let files = 300 * MIB / (16 * MIB);
    for seed in 1..=files {
        write(&fs, &format!("file {seed}"), seed, 16 << 20).unwrap();
        fs.durability().sync().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "grown");
    let fs = open(devices).unwrap();
    (1..=files).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 16 << 20));
}

/// Writes to a full volume when the commit that makes its device larger begins. Returns whether the
/// write succeeded, and whether the volume is right.
fn write_beside_growing(fault: Option<CommitFault>) -> (bool, bool) {
    type Beside = Arc<Mutex<Option<thread::JoinHandle<bool>>>>;
    const LENGTH: usize = 3 << 20;
    let devices = shared(&volume(1, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    fs.relocator().resize_device(FIRST, 144 * MIB, &|_| true).unwrap();
    fs.close().unwrap();
    drop(fs);
    let (growing, beside) = (Arc::new(AtomicBool::new(false)), Beside::default());
    let mounted: Arc<OnceLock<Weak<Filesystem>>> = Arc::default();
    let hook = CommitHook(Arc::new({
        let (growing, beside, mounted) = (growing.clone(), beside.clone(), mounted.clone());
        move |reached| {
            if reached != CommitStep::Frozen || !growing.swap(false, SeqCst) {
                return;
            }
            let fs = mounted.get().and_then(Weak::upgrade).unwrap();
            let (done, is_done) = channel();
            let write = move || {
                let written = write(&fs, "beside", 1, LENGTH).is_ok();
                let _ = done.send(());
                written
            };
            *beside.lock().unwrap() = Some(thread::spawn(write));
            // The write may wait for the commit, which has to go on then.
            let _ = is_done.recv_timeout(Duration::from_secs(4));
        }
    }));
    let opened = Volume::open(devices.clone(), OpenOptions::default()).unwrap();
    let faults = Faults { hook: Some(hook), commit: fault, ..Faults::default() };
    let options = Options { background_commits: false, faults, ..Options::default() };
    let fs = Filesystem::open(Arc::new(opened), options).unwrap();
    mounted.set(Arc::downgrade(&fs)).unwrap();
    let fills =
        |seed: &u64| write(&fs, &format!("file {seed}"), *seed, 1 << 20).is_ok() && fs.durability().sync().is_ok();
    assert!((100..400).take_while(fills).count() > 0);
    growing.store(true, SeqCst);
    let resized = fs.relocator().resize_device(FIRST, SIZE, &|_| true).is_ok();
    let beside = beside.lock().unwrap().take().unwrap();
    let written = beside.join().unwrap();
    let is_durable = fs.close().is_ok();
    drop(fs);
    // A chunk that the volume refuses on opening counts for nothing.
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{fault:?}: {:#?}", report.faults);
    if written && is_durable {
        let fs = open(devices).unwrap();
        assert_holds(&fs, "beside", 1, LENGTH);
    }
    (written, resized && is_durable)
}

/// Chunks lie within the devices' sizes that the same commit has (invariant 18).
#[test]
fn chunks_use_new_space_only_when_a_commit_has_it() {
    assert_eq!(write_beside_growing(None), (true, true));
    let (written, is_right) = write_beside_growing(Some(CommitFault::GrowAtOnce));
    assert!(!(written && is_right), "the fault is not found");
}

#[test]
fn what_does_not_fit_is_refused_and_stays() {
    let devices = shared(&volume(1, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    for seed in 1..=9 {
        write(&fs, &format!("file {seed}"), seed, 12 << 20).unwrap();
        fs.durability().sync().unwrap();
    }
    let refused = fs.relocator().resize_device(FIRST, 100 * MIB, &|_| true).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
    assert_eq!(fs.device_bytes(), SIZE);
    write(&fs, "after", 50, 8 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "refused");
    let fs = open(devices).unwrap();
    (1..=9).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 12 << 20));
}

#[test]
fn files_can_be_written_while_a_device_gets_smaller() {
    let devices = shared(&volume(1, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    fill_and_thin_out(&fs, 24);
    let round = std::cell::Cell::new(0);
    fs.relocator()
        .resize_device(FIRST, 144 * MIB, &|_| {
            round.set(round.get() + 1);
            if round.get() < 8 {
                write(&fs, &format!("meanwhile {}", round.get()), round.get(), 300_000).unwrap();
            }
            true
        })
        .unwrap();
    assert!(round.get() > 1);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "smaller");
    let fs = open(devices).unwrap();
    (1..round.get().min(8)).for_each(|round| assert_holds(&fs, &format!("meanwhile {round}"), round, 300_000));
}

/// Makes a device smaller and larger while the power ends after so many writes. Returns whether it
/// has ended.
fn crashes(start: &[OverlayDevice], after: u64, keeps_cache: bool) -> bool {
    let what = format!("power ends after {after} writes, {keeps_cache}");
    let power = Power::endless();
    let devices: Vec<Arc<PoweredDevice>> = start.iter().map(|device| PoweredDevice::new(&power, device)).collect();
    let fs = open(devices.iter().map(|device| device.clone() as _).collect()).unwrap();
    power.end_after(after);
    let smaller = fs.relocator().resize_device(FIRST, 144 * MIB, &|_| true).is_ok();
    let larger = smaller && fs.relocator().resize_device(FIRST, 200 * MIB, &|_| true).is_ok();
    let has_ended = power.has_ended();
    drop(fs);
    let left: Vec<Arc<dyn Device>> =
        devices.iter().map(|device| device.after_crash(keeps_cache) as Arc<dyn Device>).collect();
    let fs = open(left.clone()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let bytes = fs.volume().devices().items()[0].total_bytes / MIB;
    assert!(
        if larger { bytes == 200 } else { [144, 200, 224].contains(&bytes) && (bytes < 224 || !smaller) },
        "{what}"
    );
    (1..=5).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 2 << 20));
    fs.directories().unlink(root(), b"file 1").unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&left, &what);
    has_ended
}

#[test]
fn a_crash_leaves_one_size_or_the_other() {
    let devices: Vec<Arc<OverlayDevice>> = volume(1, Profile::Single, Profile::Dup).into_iter().map(Arc::new).collect();
    let fs = open(vec![devices[0].clone()]).unwrap();
    fill_and_thin_out(&fs, 20);
    fs.close().unwrap();
    drop(fs);
    let start: Vec<OverlayDevice> = devices.iter().map(|device| device.fork()).collect();
    for keeps_cache in [true, false] {
        let mut after = 0;
        while crashes(&start, after, keeps_cache) {
            after += 7;
        }
        assert!(after > 20, "{after}");
    }
}
