//! Runs programs, with their output captured, their time limited, and failures reported in full.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The limit of a program's time, unless another one is given.
pub const USUAL_LIMIT: Duration = Duration::from_secs(300);

/// The outcome of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub line: String,
    /// Its exit status; `None` when it could not be started or did not end in time.
    pub status: Option<ExitStatus>,
    /// Standard output, bytes that are not UTF-8 replaced.
    pub stdout: String,
    /// Standard error, or why the program could not be started or was ended.
    pub stderr: String,
}

impl Outcome {
    /// True when the program ended with status 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// The exit code, if the program ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|s| s.code())
    }

    /// A full description of the run.
    pub fn report(&self) -> String {
        let ended = self.status.map_or_else(|| "no exit status".to_owned(), |s| s.to_string());
        format!("`{}`: {ended}\n--- stdout\n{}\n--- stderr\n{}", self.line, self.stdout, self.stderr)
    }

    /// Returns the outcome itself if it is a success. Otherwise fails the test with the report.
    #[track_caller]
    #[expect(clippy::return_self_not_must_use, reason = "often only the success counts")]
    pub fn ok(self) -> Self {
        assert!(self.success(), "{}", self.report());
        self
    }
}

/// Makes a command from words.
pub fn command<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs `command` to its end, with no input, for at most [`USUAL_LIMIT`].
pub fn run(command: &mut Command) -> Outcome {
    run_within(command, USUAL_LIMIT)
}

/// Runs `command` to its end, with no input. A program that takes longer than `limit` is killed and
/// has no status.
///
/// Output goes to files, not pipes, so that a daemon which keeps its parent's standard output open
/// blocks no reader.
pub fn run_within(command: &mut Command, limit: Duration) -> Outcome {
    let line = format!("{command:?}");
    let (mut out, mut err) = (capture_file(), capture_file());
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("duplicate a descriptor"))
        .stderr(err.try_clone().expect("duplicate a descriptor"));
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return Outcome {
                line,
                status: None,
                stdout: String::new(),
                stderr: format!("could not be started: {error}"),
            };
        }
    };
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait().expect("wait for a child") {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                let _ = child.kill();
                // A child in an uninterruptible call would block this thread, too, so it is not
                // waited for.
                break None;
            }
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let mut stderr = text_of(&mut err);
    if status.is_none() {
        let _ = write!(stderr, "\nended after {limit:?}");
    }
    Outcome { line, status, stdout: text_of(&mut out), stderr }
}

fn capture_file() -> File {
    tempfile::tempfile().expect("a temporary file for a program's output")
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("read back a program's output");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Compiles a program in C in `dir` under this name.
#[track_caller]
pub fn compile(dir: &Path, name: &str, source: &str) -> PathBuf {
    let program = dir.join(name);
    let text = program.with_extension("c");
    std::fs::write(&text, source).expect("the source");
    run(command("cc", &["-w", "-o"]).arg(&program).arg(&text)).ok();
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_are_kept() {
        let outcome = run(&mut command("sh", &["-c", "echo out; echo err >&2; exit 3"]));
        assert_eq!(outcome.code(), Some(3));
        assert_eq!(outcome.stdout, "out\n");
        assert_eq!(outcome.stderr, "err\n");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let outcome = run_within(&mut command("sleep", &["60"]), Duration::from_millis(50));
        assert!(outcome.status.is_none() && !outcome.success());
    }

    #[test]
    fn a_missing_program_is_reported() {
        let outcome = run(&mut command::<&str>("no-such-program-here", &[]));
        assert!(outcome.stderr.contains("could not be started"));
    }
}
