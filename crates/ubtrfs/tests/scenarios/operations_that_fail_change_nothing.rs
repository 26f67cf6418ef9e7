//! An operation that returns an error has changed nothing (invariant 23), at whatever point space
//! runs out, the device fails a read, or it would block.

use std::sync::Arc;

use ubtrfs::scheduling::nonblocking;
use ubtrfs::{
    Attributes, Errno, Filesystem, InodeId, ModeAndXattr, NewInode, Options, RenameFlags, Result, SetAttributes,
    WriteAt, XattrMode,
};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, MemoryDevice, OpenOptions, Operation, OverlayDevice, Volume};

use crate::common::pattern;

const EIO: i32 = 5;
const SIZE: u64 = 48 << 20;
const FILE: u32 = 0o104_755;
const DIR: u32 = 0o040_755;
/// Additional names, so that the trees have several leaves.
const BYSTANDERS: u32 = 300;

/// Bytes of the files that fill data space.
const BIG: usize = 256 << 10;

type Act = fn(&Filesystem, &Work) -> Result<()>;

/// The inodes that a program has open and works on.
struct Work {
    dir: InodeId,
    other_dir: InodeId,
    file: InodeId,
    other: InodeId,
    small: InodeId,
}

const OPERATIONS: &[(&str, Act)] = &[
    ("create", |fs, work| fs.directories().create(work.dir, b"new", &with_xattrs(FILE)).map(drop)),
    ("mkdir", |fs, work| fs.directories().create(work.dir, b"new", &with_xattrs(DIR)).map(drop)),
    ("symlink", |fs, work| {
        let new = NewInode { mode: 0o120_777, symlink_target: vec![b'x'; 1000], ..NewInode::default() };
        fs.directories().create(work.dir, b"new", &new).map(drop)
    }),
    ("link", |fs, work| fs.directories().link(work.file, work.other_dir, b"linked")),
    ("unlink", |fs, work| fs.directories().unlink(work.dir, b"file")),
    ("rmdir", |fs, work| fs.directories().rmdir(work.dir, b"empty")),
    ("rename", |fs, work| rename(fs, work, RenameFlags::default())),
    ("rename exchanging", |fs, work| rename(fs, work, RenameFlags { exchange: true, ..RenameFlags::default() })),
    ("rename leaving a whiteout", |fs, work| {
        rename(fs, work, RenameFlags { whiteout: true, ..RenameFlags::default() })
    }),
    ("write into", |fs, work| write(fs, work.file, 50_001, 30_000)),
    ("write behind the end", |fs, work| write(fs, work.file, 900_001, 30_000)),
    ("write into a small file", |fs, work| write(fs, work.small, 100, 700)),
    ("write a small file larger", |fs, work| write(fs, work.small, 100, 50_000)),
    ("truncate", |fs, work| resize(fs, work.file, 100_001)),
    ("truncate to a small file", |fs, work| resize(fs, work.file, 1001)),
    ("extend", |fs, work| resize(fs, work.file, 2_000_001)),
    ("extend a small file", |fs, work| resize(fs, work.small, 1_000_000)),
    ("truncate and change mode and owner", |fs, work| {
        let all = SetAttributes {
            size: Some(5001),
            mode: Some(0o600),
            uid: Some(7),
            kill_privileges: true,
            ..SetAttributes::default()
        };
        fs.inodes().set_attributes(work.file, &all).map(drop)
    }),
    ("change mode and list", |fs, work| {
        let list = ModeAndXattr { name: b"system.posix_acl_access", plan: &|_, _| Ok((0o640, Some(vec![3; 500]))) };
        fs.inodes().set_attributes_with(work.file, &SetAttributes::default(), &list).map(drop)
    }),
    ("change owner", |fs, work| {
        fs.inodes().set_attributes(work.file, &SetAttributes { uid: Some(5), ..SetAttributes::default() }).map(drop)
    }),
    ("set an xattr", |fs, work| fs.inodes().set_xattr(work.file, b"user.new", &[1; 3000], XattrMode::Create)),
    ("replace an xattr", |fs, work| fs.inodes().set_xattr(work.file, b"user.old", &[1; 3000], XattrMode::Replace)),
    ("remove an xattr", |fs, work| fs.inodes().remove_xattr(work.file, b"user.old")),
    ("set flags", |fs, work| fs.inodes().set_flags(work.file, InodeFlags::NODUMP)),
    ("allocate", |fs, work| fs.files().allocate(work.file, 100_001, 3_000_000, false)),
    ("allocate keeping the size", |fs, work| fs.files().allocate(work.file, 0, 3_000_000, true)),
    ("allocate a small file", |fs, work| fs.files().allocate(work.small, 10, 20_000, false)),
    ("zero", |fs, work| fs.files().zero_range(work.file, 50_001, 300_000, false)),
    ("zero and extend", |fs, work| fs.files().zero_range(work.file, 50_001, 2_000_000, false)),
    ("zero all", |fs, work| fs.files().zero_range(work.file, 0, 3_000_000, true)),
    ("zero a small file", |fs, work| fs.files().zero_range(work.small, 10, 200, false)),
    ("punch", |fs, work| fs.files().punch_hole(work.file, 50_001, 300_000)),
    ("punch all", |fs, work| fs.files().punch_hole(work.file, 0, 3_000_000)),
    ("punch a small file", |fs, work| fs.files().punch_hole(work.small, 10, 200)),
    ("clone", |fs, work| {
        let done = fs.files().clone_range(work.file, 0, work.other, 65_536, 131_072)?;
        assert_eq!(done, 131_072, "done in part");
        Ok(())
    }),
];

fn with_xattrs(mode: u32) -> NewInode {
    let xattrs = vec![(b"user.one".to_vec(), vec![1; 600]), (b"system.posix_acl_access".to_vec(), vec![2; 100])];
    NewInode { mode, xattrs, ..NewInode::default() }
}

fn rename(fs: &Filesystem, work: &Work, flags: RenameFlags) -> Result<()> {
    fs.directories().rename(work.dir, b"file", work.other_dir, b"other", flags)
}

fn write(fs: &Filesystem, id: InodeId, at: u64, len: usize) -> Result<()> {
    let written = fs.files().write(id, WriteAt::Offset(at), &pattern(9, len), true)?;
    assert_eq!(written, len, "written in part");
    Ok(())
}

fn resize(fs: &Filesystem, id: InodeId, size: u64) -> Result<()> {
    fs.inodes().set_attributes(id, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop)
}

/// An inode's visible attributes, and the entries of a directory.
#[derive(Debug, PartialEq)]
struct Shown {
    attributes: Attributes,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    entries: Vec<(Vec<u8>, InodeId)>,
    content: Vec<u8>,
}

fn shown(fs: &Filesystem, work: &Work) -> Vec<Shown> {
    let all = [work.dir, work.other_dir, work.file, work.other, work.small];
    all.into_iter().map(|id| shown_of(fs, id)).collect()
}

fn shown_of(fs: &Filesystem, id: InodeId) -> Shown {
    let attributes = Attributes { blocks: 0, ..fs.inodes().attributes(id).unwrap() };
    let value = |name: Vec<u8>| (name.clone(), fs.inodes().get_xattr(id, &name).unwrap());
    let xattrs = fs.inodes().list_xattrs(id).unwrap().into_iter().map(value).collect();
    let (mut entries, mut content) = (Vec::new(), Vec::new());
    if attributes.file_type == FileType::Directory {
        let last = fs.directories().last_index(id).unwrap();
        let listed = fs.directories().list(id, DirIndex(0), last, usize::MAX).unwrap();
        entries.extend(listed.into_iter().map(|entry| (entry.name, entry.inode)));
    } else {
        content = fs.files().read(id, 0, 4 << 20).unwrap();
    }
    Shown { attributes, xattrs, entries, content }
}

fn mount(device: Arc<dyn Device>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, no_atime: true, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn open(fs: &Filesystem) -> Work {
    let dir = fs.directories().lookup(fs.root(), b"dir").unwrap();
    let other_dir = fs.directories().lookup(fs.root(), b"other dir").unwrap();
    let file = fs.directories().lookup(dir, b"file").unwrap();
    let other = fs.directories().lookup(other_dir, b"other").unwrap();
    let small = fs.directories().lookup(dir, b"small").unwrap();
    Work { dir, other_dir, file, other, small }
}

fn filler(number: u32) -> Vec<u8> {
    format!("filler {number}").into_bytes()
}

/// Which space small files fill: that of data, of metadata, or of both.
#[derive(Clone, Copy, PartialEq)]
enum Full {
    Nothing,
    Data,
    Metadata,
    Both,
}

/// Makes a volume with files and directories to work on. Returns how many small files fill its
/// metadata.
fn volume(full: Full) -> (OverlayDevice, u32) {
    let mut plan = MkfsOptions::new(SIZE);
    plan.metadata_profile = Some(Profile::Single);
    plan.node_size = Some(4096);
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    ubtrfs_mkfs::layout(&plan).unwrap().write(&mut [&mut file.try_clone().unwrap()]).unwrap();
    let mut bytes = vec![0; SIZE as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let fs = mount(device.clone());
    let new = |mode| NewInode { mode, ..NewInode::default() };
    let make = |dir, name: &[u8], mode| fs.directories().create(dir, name, &new(mode)).unwrap();
    let (dir, other_dir) = (make(fs.root(), b"dir", DIR), make(fs.root(), b"other dir", DIR));
    let file = make(dir, b"file", FILE);
    // The file has several extents and a hole.
    for at in [0_u64, 1, 2, 3, 5] {
        fs.files().write(file, WriteAt::Offset(at * 70_000), &pattern(at, 70_000), false).unwrap();
        fs.durability().sync().unwrap();
    }
    let other = make(other_dir, b"other", FILE);
    fs.files().write(other, WriteAt::Offset(0), &pattern(8, 150_000), false).unwrap();
    fs.files().write(make(dir, b"small", FILE), WriteAt::Offset(0), &pattern(7, 300), false).unwrap();
    make(dir, b"empty", DIR);
    for id in [file, other] {
        fs.inodes().set_xattr(id, b"user.old", &[5; 200], XattrMode::Set).unwrap();
        fs.inodes().set_xattr(id, b"security.capability", &[5; 20], XattrMode::Set).unwrap();
    }
    for number in 0..BYSTANDERS {
        make(if number % 2 == 0 { dir } else { other_dir }, format!("by {number}").as_bytes(), FILE);
    }
    let mut bigs = 0;
    if full != Full::Nothing {
        // Each file has an extent of its own, since freeing a part of an extent frees no space.
        let big = |number: u64| make(fs.root(), format!("big {number}").as_bytes(), FILE);
        let fill =
            |id| fs.files().write(id, WriteAt::End, &vec![7; BIG], false).and_then(|_| fs.durability().sync()).is_ok();
        while fill(big(bigs)) {
            bigs += 1;
        }
        let last = fs.directories().lookup(fs.root(), b"big 0").unwrap();
        while fs.files().write(last, WriteAt::End, &[7; 4096], false).is_ok() {}
    }
    let fillers = if matches!(full, Full::Metadata | Full::Both) { fill_metadata(&fs) } else { 0 };
    if full == Full::Metadata {
        // The removed files are spread, so that no chunk becomes empty and is reused for metadata.
        for number in (1..bigs).step_by(2) {
            fs.directories().unlink(fs.root(), format!("big {number}").as_bytes()).unwrap();
        }
    }
    fs.close().unwrap();
    drop(fs);
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(ubtrfs_format::Physical(0), &mut bytes).unwrap();
    (OverlayDevice::new(bytes.into()), fillers)
}

/// Makes small files until metadata is full, and returns how many.
fn fill_metadata(fs: &Filesystem) -> u32 {
    for number in 0.. {
        let Ok(id) =
            fs.directories().create(fs.root(), &filler(number), &NewInode { mode: FILE, ..NewInode::default() })
        else {
            return number;
        };
        let written = fs.files().write(id, WriteAt::End, &[1; 1900], false);
        fs.references().forget(id, 1);
        if written.is_err() {
            return number + 1;
        }
    }
    0
}

#[test]
fn an_operation_whose_read_fails_changes_nothing() {
    let (base, _) = volume(Full::Nothing);
    let mut failures = 0;
    for (name, act) in OPERATIONS {
        for reads in 0.. {
            let device = Arc::new(FaultyDevice::new(Arc::new(base.fork())));
            let fs = mount(device.clone());
            let work = open(&fs);
            device.fail(Operation::Read, reads, EIO, Lasting::Forever);
            let result = act(&fs, &work);
            device.heal();
            let Err(error) = result else { break };
            assert_eq!(error.errno(), Errno::IO, "{name}: {error:?}");
            failures += 1;
            assert_unchanged(&base, &fs, &work, &format!("{name}, after {reads} reads"));
        }
    }
    eprintln!("{failures} operations failed");
    assert!(failures > OPERATIONS.len());
}

#[test]
fn an_operation_that_would_block_changes_nothing() {
    let (base, _) = volume(Full::Nothing);
    let mut failures = 0;
    for (name, act) in OPERATIONS {
        let fs = mount(Arc::new(base.fork()));
        let work = open(&fs);
        let Err(error) = nonblocking(|| act(&fs, &work)) else { continue };
        assert_eq!(error.errno(), Errno::AGAIN, "{name}: {error:?}");
        failures += 1;
        assert_unchanged(&base, &fs, &work, name);
    }
    assert!(failures > OPERATIONS.len() / 2, "{failures}");
}

/// Asserts that a mount shows the same as another mount of the volume as it was.
fn assert_unchanged(base: &OverlayDevice, fs: &Filesystem, work: &Work, what: &str) {
    let untouched = mount(Arc::new(base.fork()));
    let before = shown(&untouched, &open(&untouched));
    assert!(shown(fs, work) == before, "{what}: failed, but changed something");
}

/// Tries an operation on a full volume, and removes some small files after each attempt. Returns
/// how often it failed.
fn until_there_is_space(base: &OverlayDevice, fillers: u32, name: &str, act: Act) -> usize {
    const MAX_FAILURES: usize = 40;
    const AT_ONCE: usize = 12;
    let fs = mount(Arc::new(base.fork()));
    let work = open(&fs);
    let mut failures = 0;
    let mut left = (0..fillers).rev();
    while failures < MAX_FAILURES {
        // This begins a transaction, in which the next operation needs a smaller reservation.
        fs.inodes().set_flags(fs.root(), [0, InodeFlags::NODUMP][failures % 2]).unwrap();
        let before = shown(&fs, &work);
        let Err(error) = act(&fs, &work) else { break };
        assert_eq!(error.errno(), Errno::NOSPC, "{name}: {error:?}");
        failures += 1;
        let after = shown(&fs, &work);
        assert!(after == before, "{name}: failed for lack of space, but changed something");
        for number in left.by_ref().take(AT_ONCE) {
            fs.directories().unlink(fs.root(), &filler(number)).unwrap();
        }
    }
    failures
}

#[test]
fn an_operation_without_space_changes_nothing() {
    for full in [Full::Data, Full::Metadata, Full::Both] {
        let (base, fillers) = volume(full);
        let failures: Vec<(&str, usize)> =
            OPERATIONS.iter().map(|(name, act)| (*name, until_there_is_space(&base, fillers, name, *act))).collect();
        let failed = failures.iter().filter(|(_, count)| *count > 0).count();
        eprintln!("{fillers} fillers, {failed} kinds failed: {failures:?}");
        assert!(failed > if full == Full::Data { 4 } else { 7 });
    }
}

/// The sectors for which a range needs space are counted before the file is locked: a concurrent
/// punch takes no space from the sectors at its ends (invariant 8).
#[test]
fn zeroing_beside_punching_keeps_what_it_has_reserved() {
    const ROUNDS: usize = 3000;
    let mut bytes = vec![0; SIZE as usize];
    let (base, _) = volume(Full::Nothing);
    base.read_at(ubtrfs_format::Physical(0), &mut bytes).unwrap();
    let fs = mount(Arc::new(MemoryDevice::from_bytes(bytes)));
    let id = fs.directories().create(fs.root(), b"zeroed", &NewInode { mode: FILE, ..NewInode::default() }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                fs.files().write(id, WriteAt::Offset(0), &[1; 4096], false).unwrap();
                fs.files().zero_range(id, 100, 12_188, true).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                fs.files().punch_hole(id, 4096, 8192).unwrap();
                fs.files().allocate(id, 4096, 8192, true).unwrap();
            }
        });
    });
    fs.durability().sync().unwrap();
    assert_eq!(fs.stats().space.data_reserved, 0);
}
