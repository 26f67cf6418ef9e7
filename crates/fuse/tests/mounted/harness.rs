//! Mounts a [`MemFs`] for a test, and unmounts it however the test ends.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ubtrfs_fuse::mount::{Mount, MountError, MountOptions, Unmount};
use ubtrfs_fuse::{Config, Session, SessionError, Transport, Way};

use crate::memfs::{Behaviour, MemFs};

/// How requests arrive in this run of the tests.
pub const TRANSPORT: Transport =
    if matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"mounted_ring") { Transport::Ring } else { Transport::Device };

/// The kernel's switch for rings.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns whether FUSE can be tested here, as root or by `fusermount3`. If not, says that `test`
/// is skipped, or fails if skipping is forbidden.
pub fn possible(test: &str) -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    gate(test, device && (is_root() || has_fusermount()) && has_transport(), "/dev/fuse, and root or fusermount3")
}

/// Returns whether what only root can do with FUSE can be tested here.
pub fn possible_as_root(test: &str) -> bool {
    gate(test, Path::new("/dev/fuse").exists() && is_root() && has_transport(), "/dev/fuse and root")
}

/// Returns whether requests can arrive over this transport. Enables rings, and leaves them enabled,
/// since mounts without rings ask not to have them.
fn has_transport() -> bool {
    let is_on = || std::fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y");
    TRANSPORT == Transport::Device || is_on() || std::fs::write(SWITCH, "Y").is_ok() && is_on()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_fusermount() -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join("fusermount3").exists())
}

fn gate(test: &str, possible: bool, needs: &str) -> bool {
    let forced = std::env::var_os("UBTRFS_TEST_KERNEL").is_some_and(|value| value == "1");
    let rings = if TRANSPORT == Transport::Ring { ", and FUSE over io_uring" } else { "" };
    assert!(possible || !forced, "{test}: needs {needs}{rings}");
    if !possible {
        eprintln!("skipped {test}: needs {needs}{rings}");
    }
    possible
}

pub struct Mounted {
    pub session: Arc<Session<MemFs>>,
    pub mount: Mount,
    pub dir: tempfile::TempDir,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Mounted {
    pub fn new(behaviour: Behaviour, options: &MountOptions, config: &Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mount, device) = Mount::new(dir.path(), options).unwrap();
        let config = Config { transport: TRANSPORT, ..config.clone() };
        let session = Arc::new(Session::establish(device, MemFs::new(behaviour), &config).unwrap());
        assert_eq!(matches!(session.way(), Way::Rings { .. }), TRANSPORT == Transport::Ring);
        let thread = {
            let session = Arc::clone(&session);
            std::thread::spawn(move || session.run().inspect_err(|error| eprintln!("the session failed: {error:?}")))
        };
        Self { session, mount, dir, thread: Some(thread) }
    }

    pub fn plain() -> Self {
        let config = Config { wanted: Config::FULL, threads: 4, ..Config::default() };
        Self::new(Behaviour::default(), &MountOptions::default(), &config)
    }

    pub fn fs(&self) -> &MemFs {
        self.session.filesystem()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits until the session has ended, which an unmount causes.
    pub fn ended(&mut self) -> Result<(), SessionError> {
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mount.is_mounted() {
            self.mount.unmount(Unmount::Lazy).unwrap();
        }
        let _ = self.ended();
    }
}

/// Unmounts the mount of this test, waiting while it is busy: processes that other tests of this
/// program start have its files open, too, until they execute a program of their own.
pub fn unmount_now(mount: &Mount) {
    let begun = Instant::now();
    loop {
        match mount.unmount(Unmount::Now) {
            Err(MountError::Unmount(_, error))
                if error.kind() == std::io::ErrorKind::ResourceBusy && begun.elapsed() < Duration::from_secs(10) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            unmounted => return unmounted.unwrap(),
        }
    }
}
