//! Programs that work until their file system dies, and the data that must be there afterwards.
//!
//! A [`Database`] and a [`Repository`] remember what their programs reported as durable;
//! [`mod@bench`] only makes load.

pub mod bench;
mod git;
mod sqlite;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

pub use git::Repository;
pub use sqlite::{Database, JOURNALS, Journal};

/// Programs that run concurrently with the test, each with its children. All are killed when this
/// is dropped.
#[derive(Debug, Default)]
pub struct Programs {
    running: Mutex<Vec<Child>>,
}

impl Programs {
    /// Starts a program, and returns the pipes that `line` requested.
    #[track_caller]
    pub fn start(&self, line: &mut Command) -> Pipes {
        let child = line.process_group(0).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{line:?} could not be started: {error}"));
        let pipes = Pipes { input: child.stdin.take(), output: child.stdout.take() };
        self.lock().push(child);
        pipes
    }

    /// Returns how many have ended by themselves.
    pub fn ended(&self) -> usize {
        // They are not waited for yet: until then no other process can get their numbers.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let has_ended = |child: &&Child| matches!(waitid(WaitId::Pid(number(child)), options), Ok(Some(_)));
        self.lock().iter().filter(has_ended).count()
    }

    /// Kills all of them with their children, and waits for them.
    pub fn end(&self) {
        for mut child in self.lock().drain(..) {
            let _ = kill_process_group(number(&child), Signal::KILL);
            let _ = child.wait();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.end();
    }
}

fn number(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The ends of a program's pipes.
#[derive(Debug)]
pub struct Pipes {
    /// Its standard input.
    pub input: Option<std::process::ChildStdin>,
    /// Its standard output.
    pub output: Option<std::process::ChildStdout>,
}
