//! A deferred read, of which the caller reads a part from the devices by itself, returns what a
//! read by the engine returns, or has to begin again (invariant 11).

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use ubtrfs::scheduling::{BegunRead, DeferredRead};
use ubtrfs::testing::Rng;
use ubtrfs::volume::{Buffer, DirectRead};
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, SetAttributes, WriteAt};
use ubtrfs_mkfs::MkfsOptions;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::common::{image, pattern};

const SECTOR: u64 = 4096;
const SIZE: u64 = 256 << 20;
const SECTORS: u64 = 64;

/// Makes and opens a new volume in an image, and returns it with its directory.
fn volume(change: impl FnOnce(&mut MkfsOptions)) -> (TempDir, PathBuf, Arc<Filesystem>) {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, change);
    let fs = image::open(&path, Options::default());
    (dir, path, fs)
}

fn create(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

fn write(fs: &Filesystem, file: InodeId, offset: u64, seed: u64, len: u64) {
    fs.files().write(file, WriteAt::Offset(offset), &pattern(seed, len as usize), false).unwrap();
}

fn begin(fs: &Filesystem, file: InodeId, offset: u64, buffer: &mut Buffer) -> Option<BegunRead> {
    match fs.files().begin_read(file, offset, buffer, true) {
        Ok(begun) => Some(begun),
        Err(error) if error.errno() == Errno::AGAIN => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Writes into the image behind the engine's back.
fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let image = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    image.write_all_at(bytes, at).unwrap();
    image.sync_all().unwrap();
}

/// Performs the caller's part of a read. Returns `None` if the read has to begin again.
fn end(fs: &Filesystem, begun: &BegunRead, buffer: &mut Buffer) -> Option<Vec<u8>> {
    for part in begun.missing() {
        let DirectRead { file, at, .. } = &part.from;
        let mut sectors = Buffer::for_reading(part.range.len());
        file.read_exact_at(&mut sectors, *at).unwrap();
        buffer[part.range.clone()].copy_from_slice(&sectors);
    }
    let is_right = begun.is_right(fs.volume(), buffer);
    is_right.then(|| buffer[..begun.len].to_vec())
}

/// The files have sectors that are dirty, written back, committed, holes, preallocated or
/// truncated, in any order.
#[test]
fn deferred_reads_show_what_other_reads_show() {
    let (_dir, _, fs) = volume(|_| ());
    let mut random = Rng::new(1);
    let (mut left, mut refused) = (0, 0);
    for number in 0..40 {
        let file = create(&fs, &number.to_string());
        for _ in 0..30 {
            let offset = random.below(SECTORS) * SECTOR + if random.below(4) == 0 { random.below(SECTOR) } else { 0 };
            let len = 1 + random.below(8 * SECTOR);
            match random.below(12) {
                0..5 => write(&fs, file, offset, random.below(1 << 30), len),
                5 => fs.files().punch_hole(file, offset, len).unwrap(),
                6 => fs.files().allocate(file, offset, len, false).unwrap(),
                7 => {
                    let changes = SetAttributes { size: Some(offset), ..SetAttributes::default() };
                    fs.inodes().set_attributes(file, &changes).unwrap();
                }
                8 => fs.durability().fsync(file).unwrap(),
                9 => fs.durability().sync().unwrap(),
                _ => {}
            }
            let at = random.below(SECTORS) * SECTOR;
            let mut buffer = Buffer::for_reading((1 + random.below(16)) as usize * SECTOR as usize);
            let expected = fs.files().read(file, at, buffer.len()).unwrap();
            match begin(&fs, file, at, &mut buffer) {
                Some(begun) => {
                    left += begun.missing().len();
                    assert!(end(&fs, &begun, &mut buffer).unwrap() == expected, "file {number} at {at}");
                }
                None => refused += 1,
            }
        }
    }
    assert!(left > 100 && refused > 30, "{left} parts were left to the caller, {refused} reads refused");
    fs.close().unwrap();
}

/// While the caller reads, the file is deleted, and others are written that could take its space.
#[test]
fn the_space_of_what_is_being_read_is_not_used_again() {
    const LEN: u64 = 2 << 20;
    let (_dir, _, fs) = volume(|_| ());
    let file = create(&fs, "file");
    write(&fs, file, 0, 1, 16 * SECTOR);
    fs.durability().sync().unwrap();
    let mut buffer = Buffer::for_reading(16 * SECTOR as usize);
    let begun = begin(&fs, file, 0, &mut buffer).unwrap();
    let at = begun.missing()[0].from.at;
    fs.directories().unlink(fs.root(), b"file").unwrap();
    fs.references().forget(file, 1);
    let is_used_by = |number: u64| {
        let other = create(&fs, &format!("other{number}"));
        write(&fs, other, 0, 2 + number, LEN);
        fs.durability().sync().unwrap();
        let mut buffer = Buffer::for_reading(LEN as usize);
        let begun = begin(&fs, other, 0, &mut buffer).unwrap();
        fs.directories().unlink(fs.root(), format!("other{number}").as_bytes()).unwrap();
        fs.references().forget(other, 1);
        begun.missing().iter().any(|part| (part.from.at..part.from.at + part.range.len() as u64).contains(&at))
    };
    // Space that this commit uses, and that of each later commit, is reused only after the read.
    assert!(!(0..40).any(is_used_by), "the space was used again");
    assert!(end(&fs, &begun, &mut buffer).unwrap() == pattern(1, 16 * SECTOR as usize));
    drop(begun);
    assert!((100..200).any(is_used_by), "the space is never used again");
    fs.close().unwrap();
}

/// Data that is in no commit is overwritten while the caller reads it.
#[test]
fn what_takes_the_place_of_an_extent_is_not_shown() {
    let (_dir, path, fs) = volume(|_| ());
    let file = create(&fs, "file");
    write(&fs, file, 0, 1, 4 * SECTOR);
    fs.durability().sync().unwrap();
    let mut buffer = Buffer::for_reading(4 * SECTOR as usize);
    let begun = begin(&fs, file, 0, &mut buffer).unwrap();
    let DirectRead { at, .. } = &begun.missing()[0].from;
    overwrite(&path, *at, &pattern(2, 4 * SECTOR as usize));
    assert!(end(&fs, &begun, &mut buffer).is_none(), "other content would have been shown");
    fs.close().unwrap();
}

/// The copy that the caller reads is damaged: the engine returns the other copy, and mends the
/// first.
#[test]
fn damaged_copies_are_left_to_the_engine() {
    let (_dir, path, fs) = volume(|options| options.data_profile = Some(ubtrfs_mkfs::Profile::Dup));
    let file = create(&fs, "file");
    write(&fs, file, 0, 1, 4 * SECTOR);
    fs.durability().sync().unwrap();
    let mut buffer = Buffer::for_reading(4 * SECTOR as usize);
    let begun = begin(&fs, file, 0, &mut buffer).unwrap();
    let DirectRead { at, .. } = &begun.missing()[0].from;
    overwrite(&path, at + SECTOR, &[0x5A; 100]);
    assert!(end(&fs, &begun, &mut buffer).is_none());
    assert!(fs.files().read(file, 0, 4 * SECTOR as usize).unwrap() == pattern(1, 4 * SECTOR as usize));
    let begun = begin(&fs, file, 0, &mut buffer).unwrap();
    assert!(end(&fs, &begun, &mut buffer).unwrap() == pattern(1, 4 * SECTOR as usize), "it was not mended");
    fs.close().unwrap();
}

/// Without checksums, a caller could not notice that other data has taken the place.
#[test]
fn files_without_checksums_are_not_left_to_callers() {
    let (_dir, _, fs) = volume(|_| ());
    let file = create(&fs, "file");
    let flags = ubtrfs_format::items::InodeFlags::NODATACOW | ubtrfs_format::items::InodeFlags::NODATASUM;
    fs.inodes().set_flags(file, flags).unwrap();
    write(&fs, file, 0, 1, 4 * SECTOR);
    fs.durability().sync().unwrap();
    let mut buffer = Buffer::for_reading(4 * SECTOR as usize);
    assert!(begin(&fs, file, 0, &mut buffer).is_none());
    fs.close().unwrap();
}

/// Parallel reads of mirrored data are spread over the devices, and so are the parts of a large
/// read.
#[test]
fn deferred_reads_of_a_mirror_go_to_the_device_with_the_fewest() {
    let dir = scratch_dir();
    let paths = ["one", "two"].map(|name| dir.path().join(name));
    let mut options = MkfsOptions::new(SIZE);
    options.data_profile = Some(ubtrfs_mkfs::Profile::Raid1);
    options.more_devices.push(ubtrfs_mkfs::NewDevice { total_bytes: SIZE, uuid: ubtrfs_mkfs::random_uuid() });
    let [mut one, mut two] = paths.each_ref().map(|path| {
        let file = std::fs::File::create_new(path).unwrap();
        file.set_len(SIZE).unwrap();
        file
    });
    ubtrfs_mkfs::layout(&options).unwrap().write(&mut [&mut one, &mut two]).unwrap();
    let device = |path: &PathBuf| Arc::new(FileDevice::open(path, OpenMode::ReadWrite, Exclusive::Yes).unwrap()) as _;
    let volume = Volume::open(paths.iter().map(device).collect(), OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
    let file = create(&fs, "file");
    write(&fs, file, 0, 1, SECTORS * SECTOR);
    fs.durability().sync().unwrap();
    let mut buffers: Vec<Buffer> = (0..8).map(|_| Buffer::for_reading(SECTOR as usize)).collect();
    let begin = |number: u64, buffer| begin(&fs, file, number * SECTOR, buffer).unwrap();
    let begun: Vec<_> = buffers.iter_mut().zip(0..).map(|(buffer, number)| begin(number, buffer)).collect();
    let of = |part: &DeferredRead| std::os::unix::fs::MetadataExt::ino(&part.from.file.metadata().unwrap());
    let first = |begun: &BegunRead| of(&begun.missing()[0]);
    let count = begun.iter().filter(|read| first(read) == first(&begun[0])).count();
    assert_eq!((begun.len(), count), (8, 4));
    drop(begun);
    let large = create(&fs, "large");
    write(&fs, large, 0, 2, 1 << 20);
    fs.durability().sync().unwrap();
    let mut buffer = Buffer::for_reading(1 << 20);
    let begun = self::begin(&fs, large, 0, &mut buffer).unwrap();
    let count = begun.missing().iter().filter(|part| of(part) == first(&begun)).count();
    assert_eq!((begun.missing().len(), count), (4, 2));
    assert!(end(&fs, &begun, &mut buffer).unwrap() == pattern(2, 1 << 20));
    drop(begun);
    fs.close().unwrap();
}
