//! Accepted data can be committed, whatever options, flags and properties change meanwhile: the
//! forms that dirty data may take are fixed when its metadata is reserved (invariant 38).

use std::sync::Arc;

use crate::common::{filling, image, pattern};
use tempfile::NamedTempFile;
use ubtrfs::testing::Faults;
use ubtrfs::{
    Compression, CompressionMode, Defragmentation, Errno, Filesystem, InodeId, NewInode, Options, Recompression,
    Result, SetAttributes, WriteAt,
};
use ubtrfs_format::items::{BlockGroupFlags, InodeFlags};
use ubtrfs_mkfs::MkfsOptions;
use ubtrfs_random::Rng;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode};

const SIZE: u64 = 512 << 20;
/// Bytes of metadata per file: its content takes nearly as many.
const METADATA_OF_A_FILE: u64 = 3000;
/// Bytes of all files, which take twice as much until they are committed.
const MAX_DATA: usize = 80 << 20;
const SECTOR: usize = 4096;
const ZSTD: Option<CompressionMode> = Some(CompressionMode { algorithm: Compression::Zstd, level: 0, force: false });

/// A change of the form in which writeback writes dirty data.
struct Change {
    name: &'static str,
    /// The compression while the data is written.
    before: Option<CompressionMode>,
    /// Flags of the files.
    flags: u64,
    /// Size of the files.
    size: usize,
    act: fn(&Filesystem, &[InodeId]) -> Result<()>,
}

impl Change {
    const fn new(name: &'static str, act: fn(&Filesystem, &[InodeId]) -> Result<()>) -> Self {
        Self { name, before: None, flags: 0, size: SECTOR, act }
    }
}

/// Returns content that compresses to nearly the maximum inline size, with half a sector or half of
/// the sectors incompressible.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut random = Rng::new(seed);
    for sector in bytes.chunks_mut(SECTOR) {
        let len = sector.len().min(1900);
        sector[..len].copy_from_slice(&random.noise(len));
    }
    bytes
}

/// Calls `act` for each file until there is no space.
fn as_far_as_possible(files: &[InodeId], act: impl Fn(InodeId) -> Result<()>) -> Result<()> {
    for file in files {
        match act(*file) {
            Err(error) if error.errno() == Errno::NOSPC => break,
            done => done?,
        }
    }
    Ok(())
}

/// Makes a volume whose space is all in data chunks, except for the metadata chunk that mkfs made.
fn without_room_for_metadata(compression: Option<CompressionMode>, faults: Faults) -> (NamedTempFile, Arc<Filesystem>) {
    let mut image = NamedTempFile::new().unwrap();
    image.as_file().set_len(SIZE).unwrap();
    ubtrfs_mkfs::layout(&MkfsOptions::new(SIZE)).unwrap().write(&mut [image.as_file_mut()]).unwrap();
    let fs = filling::open(image.path(), |options| (options.memory, options.faults) = (1 << 30, faults));
    let big = file(&fs, "big", 0).unwrap();
    while fs.files().write(big, WriteAt::End, &vec![0; 1 << 20], false).is_ok() {}
    fs.directories().unlink(fs.root(), b"big").unwrap();
    fs.references().forget(big, 1);
    fs.durability().sync().unwrap();
    fs.set_compression(compression);
    (image, fs)
}

fn file(fs: &Filesystem, name: &str, flags: u64) -> Result<InodeId> {
    let id =
        fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })?;
    fs.inodes().set_flags(id, flags)?;
    Ok(id)
}

/// Makes files with committed content. They are so many that their inline content would need more
/// metadata than there is, and that all of them can be written again without a commit.
fn files(fs: &Filesystem, flags: u64, size: usize) -> Vec<InodeId> {
    let most = fs.stats().space.metadata_total / METADATA_OF_A_FILE;
    let count = most.min((MAX_DATA / size) as u64);
    let made = |number: u64| {
        let id = file(fs, &format!("file{number}"), flags).unwrap();
        fs.files().write(id, WriteAt::Offset(0), &pattern(number, size), false).unwrap();
        id
    };
    let files = (0..count).map(made).collect();
    fs.durability().sync().unwrap();
    files
}

fn assert_committed(image: &NamedTempFile, fs: Arc<Filesystem>, what: &str, expected: &[(InodeId, Vec<u8>)]) {
    fs.durability().sync().unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    for (id, content) in expected {
        assert!(fs.files().read(*id, 0, content.len() + 1).unwrap() == *content, "{what}: {id:?}");
    }
    fs.close().unwrap();
    drop(fs);
    let device = FileDevice::open(image.path(), OpenMode::ReadOnly, Exclusive::No).unwrap();
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device)];
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:#?}", report.faults);
}

fn set_property(fs: &Filesystem, id: InodeId, algorithm: &'static [u8]) -> Result<()> {
    fs.inodes().set_flags_with(id, b"btrfs.compression", 8, &|is, _| {
        Ok((is.flags & !InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS, Some(algorithm.to_vec())))
    })
}

const CHANGES: [Change; 13] = [
    Change::new("remount,compress=zstd", |fs, _| {
        fs.set_compression(ZSTD);
        Ok(())
    }),
    Change::new("remount,compress-force=zlib:9", |fs, _| {
        fs.set_compression(Some(CompressionMode { algorithm: Compression::Zlib, level: 9, force: true }));
        Ok(())
    }),
    Change {
        size: 1 << 20,
        ..Change::new("remount,compress=zstd over large files", |fs, _| {
            fs.set_compression(ZSTD);
            Ok(())
        })
    },
    Change {
        before: ZSTD,
        ..Change::new("remount,compress=no", |fs, _| {
            fs.set_compression(None);
            Ok(())
        })
    },
    Change {
        before: ZSTD,
        ..Change::new("remount,compress=lzo", |fs, _| {
            fs.set_compression(Some(CompressionMode { algorithm: Compression::Lzo, level: 0, force: false }));
            Ok(())
        })
    },
    Change::new("chattr +c", |fs, files| {
        as_far_as_possible(files, |id| fs.inodes().set_flags(id, InodeFlags::COMPRESS))
    }),
    Change {
        flags: InodeFlags::COMPRESS,
        ..Change::new("chattr -c", |fs, files| as_far_as_possible(files, |id| fs.inodes().set_flags(id, 0)))
    },
    Change {
        before: ZSTD,
        flags: InodeFlags::NOCOMPRESS,
        ..Change::new("chattr -m", |fs, files| as_far_as_possible(files, |id| fs.inodes().set_flags(id, 0)))
    },
    Change::new("a property", |fs, files| as_far_as_possible(files, |id| set_property(fs, id, b"zstd"))),
    Change {
        size: 2000,
        ..Change::new("space reserved behind inline files", |fs, files| {
            as_far_as_possible(files, |id| fs.files().allocate(id, 0, 3 * SECTOR as u64, true))
        })
    },
    Change {
        size: 2000,
        before: ZSTD,
        ..Change::new("inline files grow, compression ends", |fs, files| {
            fs.set_compression(None);
            let size = Some(SECTOR as u64);
            as_far_as_possible(files, |id| {
                fs.inodes().set_attributes(id, &SetAttributes { size, ..SetAttributes::default() })?;
                fs.inodes()
                    .set_attributes(id, &SetAttributes { size: Some(2000), ..SetAttributes::default() })
                    .map(drop)
            })
        })
    },
    Change::new("compression, then files that shrink", |fs, files| {
        fs.set_compression(ZSTD);
        as_far_as_possible(files, |id| {
            let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
            fs.inodes().set_attributes(id, &size(3000))?;
            fs.inodes().set_attributes(id, &size(SECTOR as u64)).map(drop)
        })
    }),
    Change::new("defragmentation that compresses", |fs, files| {
        let compression = Recompression::With { algorithm: Compression::Zstd, level: None };
        let how = Defragmentation { compression, ..Defragmentation::default() };
        as_far_as_possible(files, |id| fs.files().defragment(id, &how).map(drop))
    }),
];

/// Writes files again, and changes the form of the dirty data. Returns the expected contents.
fn write_and_change(fs: &Filesystem, change: &Change) -> Vec<(InodeId, Vec<u8>)> {
    let Change { name, flags, size, act, .. } = *change;
    let files = files(fs, flags, size);
    let commits = fs.stats().commits;
    let mut expected = Vec::new();
    for (number, id) in files.iter().enumerate() {
        let content = content(number as u64, size);
        match fs.files().write(*id, WriteAt::Offset(0), &content, false) {
            Ok(_) => expected.push((*id, content)),
            Err(error) => panic!("{name}: {}", error.chain()),
        }
    }
    assert_eq!(fs.stats().commits, commits, "{name}: the files are dirty");
    let written: Vec<InodeId> = expected.iter().map(|(id, _)| *id).collect();
    act(fs, &written).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
    expected
}

#[test]
fn accepted_data_is_committed_whatever_flags_and_options_change() {
    for change in &CHANGES {
        let (image, fs) = without_room_for_metadata(change.before, Faults::default());
        let mut expected = write_and_change(&fs, change);
        for (id, content) in &mut expected {
            // Files that shrink and grow again lose what was behind the end.
            if change.name.ends_with("shrink") {
                let now = fs.files().read(*id, 0, SECTOR).unwrap();
                assert!(now[..3000] == content[..3000]);
                *content = now;
            }
        }
        assert_committed(&image, fs, change.name, &expected);
    }
}

/// The test can fail: if the form of dirty data is decided only at writeback, the commit finds no
/// space.
#[test]
fn a_form_of_data_without_a_reservation_is_noticed() {
    let faults = Faults { forget_forms: true, ..Faults::default() };
    let (_image, fs) = without_room_for_metadata(None, faults);
    write_and_change(&fs, &CHANGES[0]);
    let error = fs.durability().sync().unwrap_err();
    assert!(error.chain().contains("no space"), "{}", error.chain());
}

/// Makes a volume without space for data, and a file with accepted data that will be written over
/// its old data.
fn written_in_place(make: impl Fn(&Filesystem) -> InodeId) -> (NamedTempFile, Arc<Filesystem>, InodeId, Vec<u8>) {
    let mut image = NamedTempFile::new().unwrap();
    image.as_file().set_len(SIZE).unwrap();
    ubtrfs_mkfs::layout(&MkfsOptions::new(SIZE)).unwrap().write(&mut [image.as_file_mut()]).unwrap();
    let fs = filling::open(image.path(), |_| {});
    let id = make(&fs);
    fs.durability().sync().unwrap();
    let big = file(&fs, "big", 0).unwrap();
    for step in [1 << 20, SECTOR] {
        while fs.files().write(big, WriteAt::End, &vec![0; step], false).is_ok() {}
    }
    fs.durability().sync().unwrap();
    let content = pattern(2, IN_PLACE);
    fs.files().write(id, WriteAt::Offset(0), &content, false).unwrap();
    assert!(fs.stats().dirty_bytes > 0 && fs.stats().space.data_free < IN_PLACE as u64);
    (image, fs, id, content)
}

/// Bytes that are written over older ones: less than writeback takes at once.
const IN_PLACE: usize = 4 << 20;

fn nodatacow(fs: &Filesystem) -> InodeId {
    let id = file(fs, "file", InodeFlags::NODATACOW).unwrap();
    fs.files().write(id, WriteAt::Offset(0), &pattern(1, IN_PLACE), false).unwrap();
    id
}

fn reserved(fs: &Filesystem) -> InodeId {
    let id = file(fs, "file", 0).unwrap();
    fs.files().allocate(id, 0, IN_PLACE as u64, false).unwrap();
    id
}

/// If accepted data can only be written in place, nothing takes the place away.
#[test]
fn data_accepted_over_older_data_is_committed() {
    type Act = fn(&Filesystem, InodeId) -> Result<()>;
    let acts: [(&str, Act); 5] = [
        ("its block group is emptied", |fs, _| {
            let chunks = fs.volume().chunk_map().all();
            for (start, _) in chunks.iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::DATA)) {
                match fs.relocator().empty_block_group(*start, &|| true) {
                    Err(error) if error.errno() == Errno::NOSPC => {}
                    done => drop(done?),
                }
            }
            Ok(())
        }),
        ("a snapshot", |fs, _| fs.subvolumes().snapshot(fs.root().subvolume, fs.root(), b"snapshot", false).map(drop)),
        ("a reflink", |fs, id| {
            let copy = file(fs, "copy", fs.inodes().flags(id)? & InodeFlags::NODATACOW)?;
            fs.files().clone_range(id, 0, copy, 0, IN_PLACE as u64).map(drop)
        }),
        ("a reflink within it", |fs, id| {
            fs.files().clone_range(id, 0, id, IN_PLACE as u64, IN_PLACE as u64)?;
            fs.inodes()
                .set_attributes(id, &SetAttributes { size: Some(IN_PLACE as u64), ..SetAttributes::default() })
                .map(drop)
        }),
        ("defragmentation", |fs, id| {
            let compression = Recompression::With { algorithm: Compression::Zstd, level: None };
            match fs.files().defragment(id, &Defragmentation { compression, ..Defragmentation::default() }) {
                Err(error) if error.errno() == Errno::NOSPC => Ok(()),
                done => done.map(drop),
            }
        }),
    ];
    for make in [nodatacow, reserved] {
        for (name, act) in acts {
            let (image, fs, id, content) = written_in_place(make);
            act(&fs, id).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
            assert_committed(&image, fs, name, &[(id, content)]);
        }
    }
}

/// The caller may be gone; the defragmentation goes on for at most one part of the file.
#[test]
fn a_defragmentation_that_nobody_wants_any_more_ends() {
    const FRAGMENTS: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| ());
    let fs = image::open(&path, Options::default());
    let file =
        fs.directories().create(fs.root(), b"file", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    for number in 0..FRAGMENTS {
        fs.files().write(file, WriteAt::Offset(number * 8192), &[number as u8; 4096], false).unwrap();
    }
    fs.durability().sync().unwrap();
    let compression = Recompression::With { algorithm: Compression::Zstd, level: None };
    let how = Defragmentation { compression, ..Defragmentation::default() };
    let asked = std::cell::Cell::new(0);
    let goes_on = || asked.replace(asked.get() + 1) < 10;
    let error = fs.files().defragment_while(file, &how, &goes_on).unwrap_err();
    assert_eq!((error.errno(), asked.get()), (Errno::CANCELED, 11));
    assert_eq!(fs.files().defragment(file, &how).unwrap(), FRAGMENTS * 4096);
}
