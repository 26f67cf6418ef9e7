//! What happened to a volume, version by version, and what was promised of it.

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
    /// Events of the device before the operation began that made the commit.
    pub began: usize,
    /// Events when the commit had returned; `None` if it never did.
    pub returned: Option<usize>,
    /// It holds one of these versions, entire. Mostly there is one: more where an operation of
    /// several steps had to commit between them.
    pub versions: Range<usize>,
}

/// What a call that has returned made durable: a part of the volume, at least as it was at one
/// time during the call.
#[derive(Clone, Debug)]
pub struct Promise {
    /// Events of the device when the call returned.
    pub returned: usize,
    /// The version when the call began.
    pub version: usize,
    /// The version when it returned: another one if others were at work meanwhile.
    pub until: usize,
    /// The part.
    pub covers: Covered,
}

/// A part of the volume.
#[derive(Clone, Debug, Default)]
pub struct Covered {
    /// Everything.
    pub everything: bool,
    /// This inode: content, attributes, xattrs.
    pub inode: Option<InodeId>,
    /// Its times too.
    pub times: bool,
    /// All names of these directories, those that are not there too.
    pub directories: BTreeSet<InodeId>,
    /// These names.
    pub names: BTreeSet<Dentry>,
    /// These names don't point to the inode any more.
    pub lost: BTreeSet<Dentry>,
    /// These inodes are there, whatever state they are in.
    pub exist: BTreeSet<InodeId>,
}

impl Covered {
    /// Whether a name is covered.
    pub fn has_name(&self, place: &Dentry) -> bool {
        self.everything || self.directories.contains(&place.dir) || self.names.contains(place)
    }
}

/// The history of a volume.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its versions, the oldest first.
    pub versions: Vec<Version>,
    /// Its commits, the oldest first. The first is what the history began with.
    pub commits: Vec<Commit>,
    /// Promises besides them.
    pub promises: Vec<Promise>,
    /// What was written in place to files of deleted subvolumes, each with the events of the device
    /// before the operation began that wrote it. No version has these files.
    pub written_in_place: Vec<(usize, InodeId, Content)>,
}

impl Trace {
    /// A history that begins with this state of this commit.
    pub fn new(model: Model, generation: u64) -> Self {
        Self {
            versions: vec![Version { began: 0, model }],
            commits: vec![Commit { generation, began: 0, returned: Some(0), versions: 0..1 }],
            promises: Vec::new(),
            written_in_place: Vec::new(),
        }
    }

    /// The number of the newest version.
    pub fn now(&self) -> usize {
        self.versions.len() - 1
    }

    /// The newest version that a crash after `event` events may leave something of.
    pub fn newest(&self, event: usize) -> usize {
        self.versions.iter().rposition(|version| version.began < event).unwrap_or(0)
    }

    /// The commits of which a crash after `event` events may leave any: from the last that had
    /// returned to the last that had begun.
    pub fn allowed(&self, event: usize) -> impl Iterator<Item = &Commit> {
        let returned = |commit: &Commit| commit.returned.is_some_and(|returned| returned <= event);
        let oldest = self.commits.iter().rposition(returned).unwrap_or(0);
        self.commits.iter().skip(oldest).filter(move |commit| commit.began <= event)
    }

    /// What a sync of `version` covers.
    pub fn everything(&self, version: usize) -> Covered {
        let named = |id: &InodeId| self.versions[version].model.node(*id).nlink > 0;
        let exist = self.versions[version].model.nodes.keys().copied().filter(named).collect();
        Covered { everything: true, exist, ..Covered::default() }
    }

    /// What an fsync of an inode covers in `version`, where the version of the last commit is one
    /// of `base`.
    pub fn covered(&self, id: InodeId, times: bool, base: RangeInclusive<usize>, version: usize) -> Covered {
        let model = &self.versions[version].model;
        let lines = Timelines::new(&self.versions, *base.start(), version);
        let mut covered = Covered { inode: Some(id), times, ..Covered::default() };
        // Where a subvolume's entry is, only its directory knows.
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
        // A directory with its entries; those that are new directories with theirs.
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

    /// Whether a directory was synced before when it had this entry: it is not new then.
    fn has_synced(&self, dir: InodeId, name: &[u8], id: InodeId) -> bool {
        let had = |promise: &&Promise| self.versions[promise.version].model.entry(dir, name) == Some(id);
        let mut promises = self.promises.iter().filter(|promise| promise.covers.directories.contains(&dir));
        promises.any(|promise| had(&promise))
    }
}
