//! The space that statfs reports as available can be written, and then nothing is available.

use crate::common::filling::{available, open};
use crate::common::image::make;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, WriteAt};
use ubtrfs_mkfs::{MkfsOptions, Profile};

const MIB: u64 = 1 << 20;
const SECTOR: usize = 4096;

type Kind = (&'static str, u64, fn(&mut MkfsOptions));

fn kinds() -> [Kind; 8] {
    let single: fn(&mut MkfsOptions) = |options| options.metadata_profile = Some(Profile::Single);
    [
        ("two copies", 128, |_| ()),
        ("two copies, odd", 201, |_| ()),
        ("single", 48, single),
        ("single, larger", 1000, single),
        ("small nodes", 60, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.node_size = Some(4096);
        }),
        ("large nodes", 90, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.node_size = Some(65536);
        }),
        ("mixed", 30, |options| options.mixed = true),
        ("mixed, larger", 128, |options| options.mixed = true),
    ]
}

/// Appends `step` bytes at a time until there is no space for as many. Returns the end of the file.
fn append(fs: &Filesystem, file: InodeId, mut end: u64, step: usize) -> u64 {
    let data = vec![0; step];
    loop {
        match fs.files().write(file, WriteAt::Offset(end), &data, false) {
            Ok(_) => end += step as u64,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
                return end;
            }
        }
    }
}

#[test]
fn one_file_gets_all_that_was_promised() {
    for (what, size, change) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        make(&image, size * MIB, change);
        let fs = open(&image, |_| ());
        let promised = available(&fs);
        let file =
            fs.directories().create(fs.root(), b"file", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
        let most = append(&fs, file, 0, 64 << 10);
        let written = append(&fs, file, most, SECTOR);
        fs.durability().sync().unwrap();
        let left = available(&fs);
        let difference = promised.cast_signed() - written.cast_signed();
        eprintln!("{what}: {promised} promised, {written} written, {difference} too many, {left} left");
        // Operations reserve more than they use.
        assert!(difference <= 4 * SECTOR as i64, "{what}: {difference} bytes were promised that nobody gets");
        // Metadata does not use all of its estimate, either.
        assert!(-difference * 100 <= 3 * promised.cast_signed(), "{what}: {difference} of {promised} bytes");
        assert!(left <= 3 * SECTOR as u64, "{what}: the volume is full, and {left} bytes are said to be free");
        fs.close().unwrap();
    }
}
