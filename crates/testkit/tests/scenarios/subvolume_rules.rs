//! The results of operations on subvolumes and snapshots are those of the kernel's btrfs.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::walk;

fn make(image: &Path) {
    mkfs_btrfs(image, 512 << 20, &[]);
    let mount = Subject::Kernel.mount(&[image], "");
    let top = mount.path();
    let btrfs = |words: &[&str], paths: &[&str]| {
        run(command("btrfs", &["-q"]).args(words).args(paths.iter().map(|path| top.join(path)))).ok();
    };
    btrfs(&["subvolume", "create"], &["origin"]);
    btrfs(&["subvolume", "create"], &["origin/inner"]);
    std::fs::write(top.join("origin/inner/file"), "inside").expect("write");
    for dir in ["origin/dir", "origin/empty"] {
        std::fs::create_dir(top.join(dir)).expect("mkdir");
    }
    for file in ["origin/file", "origin/dir/file"] {
        std::fs::write(top.join(file), vec![b'x'; 5000]).expect("write");
    }
    std::os::unix::fs::symlink("file", top.join("origin/link")).expect("symlink");
    rustix::fs::lsetxattr(top.join("origin/file"), "user.name", b"value", XattrFlags::empty()).expect("setxattr");
    btrfs(&["subvolume", "snapshot", "-r"], &["origin", "old"]);
    btrfs(&["subvolume", "snapshot"], &["origin", "new"]);
    mount.unmount();
}

/// Returns the result of each change below `dir`; none of them may succeed in a read-only snapshot.
fn changes(dir: &Path) -> BTreeMap<&'static str, Result<(), Errno>> {
    let at = |name: &str| dir.join(name);
    let open = |name: &str, flags| rustix::fs::open(at(name), flags, Mode::from_raw_mode(0o644)).map(drop);
    let now = Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
    };
    let node = |kind| rustix::fs::mknodat(CWD, at("made"), kind, Mode::from_raw_mode(0o644), 0);
    let by_handle = |change: &dyn Fn(std::fs::File) -> Result<(), Errno>| {
        let file =
            std::fs::File::open(at("file")).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        change(file)
    };
    BTreeMap::from([
        ("create", open("made", OFlags::CREATE | OFlags::WRONLY)),
        ("open to write", open("file", OFlags::WRONLY)),
        ("open to read and write", open("dir/file", OFlags::RDWR)),
        ("open and truncate", open("file", OFlags::WRONLY | OFlags::TRUNC)),
        ("open to read and truncate", open("file", OFlags::TRUNC)),
        ("open and create what is there", open("file", OFlags::CREATE | OFlags::RDONLY)),
        ("mkdir", rustix::fs::mkdir(at("made"), Mode::from_raw_mode(0o755))),
        ("mknod", node(FileType::Fifo)),
        ("symlink", rustix::fs::symlink("x", at("made"))),
        ("link", rustix::fs::link(at("file"), at("made"))),
        ("unlink", rustix::fs::unlink(at("file"))),
        ("rmdir", rustix::fs::rmdir(at("empty"))),
        ("rename", rustix::fs::rename(at("file"), at("made"))),
        ("exchange", rustix::fs::renameat_with(CWD, at("file"), CWD, at("dir/file"), RenameFlags::EXCHANGE)),
        ("chmod", rustix::fs::chmod(at("file"), Mode::from_raw_mode(0o600))),
        ("chmod a directory", rustix::fs::chmod(at("dir"), Mode::from_raw_mode(0o700))),
        ("chown", rustix::fs::chown(at("file"), Some(rustix::fs::Uid::from_raw(7)), None)),
        ("utimens", rustix::fs::utimensat(CWD, at("file"), &now, AtFlags::empty())),
        ("setxattr", rustix::fs::lsetxattr(at("file"), "user.new", b"value", XattrFlags::empty())),
        ("removexattr", rustix::fs::lremovexattr(at("file"), "user.name")),
        ("fchmod", by_handle(&|file| rustix::fs::fchmod(file, Mode::from_raw_mode(0o600)))),
        ("fallocate", by_handle(&|file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 4096))),
        ("fsync", by_handle(&|file| rustix::fs::fsync(file))),
    ])
}

fn between(top: &Path) -> BTreeMap<String, Result<(), Errno>> {
    let mut answers = BTreeMap::new();
    let pairs =
        [("origin/file", "new/f"), ("origin/file", "x"), ("origin/file", "origin/inner/f"), ("new/dir", "origin/d")];
    for (from, to) in pairs {
        let (one, other) = (top.join(from), top.join(to));
        answers.insert(format!("rename {from} {to}"), rustix::fs::rename(&one, &other));
        if !one.is_dir() {
            answers.insert(format!("link {from} {to}"), rustix::fs::link(&one, &other));
        }
    }
    let exchange = |one: &str, other: &str| {
        rustix::fs::renameat_with(CWD, top.join(one), CWD, top.join(other), RenameFlags::EXCHANGE)
    };
    answers.insert("exchange files".into(), exchange("origin/file", "new/file"));
    for (from, to) in [("new/dir/file", "new/inner/g"), ("new/inner", "new/stub"), ("new/file", "new/inner")] {
        for (how, flags) in [("", RenameFlags::empty()), ("and replace nothing ", RenameFlags::NOREPLACE)] {
            let renamed = rustix::fs::renameat_with(CWD, top.join(from), CWD, top.join(to), flags);
            answers.insert(format!("rename {how}{from} {to}"), renamed);
        }
    }
    for stub in ["new/inner", "old/inner"] {
        let unnamed = OFlags::TMPFILE | OFlags::RDWR;
        let opened = rustix::fs::open(top.join(stub), unnamed, Mode::from_raw_mode(0o600)).map(drop);
        answers.insert(format!("a file without a name in {stub}"), opened);
        let made = top.join(stub).join("made");
        let made_file = rustix::fs::open(&made, OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).map(drop);
        answers.insert(format!("create in {stub}"), made_file);
        let made_dir = rustix::fs::mkdir(&made, Mode::from_raw_mode(0o755));
        answers.insert(format!("mkdir in {stub}"), made_dir);
        answers.insert(format!("open {stub}/none"), rustix::fs::open(&made, OFlags::RDONLY, Mode::empty()).map(drop));
    }
    answers
}

const MOVE: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;

/// Renames of the subvolumes that [`make`] makes, one after the other.
const MOVES: [(&str, &str, RenameFlags); 23] = [
    ("new/file", "new/inner", MOVE),
    ("new/empty", "new/inner", MOVE),
    ("new", "renamed", MOVE),
    ("renamed", "new", MOVE),
    ("new", "renamed", MOVE),
    ("renamed", "origin/dir/moved", MOVE),
    ("origin/dir/moved", "origin/dir/moved/dir/x", MOVE),
    ("origin", "origin/dir/moved/dir/x", MOVE),
    ("origin/dir", "origin/dir/moved/dir/x", MOVE),
    ("old", "old-again", MOVE),
    ("old-again", "origin/old", MOVE),
    ("old-again", "origin", RenameFlags::NOREPLACE),
    ("old-again", "origin", MOVE),
    ("old-again", "origin", EXCHANGE),
    ("old-again", "origin", EXCHANGE),
    ("origin/dir/moved", "origin/file", EXCHANGE),
    ("origin/file", "file", EXCHANGE),
    ("origin/dir/moved", "origin", EXCHANGE),
    ("origin/file", "origin/empty", MOVE),
    ("origin/link", "origin/inner", MOVE),
    ("origin/inner", "inner", MOVE),
    ("inner", "replaced", RenameFlags::WHITEOUT),
    ("old-again/inner", "stub", MOVE),
];

fn move_subvolumes(top: &Path) -> Vec<(&'static str, &'static str, Result<(), Errno>)> {
    std::fs::write(top.join("file"), "at the top").expect("write");
    std::fs::create_dir(top.join("replaced")).expect("mkdir");
    MOVES
        .map(|(from, to, flags)| (from, to, rustix::fs::renameat_with(CWD, top.join(from), CWD, top.join(to), flags)))
        .into()
}

#[test]
fn subvolumes_are_moved_as_by_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let images = ["kernel", "ubtrfs"].map(|name| dir.path().join(name));
    make(&images[0]);
    std::fs::copy(&images[0], &images[1]).expect("copy");
    let [kernel, ours] = [(Subject::Kernel, &images[0]), (Subject::ubtrfs(), &images[1])].map(|(subject, image)| {
        let mount = subject.mount(&[image], "");
        let answers = move_subvolumes(mount.path());
        mount.unmount();
        assert_btrfs_check_clean(image);
        assert_ubtrfs_check_clean(image);
        answers
    });
    assert_eq!(kernel, ours, "left: the kernel, right: ubtrfs");
    assert!(ours.iter().filter(|(_, _, answer)| answer.is_ok()).count() > MOVES.len() / 2, "{ours:?}");
    // Then both drivers see the same in both volumes.
    let shown = |subject: Subject, image: &Path| {
        let mount = subject.mount(&[image], "noatime");
        let tree = walk(mount.path());
        mount.unmount();
        tree
    };
    // ubtrfs shows other inode numbers in subvolumes.
    let options = Options { ino: false, ..Options::SAME_VOLUME };
    for image in &images {
        assert_same("moved", &shown(Subject::Kernel, image), &shown(Subject::ubtrfs(), image), options);
    }
    let names = |image: &Path| shown(Subject::Kernel, image).entries.into_keys().collect::<Vec<_>>();
    assert_eq!(names(&images[0]), names(&images[1]), "left: as the kernel moved them, right: as ubtrfs did");
}

/// A log can't express the move, and no log may be replayed after it.
#[test]
fn where_a_subvolume_was_moved_to_is_durable_after_fsync() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let (image, crashed) = (dir.path().join("image"), dir.path().join("crashed"));
    make(&image);
    let mount = Subject::ubtrfs().mount(&[&image], "");
    let top = mount.path();
    let sync = |path: &str| rustix::fs::fsync(std::fs::File::open(top.join(path)).expect("open")).expect("fsync");
    std::fs::write(top.join("origin/file"), "logged before").expect("write");
    sync("origin/file");
    std::fs::rename(top.join("new"), top.join("origin/empty/moved")).expect("rename");
    // A new file takes the old name, and is fsynced.
    std::fs::write(top.join("new"), "a file").expect("write");
    sync("new");
    std::fs::copy(&image, &crashed).expect("copy");
    mount.unmount();
    for image in [&image, &crashed] {
        for reader in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = reader.mount(&[image], "");
            let read = |path: &str| std::fs::read(mount.path().join(path)).expect("read");
            assert_eq!(read("new"), b"a file", "{}", reader.name());
            assert_eq!(read("origin/file"), b"logged before");
            assert_eq!(read("origin/empty/moved/file").len(), 5000);
            mount.unmount();
        }
        assert_btrfs_check_clean(image);
        assert_ubtrfs_check_clean(image);
    }
}

/// A tree with a subvolume in it can be removed from a snapshot, and what was synced stays removed
/// after a crash. (Linux 6.18 can't replay the log that it writes itself in this case, so there is
/// nothing to compare with.)
#[test]
fn trees_of_snapshots_can_be_removed() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let [image, crashed, replaced] = ["image", "crashed", "replaced"].map(|name| dir.path().join(name));
    make(&image);
    let mount = Subject::ubtrfs().mount(&[&image], "");
    let new = mount.path().join("new");
    std::fs::remove_dir(new.join("inner")).expect("rmdir");
    // A new inode that takes the name, and is synced, does not collide with the removed one.
    std::fs::write(new.join("inner"), "a file").expect("write");
    rustix::fs::fsync(std::fs::File::open(new.join("inner")).expect("open")).expect("fsync");
    std::fs::copy(&image, &replaced).expect("copy");
    std::fs::remove_file(new.join("inner")).expect("unlink");
    rustix::fs::fsync(std::fs::File::open(&new).expect("open")).expect("fsync");
    std::fs::copy(&image, &crashed).expect("copy");
    let left = ["dir", "empty", "file", "link"].map(str::len).iter().sum::<usize>();
    assert_eq!(std::fs::metadata(&new).expect("stat").len(), 2 * left as u64);
    std::fs::create_dir(new.join("inner")).expect("mkdir where it was");
    std::fs::remove_dir_all(new.join("dir")).expect("rm -r");
    mount.unmount();
    for (image, is_there) in [(&image, true), (&crashed, false), (&replaced, true)] {
        assert_btrfs_check_clean(image);
        assert_ubtrfs_check_clean(image);
        for reader in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = reader.mount(&[image], "");
            assert_eq!(mount.path().join("new/inner").exists(), is_there, "{}", reader.name());
            assert!(mount.path().join("origin/inner/file").exists());
            mount.unmount();
        }
    }
}

#[test]
fn subvolumes_answer_as_the_kernels_do() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    make(&image);
    let answers = |subject: Subject| {
        let mount = subject.mount(&[&image], "");
        let top = mount.path();
        let read_only = changes(&top.join("old"));
        let between = between(top);
        mount.unmount();
        (read_only, between)
    };
    let (kernel, ubtrfs) = (answers(Subject::Kernel), answers(Subject::ubtrfs()));
    assert_eq!(kernel.0, ubtrfs.0, "in a read-only snapshot (left: the kernel, right: ubtrfs)");
    assert_eq!(kernel.1, ubtrfs.1, "between subvolumes (left: the kernel, right: ubtrfs)");
    let failing = ubtrfs.0.values().filter(|answer| **answer == Err(Errno::ROFS)).count();
    assert!(failing >= 15, "{:?}", ubtrfs.0);
    assert_ubtrfs_check_clean(&image);
    assert_btrfs_check_clean(&image);
}

#[test]
fn subvolumes_are_directories_with_numbers_of_their_own() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    make(&image);
    let mount = Subject::ubtrfs().mount(&[&image], "");
    let top = mount.path();
    let mut numbers: BTreeMap<u64, std::path::PathBuf> = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(&path).expect("list") {
            let entry = entry.expect("an entry");
            let meta = entry.path().symlink_metadata().expect("stat");
            assert_eq!(entry.ino(), meta.ino(), "{}", entry.path().display());
            if let Some(other) = numbers.insert(meta.ino(), entry.path()) {
                panic!("{} and {} have one number", other.display(), entry.path().display());
            }
            if meta.is_dir() {
                open.push(entry.path());
            }
        }
    }
    assert!(top.join("origin/inner/file").exists());
    for stub in ["new/inner", "old/inner"] {
        assert_eq!(std::fs::read_dir(top.join(stub)).expect("list").count(), 0, "{stub}");
    }
    mount.unmount();
}
