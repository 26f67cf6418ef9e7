//! Every short sequence of operations over a handful of names: what random histories may take long to come upon.

use std::sync::{Arc, LazyLock};

use ubtrfs::{Options, RenameFlags, WriteAt, XattrMode};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_volume::{OverlayDevice, RecordingDevice};

use crate::examine::check;
use crate::operation::Name;
use crate::perform::Tolerance;
use crate::{
    Body, Crashes, Failure, Found, Judge, Model, Operation, Path, Random, Session, What, examine, make_volume,
};

/// The names that everything happens to: two directories, and names in them.
const PATHS: [&str; 5] = ["A", "B", "A/foo", "A/bar", "B/foo"];

/// A path from its text.
pub fn path(text: &str) -> Path {
    Path(text.as_bytes().to_vec())
}

/// What a path leads to.
pub fn at(text: &str) -> What {
    What::At(path(text))
}

/// Makes a regular file.
pub fn file(text: &str) -> Operation {
    make(text, 0o100_644, "")
}

/// Makes a directory.
pub fn directory(text: &str) -> Operation {
    make(text, 0o040_755, "")
}

fn make(text: &str, mode: u32, target: &str) -> Operation {
    let (owner, target) = ((0, 0), target.as_bytes().to_vec());
    Operation::Create { path: path(text), mode, owner, rdev: 0, target, xattr: false, open: false }
}

/// Writes into a file; the offset determines what.
pub fn write(text: &str, offset: u64, len: usize) -> Operation {
    let fill = offset * 31 + len as u64;
    Operation::Write { what: at(text), at: WriteAt::Offset(offset), len, fill, kill_privileges: false }
}

/// Appends to a file.
pub fn append(text: &str, len: usize) -> Operation {
    Operation::Write { what: at(text), at: WriteAt::End, len, fill: len as u64, kill_privileges: false }
}

/// Sets an xattr.
pub fn set_xattr(text: &str, name: &str, fill: u64) -> Operation {
    let name = Name(name.as_bytes().to_vec());
    Operation::SetXattr { what: at(text), name, len: 20, fill, mode: XattrMode::Set }
}

/// Removes an xattr.
pub fn remove_xattr(text: &str, name: &str) -> Operation {
    Operation::RemoveXattr { what: at(text), name: Name(name.as_bytes().to_vec()) }
}

/// Renames.
pub fn rename(from: &str, to: &str) -> Operation {
    Operation::Rename { from: path(from), to: path(to), flags: RenameFlags::default() }
}

/// Exchanges two names.
pub fn exchange(one: &str, other: &str) -> Operation {
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    Operation::Rename { from: path(one), to: path(other), flags }
}

/// Gives a second name.
pub fn link(from: &str, to: &str) -> Operation {
    Operation::Link { what: at(from), path: path(to) }
}

/// Takes a name away.
pub fn unlink(text: &str) -> Operation {
    Operation::Unlink { path: path(text) }
}

/// Removes a directory.
pub fn rmdir(text: &str) -> Operation {
    Operation::Rmdir { path: path(text) }
}

/// Makes durable.
pub fn fsync(text: &str) -> Operation {
    Operation::Fsync { what: at(text), data_only: false }
}

/// Makes durable, but for the times.
pub fn fdatasync(text: &str) -> Operation {
    Operation::Fsync { what: at(text), data_only: true }
}

/// What sequences begin with: a committed volume, and operations of the transaction that they are in.
#[derive(Clone, Debug)]
pub struct Start {
    /// What is committed.
    pub committed: Vec<Operation>,
    /// What was done since.
    pub open: Vec<Operation>,
}

impl Start {
    /// The directories, and what else there is at the start.
    pub fn all() -> Vec<Self> {
        let directories = vec![directory("A"), directory("B")];
        let with = |more: &[Operation]| [directories.clone(), more.to_vec()].concat();
        let a = [file("A/foo"), write("A/foo", 0, 9000), set_xattr("A/foo", "user.one", 1)];
        let b = [file("B/foo"), write("B/foo", 0, 300), set_xattr("B/foo", "user.one", 2)];
        let new = [&a[..], &b[..]].concat();
        vec![
            Self { committed: with(&[]), open: Vec::new() },
            Self { committed: with(&new), open: Vec::new() },
            Self { committed: with(&[&new[..], &[link("A/foo", "A/bar")]].concat()), open: Vec::new() },
            Self { committed: with(&[]), open: new.clone() },
            Self { committed: with(&[]), open: [&new[..], &[fsync("A/foo")]].concat() },
            Self { committed: with(&[]), open: [&new[..], &[fsync("A")]].concat() },
        ]
    }
}

/// The operations that can succeed in this state. Each is one step of a sequence; some take two calls.
pub fn operations(model: &Model) -> Vec<Vec<Operation>> {
    let mut found = Vec::new();
    let exists = |text: &&&str| model.resolve(&path(text)).is_some();
    let can_make = |text: &&&str| {
        let path = path(text);
        model.place(&path).is_some_and(|(dir, name)| model.can_add(dir, name).is_ok())
    };
    for text in PATHS.iter().filter(exists) {
        let node = model.resolve(&path(text)).map(|id| model.node(id));
        match node.map(|node| &node.body) {
            Some(Body::File(content)) => {
                let size = content.size();
                let what = at(text);
                found.extend([
                    vec![write(text, 100, 5000)],
                    vec![append(text, 700)],
                    vec![Operation::Truncate { what: what.clone(), size: size / 2 }],
                    vec![Operation::Truncate { what: what.clone(), size: size + 6000 }],
                    vec![Operation::Punch { what, offset: size / 4, len: size / 2 + 1 }],
                    vec![unlink(text)],
                ]);
            }
            Some(Body::Directory { entries, .. }) if entries.is_empty() => found.push(vec![rmdir(text)]),
            Some(Body::Symlink(_)) => found.push(vec![unlink(text)]),
            _ => {}
        }
        let mode = Operation::Attributes { what: at(text), mode: Some(0o700), uid: None, gid: None, mtime: None };
        found.push(vec![mode]);
        if node.is_some_and(|node| !matches!(node.body, Body::Symlink(_))) {
            found.push(vec![set_xattr(text, "user.two", 3)]);
        }
        if node.is_some_and(|node| node.xattrs.contains_key(&b"user.one"[..])) {
            found.push(vec![remove_xattr(text, "user.one")]);
            found.push(vec![set_xattr(text, "user.one", 4)]);
        }
        for other in PATHS {
            found.extend(moves(model, text, other));
        }
    }
    for text in PATHS.iter().filter(can_make) {
        let dir = path(text).split().map(|(dir, _)| dir).unwrap_or_default();
        let unnamed = Operation::Unnamed { dir, mode: 0o100_600 };
        let handle = What::Handle(0);
        let filled =
            Operation::Write { what: handle.clone(), at: WriteAt::End, len: 4500, fill: 5, kill_privileges: false };
        let linked = Operation::Link { what: handle, path: path(text) };
        found.extend([
            vec![file(text)],
            vec![directory(text)],
            vec![make(text, 0o120_777, "where it leads")],
            vec![unnamed, filled, linked, Operation::Close { handle: 0 }],
        ]);
    }
    found
}

/// Renames, exchanges and links from one name to another.
fn moves(model: &Model, one: &str, other: &str) -> Vec<Vec<Operation>> {
    let mut found = Vec::new();
    let (from, to) = (path(one), path(other));
    let (Some(from), Some(to)) = (model.place(&from), model.place(&to)) else { return found };
    let moves = |flags| model.can_rename(from, to, flags).is_ok_and(|moved| moved.is_some());
    if moves(RenameFlags::default()) {
        found.push(vec![rename(one, other)]);
    }
    if one < other && moves(RenameFlags { exchange: true, ..RenameFlags::default() }) {
        found.push(vec![exchange(one, other)]);
    }
    let is_dir = model.entry(from.0, from.1).is_some_and(|id| model.node(id).is_dir());
    if !is_dir && model.can_add(to.0, to.1).is_ok() {
        found.push(vec![link(one, other)]);
    }
    found
}

/// The calls that make something durable.
pub fn persistence(model: &Model) -> Vec<Operation> {
    let mut found = vec![Operation::Sync, fsync("")];
    for text in PATHS {
        if let Some(id) = model.resolve(&path(text)) {
            found.push(fsync(text));
            if matches!(model.node(id).body, Body::File(_)) {
                found.push(fdatasync(text));
            }
        }
    }
    found
}

/// A crash state that is as promised.
#[derive(Debug)]
pub struct Examined<'a> {
    /// What was promised.
    pub judge: &'a Judge,
    /// The device after the crash.
    pub device: &'a OverlayDevice,
    /// Events before the crash.
    pub event: usize,
    /// What the volume holds.
    pub found: Found,
}

/// A committed volume that many sequences begin with.
#[derive(Debug)]
pub struct Stage {
    device: OverlayDevice,
    /// What it holds.
    pub model: Model,
    judge: Judge,
}

impl Stage {
    /// A small volume on which these operations were done and committed.
    pub fn new(committed: &[Operation]) -> Result<Self, String> {
        static EMPTY: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
            let mut options = MkfsOptions::new(46 << 20);
            options.metadata_profile = Some(Profile::Single);
            make_volume(&options)
        });
        let recording = Arc::new(RecordingDevice::new(EMPTY.clone()));
        let mount = Options { background_commits: false, ..Options::default() };
        let judge = Judge::new(mount, &recording)?;
        let mut session = open(&recording, &judge, None)?;
        for operation in committed.iter().chain([&Operation::Sync]) {
            session.perform(operation)?;
        }
        session.worker.fs.close().map_err(|error| error.to_string())?;
        let device = recording.current();
        check(&device)?;
        Ok(Self { device, model: session.worker.model, judge })
    }

    /// The same, mounted with other options.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.judge.options);
        self
    }

    /// Mounts it, as it was.
    pub fn mount(&self) -> Result<Session, String> {
        let recording = Arc::new(RecordingDevice::on(&self.device));
        open(&recording, &self.judge, Some(self.model.clone()))
    }

    /// A random sequence of so many steps that begins with `open` and ends with a call that makes something durable; half
    /// of the steps are followed by such a call.
    pub fn wander(&self, open: &[Operation], random: &mut Random, steps: usize) -> Result<Vec<Operation>, String> {
        let mut session = self.mount()?;
        let mut done = open.to_vec();
        open.iter().try_for_each(|operation| session.perform(operation))?;
        for step in 1..=steps {
            let mut next = random.pick(&operations(&session.worker.model)).cloned().unwrap_or_default();
            next.iter().try_for_each(|operation| session.perform(operation))?;
            if step == steps || random.one_in(2) {
                let durable = random.pick(&persistence(&session.worker.model)).cloned();
                durable.iter().try_for_each(|operation| session.perform(operation))?;
                next.extend(durable);
            }
            done.extend(next);
        }
        Ok(done)
    }

    /// Does these operations and examines about `budget` of the states that crashes leave, the one at the end among them.
    /// Returns how many they were.
    pub fn run(&self, operations: &[Operation], seed: u64, budget: usize) -> Result<usize, Failure> {
        let mut states = 0;
        self.run_with(operations, seed, budget, &mut |_| {
            states += 1;
            Ok(())
        })?;
        Ok(states)
    }

    /// The same; `more` looks at each state too.
    pub fn run_with(
        &self,
        operations: &[Operation],
        seed: u64,
        budget: usize,
        more: &mut dyn FnMut(&Examined<'_>) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
        let mut session = self.mount().map_err(fail)?;
        for operation in operations {
            let result = session.perform(operation);
            let what = match (result, session.worker.fs.abort_reason()) {
                (Ok(()), None) => continue,
                (Err(what), _) => what,
                (_, Some(reason)) => format!("the engine gave up: {reason}"),
            };
            return Err(Failure { operations: session.log, ..fail(what) });
        }
        let judge = Judge { chronicle: session.chronicle, ..self.judge.clone() };
        for (point, device) in Crashes::new(&session.recording, seed, budget) {
            let result = examine(&judge, &device, point.event)
                .and_then(|found| more(&Examined { judge: &judge, device: &device, event: point.event, found }));
            let fail = |what| Failure { operations: session.log.clone(), crash: Some(point), ..fail(what) };
            result.map_err(fail)?;
        }
        Ok(())
    }
}

fn open(recording: &Arc<RecordingDevice>, judge: &Judge, model: Option<Model>) -> Result<Session, String> {
    Session::open(recording.clone(), recording.clone(), judge.options.clone(), model, Tolerance::default())
}
