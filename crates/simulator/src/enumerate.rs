//! Every short sequence of operations over a few names, since random histories may take long to
//! find some of them.

use ubtrfs::{RenameFlags, WriteAt};

use crate::words::{
    append, at, clone, directory, exchange, fdatasync, file, fsync, link, make, path, remove_xattr, rename, reserve,
    rmdir, set_xattr, unlink, write, zero,
};
use crate::{Body, Model, Operation, What};

/// The names of all operations: two directories, and names in them.
const PATHS: [&str; 5] = ["A", "B", "A/foo", "A/bar", "B/foo"];

/// The beginning of sequences: a committed volume, and operations of the open transaction.
#[derive(Clone, Debug)]
pub struct Start {
    /// The committed operations.
    pub committed: Vec<Operation>,
    /// The operations since the commit.
    pub open: Vec<Operation>,
}

impl Start {
    /// Returns all beginnings: the directories, and what else exists.
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

/// Returns the operations that can succeed in this state. Each is one step of a sequence; some take
/// two calls.
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
                    vec![reserve(text, size, 20_000)],
                    vec![reserve(text, size, 20_000), append(text, 5000)],
                    vec![zero(text, size / 2, 10_000)],
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
        for other in PATHS.iter().filter(|other| *other != text && is_file(model, other) && is_file(model, text)) {
            found.push(vec![clone(text, other)]);
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

fn is_file(model: &Model, text: &str) -> bool {
    model.resolve(&path(text)).is_some_and(|id| matches!(model.node(id).body, Body::File(_)))
}

/// Returns renames, exchanges and links from one name to another.
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

/// Returns the calls that make something durable.
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
