//! Reports of a command that handles many files: on a terminal while it runs, and at the end with
//! `--json`.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use ubtrfs_image::{Counts, Job};

use crate::failure::{Failure, Result};
use crate::json;
use crate::output::note;
use crate::show;
use crate::size::show_size;

/// How often the display changes.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs a long operation in a thread of its own, and calls `look` repeatedly meanwhile.
pub fn meanwhile<T: Send>(run: impl FnOnce() -> T + Send, look: impl Fn()) -> T {
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        while !running.is_finished() {
            look();
            std::thread::sleep(INTERVAL);
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A line that shows the progress, if there is a terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
    shown: Cell<Option<Instant>>,
}

impl Progress {
    pub fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(INTERVAL);
            bar
        });
        Self { bar, shown: Cell::default() }
    }

    /// Shows these counts.
    pub fn show(&self, counts: &Counts) {
        self.say_sometimes(|| format!("{} files, {}", counts.files, show_size(counts.bytes)));
    }

    /// Shows this text, unless another one was shown a moment ago.
    pub fn say_sometimes(&self, what: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar
            && self.shown.get().is_none_or(|shown| shown.elapsed() >= INTERVAL)
        {
            self.shown.set(Some(Instant::now()));
            bar.set_message(what());
        }
    }

    /// Shows this text.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Returns a job that shows its progress.
    pub fn job(&self) -> Job<'_> {
        Job::new(Box::new(|counts| {
            self.show(counts);
            Ok(())
        }))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What has been done, for `--json`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Done {
    files: u64,
    directories: u64,
    bytes: u64,
    shared_bytes: u64,
}

impl From<Counts> for Done {
    fn from(Counts { files, directories, bytes, shared }: Counts) -> Self {
        Self { files, directories, bytes, shared_bytes: shared }
    }
}

/// Prints the counts, if `json` is set.
pub fn print(counts: Counts, json: bool) -> Result<()> {
    if json { json::print(&Done::from(counts)) } else { Ok(()) }
}

/// Reports the files that have shrunk while they were copied. Returns a failure if there are any.
pub fn say_shrunk(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        note!("ubtrfs: {}: its source has shrunk while it was copied", show::bytes(path.as_os_str().as_bytes()));
    }
    if paths.is_empty() { Ok(()) } else { Err(Failure::Said(1)) }
}
