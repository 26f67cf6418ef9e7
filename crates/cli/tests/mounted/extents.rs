//! Tests with preallocated space, shared extents and inode flags: the same operations on the
//! kernel's btrfs must have the same results.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, IFlags, OFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::walk::walk;

use crate::harness::{FUSE, Volume};
use crate::posix::Diary;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Returns the ranges of data, by `SEEK_DATA` and `SEEK_HOLE`.
fn data_ranges(file: &File) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        found.push((start, at));
    }
    found
}

/// Notes the size, the blocks, the ranges of data, and a checksum of the content.
fn look(diary: &mut Diary, what: &str, file: &File) {
    file.sync_all().unwrap();
    let meta = file.metadata().unwrap();
    let mut bytes = vec![0; meta.size().min(1 << 20) as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    diary.note(what, (meta.size(), meta.blocks(), data_ranges(file), sum));
}

/// Notes the same without the ranges of data: the kernel writes zeros into preallocated space, and
/// ubtrfs does not.
fn look_at_bytes(diary: &mut Diary, what: &str, file: &File) {
    look(diary, what, file);
    let line = diary.0.pop().unwrap_or_default();
    let (before, rest) = line.split_once('[').unwrap();
    diary.0.push(format!("{before}{}", rest.split_once(']').unwrap().1));
}

fn filled(path: &Path, len: usize, fill: u8) -> File {
    let file = open(path);
    let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add((at / 1000) as u8)).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file
}

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

fn reserved(dir: &Path, diary: &mut Diary) {
    let mut step = |what: &str, file: &File, mode, offset, len| {
        diary.sys(what, rustix::fs::fallocate(file, mode, offset, len));
        look_at_bytes(diary, what, file);
    };
    let empty = FallocateFlags::empty();
    let file = open(&dir.join("new"));
    step("reserve", &file, empty, 0, 10_000);
    file.write_all_at(&[1; 5000], 2000).unwrap();
    step("again, over what was written", &file, empty, 0, 50_000);
    step("beyond the end", &file, KEEP, 40_000, 100_000);
    step("punch over reserved space and data", &file, PUNCH, 3000, 9000);
    step("punch the end", &file, PUNCH, 45_000, 4_152);
    step("zero data", &file, ZERO | KEEP, 2100, 100);
    step("zero beyond the end", &file, ZERO | KEEP, 48_000, 10_000);
    step("zero, and grow", &file, ZERO, 49_999, 10_000);
    file.set_len(70_001).unwrap();
    step("grown", &file, KEEP, 0, 1);
    file.set_len(70_001).unwrap();
    step("truncate to the size that it has", &file, KEEP, 0, 1);
    file.write_all_at(&vec![2; 30_000], 65_000).unwrap();
    step("written across the end", &file, PUNCH, 0, 1);
    file.set_len(100).unwrap();
    step("truncate", &file, KEEP, 0, 5000);

    let file = filled(&dir.join("small"), 300, 3);
    step("of a small file", &file, KEEP, 0, 100);
    let file = filled(&dir.join("smaller"), 30, 3);
    step("zero within a small file", &file, ZERO | KEEP, 10, 10);
    let file = filled(&dir.join("mixed"), 100_000, 4);
    step("holes", &file, PUNCH, 20_000, 30_000);
    step("reserve within the hole", &file, empty, 24_000, 5000);
    file.write_all_at(&vec![5; 60_000], 10_000).unwrap();
    step("written across all", &file, PUNCH, 99_999, 1);

    let file = open(&dir.join("errors"));
    for (what, mode, offset, len) in [
        ("nothing", empty, 0, 0),
        ("too far", empty, 1 << 62, 1 << 62),
        ("too much", empty, 0, 1 << 40),
        ("punch and grow", FallocateFlags::PUNCH_HOLE, 0, 5),
        ("collapse", FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        ("insert", FallocateFlags::INSERT_RANGE, 0, 4096),
    ] {
        diary.sys(what, rustix::fs::fallocate(&file, mode, offset, len));
    }
    look(diary, "after errors", &file);
    diary.sys("a directory", rustix::fs::fallocate(File::open(dir).unwrap(), empty, 0, 5));
}

/// Copies as cp(1) does, until no more data comes.
fn copy(from: &File, mut offset: u64, to: &File, mut to_offset: u64, len: usize) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        match rustix::fs::copy_file_range(from, Some(&mut offset), to, Some(&mut to_offset), len - done)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(done)
}

fn shared(dir: &Path, diary: &mut Diary) {
    let source = filled(&dir.join("source"), 300_001, 1);
    let mut step = |what: &str, from: &File, offset, to: &File, to_offset, len| {
        diary.note(what, copy(from, offset, to, to_offset, len));
        to.sync_all().unwrap();
        let size = to.metadata().unwrap().size();
        diary.note(what, (size, to.metadata().unwrap().blocks()));
        look(diary, what, to);
    };
    let whole = open(&dir.join("whole"));
    step("whole, not written back yet", &source, 0, &whole, 0, 1 << 20);
    step("once more over itself", &source, 0, &whole, 0, 1 << 20);
    step("within, aligned", &source, 8192, &whole, 40_960, 65_536);
    step("within, not aligned", &source, 100, &whole, 5, 10_000);
    step("beyond the end", &source, 0, &whole, 1 << 20, 12_345);
    step("from behind the end", &source, 1 << 20, &whole, 0, 4096);
    step("onto itself", &whole, 0, &whole, 2 << 20, 100_000);
    diary.note("onto itself, overlapping", copy(&whole, 0, &whole, 4096, 8192));
    let small = filled(&dir.join("small"), 100, 2);
    let other = open(&dir.join("copy of small"));
    diary.note("small", copy(&small, 0, &other, 0, 1000));
    look(diary, "small", &other);
    diary.note("small behind a hole", copy(&small, 0, &other, 8192, 1000));
    look(diary, "small behind a hole", &other);
    let sparse = open(&dir.join("sparse"));
    sparse.write_all_at(b"near", 100_000).unwrap();
    sparse.set_len(5 << 30).unwrap();
    let far = open(&dir.join("far"));
    diary.note("more than 4 GiB", copy(&sparse, 0, &far, 0, 6 << 30));
    look(diary, "more than 4 GiB", &far);
    source.write_all_at(&[9; 9000], 5000).unwrap();
    look(diary, "changed since", &source);
    look(diary, "the copy not", &whole);
}

/// Tries everything that a flag may forbid, on the file `f` of a directory.
fn attempts(dir: &Path, diary: &mut Diary) {
    let at = dir.join("f");
    let written = |options: &mut OpenOptions| options.open(&at).and_then(|mut file| file.write_all(b"x"));
    diary.io("write", written(OpenOptions::new().write(true)));
    diary.io("append", written(OpenOptions::new().append(true)));
    diary.io("truncate", OpenOptions::new().write(true).truncate(true).open(&at));
    diary.io("truncate", OpenOptions::new().write(true).open(&at).and_then(|file| file.set_len(1)));
    diary.io("chmod", fs::set_permissions(&at, fs::Permissions::from_mode(0o600)));
    diary.io("chown", std::os::unix::fs::chown(&at, Some(5), Some(5)));
    diary.note("touch", run(command("touch", &["-d", "2001-01-01"]).arg(&at)).code());
    diary.sys("xattr", rustix::fs::setxattr(&at, "user.x", b"x", XattrFlags::empty()));
    diary.sys(
        "allocate",
        OpenOptions::new().write(true).open(&at).map_err(|_| Errno::PERM).and_then(|file| {
            rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1)
        }),
    );
    diary.note("mode", fs::metadata(&at).map(|meta| meta.mode()).ok());
    diary.io("link", fs::hard_link(&at, dir.join("l")));
    for (name, value) in [
        (
            "system.posix_acl_access",
            &b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff"[..],
        ),
        ("system.posix_acl_default", b"\x02\0\0\0"),
        ("user.x", b"x"),
        ("btrfs.compression", b"none"),
    ] {
        // The kernel sends no request for a default ACL of a file other than a directory.
        for path in [at.as_path(), dir].into_iter().skip(usize::from(name.ends_with("default"))) {
            diary.sys(name, rustix::fs::setxattr(path, name, value, XattrFlags::empty()));
            diary.sys(name, rustix::fs::removexattr(path, name));
        }
    }
    diary.io("rename", fs::rename(&at, dir.join("g")));
    diary.io("unlink", fs::remove_file(dir.join("f")));
    diary.io("create", File::create_new(dir.join("new")));
    diary.io("mkdir", fs::create_dir(dir.join("d")));
    diary.io("rmdir", fs::remove_dir(dir.join("d")));
}

fn flags(dir: &Path, diary: &mut Diary) {
    let shown = |path: &Path| {
        let flags = rustix::fs::ioctl_getflags(File::open(path).unwrap());
        flags.map(|flags| format!("{:x}", flags.bits()))
    };
    let set = |path: &Path, bits| rustix::fs::ioctl_setflags(File::open(path).unwrap(), IFlags::from_bits_retain(bits));
    for (name, bits) in [("immutable", 0x10), ("append", 0x20)] {
        for on_directory in [false, true] {
            let sub = dir.join(format!("{name} {on_directory}"));
            fs::create_dir(&sub).unwrap();
            let file = sub.join("f");
            fs::write(&file, "content").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
            let with_flag = if on_directory { &sub } else { &file };
            diary.sys(name, set(with_flag, bits));
            diary.note("shown", shown(with_flag));
            attempts(&sub, diary);
            diary.sys("taken away", set(with_flag, 0));
            diary.note("content", fs::read(&file).ok());
        }
    }
    let empty = dir.join("empty");
    File::create(&empty).unwrap();
    for bits in [0x8, 0x40, 0x80, 0x1_0000, 0x80_0000, 0, 0x4, 0x400, 0x404, 0x80_0004, 0x8c8, 0x8000_0000, 0] {
        diary.sys(&format!("{bits:x}"), set(&empty, bits));
        diary.note("shown", shown(&empty));
        diary.note("property", rustix::fs::getxattr(&empty, "btrfs.compression", &mut [0_u8; 16][..]));
    }
    diary.sys("in place", set(&empty, 0x80_0000));
    fs::write(&empty, "content").unwrap();
    diary.sys("no longer, though it holds something", set(&empty, 0));
    diary.note("shown", shown(&empty));
    let full = dir.join("full");
    fs::write(&full, "content").unwrap();
    diary.sys("in place, though it holds something", set(&full, 0x80_0000));
    diary.note("shown", shown(&full));
    let nocow = dir.join("nocow");
    fs::create_dir(&nocow).unwrap();
    diary.sys("of a directory", set(&nocow, 0x80_0000));
    fs::write(nocow.join("f"), vec![1; 100_000]).unwrap();
    fs::create_dir(nocow.join("d")).unwrap();
    diary.note("taken over", (shown(&nocow.join("f")), shown(&nocow.join("d"))));
    let file = open(&nocow.join("f"));
    for round in 2..5 {
        file.write_all_at(&[round; 10_000], u64::from(round) * 7000).unwrap();
        look(diary, "overwritten", &file);
    }
    diary.note("shared", copy(&file, 0, &open(&nocow.join("g")), 0, 1 << 20));
    file.write_all_at(&[9; 10_000], 100).unwrap();
    look(diary, "overwritten while shared", &file);
    look(diary, "the copy", &open(&nocow.join("g")));
    diary.note("a copy with checksums", copy(&file, 0, &open(&dir.join("plain")), 0, 1 << 20));
    look(diary, "a copy with checksums", &open(&dir.join("plain")));
    let script = "
import fcntl, struct, sys, os
fd = os.open(sys.argv[1], os.O_RDONLY)
def get(): return struct.unpack('5I', fcntl.ioctl(fd, 0x801c581f, bytes(28))[:20])
def put(flags, size=0, project=0):
    try: fcntl.ioctl(fd, 0x401c5820, struct.pack('5I8x', flags, size, 0, project, 0)); print('set', get())
    except OSError as error: print(error.errno)
print(get()); put(0xe8); put(0x10); put(0); put(0, 4096); put(0, 0, 7); put(1); put(0)
";
    diary.note("extended", run(command("python3", &["-c", script]).arg(&full)).stdout);
}

fn tour(dir: &Path) -> Vec<String> {
    let mut diary = Diary::default();
    for (name, part) in [("reserved", reserved as fn(&Path, &mut Diary)), ("shared", shared), ("flags", flags)] {
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        part(&dir, &mut diary);
    }
    diary.0
}

#[test]
fn extents_and_flags_are_as_the_kernels() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let ours = tour(&volume.point);
    let stats = volume.stats();
    for counter in ["bytes_reserved", "bytes_placed", "bytes_cloned"] {
        assert!(stats[counter].as_u64().unwrap() > 0, "{counter}: {stats:#}");
    }
    let left = walk(&volume.point);
    volume.umount();
    volume.check();
    assert_btrfs_check_clean(&volume.image);

    volume.assert_kernels_tour_is_the_same(&ours, tour);

    let kernel = KernelMount::new(&[&volume.image], "");
    let seen = walk(kernel.path());
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    assert_same("left and seen by the kernel", &left, &seen, Options::SAME_VOLUME);
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let path = volume.point.join("f");
    File::create(&path).unwrap().sync_all().unwrap();
    let fsyncs = || volume.stats()["fsyncs"].as_u64().unwrap();
    for flag in [OFlags::SYNC, OFlags::DSYNC] {
        let mut file = OpenOptions::new().append(true).custom_flags(flag.bits() as i32).open(&path).unwrap();
        let before = fsyncs();
        for _ in 0..5 {
            file.write_all(b"at once").unwrap();
        }
        assert_eq!(fsyncs() - before, 5, "{flag:?}");
    }
    let before = fsyncs();
    rustix::fs::ioctl_setflags(File::open(&path).unwrap(), IFlags::from_bits_retain(0x8)).unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"by its flag").unwrap();
    assert_eq!(fsyncs() - before, 1, "chattr +S");
    volume.umount();
    volume.check();
}

#[test]
fn reserved_space_can_be_written_on_a_full_volume() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let reserved = open(&volume.point.join("reserved"));
    rustix::fs::fallocate(&reserved, FallocateFlags::empty(), 0, 20 << 20).unwrap();
    let filler = open(&volume.point.join("filler"));
    let mut at = 0;
    while filler.write_all_at(&vec![7; 65_536], at).is_ok() {
        at += 65_536;
    }
    for step in 0..320_u64 {
        reserved
            .write_all_at(&vec![step as u8; 65_536], step << 16)
            .unwrap_or_else(|error| panic!("step {step}: {error}"));
        if step % 50 == 7 {
            reserved.sync_all().unwrap();
        }
    }
    reserved.sync_all().unwrap();
    drop((reserved, filler));
    volume.umount();
    volume.check();
    volume.mount("");
    let content = fs::read(volume.point.join("reserved")).unwrap();
    assert!(content.chunks(65_536).enumerate().all(|(step, part)| part.iter().all(|byte| *byte == step as u8)));
    volume.umount();
}
