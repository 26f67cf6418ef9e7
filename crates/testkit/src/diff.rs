//! The difference between two trees, in sentences.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::walk::{Entry, Kind, Time, Tree, show};

/// What is compared of two trees. A value that one side does not know equals any value.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "a list of switches is what it is")]
pub struct Options {
    /// Inode numbers.
    pub ino: bool,
    /// Times of modification.
    pub mtime: bool,
    /// Times of change.
    pub ctime: bool,
    /// Times of access.
    pub atime: bool,
    /// Times of birth.
    pub btime: bool,
    /// Where holes are.
    pub data: bool,
    /// Sizes of directories.
    pub dir_size: bool,
    /// Link counts of directories.
    pub dir_nlink: bool,
    /// Attribute flags.
    pub flags: bool,
}

impl Options {
    /// The comparison of two walks: everything except for access times.
    pub const SAME_VOLUME: Self = Self {
        ino: true,
        mtime: true,
        ctime: true,
        atime: false,
        btime: true,
        data: true,
        dir_size: true,
        dir_nlink: true,
        flags: true,
    };

    /// A copy on another volume: what a good copying program keeps.
    pub const COPY: Self = Self {
        ino: false,
        mtime: true,
        ctime: false,
        atime: false,
        btime: false,
        data: false,
        dir_size: false,
        dir_nlink: false,
        flags: false,
    };
}

/// Returns every difference between `left` and `right` as a sentence; none if they are equal.
/// Anomalies of either side count as differences.
pub fn diff(left: &Tree, right: &Tree, options: Options) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (side, tree) in [("left", left), ("right", right)] {
        found.extend(tree.anomalies.iter().map(|a| format!("{side}: {a}")));
    }
    let paths: BTreeSet<_> = left.entries.keys().chain(right.entries.keys()).collect();
    for path in paths {
        match (left.entries.get(path), right.entries.get(path)) {
            (Some(a), Some(b)) => compare(&mut Differences(&mut found, show(path)), a, b, options),
            (Some(a), None) => found.push(format!("{}: {:?} only left", show(path), a.kind)),
            (_, b) => found.push(format!("{}: {:?} only right", show(path), b.map(|b| b.kind))),
        }
    }
    for (side, a, b) in [("left", left, right), ("right", right, left)] {
        for group in a.links.difference(&b.links) {
            let names: Vec<String> = group.iter().map(|path| show(path)).collect();
            found.push(format!("names of one inode only {side}: {}", names.join(", ")));
        }
    }
    found
}

/// Fails the test with the first differences unless the trees are equal.
#[track_caller]
pub fn assert_same(what: &str, left: &Tree, right: &Tree, options: Options) {
    let found = diff(left, right, options);
    assert!(
        found.is_empty(),
        "{what}: {} differences, the first of them:\n{}",
        found.len(),
        found.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n")
    );
}

struct Differences<'a>(&'a mut Vec<String>, String);

impl Differences<'_> {
    fn same<T: PartialEq + Debug>(&mut self, what: &str, a: &T, b: &T) {
        if a != b {
            let short = |value: &T| {
                let text = format!("{value:?}");
                if text.len() > 300 {
                    format!("{}… ({} characters)", text.chars().take(300).collect::<String>(), text.len())
                } else {
                    text
                }
            };
            self.0.push(format!("{}: {what}: left {}, right {}", self.1, short(a), short(b)));
        }
    }

    fn same_if_known<T: PartialEq + Debug>(&mut self, what: &str, a: Option<&T>, b: Option<&T>) {
        if let (Some(a), Some(b)) = (a, b) {
            self.same(what, a, b);
        }
    }

    fn same_time(&mut self, wanted: bool, what: &str, a: Option<Time>, b: Option<Time>) {
        if wanted {
            self.same_if_known(what, a.as_ref(), b.as_ref());
        }
    }
}

fn compare(differences: &mut Differences<'_>, a: &Entry, b: &Entry, options: Options) {
    differences.same("kind", &a.kind, &b.kind);
    if a.kind != b.kind {
        return;
    }
    let dir = a.kind == Kind::Dir;
    if a.mode != b.mode {
        differences.same("mode", &format!("{:04o}", a.mode), &format!("{:04o}", b.mode));
    }
    differences.same("owner", &(a.uid, a.gid), &(b.uid, b.gid));
    if !dir || options.dir_nlink {
        differences.same("link count", &a.nlink, &b.nlink);
    }
    if !dir || options.dir_size {
        differences.same_if_known("size", a.size.as_ref(), b.size.as_ref());
    }
    differences.same_time(options.mtime, "mtime", a.mtime, b.mtime);
    differences.same_time(options.ctime, "ctime", a.ctime, b.ctime);
    differences.same_time(options.atime, "atime", a.atime, b.atime);
    differences.same_time(options.btime, "btime", a.btime, b.btime);
    if options.ino {
        differences.same_if_known("inode", a.ino.as_ref(), b.ino.as_ref());
    }
    differences.same_if_known("device", a.rdev.as_ref(), b.rdev.as_ref());
    differences.same_if_known("target", a.target.as_ref(), b.target.as_ref());
    differences.same_if_known("content", a.digest.as_ref(), b.digest.as_ref());
    if options.data {
        differences.same_if_known("data ranges", a.data.as_ref(), b.data.as_ref());
    }
    if options.flags {
        differences.same_if_known("attribute flags", a.flags.as_ref(), b.flags.as_ref());
    }
    let names: BTreeSet<_> = a.xattrs.keys().chain(b.xattrs.keys()).collect();
    for name in names {
        let what = format!("xattr {}", name.escape_ascii());
        differences.same(&what, &a.xattrs.get(name), &b.xattrs.get(name));
    }
}
