//! Tests of what programs do with files.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use ubtrfs_fuse::{MAX_LONG, ROOT};

use crate::harness::{Mounted, possible, possible_as_root};
use crate::memfs::HELD;
use crate::mounting::abort_file;

#[test]
fn files_keep_written_data() {
    if !possible("files_keep_written_data") {
        return;
    }
    let mounted = Mounted::plain();
    let path = mounted.path("file");
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number / 7) as u8).collect();
    fs::write(&path, &content).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), content.len() as u64);
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
    let mut read = vec![0; 1 << 20];
    file.read_exact_at(&mut read, 4096).unwrap();
    assert!(read == content[4096..4096 + (1 << 20)]);
    drop(file);
    assert!(fs::read(&path).unwrap() == content);
    assert!(mounted.fs().asked("WRITE 1048576") > 0, "one request carries 1 MiB");

    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"end").unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!((mounted.fs().asked("FSYNC false"), mounted.fs().asked("FSYNC true")), (1, 1));
    file.set_len(2).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [0, 0]);
}

#[test]
fn directories_are_listed_whole() {
    if !possible("directories_are_listed_whole") {
        return;
    }
    let mounted = Mounted::plain();
    fs::create_dir(mounted.path("dir")).unwrap();
    let names: BTreeSet<String> = (0..2000).map(|number| format!("dir/{number:0>60}")).collect();
    for name in &names {
        fs::write(mounted.path(name), name).unwrap();
    }
    let listed = || -> BTreeSet<String> {
        let entries = fs::read_dir(mounted.path("dir")).unwrap().map(Result::unwrap);
        entries.map(|entry| format!("dir/{}", entry.file_name().to_str().unwrap())).collect()
    };
    assert!(listed() == names);
    // Attributes of the listed files, in the order of the listing, so that the kernel requests both
    // at once.
    for entry in fs::read_dir(mounted.path("dir")).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), 64);
    }
    assert!(mounted.fs().asked("READDIRPLUS handle=9") > 0);
    assert_eq!(fs::remove_dir(mounted.path("dir")).unwrap_err().raw_os_error(), Some(39));
    for name in &names {
        fs::remove_file(mounted.path(name)).unwrap();
    }
    assert!(listed().is_empty());
    fs::remove_dir(mounted.path("dir")).unwrap();
}

#[test]
fn names_move_and_multiply() {
    if !possible("names_move_and_multiply") {
        return;
    }
    let mounted = Mounted::plain();
    let path = |name| mounted.path(name);
    fs::write(path("a"), "a").unwrap();
    fs::write(path("b"), "b").unwrap();
    let rename = |from, to, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(path("a")).unwrap(), fs::read(path("b")).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(path("a"), path("b")).unwrap();
    assert_eq!(fs::read(path("b")).unwrap(), b"b");
    assert!(!path("a").exists());
    fs::hard_link(path("b"), path("c")).unwrap();
    assert_eq!(fs::metadata(path("c")).unwrap().nlink(), 2);
    symlink("c", path("link")).unwrap();
    assert_eq!(fs::read(path("link")).unwrap(), b"b");
    assert_eq!(fs::read_link(path("link")).unwrap().to_str(), Some("c"));
    assert_eq!(fs::read_link(path("link")).unwrap().to_str(), Some("c"));
    assert_eq!(mounted.fs().asked("READLINK"), 1, "targets are cached");
    fs::remove_file(path("b")).unwrap();
    assert_eq!(fs::read(path("c")).unwrap(), b"b");
}

#[test]
fn negative_entries_are_cached() {
    if !possible("negative_entries_are_cached") {
        return;
    }
    let mounted = Mounted::plain();
    for _ in 0..3 {
        assert!(!mounted.path("missing").exists());
    }
    assert_eq!(mounted.fs().asked("LOOKUP missing"), 1);
}

#[test]
fn extended_attributes() {
    if !possible("extended_attributes") {
        return;
    }
    let mounted = Mounted::plain();
    let path = mounted.path("file");
    fs::write(&path, "").unwrap();
    rustix::fs::setxattr(&path, "user.one", b"value", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.two", &vec![7; 60_000], XattrFlags::empty()).unwrap();
    let get = |name, room| {
        let mut buffer = vec![0; room];
        let length = rustix::fs::getxattr(&path, name, &mut buffer[..])?;
        buffer.truncate(length);
        Ok(buffer)
    };
    assert_eq!(get("user.one", 10), Ok(b"value".to_vec()));
    assert_eq!(get("user.one", 4), Err(Errno::RANGE));
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: both strings end; no room is given, so nothing is written.
    let length = unsafe { libc::getxattr(c_path.as_ptr(), c"user.two".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(length, 60_000);
    assert_eq!(get("user.two", 65_536), Ok(vec![7; 60_000]));
    assert_eq!(get("user.none", 4), Err(Errno::NODATA));
    let mut list = [0; 100];
    let length = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    assert_eq!(&list[..length], b"user.one\0user.two\0");
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(get("user.one", 10), Err(Errno::NODATA));
}

#[test]
fn lost_replies_and_panics_answer_eio() {
    if !possible("lost_replies_and_panics_answer_eio") {
        return;
    }
    let mounted = Mounted::plain();
    let path = mounted.path("file");
    fs::write(&path, "").unwrap();
    for _ in 0..8 {
        for name in ["user.dropped", "user.panic"] {
            assert_eq!(rustix::fs::getxattr(&path, name, &mut [0u8; 4][..]), Err(Errno::IO));
        }
    }
    fs::write(&path, "still served").unwrap();
}

#[test]
fn nameless_files() {
    if !possible("nameless_files") {
        return;
    }
    let mounted = Mounted::plain();
    let before = mounted.fs().count();
    let flags = OFlags::TMPFILE.bits() as i32;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(mounted.dir.path()).unwrap();
    file.write_all(b"nameless").unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "less");
    assert_eq!(mounted.fs().count(), before + 1);
    drop(file);
    wait_until("it is forgotten", || mounted.fs().count() == before);
}

#[test]
fn statx_shows_the_birth() {
    if !possible("statx_shows_the_birth") {
        return;
    }
    let mounted = Mounted::plain();
    let path = mounted.path("file");
    fs::write(&path, "four").unwrap();
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), mask).unwrap();
    assert_eq!((statx.stx_size, statx.stx_btime.tv_sec, statx.stx_btime.tv_nsec), (4, 1, 2));
    assert!(StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::BTIME));
    assert_eq!(mounted.fs().asked("STATX"), 1);
}

#[test]
fn device_nodes_and_modes() {
    if !possible_as_root("device_nodes_and_modes") {
        return;
    }
    let mounted = Mounted::plain();
    let path = mounted.path("null");
    let device = rustix::fs::makedev(259, 70_000);
    rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::CharacterDevice, 0o600.into(), device).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.rdev(), metadata.mode() & 0o777), (device, 0o600));
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
    assert_eq!((statx.stx_rdev_major, statx.stx_rdev_minor), (259, 70_000));
    assert_eq!(fs::File::open(&path).unwrap_err().raw_os_error(), Some(13), "nodev by default");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn positions_ranges_and_ioctls() {
    if !possible("positions_ranges_and_ioctls") {
        return;
    }
    let mounted = Mounted::plain();
    let file = File::create_new(mounted.path("from")).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(3)), Ok(3));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(3)), Ok(10));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(30)), Err(Errno::NXIO));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20);

    let file = File::open(mounted.path("from")).unwrap();
    let to = File::create_new(mounted.path("to")).unwrap();
    assert_eq!(rustix::fs::copy_file_range(&file, Some(&mut 2), &to, Some(&mut 0), 5), Ok(5));
    assert_eq!(fs::read(mounted.path("to")).unwrap(), b"23456");
    let copies = format!("COPY_FILE_RANGE wide={}", mounted.session.granted().minor >= 45);
    assert_eq!(mounted.fs().asked(&copies), 1, "{:?}", mounted.fs().all_asked());

    let mut number = 0x0101_0101u32;
    // SAFETY: the command says that it reads and writes four bytes, which `number` has.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&to), 0xc004_9977, &raw mut number) };
    assert_eq!((result, number), (3, 0x0202_0202));
}

#[test]
fn many_threads_at_a_time() {
    if !possible("many_threads_at_a_time") {
        return;
    }
    let mounted = Mounted::plain();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mounted = &mounted;
            scope.spawn(move || {
                let dir = mounted.path(&format!("dir{thread}"));
                fs::create_dir(&dir).unwrap();
                for number in 0..100 {
                    let (temporary, path) = (dir.join("temporary"), dir.join(number.to_string()));
                    let mut file = File::create(&temporary).unwrap();
                    file.write_all(&vec![thread; 5000 + number]).unwrap();
                    if number % 25 == 0 {
                        file.sync_all().unwrap();
                    }
                    drop(file);
                    fs::rename(&temporary, &path).unwrap();
                    assert!(fs::read(&path).unwrap() == vec![thread; 5000 + number]);
                }
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 100);
                fs::remove_dir_all(&dir).unwrap();
            });
        }
    });
    wait_until("only the root is left", || mounted.fs().count() == 1);
}

#[test]
fn changes_behind_the_kernels_back() {
    if !possible("changes_behind_the_kernels_back") {
        return;
    }
    let mounted = Mounted::plain();
    let notifier = mounted.session.notifier();
    let path = mounted.path("file");
    fs::write(&path, "before").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"before");
    let node = mounted.fs().change(ROOT, "file", b"now");
    notifier.inval_inode(node, 0, 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"now");

    mounted.fs().move_away(ROOT, "file", "other");
    assert!(path.exists() && !mounted.path("other2").exists());
    notifier.inval_entry(ROOT, b"file").unwrap();
    assert!(!path.exists());
    assert!(mounted.path("other").exists());
    mounted.fs().move_away(ROOT, "other", "file");
    notifier.expire_entry(ROOT, b"other").unwrap();
    notifier.delete(ROOT, node, b"other").unwrap();
    notifier.inval_entry(ROOT, b"file").unwrap();
    assert!(!mounted.path("other").exists() && path.exists());
    notifier.inval_entry(ROOT, b"never heard of").unwrap();
    notifier.inval_attributes(99_999).unwrap();
    mounted.fs().move_away(ROOT, "file", "last");
    notifier.inval_all_entries().unwrap();
    assert!(!path.exists());
}

/// Waits for asynchronous work of the kernel.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("waited in vain until {what}");
}

#[test]
fn statfs_reports_the_size() {
    if !possible("statfs_reports_the_size") {
        return;
    }
    let mounted = Mounted::plain();
    let dir = File::open(mounted.dir.path()).unwrap();
    let statfs = rustix::fs::fstatvfs(dir.as_fd()).unwrap();
    assert_eq!((statfs.f_blocks, statfs.f_bfree, statfs.f_bavail, statfs.f_frsize), (1000, 10, 9, 4096));
}

/// The kernel sends a FORGET for such an entry at once, and continues the listing when that is
/// answered.
#[test]
fn listings_with_impossible_entries_end() {
    const MANY: usize = 100;
    if !possible("listings_with_impossible_entries_end") {
        return;
    }
    let mounted = Mounted::plain();
    for number in 0..MANY {
        fs::write(mounted.path(&format!("impossible {number}")), "").unwrap();
    }
    let abort = abort_file(mounted.dir.path());
    let (sender, receiver) = channel();
    let (root, threads) = (mounted.dir.path().to_owned(), 4);
    for _ in 0..threads {
        let (sender, root) = (sender.clone(), root.clone());
        std::thread::spawn(move || {
            let names = fs::read_dir(root).unwrap().filter(|entry| entry.as_ref().is_ok()).count();
            let _ = sender.send(names);
        });
    }
    let listed: Vec<_> = (0..threads).map_while(|_| receiver.recv_timeout(TIMEOUT).ok()).collect();
    if listed != vec![MANY; threads] {
        // Programs that hang can't be ended otherwise.
        let _ = fs::write(abort.unwrap(), "1");
        panic!("listed {listed:?}");
    }
}

/// Of invariant 49: requests that are answered late leave room for others on their processor.
#[test]
fn many_requests_that_take_long_keep_no_other_from_coming() {
    if !possible("many_requests_that_take_long_keep_no_other_from_coming") {
        return;
    }
    let mounted = Mounted::plain();
    let processor = sched_getcpu();
    let path = |number: usize| mounted.path(&number.to_string());
    for number in 0..MAX_LONG {
        fs::write(path(number), "content").unwrap();
    }
    let held = || mounted.fs().held.lock().len();
    let others_come = std::thread::scope(|scope| {
        for number in 0..MAX_LONG {
            let path = path(number);
            scope.spawn(move || {
                keep_on(processor);
                fs::set_permissions(path, fs::Permissions::from_mode(HELD)).unwrap_err()
            });
        }
        let deadline = Instant::now() + TIMEOUT;
        while held() < MAX_LONG && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (sender, receiver) = channel();
        let another = mounted.path("another");
        scope.spawn(move || {
            keep_on(processor);
            let _ = sender.send(fs::metadata(another).is_err());
        });
        let come = receiver.recv_timeout(TIMEOUT).is_ok();
        // Requests that arrive once there is room are held, too.
        let mut answered = 0;
        while answered < MAX_LONG {
            let held = std::mem::take(&mut *mounted.fs().held.lock());
            answered += held.len();
            for reply in held {
                reply.error(Errno::PERM);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        come
    });
    assert!(others_come, "invariant 49: no entry is left");
}

/// Of invariant 49: WRITEs may wait as long as a commit takes, and all else goes on beside them.
#[test]
fn many_writes_that_wait_keep_no_other_request_from_being_served() {
    // Over rings each waiting WRITE takes one of the 32 entries of a processor.
    const WRITERS: usize = 16;
    if !possible("many_writes_that_wait_keep_no_other_request_from_being_served") {
        return;
    }
    let mounted = Mounted::plain();
    let path = |number: usize| mounted.path(&number.to_string());
    // The content has one page, since the kernel may send several WRITEs for more.
    let content = |number: usize| vec![number as u8; 3_000 + number];
    let waiting = mounted.fs().writes.write();
    let others_go_on = std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let path = path(number);
            scope.spawn(move || {
                let file = File::create(path).unwrap();
                file.write_all_at(&content(number), 0).unwrap();
                file.sync_all().unwrap();
            });
        }
        let deadline = Instant::now() + TIMEOUT;
        while mounted.fs().asked("WRITE") == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (sender, receiver) = channel();
        let another = mounted.path("another");
        scope.spawn(move || {
            for _ in 0..100 {
                fs::create_dir(&another).unwrap();
                fs::remove_dir(&another).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = sender.send(());
        });
        let go_on = receiver.recv_timeout(TIMEOUT).is_ok();
        drop(waiting);
        go_on
    });
    assert!(others_go_on, "invariant 49: all threads wait");
    for number in 0..WRITERS {
        assert!(fs::read(path(number)).unwrap() == content(number), "{number}");
    }
}

const TIMEOUT: Duration = Duration::from_secs(20);

fn keep_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).unwrap();
}
