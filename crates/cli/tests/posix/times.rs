//! Tests of access times, and of limits of numbers: results that depend on more than one call.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::actors::Actor;
use crate::harness::FUSE;
use crate::objects::set_times;
use crate::operations::open;
use crate::run::{Exceptions, Outcomes, compare};

type Look = fn(&Path);

/// The ways to read `f`, `d` or `l`, after which the access times of all three are compared.
const LOOKS: &[(&str, Look)] = &[
    ("read", |dir| drop(fs::read(dir.join("f")))),
    ("read of nothing", |dir| drop(File::open(dir.join("f")).unwrap().read(&mut []))),
    ("read at the end", |dir| drop(File::open(dir.join("f")).unwrap().read_at(&mut [0; 9], 1000))),
    ("direct read", |dir| {
        let file =
            OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(dir.join("f")).unwrap();
        let _ = file.read_at(&mut [0; 9], 0);
    }),
    ("O_NOATIME", |dir| {
        let file =
            OpenOptions::new().read(true).custom_flags(OFlags::NOATIME.bits() as i32).open(dir.join("f")).unwrap();
        let _ = file.read_at(&mut [0; 9], 0);
    }),
    ("open", |dir| drop(File::open(dir.join("f")).unwrap())),
    ("stat", |dir| assert!(fs::metadata(dir.join("f")).is_ok())),
    ("write", |dir| OpenOptions::new().write(true).open(dir.join("f")).unwrap().write_all(b"x").unwrap()),
    ("list", |dir| assert_eq!(fs::read_dir(dir.join("d")).unwrap().count(), 1)),
    ("open a directory", |dir| drop(File::open(dir.join("d")).unwrap())),
    ("look up", |dir| assert!(fs::metadata(dir.join("d/within")).is_ok())),
    ("readlink", |dir| drop(fs::read_link(dir.join("l")).unwrap())),
    ("follow", |dir| drop(fs::metadata(dir.join("l")))),
    ("read xattr", |dir| assert!(rustix::fs::getxattr(dir.join("f"), "user.a", &mut [0_u8; 9][..]).is_err())),
];

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

fn accesses(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for fresh in [false, true] {
        for (name, ago) in
            [("long ago", 10_000_000), ("an hour ago", 3600), ("yesterday", 100_000), ("in future", -9999)]
        {
            for (look_name, look) in LOOKS {
                let dir = root.join("case");
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("f"), "content").unwrap();
                fs::create_dir(dir.join("d")).unwrap();
                fs::write(dir.join("d/within"), "content").unwrap();
                symlink("f", dir.join("l")).unwrap();
                let accessed = now() - ago;
                for path in ["f", "d", "l"] {
                    // The change time is the current time, so accesses are recorded unless the
                    // access time is in the future.
                    set_times(&dir.join(path), accessed, if fresh { now() } else { 5 });
                }
                look(&dir);
                let changed =
                    ["f", "d", "l"].map(|path| fs::symlink_metadata(dir.join(path)).unwrap().atime() != accessed);
                outcomes.insert(format!("accessed {name}, fresh {fresh} / {look_name}"), format!("{changed:?}"));
                fs::remove_dir_all(&dir).unwrap();
            }
        }
    }
    outcomes
}

/// Returns the outcomes of sequences of several steps.
fn stories(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut record = |name: &str, reported: String| outcomes.insert(name.into(), reported);
    let at = |name: &str| root.join(name);

    for (limit, way) in [
        (1024, "dd if=/dev/zero of=limited bs=1k count=3 status=none"),
        (1024, "dd if=/dev/zero of=limited bs=700 count=3 status=none"),
        (1024, "truncate -s 2000 limited"),
        (1024, "truncate -s 1024 limited"),
        (0, "echo x > limited"),
        (4096, "dd if=/dev/zero of=limited bs=4k count=2 oflag=direct status=none"),
    ] {
        for ignored in ["", "trap '' XFSZ;"] {
            let script = format!(
                "rm -f limited; {ignored} prlimit --fsize={limit} --pid $$; {way}; echo $?; stat -c %s limited"
            );
            let outcome = run(command("sh", &["-c", &script]).current_dir(root));
            let last = outcome.stderr.lines().last().unwrap_or_default().to_owned();
            record(&format!("a limit of {limit}: {ignored}{way}"), format!("{} {last}", outcome.stdout));
        }
    }

    let file = File::create(at("largest")).unwrap();
    for place in [i64::MAX as u64 - 1, i64::MAX as u64, i64::MAX as u64 - 4096, 1 << 62, (1 << 44) - 1] {
        let written = file.write_at(b"xy", place).map_err(|error| error.raw_os_error());
        record(&format!("a write at {place}"), format!("{written:?} {}", file.metadata().unwrap().size()));
        file.set_len(0).unwrap();
    }

    let mut writers: Vec<File> =
        (0..4).map(|_| OpenOptions::new().append(true).create(true).open(at("appended")).unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, writer) in writers.iter_mut().enumerate() {
            scope.spawn(move || (0..500).for_each(|_| writer.write_all(&[b'a' + number as u8; 37]).unwrap()));
        }
    });
    let appended = fs::read(at("appended")).unwrap();
    let whole =
        appended.chunks(37).filter(|chunk| chunk.len() == 37 && chunk.iter().all(|byte| *byte == chunk[0])).count();
    record("four append", format!("{} {whole}", appended.len()));

    fs::write(at("victim"), "the victim").unwrap();
    fs::write(at("winner"), "the winner").unwrap();
    let victim = File::open(at("victim")).unwrap();
    fs::rename(at("winner"), at("victim")).unwrap();
    let mut content = String::new();
    (&victim).read_to_string(&mut content).unwrap();
    record("a file that was replaced while open", format!("{content} {}", victim.metadata().unwrap().nlink()));
    let again = rustix::fs::linkat(&victim, "", rustix::fs::CWD, at("again"), rustix::fs::AtFlags::EMPTY_PATH);
    record("a link to what has no name", format!("{again:?}"));

    fs::create_dir(at("gone")).unwrap();
    let gone = File::open(at("gone")).unwrap();
    fs::remove_dir(at("gone")).unwrap();
    let within = rustix::fs::openat(&gone, "x", OFlags::CREATE | OFlags::WRONLY, rustix::fs::Mode::RUSR);
    let up = rustix::fs::openat(&gone, "..", OFlags::RDONLY, rustix::fs::Mode::empty());
    let made = rustix::fs::mkdirat(&gone, "x", rustix::fs::Mode::RWXU);
    let moved = rustix::fs::renameat(rustix::fs::CWD, at("victim"), &gone, "x");
    let listed = rustix::fs::Dir::read_from(&gone)
        .and_then(|dir| dir.into_iter().try_fold(0, |count, entry| entry.map(|_| count + 1)));
    let (nlink, size) = gone.metadata().map(|meta| (meta.nlink(), meta.size())).unwrap();
    record(
        "a directory that is gone",
        format!("{:?} {:?} {made:?} {moved:?} {listed:?} {nlink} {size}", within.map(drop), up.map(drop)),
    );

    for (name, flags) in [("TMPFILE", OFlags::TMPFILE), ("TMPFILE|EXCL", OFlags::TMPFILE | OFlags::EXCL)] {
        let unnamed = open(root, flags | OFlags::RDWR).unwrap();
        let nlink = rustix::fs::fstat(&unnamed).unwrap().st_nlink;
        let linked = rustix::fs::linkat(&unnamed, "", rustix::fs::CWD, at(name), rustix::fs::AtFlags::EMPTY_PATH);
        record(name, format!("{nlink} {linked:?} {}", rustix::fs::fstat(&unnamed).unwrap().st_nlink));
    }

    // Renames of directories into each other, over several levels.
    fs::create_dir_all(at("a/b/c")).unwrap();
    for (from, to) in [("a", "a/b/c/d"), ("a/b", "a/b/c/d"), ("a/b/c", "a"), ("a/b/c", "a/b"), ("a", "a/b/c")] {
        let renamed = fs::rename(at(from), at(to)).map_err(|error| error.raw_os_error());
        let exchanged = rustix::fs::renameat_with(
            rustix::fs::CWD,
            at(from),
            rustix::fs::CWD,
            at(to),
            rustix::fs::RenameFlags::EXCHANGE,
        );
        record(&format!("rename of {from} to {to}"), format!("{renamed:?} {exchanged:?}"));
    }

    let mut deep = root.to_owned();
    let mut levels = 0;
    while deep.as_os_str().len() + 101 < 4090 {
        deep.push("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        levels += 1;
    }
    record("levels are deep", format!("{:?}", levels > 10));
    record("locks", locks(&at("locked")));
    outcomes
}

/// Tests locks of several processes: a lock that one holds is refused to the others, until it is
/// released or its process ends.
fn locks(path: &Path) -> String {
    fs::write(path, "0123456789").unwrap();
    let script = r#"
import fcntl, os, struct, sys, errno
def tried(what):
    try: what(); return "got"
    except OSError as error: return errno.errorcode[error.errno]
def lock(fd, kind, start, length, command): 
    return tried(lambda: fcntl.fcntl(fd, command, struct.pack("hhqqixxxx", kind, 0, start, length, 0)))
F_OFD_SETLK = 37
def child(what):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, what(os.open(sys.argv[1], os.O_RDWR)).encode()); os._exit(0)
    os.wait(); os.close(writer)
    return os.read(reader, 99).decode()
mine = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(mine, fcntl.LOCK_EX)
print("flock", child(lambda fd: tried(lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))))
fcntl.flock(mine, fcntl.LOCK_SH)
print("shared", child(lambda fd: tried(lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))))
fcntl.flock(mine, fcntl.LOCK_UN)
for name, command in ("posix", fcntl.F_SETLK), ("ofd", F_OFD_SETLK):
    print(name, lock(mine, fcntl.F_WRLCK, 2, 4, command))
    for start, length in (0, 2), (1, 2), (6, 4), (0, 0):
        print(name, start, child(lambda fd: lock(fd, fcntl.F_RDLCK, start, length, command)))
    other = os.open(sys.argv[1], os.O_RDWR)
    print(name, "the same process", lock(other, fcntl.F_RDLCK, 2, 1, command))
    os.close(other)
    print(name, "after a close", child(lambda fd: lock(fd, fcntl.F_RDLCK, 2, 1, command)))
    print(name, "unlock", lock(mine, fcntl.F_UNLCK, 0, 0, command), child(lambda fd: lock(fd, fcntl.F_WRLCK, 0, 0, command)))
"#;
    let outcome = run(command("python3", &["-c", script]).arg(path));
    format!("{}{}", outcome.stdout, outcome.stderr)
}

const ACCESSES: Exceptions = &[("read at the end", "the kernel knows where the end is, and doesn't ask")];

#[test]
fn access_times_change_when_the_kernels_do() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), accesses, ACCESSES);
}

#[test]
fn access_times_stay_without_atime() {
    require!(Need::Kernel, FUSE);
    compare(("noatime", "noatime"), accesses, &[]);
}

#[test]
fn stories_end_as_with_the_kernel() {
    require!(Need::Kernel, FUSE, Need::Tool("prlimit"), Need::Tool("python3"));
    compare(("dev,suid", ""), |root| Actor::Root.does(|| stories(root)), &[]);
}
