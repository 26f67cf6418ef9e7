//! Freeing an inode delays no other operation, and a crash during it leaves an orphan that the next
//! mount frees.

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, SetAttributes, WriteAt};
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

const SECTOR: u64 = 4096;
const SIZE: u64 = 256 << 20;

fn new_device() -> Arc<MemoryDevice> {
    Arc::new(new_volume(SIZE))
}

/// Options with which a transaction frees few extents, and only the test commits.
fn options() -> Options {
    let freeing = FreeingLimits { at_once: 4 * SECTOR, per_transaction: 100, at_the_end: 100, queue: 1000 };
    Options { background_commits: false, freeing, ..Options::default() }
}

fn open(device: &Arc<MemoryDevice>, options: Options) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = device.clone();
    Filesystem::open(Arc::new(Volume::open(vec![device], OpenOptions { read_only: false }).unwrap()), options).unwrap()
}

/// Copies the device as it is now, for a crash of its own.
fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_bytes(device.to_bytes()))
}

fn assert_clean(device: &Arc<MemoryDevice>) {
    let device: [Arc<dyn Device>; 1] = [device.clone()];
    let report = ubtrfs_check::check(&device, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

fn regular() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

/// Writes every other sector of a file, which makes as many extents.
fn scatter(fs: &Filesystem, file: InodeId, extents: u64) {
    for number in 0..extents {
        fs.files().write(file, WriteAt::Offset(number * 2 * SECTOR), &[number as u8; SECTOR as usize], false).unwrap();
    }
}

/// Makes a committed file with many extents that is open and has no name.
fn large_unlinked(fs: &Filesystem, extents: u64) -> InodeId {
    let file = fs.directories().create(fs.root(), b"large", &regular()).unwrap();
    scatter(fs, file, extents);
    fs.durability().sync().unwrap();
    fs.directories().unlink(fs.root(), b"large").unwrap();
    fs.durability().sync().unwrap();
    file
}

fn free_data(fs: &Filesystem) -> u64 {
    fs.statfs().blocks_available * SECTOR
}

#[test]
fn a_file_of_many_extents_is_freed_over_several_commits() {
    let device = new_device();
    let fs = open(&device, options());
    let before = free_data(&fs);
    let file = large_unlinked(&fs, 1000);
    let commits = fs.stats().commits;
    fs.references().forget(file, 1);
    let waiting = fs.stats().inactivation;
    assert_eq!((waiting.inodes, waiting.bytes), (1, 1000 * SECTOR));
    assert_eq!(fs.stats().commits, commits, "closing a file committed");

    let mut last = free_data(&fs);
    for step in 1..=9 {
        fs.durability().sync().unwrap();
        let free = free_data(&fs);
        assert_eq!(free - last, 100 * SECTOR, "in step {step}");
        assert_eq!(fs.stats().inactivation.bytes, (1000 - step * 100) * SECTOR);
        last = free;
        assert_clean(&device);
        // After a crash here, the next mount continues where this one was, and needs no more
        // commits than remained.
        let copy = copy(&device);
        let fs = open(&copy, options());
        let mut commits = 0;
        while fs.stats().inactivation.orphans_left || fs.stats().inactivation.inodes > 0 {
            fs.durability().sync().unwrap();
            assert_clean(&copy);
            commits += 1;
        }
        fs.durability().sync().unwrap();
        assert!(commits <= 12 - step, "{commits} commits after step {step}");
        assert_eq!(free_data(&fs), before);
        assert_eq!(fs.stats().orphans_cleaned, 1);
        fs.close().unwrap();
        assert_clean(&copy);
    }
    fs.durability().sync().unwrap();
    fs.durability().sync().unwrap();
    assert_eq!((free_data(&fs), fs.stats().inactivation.inodes), (before, 0));
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn closing_commits_nothing_however_much_there_is_to_free() {
    let device = new_device();
    let fs = open(&device, options());
    let large = large_unlinked(&fs, 500);
    let small: Vec<_> = (0..1000).map(|_| fs.directories().create_unnamed(fs.root(), &regular()).unwrap()).collect();
    scatter(&fs, small[7], 500);
    fs.durability().sync().unwrap();
    // What was written since then is lost with the file.
    scatter(&fs, small[8], 300);
    scatter(&fs, large, 700);
    let (commits, dirty) = (fs.stats().commits, fs.stats().dirty_bytes);
    assert!(dirty > 0);
    fs.references().forget(large, 1);
    for file in &small {
        fs.references().forget(*file, 1);
    }
    let stats = fs.stats();
    assert_eq!((stats.commits, stats.dirty_bytes), (commits, 0));
    assert_eq!(stats.inactivation.inodes, 2, "large ones wait");
    for _ in 0..20 {
        fs.durability().sync().unwrap();
        assert_clean(&device);
    }
    assert_eq!((fs.stats().inactivation.inodes, fs.stats().inodes), (0, 1));
}

#[test]
fn waiting_inodes_are_freed_when_space_is_short() {
    let device = new_device();
    let fs = open(&device, options());
    let file = large_unlinked(&fs, 2000);
    let other = fs.directories().create(fs.root(), b"other", &regular()).unwrap();
    let mut end = 0;
    let fill = |end: &mut u64| {
        loop {
            match fs.files().write(other, WriteAt::Offset(*end), &vec![3; 64 << 10], false) {
                Ok(len) => *end += len as u64,
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            }
        }
    };
    fill(&mut end);
    let full = end;
    fs.references().forget(file, 1);
    fill(&mut end);
    assert!(end - full > 1900 * SECTOR, "{} bytes came back", end - full);
    assert_eq!(fs.stats().inactivation.inodes, 0);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn unmounting_frees_small_inodes_and_leaves_the_rest() {
    let device = new_device();
    let fs = open(&device, options());
    let large = large_unlinked(&fs, 1000);
    let medium = fs.directories().create_unnamed(fs.root(), &regular()).unwrap();
    scatter(&fs, medium, 20);
    fs.durability().sync().unwrap();
    fs.references().forget(large, 1);
    fs.references().forget(medium, 1);
    assert_eq!(fs.stats().inactivation.inodes, 2);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device, options());
    fs.durability().sync().unwrap();
    assert_eq!((fs.stats().orphans_cleaned, fs.stats().inactivation.inodes), (1, 1));
    fs.close().unwrap();
}

#[test]
fn too_many_waiting_inodes_throttle_unlinks() {
    let device = new_device();
    let freeing = FreeingLimits { at_once: 0, per_transaction: 100, at_the_end: 100, queue: 10 };
    let fs = open(&device, Options { freeing, ..options() });
    for number in 0..50 {
        let file = fs.directories().create(fs.root(), format!("{number}").as_bytes(), &regular()).unwrap();
        scatter(&fs, file, 10);
        fs.references().forget(file, 1);
    }
    fs.durability().sync().unwrap();
    for number in 0..50 {
        fs.directories().unlink(fs.root(), format!("{number}").as_bytes()).unwrap();
        assert!(fs.stats().inactivation.inodes <= 11);
    }
    assert!(fs.stats().inactivation.waits > 0);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn orphans_are_freed_in_batches_while_files_are_made_and_removed() {
    let device = new_device();
    let fs = open(&device, options());
    for _ in 0..2500 {
        fs.directories().create_unnamed(fs.root(), &regular()).unwrap();
    }
    fs.durability().sync().unwrap();
    drop(fs);
    let fs = open(&device, options());
    assert_eq!(fs.stats().inodes, 1, "orphans are in memory before they are freed");
    let mine = fs.directories().create_unnamed(fs.root(), &regular()).unwrap();
    scatter(&fs, mine, 10);
    let mut commits = 0;
    while fs.stats().inactivation.orphans_left {
        fs.durability().sync().unwrap();
        commits += 1;
        assert!(fs.stats().inodes < 200);
    }
    assert!((25..=27).contains(&commits), "{commits} commits");
    assert_eq!(fs.stats().orphans_cleaned, 2500);
    assert_eq!(fs.files().read(mine, 18 * SECTOR, 1).unwrap(), [9]);
    fs.directories().link(mine, fs.root(), b"mine").unwrap();
    fs.references().forget(mine, 1);
    fs.close().unwrap();
    assert_clean(&device);
    assert_eq!(
        open(&device, options()).directories().lookup(InodeId::root_of(ubtrfs_format::TreeId::FS), b"mine").unwrap(),
        mine
    );
}

#[test]
fn the_background_frees_without_being_asked() {
    let device = new_device();
    let fs = open(&device, Options { background_commits: true, ..options() });
    let before = free_data(&fs);
    let file = large_unlinked(&fs, 1000);
    fs.references().forget(file, 1);
    let start = std::time::Instant::now();
    while fs.stats().inactivation.inodes > 0 {
        assert!(start.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs.durability().sync().unwrap();
    assert_eq!(free_data(&fs), before);
    assert!(fs.stats().inactivation.steps >= 10);
    fs.close().unwrap();
    assert_clean(&device);
}

/// Asserts the content of a file that `scatter` has written, up to `size` bytes.
fn assert_scattered(fs: &Filesystem, file: InodeId, size: u64) {
    assert_eq!(fs.inodes().attributes(file).unwrap().size, size);
    for number in 0..size.div_ceil(2 * SECTOR) {
        let at = number * 2 * SECTOR;
        let len = SECTOR.min(size - at) as usize;
        assert_eq!(fs.files().read(file, at, len).unwrap(), vec![number as u8; len], "at {at}");
    }
}

fn resize(fs: &Filesystem, file: InodeId, size: u64) {
    let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
    assert_eq!(fs.inodes().set_attributes(file, &changes).unwrap().size, size);
}

#[test]
fn a_file_of_many_extents_is_truncated_over_several_commits() {
    let device = new_device();
    let fs = open(&device, options());
    let before = free_data(&fs);
    let file = fs.directories().create(fs.root(), b"large", &regular()).unwrap();
    scatter(&fs, file, 1000);
    fs.durability().sync().unwrap();
    // Uncommitted data is truncated with the rest.
    scatter(&fs, file, 3);
    fs.files().write(file, WriteAt::End, &[7; 3 * SECTOR as usize], false).unwrap();
    let commits = fs.stats().commits;
    let size = 450 * 2 * SECTOR + 100;
    resize(&fs, file, size);
    let made = fs.stats().commits - commits;
    assert_eq!(made, 5, "549 extents of which 100 go with each commit, the rest with a later one");
    assert_scattered(&fs, file, size);
    // A crash here leaves a file that was truncated in part, and is complete up to its end.
    {
        let copy = copy(&device);
        assert_clean(&copy);
        let fs = open(&copy, options());
        let file = fs.directories().lookup(fs.root(), b"large").unwrap();
        let reached = fs.inodes().attributes(file).unwrap().size;
        assert!((size..=size + 100 * 2 * SECTOR).contains(&reached), "{reached}");
        assert_scattered(&fs, file, reached);
        fs.close().unwrap();
    }
    fs.durability().fsync(file).unwrap();
    {
        let copy = copy(&device);
        let fs = open(&copy, options());
        assert_scattered(&fs, fs.directories().lookup(fs.root(), b"large").unwrap(), size);
        fs.close().unwrap();
        assert_clean(&copy);
    }
    // The range by which the file grows reads as zeros.
    resize(&fs, file, size + 10 * SECTOR);
    assert!(fs.files().read(file, size, 10 * SECTOR as usize).unwrap().iter().all(|byte| *byte == 0));
    resize(&fs, file, 0);
    assert_eq!(fs.inodes().attributes(file).unwrap().blocks, 0);
    fs.durability().sync().unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(free_data(&fs), before);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_file_can_be_truncated_on_a_full_volume() {
    let device = new_device();
    let fs = open(&device, options());
    let file = fs.directories().create(fs.root(), b"large", &regular()).unwrap();
    scatter(&fs, file, 2000);
    fs.durability().sync().unwrap();
    let other = fs.directories().create(fs.root(), b"other", &regular()).unwrap();
    while fs.files().write(other, WriteAt::End, &vec![1; 64 * SECTOR as usize], false).is_ok() {}
    for number in 0..100_000 {
        if fs.directories().create(fs.root(), format!("{number:0200}").as_bytes(), &regular()).is_err() {
            break;
        }
    }
    resize(&fs, file, SECTOR);
    assert_scattered(&fs, file, SECTOR);
    fs.durability().sync().unwrap();
    fs.files().write(other, WriteAt::End, &vec![1; 1000 * SECTOR as usize], false).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn truncations_without_a_need_of_space_work_on_full_volumes() {
    let device = new_device();
    let fs = open(&device, options());
    let file = fs.directories().create(fs.root(), b"file", &regular()).unwrap();
    fs.files().write(file, WriteAt::End, &[1; 3 * SECTOR as usize], false).unwrap();
    // Each file has one extent. A truncation inside a sector frees no extent of it, and needs
    // another sector.
    let others: Vec<_> =
        (0..10).map(|number| fs.directories().create(fs.root(), &[b'a' + number], &regular()).unwrap()).collect();
    for other in &others {
        fs.files().write(*other, WriteAt::End, &[2; 3 * SECTOR as usize], false).unwrap();
    }
    fs.durability().sync().unwrap();
    let filler = fs.directories().create(fs.root(), b"filler", &regular()).unwrap();
    for sectors in [64, 1] {
        while fs.files().write(filler, WriteAt::End, &vec![1; sectors * SECTOR as usize], false).is_ok() {}
    }
    let truncate = |file, size| {
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        fs.inodes().set_attributes(file, &changes).map_err(|error| error.errno())
    };
    let full = others.iter().find_map(|other| truncate(*other, SECTOR + 1).err());
    assert_eq!(full, Some(Errno::NOSPC), "there is space left");
    assert_eq!(truncate(file, 2 * SECTOR).unwrap().size, 2 * SECTOR);
    assert_eq!(truncate(file, 0).unwrap().size, 0);
    assert_eq!(truncate(file, 0).unwrap().size, 0);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn cuts_from_many_threads_leave_no_space_behind() {
    let device = new_device();
    let freeing = FreeingLimits { at_once: 2 * SECTOR, per_transaction: 7, at_the_end: 7, queue: 1000 };
    let fs = open(&device, Options { freeing, background_commits: true, ..options() });
    let before = free_data(&fs);
    let file = fs.directories().create(fs.root(), b"file", &regular()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..60_u64 {
                    let mix = (thread * 7919 + round * 104_729).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
                    let changes = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
                    match mix % 6 {
                        0 => scatter(fs, file, mix % 60),
                        1 => drop(fs.files().write(file, WriteAt::End, &[5; 3000], false).unwrap()),
                        2 => drop(fs.inodes().set_attributes(file, &changes(mix % 60 * SECTOR)).unwrap()),
                        3 => drop(fs.inodes().set_attributes(file, &changes(mix % 400_000)).unwrap()),
                        4 => fs.durability().sync().unwrap(),
                        _ => fs.durability().fsync(file).unwrap(),
                    }
                }
            });
        }
    });
    fs.durability().sync().unwrap();
    assert_clean(&device);
    fs.directories().unlink(fs.root(), b"file").unwrap();
    fs.references().forget(file, 1);
    fs.durability().sync().unwrap();
    while fs.stats().inactivation.inodes > 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs.durability().sync().unwrap();
    fs.durability().sync().unwrap();
    assert_eq!((fs.stats().dirty_bytes, free_data(&fs)), (0, before));
    fs.close().unwrap();
    assert_clean(&device);
}

/// The last FORGET may follow a remount that has stopped writing (`mount -o remount,ro`).
#[test]
fn inodes_deleted_while_writing_is_stopped_are_freed_when_it_continues() {
    let device = new_device();
    let fs = open(&device, options());
    fs.durability().sync().unwrap();
    let before = free_data(&fs);
    for (name, extents) in [(b"small", 2), (b"large", 300)] {
        let file = fs.directories().create(fs.root(), name, &regular()).unwrap();
        scatter(&fs, file, extents);
        fs.durability().sync().unwrap();
        fs.directories().unlink(fs.root(), name).unwrap();
        fs.durability().stop_writing().unwrap();
        fs.references().forget(file, 1);
        fs.durability().write_again().unwrap();
        for _ in 0..8 {
            fs.durability().sync().unwrap();
        }
        assert_eq!(fs.stats().inactivation.inodes, 0);
    }
    assert_eq!(free_data(&fs), before);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&device);
}
