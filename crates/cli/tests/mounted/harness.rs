//! A volume mounted by the command.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::run::{Outcome, run};
use ubtrfs_testkit::scratch::{mount_points, scratch_dir};
use ubtrfs_testkit::threads_of::threads_of;

/// Whether requests arrive over rings in this run of the tests.
pub const OVER_RINGS: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"mounted_ring");

/// How requests arrive: over both in turn where it is a mount that is tested, and over what is
/// faster where it is a table of rules with many thousands of requests.
pub const TRANSPORT: &str = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"mounted_ring" => "transport=ring",
    b"posix" => "transport=auto",
    _ => "transport=dev",
};

/// What mounting needs in this run of the tests.
pub const FUSE: Need = if OVER_RINGS { Need::FuseRing } else { Need::Fuse };

/// Runs `ubtrfs` to its end.
pub fn ubtrfs<S: AsRef<OsStr>>(arguments: &[S]) -> Outcome {
    run(Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(arguments))
}

/// A run that failed with one sentence that has `words` in it.
#[track_caller]
pub fn fails(outcome: &Outcome, words: &str) {
    assert_eq!(outcome.code(), Some(1), "{}", outcome.report());
    assert!(outcome.stderr.lines().count() == 1 && outcome.stderr.contains(words), "{}", outcome.report());
}

/// Two tours brought the same to light.
#[track_caller]
pub fn assert_same(ours: &[String], theirs: &[String]) {
    let differences: Vec<_> = ours.iter().zip(theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differences.is_empty(), "ours and theirs: {differences:#?}");
    assert_eq!(ours.len(), theirs.len());
}

/// What aborts a FUSE connection. The file is opened while the connection is there: once it has
/// ended, a write aborts nothing, though the connection of another mount may have its number.
pub struct Abort(File);

impl Abort {
    pub fn of(volume: &Volume) -> Self {
        let device = std::fs::metadata(&volume.point).unwrap().dev();
        Self::of_connection(&(rustix::fs::major(device) << 20 | rustix::fs::minor(device)).to_string())
    }

    pub fn of_connection(number: &str) -> Self {
        let path = format!("/sys/fs/fuse/connections/{number}/abort");
        Self(OpenOptions::new().write(true).open(path).unwrap())
    }

    pub fn abort(&self) {
        let _ = (&self.0).write_all(b"1");
    }
}

/// A file of the volume on a device, read without a mount.
#[track_caller]
pub fn cat(device: &Path, path: &str) -> String {
    ubtrfs(&["cat".as_ref(), device.as_os_str(), path.as_ref()]).ok().stdout
}

/// An image and a mount point; whatever is still mounted there at the end is unmounted.
pub struct Volume {
    pub dir: TempDir,
    pub image: PathBuf,
    pub point: PathBuf,
}

impl Volume {
    /// What a tour brought to light is what it brings to light in a new volume that the kernel has
    /// mounted.
    #[track_caller]
    pub fn assert_kernels_tour_is_the_same(&self, ours: &[String], tour: fn(&Path) -> Vec<String>) {
        assert_same(ours, &self.tour_of_kernels("", |_| (), tour));
    }

    /// What a tour brings to light in a volume that the kernel has mounted: a new one, on which
    /// `prepare` has worked as on [`image`](Self::image). Its image is called `kernels`.
    pub fn tour_of_kernels<T>(&self, options: &str, prepare: fn(&Path), tour: impl FnOnce(&Path) -> T) -> T {
        let other = self.dir.path().join("kernels");
        mkfs_btrfs(&other, 256 << 20, &[]);
        prepare(&other);
        let kernel = KernelMount::new(&[&other], options);
        tour(kernel.path())
    }

    /// A new volume.
    pub fn new() -> Self {
        Self::of_size("256M")
    }

    /// A new volume of this size, as `mkfs` reads it.
    pub fn of_size(size: &str) -> Self {
        let volume = Self::without_image();
        ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), size.as_ref(), volume.image.as_os_str()]).ok();
        volume
    }

    /// The place for one.
    pub fn without_image() -> Self {
        let dir = scratch_dir();
        let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::create_dir(&point).unwrap();
        Self { dir, image, point }
    }

    /// Mounts with these options (may be empty).
    pub fn try_mount(&self, options: &str) -> Outcome {
        self.try_mount_device(&self.image, options)
    }

    pub fn try_mount_device(&self, device: &Path, options: &str) -> Outcome {
        let mut arguments: Vec<&OsStr> = vec!["mount".as_ref(), "-o".as_ref(), TRANSPORT.as_ref()];
        if !options.is_empty() {
            arguments.extend(["-o".as_ref(), options.as_ref()] as [&OsStr; 2]);
        }
        arguments.extend([device.as_os_str(), self.point.as_os_str()]);
        ubtrfs(&arguments)
    }

    #[track_caller]
    pub fn mount(&self, options: &str) {
        self.try_mount(options).ok();
        assert!(self.is_mounted());
    }

    pub fn is_mounted(&self) -> bool {
        mount_points().contains(&self.point)
    }

    /// Unmounts; transient users of the mount get time to leave.
    pub fn try_umount(&self) -> Outcome {
        let unmount = || ubtrfs(&["umount".as_ref(), self.point.as_os_str()]);
        let mut outcome = unmount();
        for _ in 0..20 {
            if !outcome.stderr.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            outcome = unmount();
        }
        outcome
    }

    #[track_caller]
    pub fn umount(&self) {
        self.try_umount().ok();
        assert!(!self.is_mounted());
    }

    /// What the server says of itself.
    pub fn stats(&self) -> Value {
        let outcome = ubtrfs(&["stats".as_ref(), "--json".as_ref(), self.point.as_os_str()]).ok();
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    /// The server's process.
    pub fn server(&self) -> Server {
        Server(i32::try_from(self.stats()["pid"].as_u64().unwrap()).unwrap())
    }

    #[track_caller]
    pub fn check(&self) {
        ubtrfs(&["check".as_ref(), self.image.as_os_str()]).ok();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.is_mounted() {
            run(Command::new("umount").arg("-l").arg(&self.point));
        }
    }
}

/// The server's process.
pub struct Server(pub i32);

impl Server {
    pub fn signal(&self, signal: &str) {
        run(Command::new("kill").arg(format!("-{signal}")).arg(self.0.to_string())).ok();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&self) {
        let limit = Instant::now() + Duration::from_secs(60);
        // One whose status was not collected has ended, too.
        let is_alive = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
            status.is_ok_and(|status| !status.contains("\nState:\tZ") && !status.contains("\nState:\tX"))
        };
        while is_alive() {
            assert!(Instant::now() < limit, "the server does not end:\n{}", threads_of(self.0.cast_unsigned()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
