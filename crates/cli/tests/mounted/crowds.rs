//! Tests of many concurrent requests whose answers wait for other requests: the mount continues to
//! work, whatever their number is.

use std::fs;
use std::thread;
use std::time::Duration;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run_within};

use crate::harness::{Abort, FUSE, Volume};

/// Aborts the connection when a test fails: otherwise processes that wait for it could not be
/// killed, and would block sync(2) of the whole machine.
struct AbortOnPanic(Abort);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort();
        }
    }
}

/// Runs many threads, each of which changes the pages of its own file through a mapping; then all
/// search for holes and data at once. `$1` is the directory, `$2` the number of threads.
const SEEKERS: &str = r#"
import mmap, os, sys, threading
PAGES = 64
many = int(sys.argv[2])
together = threading.Barrier(many, timeout=50)
wrong = []
def seek(number):
    fd = os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT)
    for turn in range(4):
        os.ftruncate(fd, 0)
        os.ftruncate(fd, PAGES * 4096)
        pages = mmap.mmap(fd, PAGES * 4096)
        # A page of data between holes, and one after another.
        for page in range(1, PAGES, 2):
            pages[page * 4096] = 1
        together.wait()
        hole = os.lseek(fd, 4096, os.SEEK_HOLE)
        data = os.lseek(fd, 0, os.SEEK_DATA)
        if hole not in (2 * 4096, PAGES * 4096) or data not in (0, 4096):
            wrong.append((number, turn, hole, data))
        for page in range(1, PAGES, 2):
            if pages[page * 4096] != 1 or os.lseek(fd, page * 4096, os.SEEK_DATA) != page * 4096:
                wrong.append((number, turn, page))
        pages.close()
threads = [threading.Thread(target=seek, args=[number]) for number in range(many)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong), wrong[:3])
"#;

/// More than three times the entries of one ring, and more than all rings have on a machine with
/// few processors.
const SEEKING: &str = "150";

/// Invariant 28: if seeks held all entries of a ring, the WRITEs that they wait for could not
/// arrive.
#[test]
fn holes_of_more_files_than_there_is_room_for_requests_are_found() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let _abort = AbortOnPanic(Abort::of(&volume));
    let dir = volume.point.join("dir");
    fs::create_dir(&dir).unwrap();
    let mut line = command("python3", &["-c".as_ref(), SEEKERS.as_ref(), dir.as_os_str(), SEEKING.as_ref()]);
    let outcome = run_within(&mut line, Duration::from_secs(60)).ok();
    assert_eq!(outcome.stdout.trim(), "0 []");
    volume.umount();
    volume.check();
}

/// Reads directories whose names have changed meanwhile, and whose listings all reach their ends at
/// once. `$1` is the directory, `$2` the number of listings. Afterwards the names are correct.
const LISTERS: &str = r#"
import ctypes, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
DIRS, NAMES = 6, 300
NUMBER = 217 if os.uname().machine == "x86_64" else 61
many = int(sys.argv[2])
def getdents(fd, room):
    names, at = [], 0
    length = libc.syscall(NUMBER, fd, room, ctypes.sizeof(room))
    if length < 0: raise OSError(ctypes.get_errno(), "getdents64")
    while at < length:
        record = int.from_bytes(room.raw[at + 16:at + 18], "little")
        names.append(room.raw[at + 19:at + record].split(b"\0")[0].decode())
        at += record
    return names
def rest(fd):
    room, names = ctypes.create_string_buffer(4096), []
    while some := getdents(fd, room): names += some
    return names
dirs = [f"{sys.argv[1]}/{number}" for number in range(DIRS)]
for dir in dirs:
    os.mkdir(dir)
    for name in range(NAMES): os.close(os.open(f"{dir}/name {name:04}", os.O_CREAT))
wrong = []
for turn in range(5):
    together = threading.Barrier(many + 1, timeout=50)
    def list(number):
        dir = dirs[number % DIRS]
        fd = os.open(dir, os.O_RDONLY)
        names = getdents(fd, ctypes.create_string_buffer(1024))
        together.wait()
        together.wait()
        names += rest(fd)
        os.close(fd)
        lost = [name for name in range(NAMES) if f"name {name:04}" not in names]
        if lost: wrong.append((turn, number, len(lost)))
    threads = [threading.Thread(target=list, args=[number]) for number in range(many)]
    for thread in threads: thread.start()
    together.wait()
    for dir in dirs:
        if turn: os.unlink(f"{dir}/new {turn - 1}")
        os.close(os.open(f"{dir}/new {turn}", os.O_CREAT))
    together.wait()
    # Who begins now sees what there is, whatever of older listings the kernel has.
    for dir in dirs * 3:
        fd = os.open(dir, os.O_RDONLY)
        names = sorted(name for name in rest(fd) if name not in (".", ".."))
        os.close(fd)
        if names != [f"name {name:04}" for name in range(NAMES)] + [f"new {turn}"]:
            wrong.append((turn, dir, names[NAMES:]))
    for thread in threads: thread.join()
print(len(wrong), wrong[:3])
"#;

const LISTING: &str = "120";

#[test]
fn changed_listings_that_end_at_once_show_no_deleted_name() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let _abort = AbortOnPanic(Abort::of(&volume));
    let mut line = command("python3", &["-c".as_ref(), LISTERS.as_ref(), volume.point.as_os_str(), LISTING.as_ref()]);
    let outcome = run_within(&mut line, Duration::from_secs(60)).ok();
    assert_eq!(outcome.stdout.trim(), "0 []");
    volume.umount();
    volume.check();
}

/// Runs threads that sync the whole volume, each by the ioctl for that, by syncfs(2), or by both in
/// turn, and others that append to files and fsync them. `$1` is the directory.
const SYNCERS: &str = r#"
import ctypes, fcntl, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
root = sys.argv[1]
CONTROL_SYNC = 0x7504
end = time.monotonic() + 5
def sync(number):
    fd = os.open(root, os.O_RDONLY)
    while time.monotonic() < end:
        if number % 2:
            fcntl.ioctl(fd, CONTROL_SYNC)
        elif libc.syncfs(fd):
            raise OSError(ctypes.get_errno(), "syncfs")
def append(number):
    fd = os.open(f"{root}/{number}", os.O_RDWR | os.O_CREAT)
    while time.monotonic() < end:
        os.write(fd, b"x" * 4096)
        os.fsync(fd)
threads = [threading.Thread(target=sync, args=[number]) for number in range(40)]
threads += [threading.Thread(target=append, args=[number]) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"#;

/// Invariant 37: more syncs than the server has threads for wait for the tree log, and fsyncs
/// proceed. The mount used to hang forever within two seconds.
#[test]
fn fsyncs_end_beside_more_syncs_than_there_are_threads_for() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let abort = AbortOnPanic(Abort::of(&volume));
    let mut line = command("python3", &["-c".as_ref(), SYNCERS.as_ref(), volume.point.as_os_str()]);
    let outcome = run_within(&mut line, Duration::from_secs(100)).ok();
    assert_eq!(outcome.stdout.trim(), "done");
    drop(abort);
    volume.umount();
    volume.check();
}
