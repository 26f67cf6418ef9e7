//! Devices are resized, added and removed, and chunks are balanced and converted, while programs
//! fill the volume, and while snapshots are made and deleted. Programs get no error except when the
//! volume is full, commands fail only when there is no space, and the volume is sound afterwards,
//! for ubtrfs and for the kernel.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::Subject;

use crate::device_images::ubtrfs;

const MIB: u64 = 1 << 20;
/// Bytes of each image.
const SIZE: u64 = 600 * MIB;
/// The minimum time for which programs work beside a change of the volume.
const TIME: Duration = Duration::from_secs(6);

/// Seed and length of the expected contents of files, by path.
type Files = BTreeMap<PathBuf, (u64, usize)>;

/// Returns the number of volumes of a test.
fn rounds() -> u64 {
    if soaks() { 40 } else { 2 }
}

/// Ends the programs when it is dropped, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    Rng::new(seed).noise(length)
}

/// Returns the paths of a mounted volume's devices, by their numbers.
fn devices_of(top: &Path) -> BTreeMap<u64, PathBuf> {
    let usage = ubtrfs(&["device", "usage", "--json"], &[top]).ok().stdout;
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    let devices = usage["devices"].as_array().unwrap().iter();
    devices.map(|device| (device["id"].as_u64().unwrap(), device["path"].as_str().unwrap().into())).collect()
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// Runs a program that writes files, fsyncs some of them, and removes some when there is no space.
fn fill(top: &Path, name: &str, seed: u64, lengths: &[usize], ends: &AtomicBool) -> Files {
    let (mut rng, mut files, mut number) = (Rng::new(seed), Files::new(), 0);
    fs::create_dir(top.join(name)).unwrap();
    while !ends.load(SeqCst) {
        number += 1;
        let (path, length) = (Path::new(name).join(number.to_string()), *rng.pick(lengths));
        let seed = seed << 20 | number;
        let write = || {
            let mut file = File::create(top.join(&path))?;
            file.write_all(&content(seed, length))?;
            if number.is_multiple_of(4) { file.sync_all() } else { Ok(()) }
        };
        match write() {
            Ok(()) => drop(files.insert(path, (seed, length))),
            Err(error) if is_full(&error) => {
                // The file may not have been made at all.
                let _ = fs::remove_file(top.join(&path));
                let some = files.keys().nth(rng.index(files.len().max(1))).cloned();
                if let Some(path) = some.filter(|_| rng.one_in(2)) {
                    files.remove(&path);
                    fs::remove_file(top.join(path)).unwrap();
                }
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    files
}

/// Makes snapshots of `source`, changes files in them, and deletes them.
fn snapshots(top: &Path, name: &str, files: usize, seed: u64, ends: &AtomicBool) {
    let (mut rng, mut number) = (Rng::new(seed), 0);
    while !ends.load(SeqCst) {
        number += 1;
        let copy = top.join(format!("{name} {number}"));
        let made = ubtrfs(&["subvolume", "snapshot"], &[&top.join("source"), &copy]);
        assert!(made.success() || made.stderr.contains("No space"), "{}", made.report());
        if !made.success() {
            continue;
        }
        for _ in 0..30 {
            let written = fs::write(copy.join(rng.index(files).to_string()), rng.noise(1500));
            assert!(written.as_ref().map_or_else(is_full, |()| true), "{written:?}");
        }
        if rng.one_in(2) {
            ubtrfs(&["sync"], &[top]).ok();
        }
        ubtrfs(&["subvolume", "delete"], &[&copy]).ok();
    }
}

/// A volume on some of these images.
struct Rig {
    _dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    what: String,
}

impl Rig {
    fn new(count: usize, words: &[&str], seed: u64) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..count).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, SIZE);
        }
        let places: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        ubtrfs(&[&["mkfs"], words].concat(), &places).ok();
        for image in &images {
            File::options().write(true).open(image).unwrap().set_len(SIZE).unwrap();
        }
        Self { _dir: dir, images, what: format!("seed {seed}, {words:?}") }
    }

    fn places(&self) -> Vec<&Path> {
        self.images.iter().map(PathBuf::as_path).collect()
    }

    /// Runs a command, and returns whether it succeeded; it may only fail when there is no space.
    #[track_caller]
    fn runs(&self, words: &[&str], places: &[&Path]) -> bool {
        let outcome = ubtrfs(words, places);
        let has_reason = ["No space", "no room", "too few"].iter().any(|reason| outcome.stderr.contains(reason));
        assert!(outcome.success() || has_reason, "{}: {words:?}: {}", self.what, outcome.report());
        outcome.success()
    }

    fn assert_good(&self, files: &Files) {
        ubtrfs(&["check"], &self.places()).ok();
        {
            let devices: Vec<LoopDevice> = self.images.iter().map(|image| LoopDevice::attach(image, false)).collect();
            assert_btrfs_check_clean(devices[0].path());
        }
        for subject in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = subject.mount(&self.places(), "");
            for (path, (seed, length)) in files {
                let found = fs::read(mount.path().join(path)).unwrap_or_else(|error| panic!("{}: {error}", self.what));
                let is_as_written = found == content(*seed, *length);
                assert!(is_as_written, "{}, {}: {} differs", self.what, subject.name(), path.display());
            }
            mount.unmount();
        }
    }
}

fn sizes_change(seed: u64) {
    const PROFILES: [&[&str]; 5] = [
        &["-d", "single", "-m", "dup"],
        &["-d", "dup", "-m", "dup"],
        &["-d", "raid1", "-m", "raid1"],
        &["-d", "raid0", "-m", "raid1"],
        &["-d", "single", "-m", "raid1"],
    ];
    const MIN: u64 = 140 * MIB;
    let mut rng = Rng::new(seed);
    let number = rng.index(PROFILES.len());
    let devices = if number < 2 { 1 } else { 2 };
    let rig = Rig::new(devices, &[PROFILES[number], &["--size", "160M"]].concat(), seed);
    let mount = Subject::ubtrfs().mount(&rig.places(), "");
    let (top, ends, begun) = (mount.path(), AtomicBool::new(false), Instant::now());
    let files = thread::scope(|scope| {
        let at_the_end = Ends(&ends);
        let large = scope.spawn(|| fill(top, "large", seed, &[70_000, 1 << 20, 5 << 20], &ends));
        let small = scope.spawn(|| fill(top, "small", seed + 1, &[10, 1500, 9000], &ends));
        let mut sizes = vec![160 * MIB; devices];
        while begun.elapsed() < TIME && !large.is_finished() && !small.is_finished() {
            let device = rng.index(devices);
            let size = sizes[device];
            let wanted = if rng.one_in(4) {
                (size - (10 + rng.below(90)) * MIB).max(MIN)
            } else {
                (size + (1 + rng.below(40)) * MIB).min(SIZE)
            };
            if rig.runs(&["filesystem", "resize", &format!("{}:{wanted}", device + 1)], &[top]) {
                sizes[device] = wanted;
            }
        }
        drop(at_the_end);
        [large, small].into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Files>()
    });
    mount.unmount();
    rig.assert_good(&files);
}

fn chunks_are_emptied(seed: u64) {
    const FILES: usize = 900;
    const PROFILES: [&[&str]; 5] = [
        &["-d", "single", "-m", "dup"],
        &["-d", "single", "-m", "single"],
        &["-d", "raid1", "-m", "raid1"],
        &["-d", "raid0", "-m", "raid1"],
        &["-d", "single", "-m", "raid1"],
    ];
    let mut rng = Rng::new(seed);
    let number = rng.index(PROFILES.len());
    let devices = if number < 2 { 1 } else { 3 };
    let rig = Rig::new(devices, PROFILES[number], seed);
    let mount = Subject::ubtrfs().mount(&rig.places(), "commit=1");
    let (top, ends, begun) = (mount.path(), AtomicBool::new(false), Instant::now());
    ubtrfs(&["subvolume", "create"], &[&top.join("source")]).ok();
    let mut files = Files::new();
    for number in 0..FILES {
        let path = Path::new("source").join(number.to_string());
        fs::write(top.join(&path), content(number as u64, 1500)).unwrap();
        files.insert(path, (number as u64, 1500));
    }
    let more = thread::scope(|scope| {
        let (ends, at_the_end) = (&ends, Ends(&ends));
        let large = scope.spawn(|| fill(top, "large", seed, &[9000, 70_000], ends));
        let copies = ["one", "other"].map(|name| scope.spawn(move || snapshots(top, name, FILES, seed, ends)));
        while begun.elapsed() < TIME && !large.is_finished() && !copies.iter().any(ScopedJoinHandle::is_finished) {
            let profile = *rng.pick(if devices == 1 { &["single", "dup"] } else { &["single", "raid1"] });
            let ids: Vec<u64> = devices_of(top).into_keys().collect();
            let id = *rng.pick(&ids);
            match rng.below(6) {
                0 => drop(rig.runs(&["balance", "start", "-m"], &[top])),
                1 => drop(rig.runs(&["balance", "start", "-dusage=70", "-musage=70"], &[top])),
                2 => drop(rig.runs(&["balance", "start", &format!("-dconvert={profile}")], &[top])),
                3 => drop(rig.runs(&["balance", "start", "-f", &format!("-mconvert={profile}")], &[top])),
                4 => {
                    rig.runs(&["filesystem", "resize", &format!("{id}:{}", SIZE / 2)], &[top]);
                    rig.runs(&["filesystem", "resize", &format!("{id}:max")], &[top]);
                }
                _ => {
                    rig.runs(&["device", "remove", &id.to_string()], &[top]);
                    // The images don't show which devices belong to the volume: a commit may write
                    // one while it is read.
                    let members: Vec<PathBuf> = devices_of(top).into_values().collect();
                    for image in rig.images.iter().filter(|image| !members.contains(image)) {
                        rig.runs(&["device", "add", "-f"], &[image.as_path(), top]);
                    }
                }
            }
        }
        drop(at_the_end);
        for copies in copies {
            copies.join().unwrap();
        }
        large.join().unwrap()
    });
    mount.unmount();
    files.extend(more);
    rig.assert_good(&files);
}

#[test]
fn sizes_change_while_programs_fill_the_volume() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    seeds(rounds()).into_iter().for_each(sizes_change);
}

#[test]
fn chunks_are_emptied_beside_snapshots_that_are_deleted() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    seeds(rounds()).into_iter().for_each(chunks_are_emptied);
}
