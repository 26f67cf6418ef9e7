//! Tests that a user who keeps directories locked does not stop the work of others with subvolumes
//! (invariant 49).

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume};

/// More than the number of threads that there once were for this.
const DIRECTORIES: usize = 12;

/// Memory whose pages are not provided until this is dropped, so that a write to it blocks.
struct Untouched {
    at: usize,
    faults: Option<OwnedFd>,
}

impl Untouched {
    const SIZE: usize = 4096;

    fn new() -> Self {
        /// `struct uffdio_api` and `struct uffdio_register`, and the ioctls that take them.
        const API: (libc::c_ulong, [u64; 3]) = (0xc018_aa3f, [0xaa, 0, 0]);
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        const MISSING: u64 = 1;
        let (mut api, protection) = (API.1, libc::PROT_READ | libc::PROT_WRITE);
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the memory is new, and the ioctls get valid arguments.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), Self::SIZE, protection, private, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let number = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(number >= 0, "userfaultfd(2): {}", std::io::Error::last_os_error());
            let faults = OwnedFd::from_raw_fd(number as i32);
            assert_eq!(libc::ioctl(faults.as_raw_fd(), API.0, api.as_mut_ptr()), 0);
            let mut range = [at as u64, Self::SIZE as u64, MISSING, 0];
            assert_eq!(libc::ioctl(faults.as_raw_fd(), REGISTER, range.as_mut_ptr()), 0);
            Self { at: at as usize, faults: Some(faults) }
        }
    }

    /// Lists a directory into this memory.
    fn list(&self, dir: &Path) -> JoinHandle<()> {
        let (at, dir) = (self.at, File::open(dir).unwrap());
        thread::spawn(move || {
            // SAFETY: the memory exists until this thread has been joined.
            unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), at, Self::SIZE) };
        })
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        self.faults = None;
    }
}

/// Runs `ubtrfs subvolume create` as an ordinary user or as root, with a timeout.
fn create(program: &Path, user: Option<u32>, path: &Path) -> Outcome {
    let mut line = command("timeout", &["--kill-after=1", "20"]);
    if let Some(user) = user {
        line.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    }
    run(line.arg(program).args(["subvolume", "create"]).arg(path))
}

#[test]
fn keep_nobody_from_making_subvolumes_elsewhere() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"));
    let volume = Volume::new();
    volume.mount("user_subvol_rm_allowed");
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = volume.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &program).unwrap();
    let at = |name: String| volume.point.join(name);
    for number in 0..2 * DIRECTORIES {
        fs::create_dir(at(format!("{number}"))).unwrap();
        chown(at(format!("{number}")), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::create_dir(at("others".into())).unwrap();
    chown(at("others".into()), Some(NOBODY + 1), Some(NOBODY + 1)).ok();
    fs::create_dir(at("roots".into())).unwrap();

    let memory: Vec<Untouched> = (0..DIRECTORIES).map(|_| Untouched::new()).collect();
    let listings: Vec<_> = (0..).zip(&memory).map(|(number, memory)| memory.list(&at(format!("{number}")))).collect();
    thread::sleep(Duration::from_millis(300));
    // The subvolumes are made, though the kernel does not know them yet.
    let users: Vec<_> = (0..DIRECTORIES)
        .map(|number| {
            let (program, path) = (program.clone(), at(format!("{number}/sub")));
            thread::spawn(move || create(&program, Some(NOBODY), &path))
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    for number in 0..4 {
        create(&program, None, &at(format!("roots/{number}"))).ok();
        assert!(at(format!("roots/{number}")).is_dir());
    }
    assert!(began.elapsed() < Duration::from_secs(15), "root waited for {:?}", began.elapsed());
    let snapshot = ["subvolume", "snapshot"];
    let mut line = Command::new("timeout");
    line.args(["--kill-after=1", "20"]).arg(&program).args(snapshot);
    run(line.args([at("roots/0".into()), at("roots/copy".into())])).ok();
    for user in users {
        user.join().unwrap().ok();
    }
    // The user can also work elsewhere.
    let path = at(format!("{DIRECTORIES}/sub"));
    create(&program, Some(NOBODY), &path).ok();

    drop(memory);
    for listing in listings {
        listing.join().unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !(0..DIRECTORIES).all(|number| at(format!("{number}/sub")).is_dir()) {
        assert!(Instant::now() < deadline, "the kernel never learns of the names");
        thread::sleep(Duration::from_millis(50));
    }
    volume.umount();
    volume.check();
}
