//! Runs programs.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use crate::cleanup;
use crate::failure::{Failure, Result};

/// Lines of a failed program's output that are passed on.
const LINES: usize = 4;
/// The time in which a small program of the system has to end.
pub const SOON: Duration = Duration::from_secs(600);

/// Runs a program to its end and returns its standard output. Fails if the program does, and ends
/// it when `limit` is over or a signal requests the end.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    cleanup::check()?;
    let line = format!("{command:?}");
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::about(&line, &error))?;
    let _watched = cleanup::watch(pid(&child), limit);
    let status = child.wait()?;
    cleanup::check()?;
    let out = text(&mut out)?;
    if status.success() {
        return Ok(out);
    }
    let err = text(&mut err)?;
    let printed = if err.trim().is_empty() { out } else { err };
    Err(Failure::new(format!("{line}: {status}: {}", end_of(printed.trim()))))
}

/// Returns the last lines of a program's output.
pub fn end_of(printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

/// Runs the command of these words to its end.
pub fn run_words(words: &[&str]) -> Result<String> {
    let (program, rest) = words.split_first().ok_or_else(|| Failure::new("no program"))?;
    run(tool(program)?.args(rest), SOON)
}

/// Returns the command of a program that must exist.
pub fn tool(name: &str) -> Result<Command> {
    find(name).map(Command::new).ok_or_else(|| Failure::Impossible(format!("the program {name} is missing")))
}

/// Returns the path of a program.
pub fn find(name: &str) -> Option<PathBuf> {
    ubtrfs_testkit::need::find_tool(name)
}

/// Returns the first line of a program's version.
pub fn version(program: &str, option: &str) -> Option<String> {
    let output = Command::new(find(program)?).arg(option).stdin(Stdio::null()).output().ok()?;
    let printed = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&printed).lines().next().map(|line| line.trim().to_owned())
}

/// Returns a child's process id.
pub fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_returned_and_failures_are_reported() {
        assert_eq!(run_words(&["sh", "-c", "echo out"]).unwrap(), "out\n");
        let failure = run_words(&["sh", "-c", "echo why >&2; exit 3"]).unwrap_err().to_string();
        assert!(failure.contains("why") && failure.contains('3'), "{failure}");
        assert_eq!(
            run_words(&["no-such-program"]),
            Err(Failure::Impossible("the program no-such-program is missing".into()))
        );
    }
}
