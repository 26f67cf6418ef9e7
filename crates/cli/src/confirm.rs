//! Asks the user before something is changed that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

use crate::args::Window;
use crate::failure::{Failure, Result};

/// The most bytes of an answer that are read.
const MAX_ANSWER: u64 = 4096;

/// Asks for confirmation. Fails unless the answer is yes. Without a terminal it fails with an error
/// that gives the `command` which does the same without a question, for this part of the devices.
pub fn confirm(question: &str, command: &str, paths: &[PathBuf], window: Window) -> Result<()> {
    // Somebody who does not see the question can't answer it.
    let is_asked = || {
        let mut out = io::stdout();
        io::stdin().is_terminal() && write!(out, "{question} [y/N] ").and_then(|()| out.flush()).is_ok()
    };
    if !is_asked() {
        let devices: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let (devices, window) = (devices.join(" "), window.as_options());
        return Err(Failure::new(format!(
            "nobody is there to ask, and nothing was changed: '{command}{window} {devices}' does it"
        )));
    }
    let mut answer = String::new();
    let read = io::stdin().lock().take(MAX_ANSWER).read_line(&mut answer);
    read.map_err(|error| Failure::about("standard input", &error))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::new("nothing was changed")) }
}
