//! What a crash left is mounted by the kernel's btrfs, which has nothing to complain of and shows the same.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_simulator::{Body, Crashes, History, Model, examine};
use ubtrfs_testkit::content::Digester;
use ubtrfs_testkit::diff::{Options, diff};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;
use ubtrfs_testkit::walk::{Entry, Kind, Tree, walk};
use ubtrfs_volume::OverlayDevice;

/// What a walk of the model's volume must see.
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

/// Writes an image file, with holes for zeroes.
fn write_image(device: &OverlayDevice, path: &Path) {
    let bytes = device.to_bytes();
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, chunk) in bytes.chunks(65536).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            file.write_all_at(chunk, number as u64 * 65536).unwrap();
        }
    }
}

#[test]
fn the_kernel_finds_the_last_commit() {
    require!(Need::Kernel);
    let soaks = std::env::var_os("UBTRFS_SOAK").is_some();
    let seeds = seeds(if soaks { 100 } else { 6 });
    let states = if soaks { 200usize.div_ceil(seeds.len()) } else { 2 };
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let mut mounted = 0;
    for seed in &seeds {
        let mut history = History::new(*seed);
        // The kernel does not show capabilities that are noise.
        history.habits.privileges = false;
        let recorded = history.run(60).unwrap_or_else(|failure| panic!("{failure}"));
        // The first is around a superblock, others are anywhere.
        for (point, device) in Crashes::new(&recorded.recording, *seed, 8 * states).step_by(4).take(states) {
            let what = format!("seed {seed}, crash at {point:?}, {:?}", history.plan);
            let model =
                examine(&recorded.judge, &device, point.event).unwrap_or_else(|error| panic!("{what}: {error}")).model;
            write_image(&device, &image);
            let mount = KernelMount::new(&[&image], "");
            let seen = walk(mount.path());
            let complaints = mount.unmount();
            let differences = diff(&expected(&model), &seen, Options::SAME_VOLUME);
            assert!(differences.is_empty(), "{what} (left: the model, right: the kernel):\n{}", differences.join("\n"));
            assert!(complaints.is_empty(), "{what}: {complaints:?}");
            assert_btrfs_check_clean(&image);
            mounted += 1;
        }
    }
    eprintln!("the kernel mounted {mounted} crash states");
    assert!(mounted >= seeds.len() * states * 2 / 3, "{mounted}");
}
