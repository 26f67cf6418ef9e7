//! The kernel's file systems, each on a loop device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::conditions::{Conditions, Layout};
use super::loop_device::LoopDevice;
use super::server::ServedFile;
use super::unmount::{error_text, is_busy, run_while_busy, unmount_by};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::process::{self, SOON, run, tool};

/// A kernel's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelType {
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

impl KernelType {
    fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    /// Returns the program, and its options except for those of a profile.
    fn mkfs(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f"]),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f"]),
            // Like the others, ext4 gets all its tables when it is made, and writes none of them
            // while it is measured. There is nothing to discard, since the image has holes already.
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]),
        }
    }

    fn mount_options(self, written: bool) -> String {
        let usual = match self {
            // The kernel takes a loop device for rotating if its file's disk is; the original
            // measurements were on SSDs.
            Self::Btrfs => "ssd,space_cache=v2",
            Self::Xfs | Self::Ext4 => "defaults",
        };
        // btrfs discards by default if the device supports it.
        if written { format!("{usual},nodiscard") } else { usual.into() }
    }
}

/// Returns why the kernel can't mount it.
pub fn missing(of: KernelType) -> Option<String> {
    let name = of.name();
    let known = || {
        let listed = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        listed.split_whitespace().any(|word| word == name)
    };
    if !Path::new("/dev/loop-control").exists() {
        return Some("there are no loop devices (/dev/loop-control)".into());
    }
    if process::find(of.mkfs().0).is_none() {
        return Some(format!("the program {} is missing", of.mkfs().0));
    }
    if !known() {
        let _ = process::run_words(&["modprobe", name]);
    }
    (!known()).then(|| format!("the kernel has no {name}"))
}

/// Makes a volume. Returns how.
pub fn make(of: KernelType, images: &[&Path], layout: Layout) -> Result<String> {
    let (program, options) = of.mkfs();
    let profile = layout.profile.name();
    let profiles = if of == KernelType::Btrfs { &["-m", profile, "-d", profile][..] } else { &[] };
    let options = [options, profiles].concat();
    run(tool(program)?.args(&options).args(images), SOON)?;
    Ok(format!("{program} {}", options.join(" ")))
}

/// A mount by the kernel.
pub struct KernelMount {
    of: KernelType,
    devices: Vec<LoopDevice>,
    // This is dropped after the loop devices.
    _served: Option<ServedFile>,
    took: Duration,
    direct: bool,
    options: String,
    directory: PathBuf,
    mounted: bool,
}

impl KernelMount {
    /// Attaches `images` to loop devices and mounts them; degraded if some of the volume's devices
    /// are missing.
    pub fn new(
        of: KernelType,
        direct: bool,
        conditions: Conditions,
        images: &[&Path],
        directory: &Path,
    ) -> Result<Self> {
        let devices = LoopDevice::attach_all(images, direct, conditions.throttle)?;
        let degraded = images.len() < conditions.layout.devices;
        Self::of_devices(of, direct, (conditions.written, degraded), devices, None, directory)
    }

    /// Mounts an export of a server, through a file of nbdfuse and a loop device. It must not
    /// discard by itself, since ubtrfs doesn't, either.
    pub fn of_export(of: KernelType, direct: bool, uri: &str, directory: &Path) -> Result<Self> {
        let served = ServedFile::new(uri, directory.with_extension("served"))?;
        let device = LoopDevice::attach(&served.path(), direct, None)?;
        Self::of_devices(of, direct, (true, false), vec![device], Some(served), directory)
    }

    fn of_devices(
        of: KernelType,
        direct: bool,
        (written, degraded): (bool, bool),
        devices: Vec<LoopDevice>,
        served: Option<ServedFile>,
        directory: &Path,
    ) -> Result<Self> {
        let [first, more @ ..] = &*devices else { return Err(Failure::new("no device")) };
        let more = more.iter().map(|device| format!(",device={}", device.path().display()));
        let degraded = if degraded { ",degraded" } else { "" };
        let options = of.mount_options(written) + degraded + &more.collect::<String>();
        let mut mount = tool("mount")?;
        mount.args(["-t", of.name(), "-o", &options]).arg(first.path()).arg(directory);
        let start = Instant::now();
        run(&mut mount, SOON).map_err(with_kernel_log)?;
        let took = start.elapsed();
        Ok(Self { of, devices, _served: served, took, direct, options, directory: directory.into(), mounted: true })
    }

    /// Runs a command of btrfs-progs on the mount; a replacement gets this image as its new device.
    pub fn maintain(&mut self, words: &[&str], new: Option<&Path>, throttle: Option<u64>) -> Result<()> {
        let mut command = tool("btrfs")?;
        command.args(words);
        if let Some(image) = new {
            let device = LoopDevice::attach(image, self.direct, throttle)?;
            command.arg(device.path());
            self.devices.push(device);
        }
        run(command.arg(&self.directory), SOON).map(drop)
    }

    /// Returns how long the mount took, without the attachment of devices.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Describes the mount.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let direct = if self.direct { "direct I/O" } else { "buffered" };
        BTreeMap::from([
            ("mount".into(), format!("-o {}", self.options)),
            ("backing".into(), format!("loop device, {direct}")),
        ])
    }

    /// Returns the bytes written to the loop devices since they were attached.
    pub fn device_written(&self) -> Option<u64> {
        self.devices.iter().map(|device| machine::loop_written(device.path())).sum()
    }

    /// Unmounts the volume.
    pub fn unmount(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        let umount = tool("umount")?.get_program().to_owned();
        unmount_by(&self.directory, || {
            let mut command = std::process::Command::new(&umount);
            command.arg(&self.directory);
            command
        })?;
        self.forget_devices()
    }

    /// Has the kernel forget the devices of a volume of several devices. Otherwise it keeps their
    /// names, which loop devices with other images get later: the next mount of the volume may then
    /// fail with `EEXIST`.
    fn forget_devices(&self) -> Result<()> {
        let has_several = self.devices.len() > 1 || self.options.contains("degraded");
        if self.of != KernelType::Btrfs || !has_several {
            return Ok(());
        }
        self.devices.iter().try_for_each(|device| {
            let output = run_while_busy(|| {
                let mut forget = tool("btrfs")?;
                forget.args(["device", "scan", "--forget"]).arg(device.path());
                Ok(forget)
            })?;
            // Any other failure means that the kernel does not know the device any more.
            if output.status.success() || !is_busy(&output) {
                return Ok(());
            }
            let (path, why) = (device.path().display(), error_text(&output));
            Err(Failure::new(format!("{path} is still in use after the unmount: {why}")))
        })
    }
}

/// Adds the last lines of the kernel's log to a failure, if they can be read.
fn with_kernel_log(failure: Failure) -> Failure {
    match (&failure, process::run_words(&["dmesg"])) {
        (Failure::Failed(why), Ok(log)) => Failure::new(format!("{why}; kernel: {}", process::end_of(log.trim()))),
        _ => failure,
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            eprintln!("ubtrfs-bench: {failure}");
        }
    }
}
