//! A volume that is mirrored on two NBD servers goes on without one of them. The server comes back
//! with what it had when it was killed, or with an older copy. The volume does not trust it
//! (invariant 34), and a scrub brings it up, so that then the other server can be missed.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image};
use ubtrfs_testkit::promises::{Promises, Writer};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_testkit::subject::{Mount, Subject};

use crate::device_images::ubtrfs;

const SIZE: u64 = 512 << 20;
const WRITERS: u64 = 2;
/// Operations of each writer in each of its turns.
const OPERATIONS: u64 = 150;
/// The time for which an absent server is waited for.
const OPTIONS: &str = "timeout=3,commit=1";

/// The way in which a killed server comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Back {
    /// With what it had, after the volume has given it up.
    Late,
    /// With an older copy, while the volume waits for it.
    Older,
    /// With what it had, when the volume is mounted again.
    AtTheNextMount,
}

/// Two servers, with a volume on both.
struct Rig {
    _dir: tempfile::TempDir,
    images: [PathBuf; 2],
    uris: [PathBuf; 2],
    servers: [NbdServer; 2],
    promises: Vec<Promises>,
}

impl Rig {
    fn new() -> Self {
        let dir = scratch_dir();
        let images = [0, 1].map(|number| dir.path().join(format!("image{number}")));
        let servers = [0, 1].map(|number: usize| {
            blank_image(&images[number], SIZE);
            let socket = dir.path().join(format!("socket{number}"));
            NbdServer::nbdkit(&socket, &["file", &images[number].display().to_string()])
        });
        let uris = servers.each_ref().map(|server| PathBuf::from(server.uri("")));
        ubtrfs(&["mkfs", "-d", "raid1", "-m", "raid1"], &[&uris[0], &uris[1]]).ok();
        Self { _dir: dir, images, uris, servers, promises: vec![Promises::default(); WRITERS as usize] }
    }

    fn mount(&self) -> Mount {
        Subject::ubtrfs().mount(&[&self.uris[0], &self.uris[1]], OPTIONS)
    }

    /// Lets writers write and fsync, while `trouble` is made. None of them may get an error.
    fn write(&mut self, place: &Path, turn: u64, trouble: impl FnOnce(&mut [NbdServer; 2])) {
        let never = AtomicBool::new(false);
        let Self { promises, servers, .. } = self;
        std::thread::scope(|scope| {
            let mut writers = Vec::new();
            for (promises, number) in promises.iter_mut().zip(0..) {
                let writer = Writer::new(place, number, promises, turn * WRITERS + number);
                let never = &never;
                writers.push(scope.spawn(move || writer.run(never, turn * OPERATIONS)));
            }
            std::thread::sleep(Duration::from_millis(50));
            trouble(servers);
            for writer in writers {
                writer.join().expect("a writer").expect("no operation fails");
            }
        });
    }

    /// Asserts that a check finds no fault on either image, and that either shows everything, to
    /// the kernel, too.
    fn assert_both_are_whole(&self, what: &str) {
        let [one, other] = self.images.each_ref().map(PathBuf::as_path);
        {
            let devices = [one, other].map(|image| LoopDevice::attach(image, false));
            run(command("btrfs", &["device", "scan"]).args(devices.iter().map(LoopDevice::path))).ok();
            assert_btrfs_check_clean(devices[0].path());
            assert_btrfs_check_clean(devices[1].path());
        }
        for (subject, images, options) in [
            (Subject::ubtrfs(), &[one][..], "ro,degraded"),
            (Subject::ubtrfs(), &[other], "ro,degraded"),
            (Subject::Kernel, &[one, other], ""),
        ] {
            let mounted = subject.mount(images, options);
            self.assert_promises(mounted.path(), &format!("{what}, {}", subject.name()));
            mounted.unmount();
        }
    }

    fn assert_promises(&self, place: &Path, what: &str) {
        for (promises, number) in self.promises.iter().zip(0..) {
            let faults = promises.faults(place, &Writer::prefix(number));
            assert!(faults.is_empty(), "{what}: {}\n{}", faults.join("\n"), promises.recent());
        }
    }
}

/// Scrubs a mount, or devices that are not mounted. Returns how many copies were wrong.
fn scrubbed(places: &[&Path]) -> u64 {
    let found = ubtrfs(&["scrub", "start", "--json"], places).ok().stdout;
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let of = |device: &serde_json::Value, name: &str| device[name].as_u64().unwrap();
    let devices = found.as_array().unwrap();
    devices.iter().map(|device| of(device, "checksum_errors") + of(device, "read_errors")).sum()
}

/// Returns the failures that the volume has counted for a device, and whether the device lacks
/// something.
fn state(place: &Path, number: usize) -> (u64, bool) {
    let shown = ubtrfs(&["device", "stats"], &[place]).ok().stdout;
    let own = shown.lines().filter(|line| line.contains(&format!("socket{number}]")));
    let counts = own.clone().filter(|line| line.contains("_errs"));
    let sum = counts.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum();
    (sum, own.clone().any(|line| line.contains("lacks something")))
}

fn goes_on_without(gone: usize, back: Back) {
    let what = format!("server {gone}, {back:?}");
    let mut rig = Rig::new();
    let mounted = rig.mount();
    Writer::prepare(mounted.path());
    rig.write(mounted.path(), 1, |_| {});
    let image = rig.images[gone].clone();
    let older = image.with_extension("older");
    run(command("cp", &["--sparse=always"]).arg(&image).arg(&older)).ok();
    rig.write(mounted.path(), 2, |servers| {
        servers[gone].kill();
        if back == Back::Older {
            std::fs::copy(&older, &image).unwrap();
            servers[gone].restart();
        }
    });
    if back == Back::Late {
        rig.servers[gone].restart();
    }
    rig.write(mounted.path(), 3, |_| {});
    rig.assert_promises(mounted.path(), &what);
    let (failures, lags) = state(mounted.path(), gone);
    assert!(failures > 0 && (lags || back == Back::Late), "{what}: {failures}");
    if back == Back::Late {
        // It is brought up without another mount.
        let begun = std::time::Instant::now();
        while state(mounted.path(), gone).1 {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}: it is not brought up");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    assert_eq!(state(mounted.path(), 1 - gone), (0, false), "{what}");
    // No program got an error, and the statistics show the errors.
    let stats = ubtrfs(&["stats", "--json"], &[mounted.path()]).ok().stdout;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!(stats["errors"].as_u64().unwrap() > 0, "{what}: {stats}");
    let last = stats["last_errors"].as_array().unwrap();
    assert!(last.iter().any(|error| error["device"] == gone + 1), "{what}: {last:?}");
    mounted.unmount();
    rig.servers[gone].restart();
    // The mount itself mends what is wrong on the device, too; nothing reads the device before
    // that.
    let mounted = rig.mount();
    rig.assert_promises(mounted.path(), &what);
    assert!(state(mounted.path(), gone).0 >= failures, "{what}: the volume remembers");
    scrubbed(&[mounted.path()]);
    assert_eq!(scrubbed(&[mounted.path()]), 0, "{what}");
    assert!(!state(mounted.path(), gone).1, "{what}: it has all that the other one has");
    // Now the other server is gone, and the one that was brought up is enough.
    rig.write(mounted.path(), 4, |servers| servers[1 - gone].kill());
    rig.assert_promises(mounted.path(), &what);
    mounted.unmount();
    let alone = Subject::ubtrfs().mount(&[&rig.uris[gone]], "degraded");
    rig.assert_promises(alone.path(), &what);
    alone.unmount();
    rig.servers[1 - gone].restart();
    scrubbed(&[&rig.uris[0], &rig.uris[1]]);
    ubtrfs(&["check"], &[&rig.uris[0], &rig.uris[1]]).ok();
    rig.servers.iter_mut().for_each(NbdServer::kill);
    rig.assert_both_are_whole(&what);
}

#[test]
fn a_mirror_goes_on_without_a_server_which_is_brought_up_later() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let all = [(1, Back::Late), (0, Back::Older), (0, Back::AtTheNextMount), (1, Back::Older)];
    for (gone, back) in &all[..if soaks() { all.len() } else { 1 }] {
        goes_on_without(*gone, *back);
    }
}
