//! An image file as a block device.

use std::path::{Path, PathBuf};

use crate::failure::Result;
use crate::process::{SOON, run, tool};

/// A loop device; detached when it is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `image`; `direct`: I/O goes past the page cache of the file system below.
    pub fn attach(image: &Path, direct: bool) -> Result<Self> {
        let mut losetup = tool("losetup")?;
        losetup.args(["--find", "--show", if direct { "--direct-io=on" } else { "--direct-io=off" }]);
        let printed = run(losetup.arg(image), SOON)?;
        Ok(Self { path: PathBuf::from(printed.trim()) })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Not by `process::run`, which refuses once a signal has come.
        let status = tool("losetup").ok().and_then(|mut losetup| losetup.arg("-d").arg(&self.path).status().ok());
        if !status.is_some_and(|status| status.success()) {
            eprintln!("ubtrfs-bench: {} was not detached", self.path.display());
        }
    }
}
