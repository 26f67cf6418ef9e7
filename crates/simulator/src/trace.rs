//! The history of a volume, version by version, and its promises.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use ubtrfs::InodeId;

use crate::model::Dentry;
use crate::timeline::Timelines;
use crate::version::Version;
use crate::{Body, Content, Model};

/// A commit: the volume as a whole.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its number.
    pub generation: u64,
    /// Events of the device before the operation that made the commit.
    pub began: usize,
    /// Events when the commit had returned; `None` if it never did.
    pub returned: Option<usize>,
    /// It has one of these versions as a whole. Mostly there is one version; there are more if an
    /// operation of several steps had to commit between them.
    pub versions: Range<usize>,
}

/// What a returned call has made durable: a part of the volume, at least as it was at some time
/// during the call.
#[derive(Clone, Debug)]
pub struct Promise {
    /// Events of the device when the call returned.
    pub returned: usize,
    /// The version when the call began.
    pub version: usize,
    /// The version when it returned, which differs if others worked meanwhile.
    pub until: usize,
    /// The part.
    pub covers: Covered,
}

/// A part of the volume.
#[derive(Clone, Debug, Default)]
pub struct Covered {
    /// Everything.
    pub everything: bool,
    /// This inode, with its content, attributes and xattrs.
    pub inode: Option<InodeId>,
    /// Its times, too.
    pub times: bool,
    /// All names of these directories, including the absence of others.
    pub directories: BTreeSet<InodeId>,
    /// These names.
    pub names: BTreeSet<Dentry>,
    /// These names, which don't point to the inode any more.
    pub lost: BTreeSet<Dentry>,
    /// These inodes, which exist, in whatever state.
    pub exist: BTreeSet<InodeId>,
}

impl Covered {
    /// Returns whether a name is covered.
    pub fn has_name(&self, place: &Dentry) -> bool {
        self.everything || self.directories.contains(&place.dir) || self.names.contains(place)
    }
}

/// The history of a volume.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its versions, the oldest first.
    pub versions: Vec<Version>,
    /// Its commits, the oldest first. The first is the state at the beginning of the history.
    pub commits: Vec<Commit>,
    /// Promises other than commits.
    pub promises: Vec<Promise>,
    /// What was written in place to files of deleted subvolumes, each with the events of the device
    /// before the operation that wrote it. No version has these files.
    pub written_in_place: Vec<(usize, InodeId, Content)>,
}

impl Trace {
    /// Makes a history that begins with this state and this commit.
    pub fn new(model: Model, generation: u64) -> Self {
        Self {
            versions: vec![Version { began: 0, model }],
            commits: vec![Commit { generation, began: 0, returned: Some(0), versions: 0..1 }],
            promises: Vec::new(),
            written_in_place: Vec::new(),
        }
    }

    /// Returns the number of the newest version.
    pub fn now(&self) -> usize {
        self.versions.len() - 1
    }

    /// Returns the newest version of which a crash after `event` events may leave something.
    pub fn newest(&self, event: usize) -> usize {
        self.versions.iter().rposition(|version| version.began < event).unwrap_or(0)
    }

    /// Returns the commits that a crash after `event` events may leave: from the last that had
    /// returned to the last that had begun.
    pub fn allowed(&self, event: usize) -> impl Iterator<Item = &Commit> {
        let returned = |commit: &Commit| commit.returned.is_some_and(|returned| returned <= event);
        let oldest = self.commits.iter().rposition(returned).unwrap_or(0);
        self.commits.iter().skip(oldest).filter(move |commit| commit.began <= event)
    }

    /// Returns what a sync of `version` covers.
    pub fn everything(&self, version: usize) -> Covered {
        let named = |id: &InodeId| self.versions[version].model.node(*id).nlink > 0;
        let exist = self.versions[version].model.nodes.keys().copied().filter(named).collect();
        Covered { everything: true, exist, ..Covered::default() }
    }

    /// Returns what an fsync of an inode covers in `version`, if the version of the last commit is
    /// one of `base`.
    pub fn covered(&self, id: InodeId, times: bool, base: RangeInclusive<usize>, version: usize) -> Covered {
        let model = &self.versions[version].model;
        let lines = Timelines::new(&self.versions, *base.start(), version);
        let mut covered = Covered { inode: Some(id), times, ..Covered::default() };
        // Only the directory of a subvolume's entry knows where it is.
        let names_itself = !model.is_subvolume(id);
        for (place, line) in lines.names.iter().filter(|_| names_itself) {
            if *line.at(version) == Some(id) {
                covered.names.insert(place.clone());
            } else if line.since(*base.start()).any(|target| *target == Some(id)) {
                covered.lost.insert(place.clone());
            }
        }
        if model.nodes.get(&id).is_some_and(|node| node.nlink > 0) {
            covered.exist.insert(id);
        }
        // A directory is covered with its entries, and entries that are new directories with
        // theirs.
        let mut directories = vec![id];
        while let Some(dir) = directories.pop() {
            let Some(Body::Directory { entries, .. }) = model.nodes.get(&dir).map(|node| &node.body) else { continue };
            covered.directories.insert(dir);
            covered.exist.extend(entries.values());
            let is_new = |(name, id): &(&Vec<u8>, &InodeId)| {
                !self.versions[*base.end()].model.nodes.contains_key(id) && !self.has_synced(dir, name, **id)
            };
            directories.extend(entries.iter().filter(is_new).map(|(_, id)| *id));
        }
        covered
    }

    /// Returns whether a directory was synced when it already had this entry, so that the entry is
    /// not new.
    fn has_synced(&self, dir: InodeId, name: &[u8], id: InodeId) -> bool {
        let had = |promise: &&Promise| self.versions[promise.version].model.entry(dir, name) == Some(id);
        let mut promises = self.promises.iter().filter(|promise| promise.covers.directories.contains(&dir));
        promises.any(|promise| had(&promise))
    }
}
