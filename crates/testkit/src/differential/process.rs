//! A process that makes calls, and the pipes to it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use super::call::CallStep;
use super::caller::Caller;

/// How long a run of calls may take before it counts as hanging.
const LIMIT: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// The first argument of a process that lives in a user namespace of its own.
const IN_SPACE: &str = "--in-user-namespace";

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Begin(PathBuf),
    Make(Vec<CallStep>),
    End,
}

/// Runs the process until its input ends. The arguments are the mount points, after `IN_SPACE` if
/// the process has to have a user namespace, to which the parent gives ids before it sends
/// anything.
pub fn serve(arguments: impl Iterator<Item = String>) {
    let mut tops: Vec<String> = arguments.collect();
    if tops.first().is_some_and(|first| first == IN_SPACE) {
        tops.remove(0);
        // SAFETY: this process has one thread, and no files that the change would take from others.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.expect("a user namespace");
        answer(&Vec::new());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a line when the ids are there");
    }
    let mut caller = Caller::new(tops.into_iter().map(PathBuf::from).collect());
    for line in std::io::stdin().lines() {
        let line = line.expect("a request");
        let answers = match serde_json::from_str(&line).expect("a request that can be read") {
            Request::Begin(name) => {
                caller.begin(&name);
                Vec::new()
            }
            Request::Make(steps) => steps.iter().map(|step| caller.make(step)).collect(),
            Request::End => {
                caller.end();
                Vec::new()
            }
        };
        answer(&answers);
    }
}

fn answer(answers: &Vec<String>) {
    let mut text = serde_json::to_string(answers).expect("answers as JSON");
    text.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).expect("answers are read");
}

/// The parent's end of the pipes. The process ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The process hangs, or has died.
#[derive(Debug, Clone)]
pub struct Lost(pub String);

impl Process {
    /// Starts `program`, whose `main` is [`serve`], with these mount points.
    pub fn start(program: &Path, tops: &[PathBuf]) -> Self {
        Self::spawn(Command::new(program).args(tops))
    }

    /// Starts a process in a user namespace with these ids.
    pub fn start_in_space(program: &Path, tops: &[PathBuf], users: &str, groups: &str) -> Self {
        let mut process = Self::spawn(Command::new(program).arg(IN_SPACE).args(tops));
        process.receive().expect("a process in its namespace");
        for (file, ids) in [("uid_map", users), ("gid_map", groups)] {
            std::fs::write(format!("/proc/{}/{file}", process.child.id()), ids).expect("ids of a namespace");
        }
        process.send_line("\n");
        process
    }

    /// Returns the user namespace of the process.
    pub fn user_namespace(&self) -> std::fs::File {
        std::fs::File::open(format!("/proc/{}/ns/user", self.child.id())).expect("a namespace")
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a caller");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// Begins a sequence in the directory of this name.
    pub fn begin(&mut self, name: &Path) -> Result<(), Lost> {
        self.ask(&Request::Begin(name.to_owned())).map(drop)
    }

    /// Makes calls, and returns their answers.
    pub fn make(&mut self, steps: &[CallStep]) -> Result<Vec<String>, Lost> {
        self.ask(&Request::Make(steps.to_vec()))
    }

    /// Ends the sequence.
    pub fn end(&mut self) -> Result<(), Lost> {
        self.ask(&Request::End).map(drop)
    }

    fn ask(&mut self, request: &Request) -> Result<Vec<String>, Lost> {
        let mut text = serde_json::to_string(request).expect("a request as JSON");
        text.push('\n');
        self.send_line(&text);
        self.receive()
    }

    fn send_line(&mut self, text: &str) {
        // If the process does not read any more, it does not answer either, which is noticed then.
        if let Some(input) = &mut self.input {
            let _ = input.write_all(text.as_bytes());
        }
    }

    fn receive(&mut self) -> Result<Vec<String>, Lost> {
        if self.output.buffer().is_empty() {
            let file = self.output.get_ref().as_fd();
            if poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&LIMIT)).unwrap_or(0) == 0 {
                return Err(Lost(format!("the calls do not end within {} s", LIMIT.tv_sec)));
            }
        }
        let mut line = String::new();
        self.output.read_line(&mut line).ok();
        serde_json::from_str(&line).map_err(|_| Lost("the process that makes the calls has died".into()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        // A process that hangs is killed, and ends when its call returns.
        if poll(
            &mut [PollFd::new(&self.output.get_ref().as_fd(), PollFlags::IN)],
            Some(&Timespec { tv_sec: 5, tv_nsec: 0 }),
        )
        .unwrap_or(0)
            == 0
        {
            let _ = self.child.kill();
            return;
        }
        let _ = self.child.wait();
    }
}
