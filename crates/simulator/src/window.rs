//! The states that a crash may leave: any between what was promised and what had begun.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ubtrfs::InodeId;

use crate::model::Dentry;
use crate::timeline::{Timeline, Timelines};
use crate::trace::{Covered, Promise, Trace};
use crate::{Body, Content, Model, Node, Path};

/// The states that one crash may leave, as rules for each inode and each name.
///
/// Each inode and name has a lower bound, which is the newest version in which it was promised. The
/// upper bound of all is the newest version that had begun. What is found must have been so in a
/// version between them.
pub(crate) struct Window<'a> {
    trace: &'a Trace,
    /// The version of the commit that is found; nothing may be older.
    pub base: usize,
    /// The newest version of which the crash may leave something.
    pub last: usize,
    /// The promises of calls that had returned before the crash, of version `base` and newer ones.
    pub promises: Vec<Bound<'a>>,
    /// The changes from `base` to `last`.
    pub lines: Timelines<'a>,
    /// Data that had been written in place to files of deleted subvolumes.
    written_in_place: Vec<(InodeId, &'a Content)>,
}

/// The promise of a call.
pub(crate) struct Bound<'a> {
    /// The versions from the beginning of the call to its return.
    pub during: RangeInclusive<usize>,
    pub covers: &'a Covered,
}

impl Bound<'_> {
    pub fn version(&self) -> usize {
        *self.during.start()
    }
}

impl<'a> Window<'a> {
    /// Returns the states that a crash after `event` events may leave if the commit of version
    /// `base` is found.
    pub fn new(trace: &'a Trace, base: usize, event: usize) -> Self {
        let last = trace.newest(event).max(base);
        let counts = |promise: &&Promise| promise.returned <= event && promise.version >= base;
        // A call that had nothing to do may have promised a version that has not reached the
        // device. What it covers was the same in the last version that has.
        let bound = |promise: &'a Promise| Bound {
            during: promise.version.min(last)..=promise.until.min(last),
            covers: &promise.covers,
        };
        let promises = trace.promises.iter().filter(counts).map(bound).collect();
        let had_begun = trace.written_in_place.iter().filter(|(began, _, _)| *began < event);
        let written_in_place = had_begun.map(|(_, id, content)| (*id, content)).collect();
        Self { trace, base, last, promises, lines: Timelines::new(&trace.versions, base, last), written_in_place }
    }

    /// Returns all faults of the found state, each as a sentence.
    pub fn complaints(&self, found: &Model) -> Vec<String> {
        let mut complaints = self.about_names(found);
        for (id, node) in &found.nodes {
            let of_node = self.about_node(*id, node).into_iter();
            complaints.extend(of_node.map(|what| format!("{}: {what}", self.called(*id))));
        }
        complaints
    }

    /// Returns the version in which a name was last promised.
    pub fn name_since(&self, place: &Dentry) -> usize {
        let promises = self.promises.iter().filter(|promise| promise.covers.has_name(place));
        promises.map(Bound::version).max().unwrap_or(self.base)
    }

    /// Returns the inodes that a name may have.
    pub fn targets(&self, place: &Dentry, line: &Timeline<Option<InodeId>>) -> Vec<Option<InodeId>> {
        // A name that an inode had lost when it was synced does not reappear for it, but may for
        // another inode.
        let has_come_back = |since: usize, target: Option<InodeId>| {
            let lost = |promise: &Bound<'_>| {
                since <= promise.version() && target == promise.covers.inode && promise.covers.lost.contains(place)
            };
            target.is_some() && self.promises.iter().any(lost)
        };
        let allowed =
            line.spans_since(self.name_since(place)).filter(|(since, target)| !has_come_back(*since, **target));
        allowed.map(|(_, target)| *target).collect()
    }

    /// Returns the version in which an inode's content and attributes, or its times, were last
    /// promised.
    fn inode_since(&self, id: InodeId, times: bool) -> usize {
        let covers = |promise: &&Bound<'_>| {
            let covers = promise.covers;
            covers.everything || (covers.inode == Some(id) && (covers.times || !times))
        };
        self.promises.iter().filter(covers).map(Bound::version).max().unwrap_or(self.base)
    }

    fn about_node(&self, id: InodeId, found: &Node) -> Vec<String> {
        let Some(line) = self.lines.nodes.get(&id) else { return vec!["nobody made it".into()] };
        let since = self.inode_since(id, false);
        let allowed = nodes_since(line, since);
        if allowed.is_empty() {
            return vec![format!("it is back, though it was gone in version {since}")];
        }
        let mut wrong = Vec::new();
        let attributes = |node: &Node| (node.mode, node.uid, node.gid);
        if !allowed.iter().any(|node| attributes(node) == attributes(found)) {
            let shown = |node: &Node| format!("{:o} {}:{}", node.mode, node.uid, node.gid);
            let allowed: Vec<String> = allowed.iter().map(|node| shown(node)).collect();
            wrong.push(format!("attributes are {}, not any of {allowed:?} since version {since}", shown(found)));
        }
        let names = allowed.iter().flat_map(|node| node.xattrs.keys()).chain(found.xattrs.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            let value = found.xattrs.get(name);
            if !allowed.iter().any(|node| node.xattrs.get(name) == value) {
                let shown =
                    |value: Option<&Arc<[u8]>>| value.map_or("missing".into(), |v| format!("{} bytes", v.len()));
                let allowed: Vec<String> = allowed.iter().map(|node| shown(node.xattrs.get(name))).collect();
                let name = Path(name.clone());
                wrong.push(format!(
                    "xattr {name:?} is {}, not as in any version since {since} ({})",
                    shown(value),
                    allowed.join(", ")
                ));
            }
        }
        let is_new = line.at(since).is_none();
        let in_place: Vec<_> =
            self.written_in_place.iter().filter(|(of, _)| *of == id).map(|(_, content)| *content).collect();
        let of_body = about_body(found, &allowed, &in_place, is_new);
        wrong.extend(of_body.map(|what| format!("{what} since version {since}")));
        let is_body = |node: &Node| about_body(found, &[node], &in_place, is_new).is_none();
        let is_as_in =
            |node: &&Node| attributes(node) == attributes(found) && node.xattrs == found.xattrs && is_body(node);
        if wrong.is_empty() && !found.is_nodatacow() && !allowed.iter().any(is_as_in) {
            let spans = || line.spans_since(since).filter_map(|(version, node)| node.map(|node| (version, &**node)));
            let versions = |is_so: &dyn Fn(&Node) -> bool| -> Vec<usize> {
                spans().filter(|(_, node)| is_so(node)).map(|(version, _)| version).collect()
            };
            wrong.push(format!(
                "content is as in versions {:?}, attributes as in {:?}, xattrs as in {:?} since version {since}",
                versions(&is_body),
                versions(&|node| attributes(node) == attributes(found)),
                versions(&|node| node.xattrs == found.xattrs),
            ));
        }
        let since = self.inode_since(id, true);
        let allowed = nodes_since(line, since);
        let known: Option<Vec<_>> = allowed.iter().map(|node| node.times).collect();
        if let (Some(known), Some(times)) = (known, found.times)
            && !known.contains(&times)
        {
            wrong.push(format!("times are {times:?}, not any of {known:?} since version {since}"));
        }
        wrong
    }

    /// Returns a path of an inode in the newest version that has one.
    pub fn called(&self, id: InodeId) -> String {
        let versions = self.trace.versions[self.base..=self.last].iter().rev();
        let mut paths = versions.filter_map(|version| {
            let paths = version.model.paths();
            paths.into_iter().find(|(_, found)| *found == id).map(|(path, _)| path)
        });
        match paths.next() {
            Some(path) => format!("inode {} ({path:?})", id.ino),
            None => format!("inode {}", id.ino),
        }
    }

    /// Returns a name's path in the newest version that has its directory.
    pub fn shown(&self, place: &Dentry) -> String {
        format!("{:?} in {}", Path(place.name.clone()), self.called(place.dir))
    }
}

/// Returns the states of a node from a version on.
fn nodes_since<'a>(line: &Timeline<Option<&'a Arc<Node>>>, since: usize) -> Vec<&'a Node> {
    line.since(since).filter_map(|node| node.map(|node| &**node)).collect()
}

/// Returns what is wrong if content, target or device number is that of none of these states. Pages
/// of a file that is written in place may also be those of `in_place`. A new file that was not
/// synced may exist and be empty.
fn about_body<'a>(found: &Node, allowed: &[&'a Node], in_place: &[&'a Content], may_be_empty: bool) -> Option<String> {
    let Body::File(content) = &found.body else {
        let is_dir = found.is_dir();
        let same = allowed.iter().any(|node| node.body == found.body || (is_dir && node.is_dir()));
        return (!same).then(|| format!("it is {:?}, as in no version", found.body));
    };
    let is_one_of = |node: &&Node| matches!(&node.body, Body::File(wanted) if wanted == content);
    if allowed.iter().any(is_one_of) || (may_be_empty && content.size() == 0) {
        return None;
    }
    let nodatacow = |node: &&'a Node| match &node.body {
        Body::File(wanted) if wanted.is_nodatacow() => Some(wanted),
        _ => None,
    };
    let versions: Vec<_> = allowed.iter().filter_map(nodatacow).collect();
    if content.is_nodatacow() && content.is_mixed_of(&versions, in_place) {
        return None;
    }
    let differences: Vec<String> = allowed.iter().rev().take(4).map(|node| difference(content, &node.body)).collect();
    Some(format!("the content is of no version ({})", differences.join("; ")))
}

fn difference(found: &Content, wanted: &Body) -> String {
    let Body::File(wanted) = wanted else { return "that is no file".into() };
    if found.size() != wanted.size() {
        return format!("{} bytes, not {}", found.size(), wanted.size());
    }
    let at = found.first_difference(wanted).unwrap_or(0);
    let shown = |content: &Content| format!("{:02x?}", content.read(at, 8));
    format!("{} bytes; at {at}: {}, not {}", found.size(), shown(found), shown(wanted))
}
