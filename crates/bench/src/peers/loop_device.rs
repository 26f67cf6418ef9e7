//! An image file as a block device.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::process::{SOON, run, tool};
use crate::throttle::Limit;

/// A loop device; detached when it is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    limit: Option<Limit>,
}

impl LoopDevice {
    /// Attaches `image`. With `direct`, I/O bypasses the page cache of the file system below.
    /// `throttle` is in bytes per second.
    pub fn attach(image: &Path, direct: bool, throttle: Option<u64>) -> Result<Self> {
        let mut losetup = tool("losetup")?;
        losetup.args(["--find", "--show", if direct { "--direct-io=on" } else { "--direct-io=off" }]);
        let printed = run(losetup.arg(image), SOON)?;
        let mut device = Self { path: PathBuf::from(printed.trim()), limit: None };
        if let Some(bytes) = throttle {
            let yard = image.parent().ok_or_else(|| Failure::new("an image without a directory"))?;
            device.limit = Some(Limit::new(yard, &device.path, bytes)?);
        }
        Ok(device)
    }

    /// Attaches all images.
    pub fn attach_all(images: &[&Path], direct: bool, throttle: Option<u64>) -> Result<Vec<Self>> {
        images.iter().map(|image| Self::attach(image, direct, throttle)).collect()
    }

    /// Returns the path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        drop(self.limit.take());
        // Does not use `process::run`, which refuses once a signal has come.
        let status = tool("losetup").ok().and_then(|mut losetup| losetup.arg("-d").arg(&self.path).status().ok());
        if !status.is_some_and(|status| status.success()) {
            eprintln!("ubtrfs-bench: {} was not detached", self.path.display());
        }
    }
}
