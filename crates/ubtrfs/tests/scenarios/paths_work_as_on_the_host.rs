//! The library by path does what `std::fs` does with the files of the host; handles end without
//! loss; closing commits.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::format::items::FileType;
use ubtrfs::mkfs::{self, MkfsOptions};
use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice, RecordingDevice, Rng};
use ubtrfs::volume::{self, Device, MemoryDevice};
use ubtrfs::{Dir, Errno, Error, File, Filesystem, OpenOptions, Options, RenameFlags, Result};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::image;
use crate::common::memory::new_volume;

/// The directories around the test's entries: all paths stay inside of the innermost.
const INSIDE: &str = "x/y/z";
const NAMES: [&str; 4] = ["a", "b", "l", "none"];
const STEPS: usize = 3000;

fn open(device: &Arc<impl Device + 'static>, background_commits: bool) -> Result<Arc<Filesystem>> {
    Filesystem::open_devices(vec![device.clone()], Options { background_commits, ..Options::default() })
}

fn mounted() -> Arc<Filesystem> {
    open(&Arc::new(new_volume(128 << 20)), false).unwrap()
}

/// The outcome of an operation: its result as text, or its errno.
type Outcome = std::result::Result<String, i32>;

fn of_host<T>(result: std::io::Result<T>, show: impl FnOnce(T) -> String) -> Outcome {
    result.map(show).map_err(|error| error.raw_os_error().unwrap_or_default())
}

fn of_ours<T>(result: Result<T>, show: impl FnOnce(T) -> String) -> Outcome {
    result.map(show).map_err(|error| error.errno().raw_os_error())
}

fn nothing<T>(_: T) -> String {
    String::new()
}

fn text(content: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(content.as_ref()).into_owned()
}

/// Returns the names in a directory of the host, sorted.
fn names_on_host(path: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn names(dir: &Dir, path: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in dir.read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn random_path(random: &mut Rng) -> String {
    let mut below = |end: u64| random.next_u64() % end;
    let mut path = String::new();
    for number in 0..=below(3) {
        if number > 0 {
            path += ["/", "/", "//", "/./", "/../z/"][below(5) as usize];
        }
        path += NAMES[below(4) as usize];
    }
    if below(8) == 0 {
        path += "/";
    }
    path
}

/// Performs an operation on the host and in the volume.
fn step(random: &mut Rng, host: &Path, dir: &Dir) -> (String, Outcome, Outcome) {
    let (one, two) = (random_path(random), random_path(random));
    let (host_one, host_two) = (host.join(&one), host.join(&two));
    let (name, theirs, ours) = match random.next_u64() % 17 {
        0 => ("create_dir", of_host(std::fs::create_dir(host_one), nothing), of_ours(dir.create_dir(&one), nothing)),
        1 => (
            "create_dir_all",
            of_host(std::fs::create_dir_all(host_one), nothing),
            of_ours(dir.create_dir_all(&one), nothing),
        ),
        2 | 3 => (
            "write",
            of_host(std::fs::write(host_one, &two), nothing),
            of_ours(dir.write(&one, two.as_bytes()), nothing),
        ),
        4 => ("read", of_host(std::fs::read(host_one), text), of_ours(dir.read(&one), text)),
        5 => ("remove_file", of_host(std::fs::remove_file(host_one), nothing), of_ours(dir.remove_file(&one), nothing)),
        6 => ("remove_dir", of_host(std::fs::remove_dir(host_one), nothing), of_ours(dir.remove_dir(&one), nothing)),
        7 if random.next_u64().is_multiple_of(4) => (
            "remove_dir_all",
            of_host(std::fs::remove_dir_all(host_one), nothing),
            of_ours(dir.remove_dir_all(&one), nothing),
        ),
        7 | 8 => {
            let target = ["a", "b", "a/b", "l", "./a/", "none", "/"][(random.next_u64() % 6) as usize];
            let made = std::os::unix::fs::symlink(target, host_one);
            ("symlink", of_host(made, nothing), of_ours(dir.symlink(target, &one), nothing))
        }
        9 => (
            "read_link",
            of_host(std::fs::read_link(host_one), |path| path.display().to_string()),
            of_ours(dir.read_link(&one), |path| path.display().to_string()),
        ),
        10 => (
            "hard_link",
            of_host(std::fs::hard_link(host_one, host_two), nothing),
            of_ours(dir.hard_link(&one, &two), nothing),
        ),
        11 | 12 => {
            ("rename", of_host(std::fs::rename(host_one, host_two), nothing), of_ours(dir.rename(&one, &two), nothing))
        }
        13 => (
            "read_dir",
            of_host(names_on_host(&host_one), |names| names.join(" ")),
            of_ours(names(dir, &one), |names| names.join(" ")),
        ),
        14 => (
            "metadata",
            of_host(std::fs::metadata(host_one), |found| {
                format!(
                    "{:o} {} {}",
                    found.mode() & 0o170_000,
                    if found.is_file() { found.size() } else { 0 },
                    found.is_dir() || found.nlink() > 0
                )
            }),
            of_ours(dir.metadata(&one), |found| {
                let size = if found.file_type == FileType::Regular { found.size } else { 0 };
                format!("{:o} {size} {}", found.mode & 0o170_000, found.nlink > 0)
            }),
        ),
        15 => {
            let append = |path: PathBuf| std::fs::OpenOptions::new().append(true).open(path)?.write_all(b"+");
            let ours = OpenOptions::new().append(true).open(dir, &one).and_then(|file| file.write_all_at(b"+", 0));
            ("append", of_host(append(host_one), nothing), of_ours(ours, nothing))
        }
        _ => {
            let new = std::fs::OpenOptions::new().write(true).create_new(true).open(host_one);
            (
                "create_new",
                of_host(new, nothing),
                of_ours(OpenOptions::new().write(true).create_new(true).open(dir, &one), nothing),
            )
        }
    };
    (format!("{name} {one} {two}"), theirs, ours)
}

/// Collects all paths below a directory, with what they are.
fn tree_on_host(path: &Path, at: &str, found: &mut Vec<String>) {
    for name in names_on_host(path).unwrap() {
        let (path, at) = (path.join(&name), format!("{at}/{name}"));
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        if metadata.is_symlink() {
            found.push(format!("{at} -> {}", std::fs::read_link(path).unwrap().display()));
        } else if metadata.is_dir() {
            found.push(format!("{at}/"));
            tree_on_host(&path, &at, found);
        } else {
            found.push(format!("{at}: {} {}", metadata.nlink(), text(std::fs::read(path).unwrap())));
        }
    }
}

fn tree(dir: &Dir, at: &str, found: &mut Vec<String>) {
    for name in names(dir, ".").unwrap() {
        let (at, metadata) = (format!("{at}/{name}"), dir.symlink_metadata(&name).unwrap());
        match metadata.file_type {
            FileType::Symlink => found.push(format!("{at} -> {}", dir.read_link(&name).unwrap().display())),
            FileType::Directory => {
                found.push(format!("{at}/"));
                tree(&dir.open_dir(&name).unwrap(), &at, found);
            }
            _ => found.push(format!("{at}: {} {}", metadata.nlink, text(dir.read(&name).unwrap()))),
        }
    }
}

#[test]
fn random_operations_end_as_those_of_the_host() {
    let scratch = scratch_dir();
    let host = scratch.path().join(INSIDE);
    std::fs::create_dir_all(&host).unwrap();
    let root = Dir::root(&mounted());
    root.create_dir_all(INSIDE).unwrap();
    let dir = root.open_dir(INSIDE).unwrap();
    let mut random = Rng::new(7);
    let mut succeeded = 0;
    for number in 0..STEPS {
        let (what, theirs, ours) = step(&mut random, &host, &dir);
        // For a rename below or above itself, Linux reports that first, whatever else is wrong.
        let is = |end: &Outcome, errno: Errno| *end == Err(errno.raw_os_error());
        let of_type = [Errno::ISDIR, Errno::NOTDIR].into_iter().any(|errno| is(&ours, errno));
        let of_circle = [Errno::INVAL, Errno::NOTEMPTY].into_iter().any(|errno| is(&theirs, errno));
        if !(of_type && of_circle && what.starts_with("rename")) {
            assert_eq!(ours, theirs, "step {number}: {what}");
        }
        succeeded += usize::from(ours.is_ok());
        if number % 50 == 0 {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            tree(&dir, "", &mut ours);
            tree_on_host(&host, "", &mut theirs);
            assert_eq!(ours, theirs, "after step {number}: {what}");
        }
    }
    assert!(succeeded > STEPS / 10, "{succeeded}");
}

#[test]
fn links_stay_inside_and_are_not_followed_without_end() {
    let root = Dir::root(&mounted());
    root.create_dir_all("etc/deep").unwrap();
    root.write("etc/passwd", "ours").unwrap();
    root.symlink("/etc/passwd", "etc/deep/absolute").unwrap();
    root.symlink("../../../../../etc/passwd", "etc/deep/above").unwrap();
    for path in ["etc/deep/absolute", "etc/deep/above", "/etc/passwd", "../../etc/passwd"] {
        assert_eq!(root.read(path).unwrap(), b"ours", "{path}");
    }
    assert_eq!(root.open_dir("etc/deep").unwrap().read("../passwd").unwrap(), b"ours");
    for number in 0..41 {
        root.symlink(format!("link{}", number + 1), format!("link{number}")).unwrap();
    }
    root.write("link41", "end").unwrap();
    assert_eq!(root.read("link1").unwrap(), b"end");
    assert_eq!(root.read("link0").unwrap_err().errno(), Errno::LOOP);
    root.symlink("self", "self").unwrap();
    assert_eq!(root.metadata("self").unwrap_err().errno(), Errno::LOOP);
    assert!(!root.exists("none/at/all").unwrap() && root.exists("etc/deep/above").unwrap());
}

#[test]
fn open_files_read_write_and_seek() {
    let fs = mounted();
    let root = Dir::root(&fs).with_owner(7, 8);
    let mut file = OpenOptions::new().read(true).write(true).create(true).mode(0o600).open(&root, "file").unwrap();
    let long: Vec<u8> = (0..3_u32 << 20).map(|at| (at / 7) as u8).collect();
    file.write_all(&long).unwrap();
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), long.len() as u64 - 5);
    file.write_all(b"0123456789").unwrap();
    file.seek(SeekFrom::Start(1)).unwrap();
    let mut seen = Vec::new();
    file.read_to_end(&mut seen).unwrap();
    assert!(seen[..long.len() - 6] == long[1..long.len() - 5] && seen.ends_with(b"0123456789"));
    assert!(file.seek(SeekFrom::Current(i64::MIN)).is_err());
    file.set_len(3).unwrap();
    let attributes = file.metadata().unwrap();
    assert_eq!((attributes.size, attributes.uid, attributes.gid, attributes.mode), (3, 7, 8, 0o100_600));
    assert_eq!(root.open("file").unwrap().write_at(b"x", 0).unwrap_err().errno(), Errno::BADF);
    assert_eq!(root.create("file").unwrap().read_at(&mut [0], 0).unwrap_err().errno(), Errno::BADF);
    assert_eq!(root.open(".").unwrap_err().errno(), Errno::ISDIR);
    assert_eq!(OpenOptions::new().truncate(true).open(&root, "file").unwrap_err().errno(), Errno::INVAL);
    root.rename_with("file", "file", RenameFlags::default()).unwrap();
    fs.inodes().set_xattr(file.id(), b"user.x", b"1", ubtrfs::XattrMode::Set).unwrap();
    file.close().unwrap();
}

#[test]
fn an_open_file_outlives_its_name() {
    let fs = mounted();
    let root = Dir::root(&fs);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&root, "file").unwrap();
    file.write_all(b"content").unwrap();
    root.remove_file("file").unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(file.read_from(0).unwrap(), b"content");
    let inodes = fs.references().referenced().len();
    drop(file);
    assert_eq!(fs.references().referenced().len(), inodes - 1);
    drop(root);
    assert!(fs.references().referenced().is_empty());
}

#[test]
fn directories_are_made_however_deep() {
    let fs = mounted();
    let dir = Dir::root(&fs);
    let deep = "d/".repeat(3000);
    // A thread has a smaller stack.
    std::thread::scope(|scope| scope.spawn(|| dir.create_dir_all(&deep).unwrap()).join().unwrap());
    dir.create_dir_all(&deep).unwrap();
    dir.create_dir_all("").unwrap();
    assert!(dir.open_dir(&deep).is_ok());
    dir.remove_dir_all("d").unwrap();
    dir.write("file", b"").unwrap();
    assert_eq!(dir.create_dir_all("file/below").unwrap_err().errno(), Errno::NOTDIR);
}

#[test]
fn whole_trees_are_listed_and_removed() {
    let root = Dir::root(&mounted());
    let mut path = PathBuf::from("top");
    for _ in 0..200 {
        path.push("below");
    }
    root.create_dir_all(&path).unwrap();
    for number in 0..1000 {
        root.write(format!("top/{number}"), "").unwrap();
    }
    assert_eq!(root.read_dir("top").unwrap().count(), 1001);
    root.symlink("/kept", path.join("link")).unwrap();
    root.create_dir("kept").unwrap();
    root.write("kept/file", "").unwrap();
    root.remove_dir_all("top").unwrap();
    assert_eq!(names(&root, "/").unwrap(), ["kept"]);
    assert!(root.exists("kept/file").unwrap());
}

#[test]
fn closing_and_dropping_commit_and_a_crash_leaves_what_was_fsynced() {
    let device = Arc::new(new_volume(128 << 20));
    let root_of = |fs: &Arc<Filesystem>| Dir::root(fs);
    let fs = open(&device, true).unwrap();
    root_of(&fs).write("closed", "1").unwrap();
    fs.close().unwrap();
    // The library accepts nothing that would be lost.
    assert_eq!(root_of(&fs).write("late", "1").unwrap_err().errno(), Errno::ROFS);
    drop(fs);
    let fs = open(&device, true).unwrap();
    root_of(&fs).write("dropped", "2").unwrap();
    drop(fs);
    let fs = open(&device, false).unwrap();
    root_of(&fs).write("fsynced", "3").unwrap();
    root_of(&fs).fsync("fsynced").unwrap();
    root_of(&fs).write("lost", "4").unwrap();
    drop(fs);
    let fs = open(&device, false).unwrap();
    assert_eq!(names(&root_of(&fs), "/").unwrap(), ["closed", "dropped", "fsynced"]);
}

#[test]
fn a_mount_that_ends_in_its_own_commit_does_not_hang() {
    let device = Arc::new(new_volume(128 << 20));
    let options = Options { tree_log: false, ..Options::default() };
    let fs = Filesystem::open_devices(vec![device], options).unwrap();
    let file = Dir::root(&fs).create("file").unwrap();
    file.write_all_at(b"x", 0).unwrap();
    let (sender, end) = std::sync::mpsc::channel();
    let last = fs.clone();
    let id = file.id();
    drop(file);
    fs.durability().start_fsync(
        id,
        false,
        Box::new(move |result| {
            drop(last);
            sender.send(result.is_ok()).unwrap();
        }),
    );
    drop(fs);
    assert!(end.recv_timeout(std::time::Duration::from_secs(60)).unwrap());
}

#[test]
fn failures_are_reported_with_their_causes() {
    const EIO: i32 = 5;
    let device = Arc::new(FaultyDevice::new(Arc::new(new_volume(128 << 20))));
    let fs = open(&device, false).unwrap();
    let file = Dir::root(&fs).create("file").unwrap();
    file.write_all_at(b"x", 0).unwrap();
    device.fail(Operation::Write, 0, EIO, Lasting::Forever);
    assert!(file.sync_all().is_err());
    assert!(matches!(file.close().unwrap_err(), Error::Aborted(_)));
    assert!(fs.close().is_err());
    drop(fs);
    device.fail(Operation::Read, 0, EIO, Lasting::Forever);
    let error = open(&device, false).unwrap_err();
    let causes = || std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    assert!(causes().any(|cause| cause.to_string().contains("os error 5")), "{error:?}");
    let of_std = std::io::Error::from(Error::Posix(Errno::NOTEMPTY));
    assert_eq!(of_std.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(of_std.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    let of_std = std::io::Error::from(error);
    assert!(of_std.get_ref().unwrap().downcast_ref::<Error>().is_some());
}

#[test]
fn volumes_are_opened_by_path_once() {
    let scratch = scratch_dir();
    let path = scratch.path().join("image");
    image::make(&path, 128 << 20, |_| {});
    let reader = Options { read_only: true, ..Options::default() };
    let fs = Filesystem::open_path(&path, Options::default()).unwrap();
    for options in [Options::default(), reader.clone()] {
        let refused = Filesystem::open_path(&path, options).unwrap_err();
        assert!(matches!(refused, Error::Volume(volume::Error::Held { .. })), "{refused:?}");
        assert_eq!(refused.errno(), Errno::BUSY);
    }
    Dir::root(&fs).write("file", "content").unwrap();
    fs.close().unwrap();
    drop(fs);
    let (one, two) = (Filesystem::open_path(&path, reader.clone()), Filesystem::open_path(&path, reader));
    assert_eq!(Dir::root(&one.unwrap()).read("file").unwrap(), Dir::root(&two.unwrap()).read("file").unwrap());
    let none = Filesystem::open_path(scratch.path(), Options::default()).unwrap_err();
    assert!(matches!(none, Error::Volume(volume::Error::NotADevice { .. })), "{none:?}");
    assert_eq!(none.errno(), Errno::INVAL);
    let none = Filesystem::open_path(scratch.path().join("none"), Options::default()).unwrap_err();
    assert_eq!(std::io::Error::from(none).kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn volumes_are_made_where_nothing_is() {
    let device = MemoryDevice::new(128 << 20);
    let options = MkfsOptions::new(device.size());
    mkfs::make(&[&device], &options).unwrap();
    assert!(matches!(mkfs::make(&[&device], &options), Err(mkfs::Error::Occupied(what)) if what.contains("btrfs")));
    mkfs::make_over(&[&device], &options).unwrap();
    let small = MkfsOptions::new(1 << 20);
    assert!(matches!(mkfs::make(&[&MemoryDevice::new(1 << 20)], &small), Err(mkfs::Error::Options(_))));
    let lacking = MemoryDevice::new(64 << 20);
    assert!(matches!(mkfs::make(&[&lacking], &options), Err(mkfs::Error::Device(_))));
}

#[test]
fn handles_go_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Filesystem>();
    is_shared::<Dir>();
    is_shared::<File>();
    is_shared::<ubtrfs::ReadDir>();
    is_shared::<Error>();
    is_shared::<(RecordingDevice, OverlayDevice)>();
}
