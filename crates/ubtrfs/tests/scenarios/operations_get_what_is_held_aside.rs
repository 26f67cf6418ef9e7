//! Space that is set aside while block groups are emptied is given to operations that would fail
//! without it (invariant 43).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Errno, Filesystem, WriteAt};
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, SINGLE};
use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_volume::Device;

use crate::common::files::new_file;
use crate::common::pattern;
use crate::common::volumes::{assert_clean, assert_holds, open, root, volume, write};

const MIB: u64 = 1 << 20;
/// A thread that makes no progress for so long waits for the group.
const STANDSTILL: Duration = Duration::from_secs(4);

fn shared(devices: &[OverlayDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as _).collect()
}

fn groups(fs: &Filesystem, kind: BlockGroupFlags) -> Vec<Logical> {
    let all = fs.volume().chunk_map().all();
    all.into_iter().filter(|(_, chunk)| chunk.flags.contains(kind)).map(|(start, _)| start).collect()
}

fn of_all() -> BalanceItem {
    BalanceItem { flags: BalanceFlags::DATA | BalanceFlags::METADATA, ..BalanceItem::default() }
}

/// Runs `run`, which empties groups, with a closure that it calls before each step. At call number
/// `at_call`, when a group is closed, a thread runs `meanwhile`, which needs the space of the group
/// and reports each of its steps. Returns the result of `meanwhile`.
fn beside(
    at_call: u32,
    meanwhile: impl FnOnce(&dyn Fn()) -> ubtrfs::Result<()> + Send,
    run: impl FnOnce(&dyn Fn() -> bool),
) -> ubtrfs::Result<()> {
    let calls = Cell::new(0);
    let (begin, begun) = channel();
    let (progress, steps) = channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || -> ubtrfs::Result<()> {
            begun.recv().unwrap();
            // The channel ends when this is dropped.
            let progress = progress;
            meanwhile(&|| _ = progress.send(()))
        });
        run(&|| {
            calls.set(calls.get() + 1);
            if calls.get() == at_call {
                begin.send(()).unwrap();
                // The other thread may wait for the group, which stays closed until this returns.
                while steps.recv_timeout(STANDSTILL).is_ok() {}
            }
            true
        });
        drop(begin);
        writer.join().unwrap()
    })
}

/// Does the same with a file that has 4 MiB more than can be written while the group is closed.
fn writes_beside(fs: &Filesystem, at_call: u32, run: impl FnOnce(&dyn Fn() -> bool)) -> ubtrfs::Result<()> {
    let write_more = |step: &dyn Fn()| {
        let bytes = fs.stats().space.data_available + 4 * MIB;
        let id = fs.directories().create(root(), b"meanwhile", &new_file())?;
        for at in (0..bytes / MIB * MIB).step_by(MIB as usize) {
            fs.files().write(id, WriteAt::Offset(at), &pattern(at, MIB as usize), false)?;
            step();
        }
        fs.durability().sync()
    };
    beside(at_call, write_more, run)
}

fn fill(fs: &Filesystem, files: u64) {
    for seed in 1..=files {
        let id = write(fs, &format!("file {seed}"), seed, 3 << 20).unwrap();
        fs.references().forget(id, 1);
        fs.durability().sync().unwrap();
    }
}

fn ends_clean(fs: Arc<Filesystem>, devices: Vec<Arc<dyn Device>>, files: u64) {
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "after all");
    let fs = open(devices).unwrap();
    (1..=files).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 3 << 20));
}

#[test]
fn writes_get_the_space_of_a_group_that_is_emptied() {
    let devices = shared(&volume(1, Profile::Single, Profile::Single));
    let fs = open(devices.clone()).unwrap();
    fill(&fs, 12);
    let start = *groups(&fs, BlockGroupFlags::DATA).last().unwrap();
    let written = writes_beside(&fs, 1, |goes_on| {
        assert_eq!(
            fs.relocator().empty_block_group(start, goes_on).unwrap_err().errno(),
            Errno::NOSPC,
            "it is left as it is"
        );
    });
    written.unwrap();
    ends_clean(fs, devices, 12);
}

/// Makes a volume without space for new chunks, whose metadata is sparse.
fn thin_metadata() -> (Arc<Filesystem>, Vec<Arc<dyn Device>>) {
    let devices = shared(&volume(1, Profile::Single, Profile::Single));
    let fs = open(devices.clone()).unwrap();
    let name = |number: u64| format!("name {number}").into_bytes();
    for number in 0..24_000 {
        let id = fs.directories().create(root(), &name(number), &new_file()).unwrap();
        fs.references().forget(id, 1);
    }
    let mut files = 0;
    while let Ok(id) = write(&fs, &format!("data {files}"), files, 3 << 20) {
        fs.references().forget(id, 1);
        files += 1;
    }
    for number in 0..22_000 {
        fs.directories().unlink(root(), &name(number)).unwrap();
    }
    (0..3).for_each(|_| fs.durability().sync().unwrap());
    (fs, devices)
}

/// Creates at most `most` files, as long as there is space. Returns how many, and the error if
/// there was one.
fn create_files(fs: &Filesystem, most: u32, step: &dyn Fn()) -> (u32, ubtrfs::Result<()>) {
    for number in 0..most {
        step();
        match fs.directories().create(root(), format!("meanwhile {number}").as_bytes(), &new_file()) {
            Ok(id) => fs.references().forget(id, 1),
            Err(error) => return (number, Err(error)),
        }
    }
    (most, fs.durability().sync())
}

#[test]
fn creations_get_the_space_of_a_metadata_group_that_is_emptied() {
    let (fs, _) = thin_metadata();
    let (fits, _) = create_files(&fs, u32::MAX, &|| ());
    let (fs, devices) = thin_metadata();
    let start = *groups(&fs, BlockGroupFlags::METADATA).last().unwrap();
    let create = |step: &dyn Fn()| create_files(&fs, fits * 9 / 10, step).1;
    let created = beside(1, create, |goes_on| {
        assert_eq!(
            fs.relocator().empty_block_group(start, goes_on).unwrap_err().errno(),
            Errno::NOSPC,
            "it is left as it is"
        );
    });
    created.unwrap();
    ends_clean(fs, devices, 0);
}

#[test]
fn writes_get_space_from_balances_that_convert_or_not() {
    let convert = BalanceArgs { filters: BalanceFilters::CONVERT, target: SINGLE, ..BalanceArgs::default() };
    let converting = BalanceItem { flags: BalanceFlags::DATA, data: convert, ..BalanceItem::default() };
    for (data, balance) in [(Profile::Single, of_all()), (Profile::Dup, converting)] {
        let devices = shared(&volume(1, data, Profile::Single));
        let fs = open(devices.clone()).unwrap();
        fill(&fs, 12);
        let written = writes_beside(&fs, 2, |goes_on| {
            let refused = fs.balancer().start(&balance, &|_| goes_on()).map(drop);
            assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC, "{data:?}");
        });
        written.unwrap_or_else(|error| panic!("{data:?}: {error:?}"));
        ends_clean(fs, devices, 12);
    }
}

#[test]
fn writes_get_space_from_devices_that_are_shrunk_or_removed() {
    for is_removed in [false, true] {
        let devices = shared(&volume(2, Profile::Single, Profile::Single));
        let fs = open(devices.clone()).unwrap();
        fill(&fs, 40);
        let written = writes_beside(&fs, 2, |goes_on| {
            let second = DeviceId(2);
            let refused = if is_removed {
                fs.relocator().remove_device(second, &|_| goes_on())
            } else {
                fs.relocator().resize_device(second, 32 * MIB, &|_| goes_on())
            };
            assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC, "removed: {is_removed}");
        });
        written.unwrap_or_else(|error| panic!("removed: {is_removed}: {error:?}"));
        ends_clean(fs, devices, 40);
    }
}

/// Readers of old commits pin little of the emptied groups here, and the rest of these groups gives
/// space: no balance makes more chunks for that.
#[test]
fn balances_beside_readers_make_no_more_chunks() {
    let devices = shared(&volume(1, Profile::Single, Profile::Single));
    let fs = open(devices.clone()).unwrap();
    fs.directories().create(root(), b"small", &new_file()).unwrap();
    fs.durability().sync().unwrap();
    let kept = fs.keep_commit();
    for round in 0..12 {
        if let Err(error) = fs.balancer().start(&of_all(), &|_| true) {
            assert_eq!(error.errno(), Errno::NOSPC, "round {round}");
        }
        fs.directories().create(root(), format!("of round {round}").as_bytes(), &new_file()).unwrap();
    }
    assert!(fs.volume().chunk_map().all().len() < 12, "{:?}", fs.volume().chunk_map().all());
    for number in 0..1000 {
        fs.directories().create(root(), format!("small {number}").as_bytes(), &new_file()).unwrap();
    }
    fill(&fs, 40);
    drop(kept);
    ends_clean(fs, devices, 40);
}
