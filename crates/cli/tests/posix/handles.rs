//! Tests of file handles, as an NFS server uses them: they refer to their inode whatever its name
//! is, even if it is not in memory, and are stale once it is deleted.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume};
use crate::run::{Outcomes, compare, short};

/// `struct file_handle`, with room for the handle.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    data: [u8; 128],
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()
}

fn handle_of(path: &Path) -> Result<Handle, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount = 0;
    // SAFETY: `handle` has the room that its length says, and all pointers outlive the call.
    let result =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0) };
    if result == 0 { Ok(handle) } else { Err(last_error()) }
}

fn open_handle(mount: &File, handle: &Handle) -> Result<File, Errno> {
    let mut handle = handle.clone();
    // SAFETY: `handle` is as the kernel filled it in, and outlives the call; the descriptor is a
    // new one.
    unsafe {
        let result = libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY);
        if result < 0 { Err(last_error()) } else { Ok(OwnedFd::from_raw_fd(result).into()) }
    }
}

/// Returns how many inodes our server has in memory.
fn inodes_in_memory(root: &Path) -> Option<u64> {
    let mut stats = vec![0; 1 << 16];
    let length = rustix::fs::getxattr(root, "ubtrfs.stats", &mut stats[..]).ok()?;
    serde_json::from_slice::<serde_json::Value>(&stats[..length]).unwrap()["inodes_in_memory"].as_u64()
}

/// Makes the kernel drop unused inodes.
fn drop_caches(root: &Path) {
    const PAUSE: Duration = Duration::from_millis(100);
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    // The FORGETs arrive a little later, and until then the inodes are in use.
    let mut before = inodes_in_memory(root);
    for _ in 0..100 {
        std::thread::sleep(PAUSE);
        let now = inodes_in_memory(root);
        if now == before {
            break;
        }
        before = now;
    }
}

fn content(mount: &File, handle: &Handle) -> String {
    short(open_handle(mount, handle).map(|mut file| {
        let mut content = String::new();
        let read = file.read_to_string(&mut content).map_err(|error| error.raw_os_error());
        format!("{content} {read:?} {}", file.metadata().unwrap().nlink())
    }))
}

fn table(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut record = |name: &str, reported: String| assert_eq!(outcomes.insert(name.into(), reported), None, "{name}");
    let at = |name: &str| root.join(name);
    let mount = File::open(root).unwrap();
    fs::create_dir_all(at("a/b")).unwrap();
    for name in ["file", "renamed", "removed", "held", "a/b/deep", "linked"] {
        fs::write(at(name), name).unwrap();
    }
    fs::create_dir(at("gone")).unwrap();
    fs::hard_link(at("linked"), at("a/second")).unwrap();
    let handle = |name: &str| handle_of(&at(name)).unwrap();
    let [file, renamed, removed, held, deep, linked] =
        ["file", "renamed", "removed", "held", "a/b/deep", "linked"].map(handle);
    let (dir, gone, top) = (handle("a/b"), handle("gone"), handle("."));
    for round in ["at once", "later"] {
        if round == "later" {
            drop_caches(root);
        }
        record(&format!("a file {round}"), content(&mount, &file));
        record(&format!("a deep file {round}"), content(&mount, &deep));
        record(&format!("a file with two names {round}"), content(&mount, &linked));
        record(
            &format!("the root {round}"),
            short(open_handle(&mount, &top).map(|top| top.metadata().unwrap().is_dir())),
        );
        let opened = open_handle(&mount, &dir).unwrap();
        let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
        record(&format!("a directory {round}"), format!("{:?}", path.strip_prefix(root)));
        let up = rustix::fs::openat(&opened, "../second", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        record(&format!("up from a directory {round}"), short(up.map(drop)));
    }
    fs::rename(at("renamed"), at("a/other")).unwrap();
    fs::rename(at("a/b"), at("moved")).unwrap();
    fs::remove_file(at("linked")).unwrap();
    let holder = File::open(at("held")).unwrap();
    for name in ["removed", "held"] {
        fs::remove_file(at(name)).unwrap();
    }
    fs::remove_dir(at("gone")).unwrap();
    for round in ["at once", "later"] {
        if round == "later" {
            drop_caches(root);
        }
        record(&format!("a renamed file {round}"), content(&mount, &renamed));
        record(&format!("in a moved directory {round}"), content(&mount, &deep));
        record(&format!("with one name less {round}"), content(&mount, &linked));
        record(&format!("a removed file {round}"), content(&mount, &removed));
        record(&format!("a removed file in use {round}"), content(&mount, &held));
        record(&format!("a removed directory {round}"), short(open_handle(&mount, &gone).map(drop)));
    }
    drop(holder);
    drop_caches(root);
    record("a removed file after its use", content(&mount, &held));
    let mut nonsense = file.clone();
    nonsense.data[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    record("a handle of nothing", content(&mount, &nonsense));
    outcomes
}

#[test]
fn handles_lead_where_the_kernels_do() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), table, &[]);
}

#[test]
fn handles_outlive_a_mount_but_not_their_inode() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let at = |name: &str| volume.point.join(name);
    fs::write(at("stays"), "stays").unwrap();
    fs::write(at("goes"), "goes").unwrap();
    let number = fs::metadata(at("goes")).unwrap().ino();
    let (stays, goes) = (handle_of(&at("stays")).unwrap(), handle_of(&at("goes")).unwrap());
    volume.umount();
    volume.mount("");
    let mount = File::open(&volume.point).unwrap();
    assert_eq!(content(&mount, &goes), "\"goes Ok(4) 1\"");
    fs::remove_file(at("goes")).unwrap();
    drop(mount);
    volume.umount();
    volume.mount("");
    fs::write(at("new"), "new").unwrap();
    assert_eq!(
        fs::metadata(at("new")).unwrap().ino(),
        number,
        "the number is given again: else this test shows nothing"
    );
    let mount = File::open(&volume.point).unwrap();
    assert_eq!(content(&mount, &stays), "\"stays Ok(5) 1\"");
    assert_eq!(content(&mount, &goes), format!("error {}", libc::ESTALE));
    drop_caches(&volume.point);
    assert_eq!(content(&mount, &goes), format!("error {}", libc::ESTALE));
    drop(mount);
    volume.umount();
    volume.check();
}
