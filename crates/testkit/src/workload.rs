//! Seeded random operations in a directory, with a model of what must be there.
//!
//! A seed makes the same sequence of operations whatever the file system answers, and each answer
//! is compared with that of the model. Some operations must fail, and some read existing files.

mod attributes;
mod data;
mod look;
mod names;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::model::{Body, Model, Mtime, Name, Node, NodeId, join};
use ubtrfs_random::Rng;

/// How large a workload may grow.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Names in the tree.
    pub names: usize,
    /// Bytes of file content.
    pub bytes: u64,
    /// Bytes in the target of a symbolic link.
    pub target: u64,
}

impl Limits {
    /// Returns these limits for a volume whose tree nodes have `nodesize` bytes: the target of a
    /// symbolic link is one item, and must leave space for the header of a node and its own.
    #[must_use]
    pub fn in_nodes_of(self, nodesize: u64) -> Self {
        const HEADS: u64 = 150;
        Self { target: self.target.min(nodesize - HEADS), ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            names: 400,
            bytes: 48 << 20,
            // This is one byte less than `PATH_MAX`.
            target: 4095,
        }
    }
}

/// An operation that did not end as expected, and the last ones before it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The error.
    pub what: String,
    /// The last operations, the newest last.
    pub history: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nafter these operations:", self.what)?;
        self.history.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// The result of an operation: a sentence if it did not end as expected.
type Step = Result<(), String>;

/// Random operations on one directory.
#[derive(Debug)]
pub struct Workload {
    dir: PathBuf,
    model: Model,
    rng: Rng,
    limits: Limits,
    root: bool,
    umask: u32,
    /// Files held open; their inodes stay in the model without names.
    open: Vec<(NodeId, File)>,
    history: VecDeque<String>,
    count: u64,
    /// A time before the current operation.
    began: (i64, u32),
    unsupported: BTreeSet<&'static str>,
}

impl Workload {
    /// Makes a workload in `dir`, which is empty.
    pub fn new(dir: &Path, seed: u64) -> Self {
        Self::resume(dir, Model::of_empty(dir), seed)
    }

    /// Makes a workload in `dir`, which has the content of `model`.
    pub fn resume(dir: &Path, model: Model, seed: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            model,
            rng: Rng::new(seed),
            limits: Limits::default(),
            root: rustix::process::geteuid().is_root(),
            umask: umask(),
            open: Vec::new(),
            history: VecDeque::new(),
            count: 0,
            began: now(),
            unsupported: BTreeSet::new(),
        }
    }

    /// Returns the same workload with other limits.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Does `count` operations, and stops at the first that does not end as expected.
    pub fn run(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            self.count += 1;
            // An operation may take long after it has set a time.
            self.began = now();
            self.step().map_err(|what| Failure {
                what: format!("operation {}: {what}", self.count),
                history: self.history.iter().cloned().collect(),
            })?;
        }
        Ok(())
    }

    /// Does `count` operations. One that does not end as expected fails the test.
    #[track_caller]
    pub fn run_or_panic(&mut self, count: usize) {
        if let Err(failure) = self.run(count) {
            panic!("workload in {}: {failure}", self.dir.display());
        }
    }

    /// Returns the model as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the optional operations that the file system refused as unsupported.
    pub fn unsupported(&self) -> &BTreeSet<&'static str> {
        &self.unsupported
    }

    /// Ends the workload: closes open files, and returns the model of the final state.
    pub fn finish(mut self) -> Model {
        while !self.open.is_empty() {
            self.close(0);
        }
        self.model
    }

    fn step(&mut self) -> Step {
        let full = self.model.names().len() > self.limits.names;
        let heavy = self.model.held() > self.limits.bytes;
        match self.rng.below(100) {
            _ if full && self.rng.one_in(2) => self.remove(),
            _ if heavy && self.rng.one_in(2) => self.shrink(),
            0..=8 => self.create(),
            9..=12 => self.mkdir(),
            13..=15 => self.symlink(),
            16..=17 => self.mknod(),
            18..=21 => self.link(),
            22 => self.link_storm(),
            23..=27 => self.remove(),
            28..=35 => self.rename(),
            36..=37 => self.open_and_remove(),
            38..=39 => self.use_open(),
            40 => self.tmpfile(),
            41..=56 => self.write(),
            57..=60 => self.map(),
            61..=65 => self.truncate(),
            66..=69 => self.fallocate(),
            70..=71 => self.chmod(),
            72 => self.chown(),
            73..=74 => self.utimens(),
            75..=76 => self.copy(),
            77..=83 => self.set_xattr(),
            84..=85 => self.remove_xattr(),
            86..=88 => self.look_at_inode(),
            89..=93 => self.look_at_bytes(),
            94..=95 => self.look_at_dir(),
            96..=97 => self.look_for_nothing(),
            _ => self.sync(),
        }
    }

    // Helpers of the operations.

    fn note(&mut self, line: &str) {
        const KEPT: usize = 40;
        self.history.push_back(format!("{} {line}", self.count));
        if self.history.len() > KEPT {
            self.history.pop_front();
        }
    }

    /// Returns the path of `name` in `dir`, and the same for messages.
    fn place(&self, dir: NodeId, name: &[u8]) -> (PathBuf, String) {
        let path = join(&self.model.dir_path(dir), name);
        let full = self.dir.join(OsStr::from_bytes(&path));
        (full, shorten(&crate::walk::show(&path)))
    }

    fn random_dir(&mut self) -> NodeId {
        *self.rng.pick(&self.model.dirs())
    }

    /// Returns a name of an inode for which `wanted` holds.
    fn random_entry(&mut self, wanted: impl Fn(&Node) -> bool) -> Option<Name> {
        let names: Vec<Name> =
            self.model.names().into_iter().filter(|name| wanted(self.model.node(name.node))).collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    /// Returns owner and group of files that are made in `dir`, and the additional bits of their
    /// mode (`S_ISGID`, which directories inherit).
    fn heritage(&self, dir: NodeId, is_dir: bool) -> (u32, u32, u32) {
        const SETGID: u32 = 0o2000;
        let parent = self.model.node(dir);
        let uid = rustix::process::geteuid().as_raw();
        if parent.mode & SETGID == 0 {
            (uid, rustix::process::getegid().as_raw(), 0)
        } else {
            (uid, parent.gid, if is_dir { SETGID } else { 0 })
        }
    }

    /// Adds an inode to the model, as the kernel makes it in `dir`.
    fn new_node(&mut self, dir: NodeId, body: Body, mode: u32) -> NodeId {
        let is_dir = matches!(body, Body::Dir { .. });
        let (uid, gid, more) = self.heritage(dir, is_dir);
        self.model.add(Node {
            body,
            mode: mode | more,
            uid,
            gid,
            nlink: 1,
            xattrs: std::collections::BTreeMap::new(),
            mtime: Mtime::Since(self.began),
        })
    }

    fn touch(&mut self, id: NodeId) {
        self.model.node_mut(id).mtime = Mtime::Since(self.began);
    }

    /// Notes that one name of an inode was removed. An inode without names that is not open is
    /// removed.
    fn drop_link(&mut self, id: NodeId) {
        let node = self.model.node_mut(id);
        node.nlink -= 1;
        if node.nlink == 0 && !self.open.iter().any(|(open, _)| *open == id) {
            self.model.forget(id);
        }
    }

    fn close(&mut self, index: usize) {
        let (id, file) = self.open.swap_remove(index);
        drop(file);
        if self.model.node(id).nlink == 0 && !self.open.iter().any(|(open, _)| *open == id) {
            self.model.forget(id);
        }
    }

    /// Returns true if `result` is a success, and false if the file system does not support the
    /// optional operation `what`.
    fn supported(&mut self, what: &'static str, result: rustix::io::Result<()>) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => {
                self.unsupported.insert(what);
                Ok(false)
            }
            Err(error) => Err(format!("{what}: {error}")),
        }
    }
}

/// Compares an answer with the expected one: `wanted` is `None` for success.
fn expect<T>(result: Result<T, Errno>, wanted: Option<Errno>, what: &str) -> Step {
    let got = result.err();
    if got == wanted {
        return Ok(());
    }
    let describe = |e: Option<Errno>| e.map_or("success".to_owned(), |e| format!("\"{e}\""));
    Err(format!("{what}: {} instead of {}", describe(got), describe(wanted)))
}

/// Returns the errno of an error of std.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Returns the time a second ago. A change from now on can't have an earlier time, though the
/// kernel's clock is coarse.
fn now() -> (i64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock after 1970");
    (now.as_secs() as i64 - 1, now.subsec_nanos())
}

fn umask() -> u32 {
    // Reads it from /proc, since the system call that returns it also sets it, for all threads.
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Umask:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        })
        .expect("the umask in /proc/self/status")
}

fn shorten(text: &str) -> String {
    const LONG: usize = 60;
    if text.len() <= LONG {
        return text.to_owned();
    }
    let (head, tail) = (&text[..LONG / 2], &text[text.len() - LONG / 2..]);
    format!("{head}…{tail}")
}

/// Runs one workload per thread at the same time, each in its own new directory below `top`, and
/// returns the models by directory. A failure of one of them fails the test.
#[track_caller]
pub fn run_threads(top: &Path, seed: u64, threads: u64, operations: usize) -> Vec<(PathBuf, Model)> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn(move || {
                    let dir = top.join(format!("thread-{number}"));
                    std::fs::create_dir(&dir).expect("make a directory");
                    let mut workload = Workload::new(&dir, Rng::new(seed ^ number << 32).next_u64());
                    workload.limits.bytes /= threads;
                    workload.run_or_panic(operations);
                    (dir, workload.finish())
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
