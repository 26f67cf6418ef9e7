//! Unmounts a directory, however busy it is.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::failure::{Failure, Result};

/// How often an unmount is tried while something (an indexer, a shell) holds the mount.
const ATTEMPTS: u32 = 100;

/// The pause between two attempts.
const MOMENT: Duration = Duration::from_millis(50);

/// Runs a command that unmounts `directory`, again and again while it is busy. This also works
/// after a signal has come.
pub(super) fn unmount_by(directory: &Path, command: impl Fn() -> Command) -> Result<()> {
    let output = run_while_busy(|| Ok(command()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("{} could not be unmounted: {}", directory.display(), error_text(&output))))
}

/// Runs a command again and again while it fails because something is busy. Returns the output of
/// its last run.
pub(super) fn run_while_busy(command: impl Fn() -> Result<Command>) -> Result<Output> {
    let run = || command()?.output().map_err(|error| Failure::about("a command of the bench", &error));
    let mut output = run()?;
    for _ in 1..ATTEMPTS {
        if output.status.success() || !is_busy(&output) {
            break;
        }
        std::thread::sleep(MOMENT);
        output = run()?;
    }
    Ok(output)
}

/// Returns whether a command says that something is busy.
pub(super) fn is_busy(output: &Output) -> bool {
    error_text(output).contains("busy")
}

/// Returns what a command has written to its standard error.
pub(super) fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
