//! A device of a volume is replaced by a new one: nothing that was written before or meanwhile is
//! lost, whatever fails or crashes, and the volume has either the old device or the new one.

use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{CommitHook, CommitStep, Faults, FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs::{Errno, Filesystem, Options, ReplaceOptions, ReplaceState, WriteAt};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::{DeviceId, Physical};
use ubtrfs_volume::{Device, DeviceWrite, OpenOptions, Volume};

use crate::common::pattern;
use crate::common::power::{Power, PoweredDevice};
use crate::common::volumes::{SIZE, assert_clean, assert_holds, blank, open, root, volume, write};

const EIO: i32 = 5;
const SOURCE: DeviceId = DeviceId(2);

/// Writes and fsyncs a file whose data has no checksums and is overwritten in place.
fn write_in_place(fs: &Filesystem, seed: u64) -> ubtrfs::Result<()> {
    let file = fs.directories().lookup(root(), b"in place").or_else(|_| {
        let file = write(fs, "in place", 0, 0)?;
        fs.inodes().set_flags(file, InodeFlags::NODATACOW).map(|()| file)
    })?;
    fs.files().write(file, WriteAt::Offset(0), &pattern(seed, 3 << 20), false)?;
    fs.durability().fsync(file)?;
    fs.references().forget(file, 1);
    Ok(())
}

fn shared(devices: &[OverlayDevice]) -> Vec<Arc<OverlayDevice>> {
    devices.iter().map(|device| Arc::new(device.fork())).collect()
}

fn as_devices(devices: &[Arc<OverlayDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as _).collect()
}

fn open_degraded(devices: Vec<Arc<dyn Device>>) -> Arc<Filesystem> {
    let volume = Volume::open_degraded(devices, OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() }).unwrap()
}

/// Asserts that a volume has the files that [`fill`] makes.
fn assert_filled(fs: &Filesystem, in_place: u64) {
    (1..=6).for_each(|seed| assert_holds(fs, &format!("file {seed}"), seed, (seed as usize) << 18));
    assert_holds(fs, "in place", in_place, 3 << 20);
}

fn fill(devices: Vec<Arc<dyn Device>>) {
    let fs = open(devices).unwrap();
    for seed in 1..=6 {
        write(&fs, &format!("file {seed}"), seed, (seed as usize) << 18).unwrap();
    }
    write_in_place(&fs, 7).unwrap();
    fs.close().unwrap();
}

/// Makes a filled volume of so many devices.
fn filled(devices: usize, data: Profile) -> Vec<OverlayDevice> {
    let devices = shared(&volume(devices, data, Profile::Raid1));
    fill(as_devices(&devices));
    devices.iter().map(|device| device.fork()).collect()
}

static MIRRORED: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| filled(2, Profile::Raid1));
static SINGLE: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| filled(2, Profile::Single));
/// A volume that can miss any one device, but not two.
static THREE_MIRRORED: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| filled(3, Profile::Raid1));

fn is_blank(device: &dyn Device) -> bool {
    Volume::superblock_of(device).is_none()
}

#[test]
fn devices_of_every_profile_are_replaced_while_files_are_written() {
    for (count, data, metadata) in [
        (2, Profile::Single, Profile::Raid1),
        (2, Profile::Dup, Profile::Dup),
        (3, Profile::Raid0, Profile::Raid0),
        (2, Profile::Raid1, Profile::Raid1),
        (4, Profile::Raid1c3, Profile::Raid1c4),
        (5, Profile::Raid10, Profile::Raid10),
    ] {
        for avoid_source in [false, true] {
            let what = format!("{count} devices, data {data:?}, metadata {metadata:?}, {avoid_source}");
            let mut devices = shared(&volume(count, data, metadata));
            fill(as_devices(&devices));
            let fs = open(as_devices(&devices)).unwrap();
            let new = Arc::new(blank());
            let options = ReplaceOptions { avoid_source, ..ReplaceOptions::default() };
            fs.replacer().begin(SOURCE, new.clone(), options).unwrap();
            let refused = fs.replacer().begin(DeviceId(1), Arc::new(blank()), options);
            assert_eq!(refused.unwrap_err().errno(), Errno::INPROGRESS, "{what}");
            let mut round = 0;
            let mut meanwhile = |_: &_| {
                round += 1;
                write(&fs, &format!("meanwhile {round}"), round, 300_000).unwrap();
                write_in_place(&fs, 100 + round).unwrap();
                true
            };
            fs.replacer().run(&mut meanwhile).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let progress = fs.replacer().progress();
            assert_eq!((progress.state, progress.source), (ReplaceState::Finished, SOURCE), "{what}");
            assert_eq!((progress.unreadable, progress.write_errors), (0, 0), "{what}");
            write(&fs, "after", 50, 2 << 20).unwrap();
            fs.close().unwrap();
            drop(fs);
            assert!(is_blank(&*devices[1]), "{what}: the old device is the volume's no more");
            devices[1] = new;
            assert_clean(&as_devices(&devices), &what);
            let fs = open(as_devices(&devices)).unwrap();
            assert!(round > 0);
            assert_filled(&fs, 100 + round);
            (1..=round).for_each(|round| assert_holds(&fs, &format!("meanwhile {round}"), round, 300_000));
            assert_holds(&fs, "after", 50, 2 << 20);
        }
    }
}

/// Until then the old device is needed, and other changes of the devices are refused.
#[test]
fn a_replacement_has_ended_when_that_is_durable() {
    for cancels in [false, true] {
        let devices = shared(&MIRRORED);
        let mounted: Arc<OnceLock<Weak<Filesystem>>> = Arc::default();
        let seen: Arc<Mutex<Vec<ReplaceState>>> = Arc::default();
        let hook = CommitHook(Arc::new({
            let (mounted, seen) = (mounted.clone(), seen.clone());
            move |step| {
                if step == CommitStep::Merged
                    && let Some(fs) = mounted.get().and_then(Weak::upgrade)
                {
                    seen.lock().unwrap().push(fs.replacer().progress().state);
                }
            }
        }));
        let volume = Volume::open(as_devices(&devices), OpenOptions::default()).unwrap();
        let faults = Faults { hook: Some(hook), ..Faults::default() };
        let options = Options { background_commits: false, faults, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).unwrap();
        mounted.set(Arc::downgrade(&fs)).unwrap();
        fs.replacer().begin(SOURCE, Arc::new(blank()), ReplaceOptions::default()).unwrap();
        seen.lock().unwrap().clear();
        let ended = if cancels {
            fs.replacer().cancel().unwrap();
            ReplaceState::Canceled
        } else {
            fs.replacer().run(&mut |_| true).unwrap();
            ReplaceState::Finished
        };
        let seen = seen.lock().unwrap().clone();
        assert!(!seen.is_empty() && seen.iter().all(|state| *state == ReplaceState::Started), "{seen:?}");
        assert_eq!(fs.replacer().progress().state, ended);
        fs.relocator().resize_device(DeviceId(1), SIZE - (16 << 20), &|_| true).unwrap();
    }
}

#[test]
fn a_missing_device_is_replaced_on_a_degraded_mount() {
    let devices = shared(&MIRRORED);
    let fs = open_degraded(vec![devices[0].clone()]);
    let new = Arc::new(blank());
    fs.replacer().begin(SOURCE, new.clone(), ReplaceOptions::default()).unwrap();
    fs.replacer().run(&mut |_| true).unwrap();
    write(&fs, "after", 8, 2 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&[devices[0].clone(), new.clone()], "replaced");
    // The new device alone has everything.
    let fs = open_degraded(vec![new]);
    assert_filled(&fs, 7);
    assert_holds(&fs, "after", 8, 2 << 20);
}

#[test]
fn what_the_old_device_can_not_read_comes_from_the_others() {
    let devices = shared(&MIRRORED);
    // Some data on the old device is wrong, and some of it can't be read at all.
    for mib in (1..64).filter(|mib| mib % 3 == 0) {
        let garbage = DeviceWrite { at: Physical(mib << 20), data: vec![0x5a; 1 << 20].into() };
        devices[1].submit(vec![garbage]).wait().unwrap();
    }
    let failing = Arc::new(FaultyDevice::new(devices[1].clone()));
    let fs = open(vec![devices[0].clone(), failing.clone()]).unwrap();
    let new = Arc::new(blank());
    fs.replacer().begin(SOURCE, new.clone(), ReplaceOptions::default()).unwrap();
    failing.fail(Operation::Read, 20, EIO, Lasting::Forever);
    fs.replacer().run(&mut |_| true).unwrap();
    assert_eq!(fs.replacer().progress().unreadable, 0);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&[devices[0].clone(), new.clone()], "replaced");
    let fs = open_degraded(vec![new]);
    (1..=6).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, (seed as usize) << 18));
}

#[test]
fn what_nobody_can_read_is_counted_and_stays_an_error() {
    let devices = shared(&SINGLE);
    let failing: Vec<Arc<FaultyDevice>> =
        devices.iter().map(|device| Arc::new(FaultyDevice::new(device.clone()))).collect();
    let fs = open(failing.iter().map(|device| device.clone() as _).collect()).unwrap();
    let used = fs.volume().devices().items()[1].bytes_used;
    assert!(used > 0, "the device has chunks");
    let new = Arc::new(blank());
    fs.replacer().begin(SOURCE, new.clone(), ReplaceOptions::default()).unwrap();
    failing[1].fail(Operation::Read, 0, EIO, Lasting::Forever);
    fs.replacer().run(&mut |_| true).unwrap();
    let progress = fs.replacer().progress();
    let data_is_there = fs
        .volume()
        .chunk_map()
        .all()
        .iter()
        .any(|(_, chunk)| chunk.stripes.len() == 1 && chunk.stripes[0].devid == SOURCE);
    assert_eq!(progress.unreadable > 0, data_is_there, "{progress:?}");
    assert_eq!(progress.state, ReplaceState::Finished);
    fs.close().unwrap();
}

/// Lets the new device fail after so many writes or flushes. Returns whether it has failed.
fn target_fails(operation: Operation, after: u64, lasting: Lasting) -> bool {
    let what = format!("{operation:?} {after}, {lasting:?}");
    let devices = shared(&MIRRORED);
    let fs = open(as_devices(&devices)).unwrap();
    let inner = Arc::new(blank());
    let target = Arc::new(FaultyDevice::new(inner.clone()));
    target.fail(operation, after, EIO, lasting);
    let begun = fs.replacer().begin(SOURCE, target.clone(), ReplaceOptions::default());
    let mut round = 0;
    let done = begun.and_then(|()| {
        fs.replacer().run(&mut |_| {
            round += 1;
            write(&fs, &format!("meanwhile {round}"), round, 300_000).unwrap();
            write_in_place(&fs, 100 + round).unwrap();
            true
        })
    });
    let has_failed = target.asked(operation) > after;
    write(&fs, "after", 9, 1 << 20).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    fs.durability().sync().unwrap();
    let state = fs.replacer().progress().state;
    // The new device may fail after it has taken the place of the old one.
    let is_replaced = state == ReplaceState::Finished;
    assert_eq!(done.is_ok(), is_replaced, "{what}: {done:?}");
    assert!(is_replaced || has_failed, "{what}");
    assert!(is_replaced || matches!(state, ReplaceState::Canceled | ReplaceState::Never), "{what}: {state:?}");
    drop(fs);
    let left: Vec<Arc<dyn Device>> = if is_replaced { vec![devices[0].clone(), inner] } else { as_devices(&devices) };
    let fs = open(left.clone()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_filled(&fs, if round > 0 { 100 + round } else { 7 });
    assert_holds(&fs, "after", 9, 1 << 20);
    if fs.volume().devices().lagging().is_empty() {
        fs.close().unwrap();
        drop(fs);
        assert_clean(&left, &what);
    }
    has_failed
}

#[test]
fn a_new_device_that_fails_is_given_up_and_the_volume_is_as_before() {
    for (operation, step) in [(Operation::Write, 5), (Operation::Flush, 1)] {
        for lasting in [Lasting::Once, Lasting::Forever] {
            let mut after = 0;
            while target_fails(operation, after, lasting) {
                after += step;
            }
            assert!(after > 3, "{operation:?} {after}");
        }
    }
}

#[test]
fn a_replacement_goes_on_at_the_limit_that_it_is_given_now() {
    let devices = shared(&MIRRORED);
    let fs = open(as_devices(&devices)).unwrap();
    let new: Arc<dyn Device> = Arc::new(blank());
    fs.replacer().begin(SOURCE, new, ReplaceOptions::default()).unwrap();
    // The rest is not copied within any time that a test takes.
    fs.replacer().limit(Some(1));
    let mut asked = 0;
    let mut few_times = |_: &_| {
        asked += 1;
        asked <= 3
    };
    let stopped = fs.replacer().run(&mut few_times).unwrap_err();
    assert_eq!(stopped.errno(), Errno::CANCELED);
    let progress = fs.replacer().progress();
    assert!(progress.done_bytes < progress.total_bytes, "{progress:?}");
    fs.replacer().limit(None);
    fs.replacer().run(&mut |_| true).unwrap();
    assert_eq!(fs.replacer().progress().state, ReplaceState::Finished);
    assert_filled(&fs, 7);
    fs.close().unwrap();
}

#[test]
fn a_replacement_that_is_cancelled_leaves_the_volume_as_it_was() {
    let devices = shared(&SINGLE);
    let fs = open(as_devices(&devices)).unwrap();
    let new = Arc::new(blank());
    fs.replacer().begin(SOURCE, new.clone(), ReplaceOptions::default()).unwrap();
    let done = fs.replacer().run(&mut |_| false);
    assert_eq!(done.unwrap_err().errno(), Errno::CANCELED);
    assert_eq!(fs.replacer().progress().state, ReplaceState::Started);
    fs.replacer().cancel().unwrap();
    assert_eq!(fs.replacer().cancel().unwrap_err().errno(), Errno::NOTCONN);
    assert_eq!(fs.replacer().progress().state, ReplaceState::Canceled);
    write(&fs, "after", 9, 1 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert!(is_blank(&*new));
    assert_clean(&as_devices(&devices), "cancelled");
    let fs = open(as_devices(&devices)).unwrap();
    assert_filled(&fs, 7);
    // The replacement can begin again.
    fs.replacer().begin(SOURCE, new, ReplaceOptions::default()).unwrap();
    fs.replacer().run(&mut |_| true).unwrap();
}

/// Lets the power end after so many writes of a replacement. Returns whether it has ended. The
/// devices with a bit in `lost` lose their caches. The next mount goes on with the replacement.
fn crashes(start: &[OverlayDevice], after: u64, lost: u32) -> bool {
    let what = format!("power ends after {after} writes, caches {lost:b} are lost");
    let power = Power::endless();
    let new = blank();
    let devices: Vec<Arc<PoweredDevice>> =
        start.iter().chain([&new]).map(|device| PoweredDevice::new(&power, device)).collect();
    let fs = open(vec![devices[0].clone(), devices[1].clone()]).unwrap();
    power.end_after(after);
    let (mut written, mut tried) = (7, 7);
    let begun = fs.replacer().begin(SOURCE, devices[2].clone(), ReplaceOptions::default()).is_ok();
    let finished = begun
        && fs
            .replacer()
            .run(&mut |_| {
                if tried < 11 {
                    tried += 1;
                    if write_in_place(&fs, tried).is_ok() {
                        written = tried;
                    }
                }
                true
            })
            .is_ok();
    let has_ended = power.has_ended();
    drop(fs);
    let left: Vec<Arc<OverlayDevice>> =
        devices.iter().enumerate().map(|(at, device)| device.after_crash(lost & 1 << at == 0)).collect();
    let all = as_devices(&left);
    // Opens those devices whose superblock belongs to the volume.
    let given = all.iter().filter(|device| !is_blank(&***device)).cloned().collect();
    let fs = open(given).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let state = fs.replacer().progress().state;
    assert!(!finished || state == ReplaceState::Finished, "{what}: {state:?}");
    let holds = |fs: &Filesystem| {
        (1..=6).for_each(|seed| assert_holds(fs, &format!("file {seed}"), seed, (seed as usize) << 18));
        if tried == written {
            assert_holds(fs, "in place", written, 3 << 20);
        }
    };
    holds(&fs);
    let goes_on = fs.volume().replacement().state().is_some();
    if goes_on {
        fs.replacer().run(&mut |_| true).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!(fs.replacer().progress().state, ReplaceState::Finished);
    }
    let is_replaced = fs.replacer().progress().state == ReplaceState::Finished;
    fs.close().unwrap();
    drop(fs);
    let (kept, gone) = if is_replaced { (2, 1) } else { (1, 2) };
    assert!(is_blank(&*left[gone]) || !goes_on, "{what}: the old device is the volume's no more");
    let left = vec![all[0].clone(), all[kept].clone()];
    assert_clean(&left, &what);
    holds(&open(left).unwrap());
    has_ended
}

/// Replaces one of three devices. The power ends after so many writes, if at all. Returns the
/// number of writes, and the devices.
fn replace_until(source: DeviceId, end: Option<u64>) -> (u64, Vec<Arc<PoweredDevice>>) {
    let power = Power::endless();
    let start = THREE_MIRRORED.iter().map(OverlayDevice::fork).chain([blank()]);
    let devices: Vec<_> = start.map(|device| PoweredDevice::new(&power, &device)).collect();
    let fs = open(devices[..3].iter().map(|device| device.clone() as _).collect()).unwrap();
    fs.replacer().begin(source, devices[3].clone(), ReplaceOptions::default()).unwrap();
    if let Some(end) = end {
        power.end_after(end);
    }
    let begun = power.writes();
    let _may_fail = fs.replacer().run(&mut |_| true);
    (power.writes() - begun, devices)
}

/// Returns what devices have when the power is back; those with a bit in `lost` have lost their
/// caches.
fn after_crash(devices: &[Arc<PoweredDevice>], lost: u32) -> Vec<OverlayDevice> {
    let left = devices.iter().enumerate();
    left.map(|(at, device)| device.after_crash(lost & 1 << at == 0).fork()).collect()
}

/// Lets the power end again, so many writes after the mount that follows a crash of a replacement.
fn crashes_again(devices: &[Arc<PoweredDevice>], after: u64, lost: [u32; 2], what: &str) {
    let what = format!("{what}, then after {after}, {lost:?} lose their caches");
    let left = after_crash(devices, lost[0]);
    let power = Power::endless();
    let devices: Vec<_> = left.iter().map(|device| PoweredDevice::new(&power, device)).collect();
    let given = |devices: &[Arc<PoweredDevice>]| -> Vec<Arc<dyn Device>> {
        devices.iter().filter(|device| !is_blank(&***device)).map(|device| device.clone() as _).collect()
    };
    let fs = open(given(&devices)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_filled(&fs, 7);
    power.end_after(after);
    let _may_fail = write(&fs, "later", 8, 1 << 20).and_then(|_| fs.durability().sync());
    drop(fs);
    let left = after_crash(&devices, lost[1]);
    let devices: Vec<_> = left.iter().map(|device| PoweredDevice::new(&Power::endless(), device)).collect();
    let fs = open(given(&devices)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_filled(&fs, 7);
    write(&fs, "last", 9, 1 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = open(given(&devices)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_filled(&fs, 7);
    assert_holds(&fs, "last", 9, 1 << 20);
}

/// In the commit that crashed, the new device has taken the number of the old one (invariant 54).
#[test]
fn a_crash_in_the_end_of_a_replacement_and_one_of_the_next_mount_leave_a_volume() {
    for source in (1..=3).map(DeviceId) {
        let (writes, _) = replace_until(source, None);
        for before_the_end in 1..=8 {
            let (_, devices) = replace_until(source, Some(writes - before_the_end));
            let what = format!("device {source}, power ends {before_the_end} writes before the end");
            for after in [1, 2, 3, 5] {
                crashes_again(&devices, after, [0, 0], &what);
                crashes_again(&devices, after, [0b0111, 0b1010], &what);
            }
        }
    }
}

#[test]
fn a_crash_leaves_a_replacement_that_the_next_mount_goes_on_with() {
    for (start, lost, step) in [
        (&*SINGLE, 0, 23),
        (&*SINGLE, 0b111, 17),
        (&*MIRRORED, 0b100, 37),
        (&*MIRRORED, 0b011, 31),
        (&*SINGLE, 0b010, 41),
    ] {
        let mut after = 0;
        while crashes(start, after, lost) {
            after += step;
        }
        assert!(after > 100, "{after}");
    }
}

/// An old copy of the replaced device is left alone, too: its number and id belong to another
/// device by now.
#[test]
fn an_old_copy_of_a_device_is_left_as_it_is() {
    let mut devices = shared(&MIRRORED);
    let fs = open(as_devices(&devices)).unwrap();
    let new = Arc::new(blank());
    fs.replacer().begin(SOURCE, Arc::clone(&new) as Arc<dyn Device>, ReplaceOptions::default()).unwrap();
    fs.replacer().run(&mut |_| true).unwrap();
    fs.close().unwrap();
    drop(fs);
    devices[1] = new;
    let copy = Arc::new(devices[1].fork());
    let fs = open(as_devices(&devices)).unwrap();
    write(&fs, "later", 7, 1 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    devices.push(copy);
    let fs = open(as_devices(&devices)).unwrap();
    write(&fs, "later still", 8, 1 << 20).unwrap();
    fs.close().unwrap();
    assert!(!is_blank(&*devices[2]), "it is still a backup");
    assert_clean(&as_devices(&devices[..2]), "without the copy");
}

/// A commit in flight must not give it the state of the last replacement, which was cancelled long
/// before.
#[test]
fn a_commit_under_way_leaves_a_replacement_alone_that_has_just_begun() {
    let devices = shared(&MIRRORED);
    let place: Arc<OnceLock<Weak<Filesystem>>> = Arc::default();
    let (hooked, begun) = (Arc::clone(&place), Arc::new(Mutex::new(None)));
    let thread = Arc::clone(&begun);
    let new = Arc::new(blank());
    let target = Arc::clone(&new);
    let is_armed = Arc::new(Mutex::new(false));
    let armed = Arc::clone(&is_armed);
    let hook = CommitHook(Arc::new(move |reached| {
        if reached != CommitStep::Merged || !std::mem::take(&mut *armed.lock().unwrap()) {
            return;
        }
        let fs = hooked.get().and_then(Weak::upgrade).unwrap();
        let (other, target) = (Arc::clone(&fs), Arc::clone(&target));
        let begin = move || other.replacer().begin(SOURCE, target, ReplaceOptions::default());
        *thread.lock().unwrap() = Some(std::thread::spawn(begin));
        while fs.volume().replacement().state().is_none() {
            std::thread::yield_now();
        }
    }));
    let faults = Faults { hook: Some(hook), ..Faults::default() };
    let volume = Volume::open(as_devices(&devices), OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, faults, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
    place.set(Arc::downgrade(&fs)).unwrap();
    fs.replacer().begin(SOURCE, Arc::new(blank()), ReplaceOptions::default()).unwrap();
    fs.replacer().cancel().unwrap();
    assert_eq!(fs.volume().replacement().state(), None);
    *is_armed.lock().unwrap() = true;
    write(&fs, "a change", 9, 10_000).unwrap();
    fs.durability().sync().unwrap();
    begun.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    fs.replacer().run(&mut |_| true).unwrap();
    assert_eq!(fs.replacer().progress().state, ReplaceState::Finished);
    fs.close().unwrap();
    drop(fs);
    let replaced: Vec<Arc<dyn Device>> = vec![devices[0].clone(), new];
    assert_clean(&replaced, "replaced");
}
