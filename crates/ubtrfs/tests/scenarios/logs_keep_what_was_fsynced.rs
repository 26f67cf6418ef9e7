//! Logs that a kernel has left are replayed as the kernel replays them: what was fsynced is there.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Error, Filesystem, Options, Refusal};
use ubtrfs_testkit::diff::{self, assert_same};
use ubtrfs_testkit::fixture::{self, Fixture};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_testkit::walk::walk;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, RecordingDevice, Volume, random_fates};

use crate::common::tree::tree_of;

/// Opens an image; for reading only, through a device that can't be written to.
fn open(path: &Path, options: Options) -> ubtrfs::Result<Arc<Filesystem>> {
    let read_only = options.read_only;
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(path, mode, Exclusive::Yes).unwrap());
    let volume = Volume::open(vec![device], OpenOptions { read_only }).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options })
}

fn assert_check_clean(path: &Path) {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
    let report = ubtrfs_check::check(&[device], &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean() && report.warnings.is_empty(), "{:#?} {:#?}", report.faults, report.warnings);
}

fn logs() -> Vec<Fixture> {
    let logs: Vec<_> =
        fixture::names().iter().filter(|name| name.starts_with("log-")).map(|n| Fixture::load(n)).collect();
    assert!(logs.len() >= 14);
    logs
}

fn shown(fixture: &Fixture) -> Options {
    Options { subvolume_id: Some(fixture.manifest.subvol), ..Options::default() }
}

#[test]
fn read_only_a_log_is_replayed_in_memory() {
    for fixture in logs() {
        let name = &fixture.manifest.name;
        let dir = scratch_dir();
        let image = fixture.unpack(dir.path()).remove(0);
        let before = std::fs::read(&image).unwrap();
        let fs = open(&image, Options { read_only: true, ..shown(&fixture) }).unwrap();
        eprintln!("{name}");
        fixture.assert_shows(&tree_of(&fs));
        fs.close().unwrap();
        drop(fs);
        let fs = open(&image, Options { read_only: true, no_log_replay: true, ..shown(&fixture) }).unwrap();
        fixture.assert_shows_committed(&tree_of(&fs));
        fs.close().unwrap();
        assert!(before == std::fs::read(&image).unwrap(), "{name}: a read-only mount wrote to the image");
    }
}

#[test]
fn read_write_a_log_is_replayed_for_good() {
    for fixture in logs() {
        let name = &fixture.manifest.name;
        eprintln!("{name}");
        let dir = scratch_dir();
        let image = fixture.unpack(dir.path()).remove(0);
        let fs = open(&image, shown(&fixture)).unwrap();
        let seen = tree_of(&fs);
        fixture.assert_shows(&seen);
        assert_eq!(fs.volume().superblocks().current().log_root.0, 0, "{name}");
        fs.close().unwrap();
        drop(fs);
        assert_check_clean(&image);
        let fs = open(&image, Options { read_only: true, ..shown(&fixture) }).unwrap();
        assert_same(name, &seen, &tree_of(&fs), diff::Options::SAME_VOLUME);
        drop(fs);
        if Need::Kernel.missing().is_none() {
            assert_btrfs_check_clean(&image);
            let mount = KernelMount::new(&[&image], &fixture.options(""));
            let by_kernel = walk(mount.path());
            let complaints = mount.unmount();
            assert!(complaints.is_empty(), "{name}: {complaints:?}");
            assert_same(name, &seen, &by_kernel, diff::Options::SAME_VOLUME);
            assert_btrfs_check_clean(&image);
        }
    }
}

fn open_device(device: Arc<dyn Device>, options: Options) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device], OpenOptions { read_only: options.read_only }).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options }).unwrap()
}

#[test]
fn a_crash_during_replay_loses_nothing() {
    for fixture in logs() {
        let name = &fixture.manifest.name;
        let dir = scratch_dir();
        let image = fixture.unpack(dir.path()).remove(0);
        let recording = Arc::new(RecordingDevice::new(std::fs::read(&image).unwrap().into()));
        let fs = open_device(recording.clone(), shown(&fixture));
        fs.close().unwrap();
        drop(fs);
        let events = recording.len();
        assert!(events > 5, "{name}: {events} events");
        for event in 0..=events {
            for seed in 0..if soaks() { 20 } else { 2 } {
                let crashed: Arc<dyn Device> =
                    Arc::new(recording.crash_state(event, &mut random_fates(seed * 1000 + event as u64)));
                let fs = open_device(crashed.clone(), Options { read_only: true, ..shown(&fixture) });
                fixture.assert_shows(&tree_of(&fs));
                drop(fs);
                let fs = open_device(crashed.clone(), shown(&fixture));
                fixture.assert_shows(&tree_of(&fs));
                fs.close().unwrap();
                drop(fs);
                let report = ubtrfs_check::check(&[crashed], &ubtrfs_check::Options::default()).unwrap();
                assert!(report.is_clean(), "{name}, after {event} of {events} events: {:#?}", report.faults);
            }
        }
    }
}

#[test]
fn a_damaged_log_is_not_replayed_and_not_lost() {
    let fixture = Fixture::load("log-rename");
    let dir = scratch_dir();
    let image = fixture.unpack(dir.path()).remove(0);
    let log = {
        let device = Arc::new(FileDevice::open(&image, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
        let volume = Volume::open(vec![device], OpenOptions { read_only: true }).unwrap();
        let (start, chunk) = volume
            .chunk_map()
            .all()
            .into_iter()
            .rfind(|(at, _)| *at <= volume.superblocks().current().log_root)
            .unwrap();
        let within = volume.superblocks().current().log_root.0 - start.0;
        chunk.stripes.iter().map(|stripe| stripe.offset.0 + within).collect::<Vec<_>>()
    };
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    for place in log {
        std::os::unix::fs::FileExt::write_all_at(&file, b"damage", place + 200).unwrap();
    }
    let before = std::fs::read(&image).unwrap();
    for read_only in [true, false] {
        let refused = open(&image, Options { read_only, ..shown(&fixture) }).unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::BadLog(_))), "{refused:?}");
        // The command names the remedies, since they depend on how it is called.
        assert!(refused.chain().contains("can't be replayed"), "{refused:?}");
    }
    assert!(before == std::fs::read(&image).unwrap());
    let fs = open(&image, Options { read_only: true, no_log_replay: true, ..shown(&fixture) }).unwrap();
    fixture.assert_shows_committed(&tree_of(&fs));
}
