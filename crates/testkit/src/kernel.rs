//! Loop devices and mounts of the kernel's btrfs, as guards.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};

use crate::kmsg::KernelLog;
use crate::run::{Outcome, command, run};
use crate::scratch::scratch_dir;

/// An image file attached to a loop device; detached on drop.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
}

impl LoopDevice {
    /// Attaches `image` to a free loop device.
    pub fn attach(image: &Path, read_only: bool) -> Self {
        Self::attach_with(image, if read_only { &["--read-only"] } else { &[] })
    }

    /// Attaches `image` with options of losetup(8).
    pub fn attach_with(image: &Path, options: &[&str]) -> Self {
        let outcome = run(command("losetup", &["--find", "--show"]).args(options).arg(image)).ok();
        Self { path: PathBuf::from(outcome.stdout.trim()), image: image.to_owned() }
    }

    /// The device node, such as `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's short name, such as `loop3`.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Lets the kernel forget the volume of this device: it remembers the devices of volumes that
    /// have several, and refuses an older state of one of them.
    fn forget(&self) {
        run(command("btrfs", &["device", "scan", "--forget"]).arg(&self.path));
    }

    /// Waits, for a limited time, until the loop device has another image or none. A process that
    /// has it open, such as a scan of /dev, delays that.
    fn wait_until_detached(&self) {
        let backing = format!("/sys/block/{}/loop/backing_file", self.name());
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_ours = || std::fs::read_to_string(&backing).is_ok_and(|image| Path::new(image.trim_end()) == self.image);
        while is_ours() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits, for a limited time, until nothing is mounted from it any more, in any mount
    /// namespace. A namespace that another test has made meanwhile keeps the mounts of that time
    /// for as long as it lasts, though they are unmounted here.
    pub fn wait_until_free(&self) {
        let flags = OFlags::EXCL.bits() as i32;
        let is_held = || {
            let open = File::options().read(true).custom_flags(flags).open(&self.path);
            open.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_held() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let outcome = run(command("losetup", &["-d"]).arg(&self.path));
        if outcome.success() {
            self.wait_until_detached();
        } else {
            eprintln!("{}", outcome.report());
        }
    }
}

/// A lock by which tests take turns: the kernel mounts one volume of an fsid at a time, while tests
/// run in many processes.
#[derive(Debug)]
struct FsidLock {
    path: PathBuf,
    _file: File,
}

impl FsidLock {
    fn take(image: &Path) -> Self {
        let path = std::env::temp_dir().join(format!("ubtrfs-kernel-{}.lock", fsid_of(image)));
        loop {
            let file = File::options().create(true).append(true).mode(0o666).open(&path);
            let file = file.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
            rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("lock a file");
            // The previous holder may have removed the file, so that it locks nothing any more.
            // Then the new file is opened.
            let number = |meta: std::io::Result<std::fs::Metadata>| meta.ok().map(|meta| meta.ino());
            if number(file.metadata()) == number(path.metadata()) {
                return Self { path, _file: file };
            }
        }
    }
}

impl Drop for FsidLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the fsid in the primary superblock of `image`, as 32 hexadecimal digits.
fn fsid_of(image: &Path) -> String {
    const PLACE: u64 = 65536 + 32;
    let mut fsid = [0; 16];
    File::open(image)
        .and_then(|mut file| {
            file.seek(SeekFrom::Start(PLACE))?;
            file.read_exact(&mut fsid)
        })
        .unwrap_or_else(|error| panic!("read the fsid of {}: {error}", image.display()));
    crate::content::hex(&fsid)
}

/// A volume mounted by the kernel's btrfs; unmounted and detached on drop.
///
/// Fields drop in order: `drop` itself unmounts, then the devices are detached, and then the lock
/// is released.
#[derive(Debug)]
pub struct KernelMount {
    dir: tempfile::TempDir,
    mounted: bool,
    /// The volume has several devices.
    has_several: bool,
    devices: Vec<LoopDevice>,
    log: KernelLog,
    _lock: FsidLock,
}

impl KernelMount {
    /// Mounts the volume of `images` (its devices, in any order) with `options` as `mount -o` takes
    /// them (may be empty). Waits while another test has a volume of the same fsid mounted. Returns
    /// the output of `mount` if it fails.
    pub fn try_new(images: &[&Path], options: &str) -> Result<Self, Outcome> {
        let first = images.first().expect("an image to mount");
        let lock = FsidLock::take(first);
        let read_only = options.split(',').any(|word| word == "ro");
        let devices: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, read_only)).collect();
        // Messages from before may be about another test that had these loop devices.
        let log = KernelLog::watch();
        let has_several = images.len() > 1 || options.split(',').any(|word| word == "degraded");
        let mut mount = Self { dir: scratch_dir(), mounted: false, has_several, devices, log, _lock: lock };
        let mut words: Vec<String> =
            mount.devices[1..].iter().map(|device| format!("device={}", device.path().display())).collect();
        words.extend((!options.is_empty()).then(|| options.to_owned()));
        let mut line = command("mount", &["-t", "btrfs"]);
        if !words.is_empty() {
            line.arg("-o").arg(words.join(","));
        }
        let outcome = run(line.arg(mount.devices[0].path()).arg(mount.dir.path()));
        if !outcome.success() {
            return Err(outcome);
        }
        mount.mounted = true;
        Ok(mount)
    }

    /// Like [`Self::try_new`], but a refusal fails the test.
    #[track_caller]
    pub fn new(images: &[&Path], options: &str) -> Self {
        Self::try_new(images, options).unwrap_or_else(|outcome| panic!("{}", outcome.report()))
    }

    /// The directory where the volume is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The kernel's complaints (above level "info") about this volume since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        let names: Vec<String> = self.devices.iter().map(LoopDevice::name).collect();
        self.log.complaints(&names)
    }

    /// Unmounts, and returns the kernel's complaints.
    #[track_caller]
    pub fn unmount(mut self) -> Vec<String> {
        self.release().unwrap_or_else(|outcome| panic!("{}", outcome.report()));
        self.complaints()
    }

    fn release(&mut self) -> Result<(), Outcome> {
        if !self.mounted {
            return Ok(());
        }
        // A program that reads new mounts (an indexer, udev) may use it for a short time.
        let mut tries = 100;
        loop {
            let outcome = run(command("umount", &["--"]).arg(self.dir.path()));
            if outcome.success() {
                self.mounted = false;
                self.devices.iter().for_each(LoopDevice::wait_until_free);
                if self.has_several {
                    self.devices.iter().for_each(LoopDevice::forget);
                }
                return Ok(());
            }
            tries -= 1;
            if tries == 0 {
                return Err(outcome);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(outcome) = self.release() {
            eprintln!("{}", outcome.report());
            run(command("umount", &["-l"]).arg(self.dir.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::Need;
    use crate::progs::mkfs_btrfs;
    use crate::scratch::mount_points;

    fn attached_to(image: &Path) -> String {
        run(command("losetup", &["-j"]).arg(image)).ok().stdout
    }

    #[test]
    fn nothing_stays_mounted_after_a_panic() {
        crate::require!(Need::Kernel);
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, 128 << 20, &[]);
        let result = std::panic::catch_unwind(|| {
            let mount = KernelMount::new(&[&image], "");
            assert!(mount_points().iter().any(|point| point == mount.path()));
            assert!(!attached_to(&image).is_empty());
            std::panic::panic_any(mount.path().to_owned());
        });
        let was_at = *result.expect_err("the panic").downcast::<PathBuf>().expect("the mount point");
        assert!(!mount_points().contains(&was_at));
        assert_eq!(attached_to(&image), "");
    }

    #[test]
    fn one_fsid_is_mounted_at_a_time() {
        crate::require!(Need::Kernel);
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, 128 << 20, &[]);
        let held = std::sync::atomic::AtomicUsize::new(0);
        let mount = || {
            use std::sync::atomic::Ordering::SeqCst;
            let lock = FsidLock::take(&image);
            assert_eq!(held.fetch_add(1, SeqCst), 0, "two at a time");
            std::thread::sleep(Duration::from_millis(2));
            held.fetch_sub(1, SeqCst);
            drop(lock);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| mount()));
            }
        });
    }

    #[test]
    fn a_refusal_and_its_reason_are_returned() {
        crate::require!(Need::Kernel);
        let dir = scratch_dir();
        let image = dir.path().join("image");
        crate::progs::blank_image(&image, 128 << 20);
        assert!(KernelMount::try_new(&[&image], "").is_err());
        assert_eq!(attached_to(&image), "");
    }
}
