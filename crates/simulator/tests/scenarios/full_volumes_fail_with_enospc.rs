//! A full volume refuses operations that need more space, but never a commit (invariant 8);
//! deletion always works and frees space.

use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, NewInode, Options, WriteAt};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::{Random, make_volume};
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

const MIB: u64 = 1 << 20;

fn plans() -> Vec<(&'static str, MkfsOptions)> {
    let plan = |size: u64, change: &dyn Fn(&mut MkfsOptions)| {
        let mut options = MkfsOptions::new(size * MIB);
        change(&mut options);
        options
    };
    let single = |options: &mut MkfsOptions| options.metadata_profile = Some(Profile::Single);
    vec![
        ("single", plan(48, &single)),
        ("small nodes", plan(60, &|o| (single(o), o.node_size = Some(4096)).0)),
        ("large nodes", plan(80, &|o| (single(o), o.node_size = Some(65536)).0)),
        ("two copies", plan(120, &|_| ())),
        ("mixed", plan(20, &|o| o.mixed = true)),
        ("a tree of block groups", plan(64, &|o| (single(o), o.block_group_tree = true).0)),
    ]
}

fn open(device: &Arc<OverlayDevice>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device.clone()], OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, memory: 16 << 20, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn assert_clean(what: &str, device: &OverlayDevice) {
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device.fork())];
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).unwrap();
    let faults: Vec<String> = report.faults.iter().take(5).map(ToString::to_string).collect();
    assert!(report.is_clean(), "{what}: {faults:?}");
}

fn name(number: u64) -> Vec<u8> {
    let mut name = format!("{number:08}").into_bytes();
    name.resize(200, b'x');
    name
}

/// Makes files of `len` bytes until the volume is full. Returns how many there are.
fn fill(what: &str, fs: &Filesystem, len: usize) -> u64 {
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    for number in 0.. {
        let id = match fs.directories().create(fs.root(), &name(number), &new) {
            Ok(id) => id,
            Err(error) if error.errno() == Errno::NOSPC => return number,
            Err(error) => panic!("{what}: create {number}: {error:?}"),
        };
        let written = fs.files().write(id, WriteAt::Offset(0), &Random::noise(number, len), false);
        fs.references().forget(id, 1);
        match written {
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOSPC => {
                fs.directories()
                    .unlink(fs.root(), &name(number))
                    .unwrap_or_else(|error| panic!("{what}: unlink: {error:?}"));
                return number;
            }
            Err(error) => panic!("{what}: write {number}: {error:?}"),
        }
        if number % if len > 100_000 { 20 } else { 1000 } == 0 {
            fs.durability().sync().unwrap_or_else(|error| panic!("{what}: sync at {number}: {error:?}"));
        }
    }
    unreachable!("no volume is endless")
}

fn rounds(len: usize, plans: Vec<(&'static str, MkfsOptions)>) {
    for (what, options) in plans {
        let device = Arc::new(OverlayDevice::new(make_volume(&options)));
        let mut fs = open(&device);
        let mut first = 0;
        for round in 0..3 {
            let what = format!("{what}, files of {len} bytes, round {round}");
            let count = fill(&what, &fs, len);
            fs.durability().sync().unwrap_or_else(|error| panic!("{what}: sync of a full volume: {error:?}"));
            assert_clean(&what, &device);
            eprintln!("{what}: {count} files");
            first = if round == 0 { count } else { first };
            assert!(count > 3 && count * 10 >= first * 9, "{what}: {count} files, {first} at first");
            if round == 1 {
                // A mount that finds the volume full does the rest.
                fs.close().unwrap();
                fs = open(&device);
            }
            for number in 0..count {
                fs.directories()
                    .unlink(fs.root(), &name(number))
                    .unwrap_or_else(|error| panic!("{what}: unlink {number}: {error:?}"));
            }
            fs.durability().sync().unwrap_or_else(|error| panic!("{what}: sync after deletion: {error:?}"));
            assert_clean(&what, &device);
        }
        fs.close().unwrap();
    }
}

#[test]
fn data_fills_up() {
    rounds(300_000, plans());
}

#[test]
fn metadata_fills_up() {
    // Each kind of volume takes tens of thousands of files, so a usual run takes a few kinds.
    let mut plans = plans();
    if !soaks() {
        plans.retain(|(what, _)| matches!(*what, "single" | "mixed"));
    }
    rounds(1500, plans);
}
