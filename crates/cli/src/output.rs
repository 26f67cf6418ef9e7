//! The output of commands. Writing to it decides neither what a command does nor whether it
//! succeeds: once something could not be written, all further output is dropped, and the command
//! goes on. What is lost because the reader has closed the output (`EPIPE`) is no failure; any
//! other error makes the program fail at its end, by [`end()`].

use std::io::{self, StdoutLock, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::failure::{Failure, Result};
use crate::passed_over;
use crate::show::harmless;

/// Why nothing more is written.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// The standard output, to which writing never fails. Other threads wait while this exists.
pub struct Output(StdoutLock<'static>);

impl Output {
    pub fn new() -> Self {
        Self(io::stdout().lock())
    }

    fn attempt(&mut self, write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>) {
        if !is_lost()
            && let Err(error) = write(&mut self.0)
        {
            // Only the first error counts.
            let _ = LOST.set(error);
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|out| out.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(Write::flush);
        Ok(())
    }
}

/// Prints a line to the standard error stream as `eprintln!`, which panics if nobody reads that any
/// more; the command goes on without it.
macro_rules! note {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use note;

/// Whether further output is dropped. Commands that do nothing but show something may end early
/// then.
pub fn is_lost() -> bool {
    LOST.get().is_some()
}

/// Prints whole lines to the standard output. The last line may lack its line break.
pub fn say(text: &str) {
    let line_break = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Output::new().attempt(|out| {
        out.write_all(text.as_bytes())?;
        out.write_all(line_break.as_bytes())
    });
}

/// Prints one line with names in it: characters that control a terminal are escaped.
pub fn say_line(line: &str) {
    say(&harmless(line));
}

/// Ends the program: prints why it failed, and returns the exit status. If output could not be
/// written, that is at least `unwritten`.
pub fn end(done: Result<()>, unwritten: u8) -> ExitCode {
    end_as("ubtrfs", done, unwritten)
}

/// Ends the program as [`end()`]; sentences come after `begin`.
pub fn end_as(begin: &str, done: Result<()>, unwritten: u8) -> ExitCode {
    let written = finish().map_err(|failure| failure.with_status(unwritten));
    let (done, unread) = with_what_was_passed_over(done, unwritten);
    let status = |done: Result<()>| done.map_or_else(|failure| failure.report_as(begin), |()| 0);
    status(done).max(status(unread)).max(status(written)).into()
}

/// Returns the result of a command, and the failure about what it has skipped because it can't be
/// read. A failure of the command may be a consequence of that, so it says so itself.
fn with_what_was_passed_over(done: Result<()>, status: u8) -> (Result<()>, Result<()>) {
    let unread = passed_over::sentences();
    let Some((first, others)) = unread.split_first() else { return (done, Ok(())) };
    match done {
        Err(failure @ Failure::Sentence(..)) => {
            let more = if others.is_empty() { String::new() } else { format!(", and {} more", others.len()) };
            let adds = |sentence| format!("{sentence}; some of the volume can't be read ({first}{more})");
            (Err(failure.map_sentence(adds)), Ok(()))
        }
        done => {
            let said: Vec<_> = unread.iter().map(|what| format!("unreadable: {what}")).collect();
            (done, Err(Failure::new(said.join("\nubtrfs: ")).with_status(status)))
        }
    }
}

/// Writes the rest of the output. Returns a failure if some of it could not be written, for another
/// reason than that its reader has closed it.
fn finish() -> Result<()> {
    Output::new().attempt(Write::flush);
    match LOST.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::output(error)),
        _ => Ok(()),
    }
}
