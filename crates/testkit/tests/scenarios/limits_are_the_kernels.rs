//! The limits of the format, each tried at the limit and one past it: ubtrfs refuses the same as
//! the kernel's btrfs, with the same errors. `docs/limits.md` has the table, with the figures that
//! are here.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::names::{NAME_SEED, name_of_hash, seeded_hash};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

/// The longest name.
const NAME: usize = 255;

/// A kind of volume, and what fits its leaves, computed by hand from the format, independently of
/// the code.
struct Volume {
    node: &'static str,
    mixed: bool,
    /// Bytes of the largest possible item.
    item: usize,
    /// Names of 255 bytes with the same hash in a directory.
    entries: usize,
    /// Names of 255 bytes of one inode in one directory before they become extended references.
    listed: usize,
    /// Extended references with names of 255 bytes and the same hash.
    extended: usize,
    /// Bytes of a symlink's target.
    symlink: usize,
}

const VOLUMES: [Volume; 4] = [
    Volume { node: "4096", mixed: false, item: 3970, entries: 13, listed: 14, extended: 14, symlink: 3949 },
    Volume { node: "4096", mixed: true, item: 3970, entries: 13, listed: 14, extended: 14, symlink: 3949 },
    Volume { node: "16384", mixed: false, item: 16258, entries: 57, listed: 61, extended: 59, symlink: 4095 },
    Volume { node: "65536", mixed: false, item: 65410, entries: 229, listed: 246, extended: 239, symlink: 4095 },
];

/// The outcome of each case, by name.
type Outcomes = Vec<(String, String)>;

struct Trial<'a> {
    volume: &'a Volume,
    root: &'a Path,
    outcomes: Outcomes,
}

fn named(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

fn make(path: &Path) -> Result<(), Errno> {
    File::create_new(path).map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
}

fn long(prefix: &str, len: usize) -> Vec<u8> {
    let mut name = prefix.as_bytes().to_vec();
    name.resize(len, b'n');
    name
}

impl Trial<'_> {
    fn note(&mut self, case: &str, outcome: Result<impl ToString, Errno>) {
        let outcome = outcome.map_or_else(|errno| format!("errno {}", errno.raw_os_error()), |value| value.to_string());
        self.outcomes.push((case.to_owned(), outcome));
    }

    /// Performs a step that has to succeed `most` times and must fail then. Notes after how many it
    /// failed, and with which error.
    fn until_full(&mut self, case: &str, most: usize, mut step: impl FnMut(usize) -> Result<(), Errno>) {
        for number in 0..=most {
            if let Err(errno) = step(number) {
                self.note(case, Ok::<_, Errno>(format!("errno {} after {number}", errno.raw_os_error())));
                return;
            }
        }
        self.note(case, Ok::<_, Errno>(format!("none after {}", most + 1)));
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Tries every way to make a name, with one that is `len` bytes long.
    fn name_lengths(&mut self) {
        for len in [NAME, NAME + 1] {
            let dir = self.dir(&format!("names{len}"));
            let old = dir.join("old");
            make(&old).unwrap();
            let path = |kind: &str| named(&dir, &long(kind, len));
            self.note(&format!("create, {len} bytes"), make(&path("create")).map(|()| "ok"));
            let mode = Mode::from_raw_mode(0o755);
            self.note(&format!("mkdir, {len} bytes"), rustix::fs::mkdir(path("mkdir"), mode).map(|()| "ok"));
            let made = rustix::fs::mknodat(CWD, path("mknod"), FileType::Fifo, mode, 0);
            self.note(&format!("mknod, {len} bytes"), made.map(|()| "ok"));
            self.note(&format!("symlink, {len} bytes"), rustix::fs::symlink("to", path("symlink")).map(|()| "ok"));
            self.note(&format!("link, {len} bytes"), rustix::fs::link(&old, path("link")).map(|()| "ok"));
            self.note(&format!("rename, {len} bytes"), rustix::fs::rename(&old, path("rename")).map(|()| "ok"));
            let found = rustix::fs::stat(path("none")).map(|_| "ok");
            self.note(&format!("stat, {len} bytes"), found);
        }
    }

    fn symlinks(&mut self) {
        let dir = self.dir("symlinks");
        for len in [0, 1, 2048, 3948, 3949, 3950, 4094, 4095, 4096] {
            let path = dir.join(len.to_string());
            let made = rustix::fs::symlink(OsStr::from_bytes(&long("", len)), &path);
            let read = made.and_then(|()| rustix::fs::readlink(&path, Vec::new())).map(|target| target.count_bytes());
            assert_eq!(read.is_ok(), (1..=self.volume.symlink).contains(&len), "{len}: {read:?}");
            self.note(&format!("symlink to {len} bytes"), read);
        }
    }

    /// Makes names with the same hash in a directory, and then tries every other way to make one
    /// more.
    fn entries_of_one_hash(&mut self) {
        let (dir, elsewhere) = (self.dir("entries"), self.dir("elsewhere"));
        let name = |prefix: &str| named(&dir, &name_of_hash(NAME_SEED, prefix, NAME, 0x1234_5678));
        let (one, other) = (elsewhere.join("one"), elsewhere.join("other"));
        make(&one).unwrap();
        std::fs::create_dir(&other).unwrap();
        self.until_full("entries of one hash", self.volume.entries, |number| make(&name(&format!("{number}-"))));
        let mode = Mode::from_raw_mode(0o755);
        self.note("mkdir, hash full", rustix::fs::mkdir(name("mkdir"), mode).map(|()| "ok"));
        let made = rustix::fs::mknodat(CWD, name("mknod"), FileType::Fifo, mode, 0);
        self.note("mknod, hash full", made.map(|()| "ok"));
        self.note("symlink, hash full", rustix::fs::symlink("to", name("symlink")).map(|()| "ok"));
        self.note("link, hash full", rustix::fs::link(&one, name("link")).map(|()| "ok"));
        self.note("rename, hash full", rustix::fs::rename(&one, name("rename")).map(|()| "ok"));
        self.note("rename of a directory, hash full", rustix::fs::rename(&other, name("rename")).map(|()| "ok"));
        self.note("rename within, hash full", rustix::fs::rename(name("0-"), name("rename")).map(|()| "ok"));
        self.note("rename over one, hash full", rustix::fs::rename(&one, name("0-")).map(|()| "ok"));
        self.note("unlink, hash full", rustix::fs::unlink(name("1-")).map(|()| "ok"));
        self.note("create again, hash full", make(&name("again")).map(|()| "ok"));
        self.note("create once more, hash full", make(&name("more")).map(|()| "ok"));
        let short = named(&dir, &name_of_hash(NAME_SEED, "s", 49, 0x1234_5678));
        self.note("create a short one, hash full", make(&short).map(|()| "ok"));
        let count = std::fs::read_dir(&dir).unwrap().count();
        self.note("entries listed, hash full", Ok::<_, Errno>(count));
    }

    /// Makes names of one inode whose extended references share an item; with `durable` there is a
    /// commit in between.
    fn references_of_one_hash(&mut self, durable: bool) {
        let title = if durable { "committed references" } else { "references" };
        let dirs = ["one", "two", "three"].map(|dir| self.dir(&format!("{title} {dir}")));
        let file = dirs[0].join("file");
        make(&file).unwrap();
        for dir in &dirs {
            for number in 0..self.volume.listed {
                rustix::fs::link(&file, named(dir, &long(&format!("plain{number}-"), NAME))).unwrap();
            }
        }
        if durable {
            rustix::fs::syncfs(File::open(self.root).unwrap()).unwrap();
        }
        let hash = 0x8765_4321;
        let name = |number: usize| {
            let dir = &dirs[number % 2];
            let ino = std::fs::metadata(dir).unwrap().ino() as u32;
            named(dir, &name_of_hash(ino, &format!("{number}-"), NAME, hash))
        };
        self.until_full(&format!("{title} of one hash"), self.volume.extended, |number| {
            rustix::fs::link(&file, name(number))
        });
        let ino = std::fs::metadata(&dirs[2]).unwrap().ino() as u32;
        let third = |prefix: &str| named(&dirs[2], &name_of_hash(ino, prefix, NAME, hash));
        self.note(&format!("{title}, another directory"), rustix::fs::link(&file, third("x")).map(|()| "ok"));
        self.note(&format!("{title}, rename"), rustix::fs::rename(name(0), third("x")).map(|()| "ok"));
        self.note(&format!("{title}, another hash"), rustix::fs::link(&file, dirs[2].join("free")).map(|()| "ok"));
        let renamed = rustix::fs::rename(dirs[2].join("free"), third("x"));
        self.note(&format!("{title}, rename into the hash"), renamed.map(|()| "ok"));
        self.note(&format!("{title}, unlink"), rustix::fs::unlink(name(1)).map(|()| "ok"));
        self.note(&format!("{title}, again"), rustix::fs::link(&file, third("x")).map(|()| "ok"));
        self.note(&format!("{title}, once more"), rustix::fs::link(&file, third("y")).map(|()| "ok"));
        let synced = rustix::fs::fsync(File::open(&file).unwrap()).map(|()| "ok");
        self.note(&format!("{title}, fsync"), synced);
        let links = std::fs::metadata(&file).unwrap().nlink();
        self.note(&format!("{title}, links"), Ok::<_, Errno>(links));
    }

    fn xattrs(&mut self) {
        let file = self.root.join("xattrs");
        make(&file).unwrap();
        // Removes the old value first: the kernel lets a value grow only as far as its leaf happens
        // to have space.
        let set = |name: &OsStr, len: usize| {
            let _ = rustix::fs::removexattr(&file, name);
            rustix::fs::setxattr(&file, name, &vec![b'v'; len], XattrFlags::empty())?;
            rustix::fs::getxattr(&file, name, &mut vec![0; len + 1][..])
        };
        for name in ["user.v".to_owned(), "trusted.some".to_owned(), "security.more".to_owned()] {
            let most = self.volume.item - 30 - name.len();
            for len in [0, 1, most - 1, most, most + 1, 65536, 65537] {
                let outcome = set(OsStr::new(&name), len);
                assert_eq!(outcome.is_ok(), len <= most, "{name}, {len}: {outcome:?}");
                self.note(&format!("{name}, a value of {len} bytes"), outcome);
            }
        }
        for len in [NAME, NAME + 1] {
            self.note(&format!("an xattr's name of {len} bytes"), set(OsStr::from_bytes(&long("user.", len)), 1));
        }
        let most = self.volume.item - 30 - NAME;
        for len in [most, most + 1] {
            let name = long("user.other", NAME);
            self.note(&format!("the longest name, a value of {len} bytes"), set(OsStr::from_bytes(&name), len));
        }
        let colliding = |number: usize| name_of_hash(NAME_SEED, &format!("user.{number}-"), NAME, 0x4242_4242);
        let value = 1000;
        let each = 30 + NAME + value;
        let full = self.volume.item / each;
        self.until_full("xattrs of one hash", full, |number| {
            set(OsStr::from_bytes(&colliding(number)), value).map(drop)
        });
        rustix::fs::removexattr(&file, OsStr::from_bytes(&colliding(0))).unwrap();
        let room = self.volume.item - (full - 1) * each - 30 - NAME;
        for len in [room + 1, room] {
            self.note(&format!("an xattr of {len} bytes into a hash"), set(OsStr::from_bytes(&colliding(999)), len));
        }
        rustix::fs::removexattr(&file, OsStr::from_bytes(&colliding(1))).unwrap();
        self.note("one of a hash after another went", set(OsStr::from_bytes(&colliding(1000)), value));
        self.note("one more of a hash", set(OsStr::from_bytes(&colliding(1001)), value));
    }

    /// Sets ACLs. FUSE passes at most 511 entries; larger nodes have space for more.
    fn lists(&mut self) {
        let file = self.root.join("list");
        make(&file).unwrap();
        let dir = self.dir("lists");
        let room = |name: &str| (self.volume.item - 30 - name.len() - 4) / 8;
        for (path, name) in [(&file, "system.posix_acl_access"), (&dir, "system.posix_acl_default")] {
            for entries in [4, room(name).min(511), room(name) + 1].into_iter().filter(|entries| *entries <= 511) {
                let mut value = 2_u32.to_le_bytes().to_vec();
                let users = (0..entries as u32 - 4).map(|user| (2_u16, 5000 + user));
                for (tag, id) in [(1, u32::MAX)].into_iter().chain(users).chain([4, 16, 32].map(|tag| (tag, u32::MAX)))
                {
                    value.extend(tag.to_le_bytes());
                    value.extend(7_u16.to_le_bytes());
                    value.extend(id.to_le_bytes());
                }
                let _ = rustix::fs::removexattr(path, name);
                let set = rustix::fs::setxattr(path, name, &value, XattrFlags::empty()).map(|()| "ok");
                self.note(&format!("{name} of {entries} entries"), set);
            }
        }
        // A new directory inherits both lists.
        self.note(
            "a directory inherits a list",
            rustix::fs::mkdir(dir.join("sub"), Mode::from_raw_mode(0o777)).map(|()| "ok"),
        );
        self.note("a file inherits a list", make(&dir.join("file")).map(|()| "ok"));
    }

    /// Sets times before 1970, after 2038, and the last time that a field of 64 bits can have.
    fn times(&mut self) {
        let file = self.root.join("times");
        make(&file).unwrap();
        let days = [0, -1, -86_400 * 365, -(1_i64 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 34, 1 << 40];
        for sec in days {
            for nsec in [0, 1, 999_999_999] {
                let time = Timespec { tv_sec: sec, tv_nsec: nsec };
                let times = Timestamps { last_access: time, last_modification: time };
                let set = rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty());
                let found = set.and_then(|()| rustix::fs::stat(&file));
                let shown = found.map(|stat| {
                    format!("{} {}, {} {}", stat.st_mtime, stat.st_mtime_nsec, stat.st_atime, stat.st_atime_nsec)
                });
                self.note(&format!("the time {sec}.{nsec:09}"), shown);
            }
        }
    }

    fn sizes(&mut self) {
        let path = self.root.join("sizes");
        let file = File::create_new(&path).unwrap();
        for size in [1 << 32, (1 << 44) - 1, 1 << 62, i64::MAX as u64 - 4096, i64::MAX as u64] {
            let truncated =
                rustix::fs::ftruncate(&file, size).and_then(|()| rustix::fs::fstat(&file)).map(|stat| stat.st_size);
            self.note(&format!("a size of {size}"), truncated);
        }
        file.set_len(0).unwrap();
        let write = |offset: u64| {
            let written = file.write_at(b"x", offset).map_err(|error| Errno::from_io_error(&error).unwrap());
            written.map(|count| format!("{count}, then {}", file.metadata().unwrap().len()))
        };
        for offset in [(1 << 44) - 1, (1 << 62) + 5] {
            self.note(&format!("a byte at {offset}"), write(offset));
        }
        self.note("a byte past the last", write(i64::MAX as u64));
        let reserve = |offset: u64, len: u64| {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), offset, len).map(|()| "ok")
        };
        self.note("space past the last byte", reserve(i64::MAX as u64 - 4095, 8192));
        self.note("no space", reserve(0, 0));
    }

    /// Makes nested directories.
    fn depth(&mut self) {
        let mut at = File::open(self.root).unwrap();
        let mut made = 0;
        let outcome = loop {
            if let Err(errno) = rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o755)) {
                break Err(errno);
            }
            let flags = rustix::fs::OFlags::DIRECTORY;
            at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap().into();
            made += 1;
            if made == 1500 {
                break Ok(made);
            }
        };
        self.note("directories in directories", outcome);
    }

    /// Makes files at and above the maximum size of inline data.
    fn small_files(&mut self) {
        let dir = self.dir("small");
        for size in [1, 2047, 2048, 2049, 3948, 3949, 3950, 4000, 4095, 4096, 4097] {
            std::fs::write(dir.join(size.to_string()), vec![b'c'; size]).unwrap();
        }
        rustix::fs::syncfs(File::open(self.root).unwrap()).unwrap();
        for size in [3949_usize, 4000] {
            let file = File::options().write(true).open(dir.join(size.to_string())).unwrap();
            file.write_all_at(b"again", 0).unwrap();
            self.note(&format!("fsync of {size} bytes"), rustix::fs::fsync(&file).map(|()| "ok"));
        }
    }

    fn all(&mut self) {
        self.name_lengths();
        self.symlinks();
        self.entries_of_one_hash();
        self.references_of_one_hash(false);
        self.references_of_one_hash(true);
        self.xattrs();
        self.lists();
        self.times();
        self.sizes();
        self.depth();
        self.small_files();
    }
}

/// Asserts the contents of the files at the maximum size of inline data.
fn assert_small_files(root: &Path) {
    for entry in std::fs::read_dir(root.join("small")).unwrap() {
        let path = entry.unwrap().path();
        let size: usize = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let mut expected = vec![b'c'; size];
        if [3949, 4000].contains(&size) {
            expected[..5].copy_from_slice(b"again");
        }
        assert!(std::fs::read(&path).unwrap() == expected, "{size} bytes");
    }
}

fn outcomes(subject: &Subject, volume: &Volume, image: &Path) -> Outcomes {
    let mut options = vec!["-n", volume.node];
    if volume.mixed {
        options.push("--mixed");
    }
    mkfs_btrfs(image, if volume.mixed { 200 << 20 } else { 512 << 20 }, &options);
    let mount = subject.mount(&[image], "max_inline=4096");
    let mut trial = Trial { volume, root: mount.path(), outcomes: Vec::new() };
    trial.all();
    let outcomes = trial.outcomes;
    mount.unmount();
    assert_ubtrfs_check_clean(image);
    assert_btrfs_check_clean(image);
    outcomes
}

/// Does the same operations on a volume of the kernel and on one of ours. Then both read ours
/// (invariant 24).
fn assert_alike(volume: &Volume) {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    let expected = outcomes(&Subject::Kernel, volume, &theirs);
    let found = outcomes(&Subject::ubtrfs(), volume, &ours);
    assert_eq!(expected.len(), found.len());
    let differ: Vec<_> = expected.iter().zip(&found).filter(|(expected, found)| expected != found).collect();
    for (expected, found) in &differ {
        eprintln!("{}: {}, the kernel's: {}", found.0, found.1, expected.1);
    }
    eprintln!("{} of {} cases differ", differ.len(), expected.len());
    assert!(differ.is_empty());
    let overflow = Errno::OVERFLOW.raw_os_error();
    let reported = |case: &str| &found.iter().find(|(name, _)| name == case).unwrap().1;
    assert_eq!(*reported("entries of one hash"), format!("errno {overflow} after {}", volume.entries));
    assert_eq!(*reported("references of one hash"), format!("errno {overflow} after {}", volume.extended));
    let mount = Subject::Kernel.mount(&[&ours], "");
    assert_small_files(mount.path());
    mount.unmount();
}

#[test]
fn nodes_of_4_kib() {
    assert_alike(&VOLUMES[0]);
}

#[test]
fn mixed_block_groups() {
    assert_alike(&VOLUMES[1]);
}

#[test]
fn nodes_of_16_kib() {
    assert_alike(&VOLUMES[2]);
}

#[test]
fn nodes_of_64_kib() {
    assert_alike(&VOLUMES[3]);
}

/// Links an inode up to the maximum number of names.
#[test]
#[ignore = "soak: takes a minute; the engine's own test has the number"]
fn a_file_has_as_many_links_as_on_the_kernel() {
    const MAX: usize = 65_535;
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let scratch = scratch_dir();
    let image = scratch.path().join("image");
    let reported = [Subject::Kernel, Subject::ubtrfs()].map(|subject| {
        mkfs_btrfs(&image, 512 << 20, &[]);
        let mount = subject.mount(&[&image], "");
        let file = mount.path().join("0");
        make(&file).unwrap();
        let failed = (1..).find_map(|number: usize| {
            rustix::fs::link(&file, mount.path().join(number.to_string())).err().map(|errno| (number, errno))
        });
        let links = std::fs::metadata(&file).unwrap().nlink();
        mount.unmount();
        (failed, links)
    });
    assert_eq!(reported[0], (Some((MAX, Errno::MLINK)), MAX as u64));
    assert_eq!(reported[0], reported[1]);
    assert_btrfs_check_clean(&image);
}

/// The hash of names is as this file assumes.
#[test]
fn names_of_one_hash_are_made() {
    let names: Vec<_> = (0..300).map(|number| name_of_hash(257, &format!("{number}-"), NAME, 7)).collect();
    assert!(names.iter().all(|name| seeded_hash(257, name) == 7 && name.len() == NAME));
}

/// The figures in the document are those that are tried here.
#[test]
fn the_documented_limits_are_those_that_are_tried() {
    /// The beginning of a line of the table, and its figure.
    type Figure = (&'static str, fn(&Volume) -> usize);
    let table = include_str!("../../../../docs/limits.md");
    let figures: [Figure; 6] = [
        ("| names of 255 bytes and one hash in a directory |", |volume| volume.entries),
        ("| names of 255 bytes of an inode in one directory", |volume| volume.listed),
        ("| extended references of an inode", |volume| volume.extended),
        ("| a symlink's target, in bytes |", |volume| volume.symlink),
        ("| name and value of an xattr together", |volume| volume.item - 30),
        ("| xattrs of one hash", |volume| volume.item),
    ];
    for (row, figure) in figures {
        let line = table.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("no row {row}"));
        let reported: Vec<String> = line.split('|').skip(2).take(3).map(|cell| cell.replace([',', ' '], "")).collect();
        let tried: Vec<String> = [0, 2, 3].map(|kind| figure(&VOLUMES[kind]).to_string()).into();
        assert_eq!(reported, tried, "{row}");
    }
}
