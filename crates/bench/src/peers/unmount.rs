//! Unmounts a directory, however busy it is.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::failure::{Failure, Result};

/// How often an unmount is tried while something (an indexer, a shell) holds the mount.
const ATTEMPTS: u32 = 100;

/// Runs a command that unmounts `directory`, again and again while it is busy. This also works
/// after a signal has come.
pub(super) fn unmount_by(directory: &Path, command: impl Fn() -> Command) -> Result<()> {
    let mut output_text = String::new();
    for _ in 0..ATTEMPTS {
        let output = command().output().map_err(|error| Failure::about("unmount", &error))?;
        if output.status.success() {
            return Ok(());
        }
        String::from_utf8_lossy(&output.stderr).trim().clone_into(&mut output_text);
        if !output_text.contains("busy") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Failure::new(format!("{} could not be unmounted: {output_text}", directory.display())))
}
