//! A device is removed from a volume: all of its data is on the others then, whatever is missing,
//! and a crash at any time leaves the volume with it or without it.

use std::sync::{Arc, LazyLock};

use ubtrfs::mkfs::{MkfsOptions, NewDevice, Profile, make};
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Errno, Filesystem, NewInode, Options, ReplaceOptions};
use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use ubtrfs_testkit::walk::Tree;
use ubtrfs_volume::{Device, OpenOptions, Volume};

use crate::common::power::{Power, PoweredDevice};
use crate::common::tree::tree_of;
use crate::common::volumes::{SIZE, assert_clean, assert_holds, blank, open, root, volume, write};

const GONE: DeviceId = DeviceId(2);

fn shared(devices: &[OverlayDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as _).collect()
}

fn open_degraded(devices: Vec<Arc<dyn Device>>) -> Arc<Filesystem> {
    let volume = Volume::open_degraded(devices, OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() }).unwrap()
}

/// Makes files, and shares some of them with a snapshot.
fn fill(fs: &Filesystem) {
    for seed in 1..=20 {
        write(fs, &format!("file {seed}"), seed, (seed as usize) << 17).unwrap();
        if seed == 10 {
            fs.durability().sync().unwrap();
            fs.subvolumes().snapshot(TreeId::FS, root(), b"snapshot", false).unwrap();
        }
    }
    fs.durability().sync().unwrap();
}

/// Returns the tree without the root directory itself, which changes when a file is made in it.
fn tree_below_the_root(fs: &Filesystem) -> Tree {
    let mut tree = tree_of(fs);
    tree.entries.remove(&[][..]);
    tree
}

fn is_blank(device: &dyn Device) -> bool {
    Volume::superblock_of(device).is_none()
}

#[test]
fn devices_of_every_profile_are_removed_while_files_are_written() {
    for (count, data, metadata) in [
        (2, Profile::Single, Profile::Dup),
        (3, Profile::Raid0, Profile::Raid0),
        (3, Profile::Raid1, Profile::Raid1),
        (4, Profile::Raid1c3, Profile::Raid1c3),
        (5, Profile::Raid10, Profile::Raid1c4),
    ] {
        let what = format!("{count} devices, data {data:?}, metadata {metadata:?}");
        let mut devices = shared(&volume(count, data, metadata));
        let fs = open(devices.clone()).unwrap();
        fill(&fs);
        let before = tree_below_the_root(&fs);
        let bytes = fs.volume().superblocks().current().total_bytes;
        let meanwhile = std::cell::Cell::new(0);
        fs.relocator()
            .remove_device(GONE, &|progress| {
                let round = meanwhile.get() + 1;
                meanwhile.set(round);
                assert!(progress.left_bytes <= progress.total_bytes, "{what}");
                if round <= 5 {
                    let directory = NewInode { mode: 0o040_755, ..NewInode::default() };
                    fs.directories().create(root(), format!("directory {round}").as_bytes(), &directory).unwrap();
                }
                true
            })
            .unwrap_or_else(|error| panic!("{what}: {error:?}"));
        for round in 1..=meanwhile.get().min(5) {
            fs.directories().rmdir(root(), format!("directory {round}").as_bytes()).unwrap();
        }
        assert!(meanwhile.get() > 0, "{what}");
        assert!(tree_below_the_root(&fs) == before, "{what}");
        write(&fs, "after", 50, 2 << 20).unwrap();
        fs.close().unwrap();
        drop(fs);
        let gone = devices.remove(1);
        assert!(is_blank(&*gone), "{what}: it is no device of the volume any more");
        let superblock = Volume::superblock_of(&*devices[0]).unwrap();
        assert_eq!((superblock.num_devices, superblock.total_bytes), (count as u64 - 1, bytes - gone.size()), "{what}");
        assert_clean(&devices, &what);
        let fs = open(devices.clone()).unwrap();
        (1..=20).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, (seed as usize) << 17));
        assert_holds(&fs, "after", 50, 2 << 20);
        // Its number is free again if it was the highest.
        fs.add_device(gone).unwrap();
        fs.close().unwrap();
    }
}

fn has_extents(fs: &Filesystem, start: Logical, length: u64) -> bool {
    let mut has_some = false;
    let (first, last) =
        (Key::new(start.0, ItemType(0), 0), Key::new(start.0 + length - 1, ItemType(u8::MAX), u64::MAX));
    fs.search_tree(TreeId::EXTENT, first, last, &mut |item| {
        has_some |= item.key.item_type == ItemType::EXTENT_ITEM;
        !has_some
    })
    .unwrap();
    has_some
}

/// Nothing has changed since the mount, and a mount alone does not remove empty chunks.
#[test]
fn a_device_with_only_an_empty_chunk_is_removed_from_an_idle_volume() {
    const MAX: u32 = 500;
    let shared: Vec<Arc<OverlayDevice>> =
        volume(2, Profile::Single, Profile::Raid1).into_iter().map(Arc::new).collect();
    let third = Arc::new(OverlayDevice::zeroed(SIZE));
    let all = |with: &[&Arc<OverlayDevice>]| -> Vec<Arc<dyn Device>> {
        with.iter().map(|device| Arc::new(device.fork()) as _).collect()
    };
    let fs = open(shared.iter().map(|device| Arc::clone(device) as _).collect()).unwrap();
    write(&fs, "kept", 1, 1 << 20).unwrap();
    fs.durability().sync().unwrap();
    fs.add_device(third.clone()).unwrap();
    let chunks_of_third = || {
        let is_there = |chunk: &ChunkItem| chunk.stripes.iter().any(|stripe| stripe.devid == DeviceId(3));
        fs.volume().chunk_map().all().into_iter().filter(|(_, chunk)| is_there(chunk)).collect::<Vec<_>>()
    };
    let mut number = 2;
    while chunks_of_third().is_empty() {
        let file = write(&fs, &format!("file {number}"), number, 8 << 20).unwrap();
        fs.durability().sync().unwrap();
        fs.references().forget(file, 1);
        number += 1;
    }
    for number in 2..number {
        fs.directories().unlink(root(), format!("file {number}").as_bytes()).unwrap();
    }
    for (start, chunk) in chunks_of_third() {
        let tries = (0..100).take_while(|_| {
            fs.durability().sync().unwrap();
            has_extents(&fs, start, chunk.length)
        });
        assert!(tries.count() < 100, "chunk {start} is emptied");
    }
    assert!(!chunks_of_third().is_empty(), "the chunk is still there");
    // Opens the volume as after a crash.
    let crashed = all(&[&shared[0], &shared[1], &third]);
    let fs = open(crashed.clone()).unwrap();
    let asked = std::cell::Cell::new(0);
    fs.relocator()
        .remove_device(DeviceId(3), &|_| {
            asked.set(asked.get() + 1);
            asked.get() < MAX
        })
        .unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&crashed[..2], "removed");
    assert_holds(&open(crashed[..2].to_vec()).unwrap(), "kept", 1, 1 << 20);
}

#[test]
fn a_missing_device_is_removed_where_the_others_can_hold_all() {
    let mut devices = shared(&volume(3, Profile::Raid1, Profile::Raid1));
    let fs = open(devices.clone()).unwrap();
    fill(&fs);
    fs.close().unwrap();
    drop(fs);
    devices.remove(1);
    let fs = open_degraded(devices.clone());
    fs.relocator().remove_device(GONE, &|_| true).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "the missing one is removed");
    let fs = open(devices).unwrap();
    (1..=20).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, (seed as usize) << 17));
}

/// The item of the finished replacement stays in the device tree for good.
#[test]
fn a_device_that_replaced_another_is_removed() {
    /// More rounds than a removal takes by far.
    const MAX_ROUNDS: u32 = 1000;
    for remounted in [false, true] {
        let mut devices = shared(&volume(3, Profile::Raid1, Profile::Raid1));
        let mut fs = open(devices.clone()).unwrap();
        fill(&fs);
        let before = tree_below_the_root(&fs);
        devices[1] = Arc::new(blank());
        fs.replacer().begin(GONE, Arc::clone(&devices[1]), ReplaceOptions::default()).unwrap();
        fs.replacer().run(&mut |_| true).unwrap();
        if remounted {
            fs.close().unwrap();
            fs = open(devices.clone()).unwrap();
        }
        let rounds = std::cell::Cell::new(0);
        let goes_on = |_: &_| {
            rounds.set(rounds.get() + 1);
            rounds.get() < MAX_ROUNDS
        };
        fs.relocator().remove_device(GONE, &goes_on).unwrap();
        assert!(tree_below_the_root(&fs) == before);
        fs.close().unwrap();
        assert!(is_blank(&*devices.remove(1)));
        assert_clean(&devices, &format!("remounted: {remounted}"));
    }
}

#[test]
fn removals_that_are_impossible_are_refused_and_change_nothing() {
    let devices = shared(&volume(2, Profile::Raid1, Profile::Raid1));
    let fs = open(devices.clone()).unwrap();
    fill(&fs);
    let refused = |devid| fs.relocator().remove_device(devid, &|_| true).unwrap_err().errno();
    assert_eq!(refused(GONE), Errno::INVAL, "one device holds no RAID1");
    assert_eq!(refused(DeviceId(7)), Errno::NODEV);
    fs.replacer().begin(GONE, Arc::new(blank()), ReplaceOptions::default()).unwrap();
    assert_eq!(refused(DeviceId(1)), Errno::INPROGRESS);
    fs.replacer().cancel().unwrap();
    write(&fs, "after", 50, 2 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "refused");

    let devices = shared(&volume(2, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    let mut seed = 1;
    while write(&fs, &format!("file {seed}"), seed, 16 << 20).is_ok() {
        fs.durability().sync().unwrap();
        seed += 1;
    }
    let refused = fs.relocator().remove_device(GONE, &|_| true).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC, "the other has no room");
    fs.directories().unlink(root(), b"file 1").unwrap();
    fs.durability().sync().unwrap();
    write(&fs, "again", 1, 8 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "no room");
}

/// No chunk moves to another address, since the space caches of older kernels may describe it.
#[test]
fn without_a_free_space_tree_a_device_with_chunks_stays() {
    let devices: Vec<_> = (0..3).map(|_| blank()).collect();
    let options = MkfsOptions {
        more_devices: (1..3).map(|_| NewDevice { total_bytes: SIZE, uuid: ubtrfs_mkfs::random_uuid() }).collect(),
        free_space_tree: false,
        ..MkfsOptions::new(SIZE)
    };
    make(&devices.iter().map(|device| device as &dyn Device).collect::<Vec<_>>(), &options).unwrap();
    let devices = shared(&devices);
    let fs = open(devices.clone()).unwrap();
    fill(&fs);
    fs.durability().sync().unwrap();
    let refused = |result: ubtrfs::Result<()>| result.unwrap_err().errno();
    assert_eq!(refused(fs.relocator().remove_device(GONE, &|_| true)), Errno::OPNOTSUPP);
    assert_eq!(refused(fs.relocator().resize_device(GONE, 16 << 20, &|_| true)), Errno::OPNOTSUPP);
    write(&fs, "after", 50, 2 << 20).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "refused");
}

#[test]
fn a_removal_that_is_stopped_leaves_the_device_in_use() {
    let devices = shared(&volume(2, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    fill(&fs);
    let asked = std::cell::Cell::new(0);
    let stops = |_: &_| {
        asked.set(asked.get() + 1);
        asked.get() < 2
    };
    assert_eq!(fs.relocator().remove_device(DeviceId(1), &stops).unwrap_err().errno(), Errno::CANCELED);
    assert_eq!(fs.volume().devices().items().len(), 2);
    let mut seed = 50;
    // New chunks are allocated there again.
    let used = |fs: &Filesystem| fs.volume().devices().items()[0].bytes_used;
    let before = used(&fs);
    while used(&fs) <= before {
        write(&fs, &format!("more {seed}"), seed, 16 << 20).unwrap();
        fs.durability().sync().unwrap();
        seed += 1;
    }
    fs.close().unwrap();
    drop(fs);
    assert_clean(&devices, "stopped");
}

#[test]
fn a_removed_device_that_was_not_wiped_is_left_out() {
    let devices = shared(&volume(2, Profile::Single, Profile::Dup));
    let fs = open(devices.clone()).unwrap();
    fill(&fs);
    let mut before = vec![0; 4096];
    devices[1].read_at(ubtrfs_format::SUPERBLOCK_COPIES[0], &mut before).unwrap();
    fs.relocator().remove_device(GONE, &|_| true).unwrap();
    fs.close().unwrap();
    drop(fs);
    let data = ubtrfs_volume::SharedBuffer::from(ubtrfs_volume::Buffer::from(&before[..]));
    let write = ubtrfs_volume::DeviceWrite { at: ubtrfs_format::SUPERBLOCK_COPIES[0], data };
    devices[1].submit(vec![write]).wait().unwrap();
    for options in [OpenOptions { read_only: true }, OpenOptions::default()] {
        let volume = Volume::open(devices.clone(), options).unwrap();
        assert_eq!(volume.devices().items().len(), 1);
        assert_eq!(volume.devices().lagging(), []);
    }
    let fs = open(devices.clone()).unwrap();
    (1..=20).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, (seed as usize) << 17));
}

#[test]
fn more_devices_than_the_superblock_counts_are_an_error() {
    let devices = volume(2, Profile::Raid1, Profile::Raid1);
    for device in &devices {
        let at = ubtrfs_format::SUPERBLOCK_COPIES[0];
        let mut bytes = vec![0; 4096];
        device.read_at(at, &mut bytes).unwrap();
        let mut superblock = ubtrfs_format::Superblock::parse(&bytes, at).unwrap();
        superblock.num_devices = 1;
        let data = ubtrfs_volume::SharedBuffer::from(ubtrfs_volume::Buffer::from(&superblock.to_bytes().unwrap()[..]));
        device.submit(vec![ubtrfs_volume::DeviceWrite { at, data }]).wait().unwrap();
    }
    for degraded in [false, true] {
        let open = if degraded { Volume::open_degraded } else { Volume::open };
        let error = open(shared(&devices), OpenOptions { read_only: true }).unwrap_err().to_string();
        assert!(error.contains("1 devices, 2 given"), "{error}");
    }
}

static FILLED: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| {
    let devices: Vec<Arc<OverlayDevice>> =
        volume(3, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
    let fs = open(devices.iter().map(|device| device.clone() as _).collect()).unwrap();
    for seed in 1..=4 {
        write(&fs, &format!("file {seed}"), seed, 1 << 20).unwrap();
    }
    fs.close().unwrap();
    devices.iter().map(|device| device.fork()).collect()
});

/// Removes a device and fsyncs while the power ends after so many writes. Returns whether it has
/// ended. The devices with a bit in `lost` lose their caches.
fn crashes(after: u64, lost: u32) -> bool {
    let what = format!("power ends after {after} writes, caches {lost:b} are lost");
    let power = Power::endless();
    let devices: Vec<Arc<PoweredDevice>> = FILLED.iter().map(|device| PoweredDevice::new(&power, device)).collect();
    let fs = open(devices.iter().map(|device| device.clone() as _).collect()).unwrap();
    power.end_after(after);
    let logged = |name: &str| -> ubtrfs::Result<()> {
        let file = write(&fs, name, 9, 100_000)?;
        fs.durability().fsync(file)
    };
    let before = logged("before").is_ok();
    let removed = fs.relocator().remove_device(GONE, &|_| true).is_ok();
    let later = removed && logged("later").is_ok() && fs.durability().sync().is_ok();
    let has_ended = power.has_ended();
    drop(fs);
    let left: Vec<Arc<dyn Device>> =
        devices.iter().enumerate().map(|(at, device)| device.after_crash(lost & 1 << at == 0) as _).collect();
    let without: Vec<Arc<dyn Device>> = vec![left[0].clone(), left[2].clone()];
    let (left, fs) = if removed || is_blank(&*left[1]) {
        let fs = open(without.clone()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        (without, fs)
    } else {
        let fs = open(left.clone()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let is_there = fs.volume().devices().items().len() == 3;
        (if is_there { left } else { without }, fs)
    };
    (1..=4).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 1 << 20));
    if before {
        assert_holds(&fs, "before", 9, 100_000);
    }
    if later {
        assert_holds(&fs, "later", 9, 100_000);
    }
    fs.directories().unlink(root(), b"file 1").unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&left, &what);
    has_ended
}

#[test]
fn a_crash_leaves_the_volume_with_the_device_or_without_it() {
    for lost in [0, 0b111, 0b101, 0b010, 0b001] {
        let mut after = 0;
        while crashes(after, lost) {
            after += if matches!(lost, 0 | 0b111) { 2 } else { 5 };
        }
        assert!(after > 20, "{after}");
    }
}
