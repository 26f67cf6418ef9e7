//! The kernel's btrfs mounts what a crash left, has no complaint and shows the same as we do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ubtrfs::Filesystem;
use ubtrfs_format::Ino;
use ubtrfs_simulator::enumerate::Start;
use ubtrfs_simulator::{Body, Crashes, Habits, History, Model, Operation, Random, Stage, examine, look, shrink};
use ubtrfs_testkit::content::Digester;
use ubtrfs_testkit::diff::{Options, diff};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{btrfs_check, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{many_seeds, seeds, soaks};
use ubtrfs_testkit::walk::{Entry, Kind, Tree, walk};
use ubtrfs_volume::{OpenOptions, OverlayDevice, Volume};

/// Returns what a walk of the model's volume must find.
fn expected(model: &Model) -> Tree {
    let mut tree = Tree::default();
    let mut names: BTreeMap<_, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (path, id) in model.paths() {
        let node = model.node(id);
        let kind = match (&node.body, node.mode & 0o170_000) {
            (Body::File(_), _) => Kind::File,
            (Body::Directory { .. }, _) => Kind::Dir,
            (Body::Symlink(_), _) => Kind::Symlink,
            (_, 0o010_000) => Kind::Fifo,
            (_, 0o140_000) => Kind::Socket,
            (_, 0o020_000) => Kind::Char,
            (_, _) => Kind::Block,
        };
        let digest = match &node.body {
            Body::File(content) => {
                let mut digester = Digester::new(content.size());
                for range in content.data_ranges() {
                    digester.add(range.start, &content.read(range.start, (range.end - range.start) as usize));
                }
                Some(digester.finish())
            }
            _ => None,
        };
        let time = |time: ubtrfs_format::items::Timespec| (time.sec as i64, time.nsec);
        let entry = Entry {
            kind,
            mode: node.mode & 0o7777,
            uid: node.uid,
            gid: node.gid,
            nlink: node.nlink.into(),
            size: Some(node.size()),
            mtime: node.times.map(|times| time(times.mtime)),
            ctime: node.times.map(|times| time(times.ctime)),
            atime: None,
            btime: node.times.map(|times| time(times.btime)),
            ino: Some(id.ino.0),
            rdev: match node.body {
                Body::Special(number) if matches!(kind, Kind::Char | Kind::Block) => {
                    Some(((number >> 20) as u32, (number & 0xf_ffff) as u32))
                }
                _ => None,
            },
            target: match &node.body {
                Body::Symlink(target) => Some(target.clone()),
                _ => None,
            },
            xattrs: node.xattrs.iter().map(|(name, value)| (name.clone(), value.to_vec())).collect(),
            data: None,
            digest,
            flags: None,
        };
        if !node.is_dir() && node.nlink > 1 {
            names.entry(id).or_default().insert(path.0.clone());
        }
        tree.entries.insert(path.0, entry);
    }
    tree.links = names.into_values().collect();
    tree
}

/// Writes an image file, with holes in place of zeros.
pub fn write_image(device: &OverlayDevice, path: &Path) {
    let bytes = device.to_bytes();
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, chunk) in bytes.chunks(65536).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            file.write_all_at(chunk, number as u64 * 65536).unwrap();
        }
    }
}

/// Mounts by the kernel what a crash left on these devices: it must show what we show. Returns its
/// complaints.
pub fn kernel_shows(images: &[&Path], options: &str, model: &Model) -> Result<Vec<String>, String> {
    // Waits for a tick of the kernel's clock, which is its resolution.
    std::thread::sleep(Duration::from_millis(10));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mounted = (now.as_secs() as i64, now.subsec_nanos());
    std::thread::sleep(Duration::from_millis(10));
    let mount = KernelMount::try_new(images, options).map_err(|outcome| outcome.report())?;
    let mut seen = walk(mount.path());
    let complaints = mount.unmount();
    for entry in seen.entries.values_mut() {
        // The kernel's replay sets the ctime of an inode from which it removes a name to the time
        // of the mount; ours keeps that of the log.
        entry.ctime = entry.ctime.filter(|time| *time < mounted);
    }
    let differences = diff(&expected(model), &seen, Options::SAME_VOLUME);
    if !differences.is_empty() {
        return Err(format!("left: ours, right: the kernel's:\n  {}", differences.join("\n  ")));
    }
    Ok(complaints)
}

/// Mounts by the kernel what a crash left: it must show what we show, complain of nothing, and
/// leave a clean volume.
fn kernel_agrees(device: &OverlayDevice, model: &Model, image: &Path) -> Result<(), String> {
    write_image(device, image);
    let complaints = kernel_shows(&[image], "", model)?;
    // On a full volume the kernel has no space for its own records of subvolumes, on which nothing
    // depends.
    let harmless = |what: &String| what.contains("btrfs_uuid_scan_kthread failed -28");
    if !complaints.iter().all(harmless) {
        return Err(format!("the kernel complains: {complaints:?}"));
    }
    let outcome = btrfs_check(image);
    if outcome.success() { Ok(()) } else { Err(format!("btrfs check is not content: {}", outcome.report())) }
}

#[test]
fn the_kernel_finds_the_last_commit() {
    require!(Need::Kernel);
    let seeds = seeds(if soaks() { 100 } else { 12 });
    let states = if soaks() { 400usize.div_ceil(seeds.len()) } else { 3 };
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let mut mounted = 0;
    for seed in &seeds {
        let mut history = History::new(*seed);
        // The kernel mounts only volumes whose sectors are as large as its pages.
        history.plan.options.sector_size = 4096;
        // The kernel does not show capabilities that are noise.
        history.habits.privileges = false;
        let recorded = history.run(60).unwrap_or_else(|failure| panic!("{failure}"));
        // The first state is around a superblock, the others are anywhere.
        for (point, device) in Crashes::new(&recorded.recording, *seed, 8 * states).step_by(4).take(states) {
            let what = format!("seed {seed}, crash at {point:?}, {:?}", history.plan);
            let model =
                examine(&recorded.judge, &device, point.event).unwrap_or_else(|error| panic!("{what}: {error}")).model;
            kernel_agrees(&device, &model, &image).unwrap_or_else(|error| panic!("{what}: {error}"));
            mounted += 1;
        }
    }
    eprintln!("the kernel mounted {mounted} crash states");
    assert!(mounted >= seeds.len() * states * 2 / 3, "{mounted}");
}

/// Makes a volume by the kernel: the mounted subvolume has two snapshots, one of them changed, and
/// files share extents. Returns its bytes and the snapshots' ids.
fn volume_with_snapshots(dir: &Path, mkfs: &[&str]) -> (Arc<[u8]>, [u64; 2]) {
    let image = dir.join("shared");
    mkfs_btrfs(&image, 96 << 20, mkfs);
    let mount = KernelMount::new(&[&image], "");
    let top = mount.path();
    let btrfs = |words: &[&str], paths: &[std::path::PathBuf]| run(command("btrfs", words).args(paths)).ok().stdout;
    let (home, old, changed) = (top.join("home"), top.join("old"), top.join("changed"));
    btrfs(&["subvolume", "create"], std::slice::from_ref(&home));
    for directory in ["b", "d"] {
        std::fs::create_dir(home.join(directory)).unwrap();
        for number in 0..40 {
            std::fs::write(home.join(directory).join(format!("file {number}")), vec![number as u8; 150]).unwrap();
        }
    }
    let mut random = Random::new(5);
    for name in ["a", "e", "f"] {
        let file = File::create(home.join(name)).unwrap();
        for _ in 0..12 {
            let at = random.below(40) * 4096;
            file.write_all_at(&Random::noise(random.number(), 1 + random.below(20_000) as usize), at).unwrap();
            file.sync_all().unwrap();
        }
    }
    run(command("cp", &["--reflink=always"]).args([home.join("a"), home.join("g")])).ok();
    btrfs(&["subvolume", "snapshot", "-r"], &[home.clone(), old.clone()]);
    btrfs(&["subvolume", "snapshot"], &[home.clone(), changed.clone()]);
    File::options().write(true).open(changed.join("e")).unwrap().write_all_at(&[7; 9000], 10_000).unwrap();
    std::fs::remove_file(changed.join("b/file 7")).unwrap();
    let snapshots = [subvolume_id(&old), subvolume_id(&changed)];
    btrfs(&["subvolume", "set-default"], std::slice::from_ref(&home));
    assert_eq!(mount.unmount(), Vec::<String>::new());
    (std::fs::read(&image).unwrap().into(), snapshots)
}

fn subvolume_id(path: &Path) -> u64 {
    let reported = run(command("btrfs", &["inspect-internal", "rootid"]).arg(path)).ok().stdout;
    reported.trim().parse().unwrap()
}

/// Returns the content of a subvolume that is not the mounted one.
fn shown_in(device: &OverlayDevice, subvolume: u64) -> Model {
    let volume = Volume::open(vec![Arc::new(device.fork())], OpenOptions { read_only: true }).unwrap();
    let options = ubtrfs::Options {
        read_only: true,
        subvolume_id: Some(subvolume),
        background_commits: false,
        ..Default::default()
    };
    look(&Filesystem::open(Arc::new(volume), options).unwrap()).unwrap()
}

#[test]
fn crashes_leave_snapshots_as_they_were() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let layouts: [&[&str]; 2] = [&["-m", "single", "-n", "4k"], &["-m", "single", "-O", "^no-holes"]];
    let (mut states, mut mounted, mut logs) = (0, 0, 0);
    for mkfs in layouts {
        let (bytes, snapshots) = volume_with_snapshots(dir.path(), mkfs);
        let stage = Stage::found(bytes.clone()).unwrap();
        let before = OverlayDevice::new(bytes);
        let wanted = snapshots.map(|id| shown_in(&before, id));
        for seed in seeds(if soaks() { 50 } else { 5 }) {
            let fsyncs = seed % 2 == 0;
            let habits = Habits {
                remount: true,
                privileges: false,
                large: false,
                huge: false,
                eager: !fsyncs,
                fsyncs,
                shares: false,
                subvolumes: false,
                devices: false,
            };
            let operations = stage.improvise(seed, habits, 60).unwrap_or_else(|what| panic!("{seed}: {what}"));
            let examined = stage.run_with(&operations, seed, 60, &mut |state| {
                for (id, wanted) in snapshots.iter().zip(&wanted) {
                    if let Some(difference) = wanted.difference(&shown_in(state.device, *id)) {
                        return Err(format!("subvolume {id} has changed: {difference}"));
                    }
                }
                states += 1;
                logs += usize::from(state.found.has_log);
                if states % 15 != 0 && !(state.found.has_log && logs % 6 == 0) {
                    return Ok(());
                }
                mounted += 1;
                kernel_agrees(state.device, &state.found.model, &image)
            });
            examined.unwrap_or_else(|failure| panic!("mkfs {mkfs:?}: {failure}"));
        }
    }
    eprintln!("{states} crash states, {logs} with a log; the kernel mounted {mounted}");
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || (states > 300 && logs > 20 && mounted > 20));
}

/// Makes a small volume by the kernel, with nested subvolumes, one of them a snapshot. Returns its
/// bytes.
fn volume_of_subvolumes(dir: &Path) -> Arc<[u8]> {
    let image = dir.join("subvolumes");
    mkfs_btrfs(&image, 96 << 20, &["-m", "single", "-n", "4k"]);
    let mount = KernelMount::new(&[&image], "");
    let top = mount.path();
    let btrfs = |words: &[&str], paths: &[&str]| {
        run(command("btrfs", words).args(paths.iter().map(|path| top.join(path)))).ok();
    };
    btrfs(&["subvolume", "create"], &["a"]);
    for directory in ["b", "a/d"] {
        std::fs::create_dir(top.join(directory)).unwrap();
    }
    for (number, name) in ["e", "a/e", "a/f", "a/d/g"].into_iter().enumerate() {
        std::fs::write(top.join(name), Random::noise(number as u64, 30_000)).unwrap();
    }
    btrfs(&["subvolume", "snapshot"], &["a", "b/c"]);
    btrfs(&["subvolume", "create"], &["a/h"]);
    assert_eq!(mount.unmount(), Vec::<String>::new());
    std::fs::read(&image).unwrap().into()
}

#[test]
fn crashes_between_subvolumes_lose_nothing_that_was_synced() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let stage = Stage::found(volume_of_subvolumes(dir.path())).unwrap();
    let subvolumes = |model: &Model| -> Vec<_> {
        let tops = model.paths().into_iter().filter(|(_, id)| id.ino == Ino::ROOT_DIR);
        tops.map(|(path, id)| (id.subvolume, path.0)).collect()
    };
    let before = subvolumes(&stage.model);
    assert_eq!(before.len(), 4, "{before:?}");
    let (mut states, mut mounted, mut moved, mut logs) = (0, 0, 0, 0);
    for seed in seeds(if soaks() { 200 } else { 10 }) {
        let fsyncs = seed % 2 == 0;
        let habits = Habits {
            remount: true,
            privileges: false,
            large: false,
            huge: false,
            eager: !fsyncs,
            fsyncs,
            shares: false,
            subvolumes: false,
            devices: false,
        };
        let operations = stage.improvise(seed, habits, 70).unwrap_or_else(|what| panic!("{seed}: {what}"));
        let examined = stage.run_with(&operations, seed, 60, &mut |state| {
            states += 1;
            logs += usize::from(state.found.has_log);
            moved += usize::from(subvolumes(&state.found.model) != before);
            if states % 15 != 0 {
                return Ok(());
            }
            mounted += 1;
            kernel_agrees(state.device, &state.found.model, &image)
        });
        examined.unwrap_or_else(|failure| panic!("{failure}"));
    }
    eprintln!(
        "{states} crash states, {logs} with a log, {moved} with subvolumes elsewhere; the kernel mounted {mounted}"
    );
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || (states > 300 && logs > 20 && moved > 50 && mounted > 20));
}

#[test]
fn the_kernel_replays_what_we_replay() {
    require!(Need::Kernel);
    let wanted = if soaks() { 2000 } else { 120 };
    let starts = Start::all();
    let stages: Vec<Stage> = starts.iter().map(|start| Stage::new(&start.committed).unwrap()).collect();
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let (mut mounted, mut failed) = (0, Vec::new());
    // Not every sequence leaves a log.
    for seed in many_seeds(2 * wanted as u64, 40) {
        if mounted == wanted {
            break;
        }
        let mut random = Random::new(seed ^ 0x3a1);
        let number = random.below(starts.len() as u64) as usize;
        let (stage, start) = (&stages[number], &starts[number]);
        let steps = 1 + random.below(6) as usize;
        let operations = stage.wander(&start.open, &mut random, steps).unwrap_or_else(|what| panic!("{seed}: {what}"));
        let mut run = |operations: &[Operation]| {
            stage.run_with(operations, seed, 2, &mut |state| {
                if !state.found.has_log || mounted >= wanted {
                    return Ok(());
                }
                mounted += 1;
                kernel_agrees(state.device, &state.found.model, &image)
            })
        };
        if let Err(failure) = run(&operations) {
            let shorter = shrink(&operations, 60, &mut |some| run(some).is_err());
            failed.push(run(&shorter).err().unwrap_or(failure));
        }
    }
    eprintln!("the kernel replayed {mounted} logs");
    let reported: Vec<String> = failed.iter().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} differ:\n{}", failed.len(), reported.join("\n\n"));
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || mounted == wanted, "{mounted}");
}
