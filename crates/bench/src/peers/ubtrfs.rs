//! ubtrfs, as its command mounts it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::conditions::Conditions;
use super::loop_device::LoopDevice;
use super::unmount::unmount_by;
use crate::failure::{Failure, Result};
use crate::process::{SOON, run};

/// Returns the command: `UBTRFS_BIN`, or the one beside this program.
pub fn binary() -> Option<PathBuf> {
    ubtrfs_testkit::need::ubtrfs_binary()
}

/// A mount by `ubtrfs mount`.
pub struct UbtrfsMount {
    binary: PathBuf,
    directory: PathBuf,
    devices: Vec<LoopDevice>,
    mounted: bool,
    report: Value,
    options: Vec<&'static str>,
    took: Duration,
}

impl UbtrfsMount {
    /// Mounts `images` (or a URI), or loop devices of them, with these mount options; degraded if
    /// some of the volume's devices are missing.
    pub fn new(
        option: Option<&'static str>,
        on_loop: bool,
        conditions: Conditions,
        images: &[&Path],
        directory: &Path,
    ) -> Result<Self> {
        let binary = binary().ok_or_else(|| Failure::Impossible("the ubtrfs binary is missing".into()))?;
        let devices = if on_loop { LoopDevice::attach_all(images, true, conditions.throttle)? } else { Vec::new() };
        let degraded = images.len() < conditions.layout.devices;
        let options = option.into_iter().chain(conditions.written.then_some("nodiscard"));
        let options: Vec<&str> = options.chain(degraded.then_some("degraded")).collect();
        let mut mount = Command::new(&binary);
        mount.arg("mount");
        if !options.is_empty() {
            mount.args(["-o", &options.join(",")]);
        }
        let paths = if on_loop { devices.iter().map(LoopDevice::path).collect() } else { images.to_vec() };
        mount.args(paths).arg(directory);
        let start = Instant::now();
        run(&mut mount, SOON).map_err(|failure| unavailable(option, failure))?;
        let took = start.elapsed();
        let mut mount =
            Self { binary, directory: directory.into(), devices, mounted: true, report: Value::Null, options, took };
        mount.report = mount.report()?;
        Ok(mount)
    }

    /// Returns the output of `ubtrfs stats`.
    pub fn report(&self) -> Result<Value> {
        let printed = run(Command::new(&self.binary).args(["stats", "--json"]).arg(&self.directory), SOON)?;
        serde_json::from_str(&printed).map_err(|error| Failure::about("ubtrfs stats", &error))
    }

    /// Runs a command of ubtrfs on the mount; a replacement gets this image as its new device.
    pub fn maintain(&mut self, words: &[&str], new: Option<&Path>, throttle: Option<u64>) -> Result<()> {
        let mut command = Command::new(&self.binary);
        command.args(words);
        if let Some(image) = new.filter(|_| self.devices.is_empty()) {
            command.arg(image);
        } else if let Some(image) = new {
            let device = LoopDevice::attach(image, true, throttle)?;
            command.arg(device.path());
            self.devices.push(device);
        }
        run(command.arg(&self.directory), SOON).map(drop)
    }

    /// Returns whether all devices have everything.
    pub fn is_redundant(&self) -> Result<bool> {
        let printed = run(Command::new(&self.binary).args(["device", "stats", "--json"]).arg(&self.directory), SOON)?;
        let devices: Vec<Value> =
            serde_json::from_str(&printed).map_err(|error| Failure::about("ubtrfs device stats", &error))?;
        Ok(devices.iter().all(|device| device["lags"] == false))
    }

    /// Describes the mount.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let printed = |name: &str| self.report[name].as_str().unwrap_or_default().to_owned();
        let options =
            if self.options.is_empty() { "no options".into() } else { format!("-o {}", self.options.join(",")) };
        let mut facts = BTreeMap::from([
            ("mount".into(), options),
            ("backing".into(), if self.devices.is_empty() { "image file" } else { "loop device, direct I/O" }.into()),
            ("type".into(), printed("mount_type")),
            ("transport".into(), printed("transport")),
            ("threads".into(), self.report["threads"].to_string()),
            ("commit interval (s)".into(), self.report["commit_interval_seconds"].to_string()),
            (
                "permissions".into(),
                if self.options.contains(&"single_user") { "unchecked" } else { "default_permissions" }.into(),
            ),
            ("version".into(), printed("version")),
        ]);
        if !printed("mount_fallback").is_empty() {
            facts.insert("why not fuseblk".into(), printed("mount_fallback"));
        }
        facts
    }

    /// Returns how long the mount took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Returns the server's process.
    pub fn daemon(&self) -> u32 {
        self.report["pid"].as_u64().unwrap_or_default() as u32
    }

    /// Commits by `ubtrfs sync`.
    pub fn sync(&self) -> Result<()> {
        run(Command::new(&self.binary).arg("sync").arg(&self.directory), SOON).map(drop)
    }

    /// Returns the bytes that the server has written to its devices.
    pub fn device_written(&self) -> Option<u64> {
        self.report().ok()?["device_bytes_written"].as_u64()
    }

    /// Unmounts the volume.
    pub fn unmount(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        unmount_by(&self.directory, || {
            let mut command = Command::new(&self.binary);
            command.arg("umount").arg(&self.directory);
            command
        })
    }
}

impl Drop for UbtrfsMount {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            eprintln!("ubtrfs-bench: {failure}");
        }
    }
}

/// Turns the failure of a mount whose transport is not supported into one that says so.
fn unavailable(options: Option<&str>, failure: Failure) -> Failure {
    match (options.and_then(|options| options.strip_prefix("transport=")), failure) {
        (Some(transport), Failure::Failed(why)) if why.contains("transport") || why.contains("enable_uring") => {
            let why = why.rsplit("ubtrfs: ").next().unwrap_or_default();
            Failure::Impossible(format!("the transport {transport} is not to be had: {why}"))
        }
        (_, failure) => failure,
    }
}
