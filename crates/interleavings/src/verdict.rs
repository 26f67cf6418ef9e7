//! Judges whether a run ended as promised.

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_format::TreeId;
use ubtrfs_simulator::{Crashes, check, members, mount, open_volume, superblock};
use ubtrfs_threads::atomic::Ordering;
use ubtrfs_threads::thread;
use ubtrfs_volume::OverlayDevice;

use crate::files::Versions;
use crate::jobs::bring_up;
use crate::stage::{Stage, done};
use crate::writer::{read, sync_all};

/// Compares the volume at the end of a run, and after crashes during it, with what was promised.
pub(crate) fn at_the_end(stage: &Stage, options: &Options, seed: u64, crashes: usize) {
    stage.is_remounted.store(false, Ordering::Release);
    if let Some(device) = &stage.glitching {
        device.heal();
    }
    sync_all(stage);
    if stage.glitching.is_some() {
        bring_up(stage);
    }
    let is_aborted = stage.fs.abort_reason();
    assert!(is_aborted.is_none() || stage.fails, "read-only without a reason: {is_aborted:?}");
    if is_aborted.is_none() {
        counters_are_back(stage);
    }
    let flags = subvolume_flags(&stage.fs);
    for (id, file) in &stage.files {
        if let Some(found) = stage.succeeds("a read at the end", read(&stage.fs, *id), &[]) {
            done(file.judge(&found, file.now()));
        }
    }
    if stage.succeeds("closing", stage.fs.close(), &[]).is_some() && is_aborted.is_none() {
        let devices = done(members(&stage.recording.all_current()));
        done(check(&devices));
        let fs = remount(&devices, options);
        judge_files(stage, &fs, |number| stage.files[number].1.now(), "mounted again");
        judge_each_alone(stage, &devices, options, |number| stage.files[number].1.now(), "mounted again");
        assert_eq!(subvolume_flags(&fs), flags, "subvolumes are read-only on the volume as they were in memory");
    }
    for (point, devices) in Crashes::new(&stage.recording, seed, crashes).of_all() {
        let context = format!("after a crash at {point:?}");
        let devices = members(&devices).unwrap_or_else(|what| panic!("{context}: {what}"));
        let checked = match &stage.glitching {
            Some(_) => check(&brought_up(&devices, options)),
            None => check(&devices),
        };
        checked.unwrap_or_else(|what| panic!("{context}: {what}"));
        let fs = remount(&devices, options);
        judge_files(stage, &fs, |number| stage.files[number].1.after_crash(point.event), &context);
        judge_each_alone(stage, &devices, options, |number| stage.files[number].1.after_crash(point.event), &context);
    }
}

/// Copies the devices, and brings those of the copies that lag up to the others.
fn brought_up(devices: &[OverlayDevice], options: &Options) -> Vec<OverlayDevice> {
    let devices: Vec<_> = devices.iter().map(|device| Arc::new(device.fork())).collect();
    let volume = done(open_volume(devices.iter().map(|device| Arc::clone(device) as _).collect(), false));
    if !volume.devices().lagging().is_empty() {
        let fs = done(mount(volume, options.clone()));
        done(fs.scrubber().catch_up(&mut |_| true));
        assert!(fs.volume().devices().lagging().is_empty(), "a device is not brought up to the others after a crash");
        done(fs.close());
    }
    devices.iter().map(|device| device.fork()).collect()
}

/// Checks each device that does not lag alone, if each has a copy of everything: it has what was
/// promised.
fn judge_each_alone(
    stage: &Stage,
    devices: &[OverlayDevice],
    options: &Options,
    versions: impl Fn(usize) -> Versions,
    context: &str,
) {
    if stage.glitching.is_none() {
        return;
    }
    let volume = done(open_volume(devices.iter().map(|device| Arc::new(device.fork()) as _).collect(), true));
    let lagging = volume.devices().lagging();
    for device in devices {
        let devid = superblock(device).map(|own| own.dev_item.devid);
        if devid.is_some_and(|devid| !lagging.contains(&devid)) {
            let fs = remount(std::slice::from_ref(device), options);
            judge_files(stage, &fs, &versions, &format!("{context}, {devid:?} alone"));
        }
    }
}

fn remount(devices: &[OverlayDevice], options: &Options) -> Arc<Filesystem> {
    let volume = done(open_volume(devices.iter().map(|device| Arc::new(device.fork()) as _).collect(), true));
    done(mount(volume, Options { read_only: true, ..options.clone() }))
}

fn judge_files(stage: &Stage, fs: &Filesystem, versions: impl Fn(usize) -> Versions, context: &str) {
    for (number, (_, file)) in stage.files.iter().enumerate() {
        let found = fs.directories().lookup(stage.dir, &file.name()).and_then(|id| read(fs, id));
        let found = match found {
            Ok(found) => found,
            // The file was made before the run began, but the crash may have been earlier still.
            Err(error) => {
                assert!(versions(number).most == 0, "{context}: {error:?}");
                continue;
            }
        };
        if let Err(what) = file.judge(&found, versions(number)) {
            panic!("{context}: {what}");
        }
    }
}

/// Returns for each subvolume whether it is read-only.
fn subvolume_flags(fs: &Filesystem) -> Vec<(TreeId, bool)> {
    let mut flags: Vec<_> = fs
        .subvolumes()
        .ids()
        .into_iter()
        .filter_map(|id| fs.subvolumes().subvolume_info(id).ok())
        .map(|info| (info.id, info.read_only))
        .collect();
    flags.sort_unstable();
    flags
}

/// Checks that nothing is reserved, dirty or in flight when all threads have ended and all data is
/// durable.
fn counters_are_back(stage: &Stage) {
    let mut left = String::new();
    // Subvolumes that are dropped in steps take a while.
    for _ in 0..200 {
        let stats = stage.fs.stats();
        let counters = [
            ("dirty bytes", stats.dirty_bytes),
            ("bytes in flight", stats.bytes_in_flight),
            ("bytes reserved for data", stats.space.data_reserved),
            ("bytes of changes", stats.changed_bytes),
        ];
        let off: Vec<String> =
            counters.iter().filter(|(_, value)| *value != 0).map(|(name, value)| format!("{value} {name}")).collect();
        if off.is_empty() {
            return;
        }
        left = off.join(", ");
        thread::sleep(std::time::Duration::from_millis(50));
        let _ = stage.fs.durability().sync();
    }
    panic!("a counter is off: {left}");
}
