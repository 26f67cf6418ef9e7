//! The expected content of the volume: plain maps that are cheap to copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs::{Errno, InodeId, RenameFlags};
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{Ino, TreeId};

use crate::{Content, Path};

const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SET_GID: u32 = 0o2000;

/// The inode number of the empty directories that a snapshot shows in place of subvolumes.
pub(crate) const IN_PLACE_OF_SUBVOLUMES: Ino = Ino(2);

/// The times of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
}

/// A node's state besides its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory: its entries, and its parent.
    Directory {
        /// The inodes of its names.
        entries: BTreeMap<Vec<u8>, InodeId>,
        /// Its parent; the root is its own parent.
        parent: InodeId,
    },
    /// A symlink's target.
    Symlink(Vec<u8>),
    /// A device node's number; 0 for pipes and sockets.
    Special(u64),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the attributes of POSIX")]
pub struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// `None` if they are not known.
    pub times: Option<Times>,
}

impl Node {
    /// Returns whether both are the same as far as they are known; times that one of them does not
    /// know equal any.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { mode, uid, gid, nlink, body, xattrs, times } = self;
        let are_times_like = times.is_none() || other.times.is_none() || *times == other.times;
        (mode, uid, gid, nlink) == (&other.mode, &other.uid, &other.gid, &other.nlink)
            && are_times_like
            && *xattrs == other.xattrs
            && *body == other.body
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Returns whether it is a file whose data is overwritten in place.
    pub fn is_nodatacow(&self) -> bool {
        matches!(&self.body, Body::File(content) if content.is_nodatacow())
    }

    /// Returns the size that stat shows; a directory's is twice the sum of its names.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Directory { entries, .. } => entries.keys().map(|name| 2 * name.len() as u64).sum(),
            Body::Symlink(target) => target.len() as u64,
            Body::Special(_) => 0,
        }
    }
}

/// The state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The root directory.
    pub root: InodeId,
    /// All nodes, also those without names, except for the empty directories that snapshots show in
    /// place of subvolumes.
    pub nodes: BTreeMap<InodeId, Arc<Node>>,
    /// The subvolumes that are read-only.
    pub read_only: BTreeSet<TreeId>,
    /// The subvolume that is mounted if none is named.
    pub default: TreeId,
}

/// A directory entry: one name in two directories is two entries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dentry {
    /// The directory.
    pub dir: InodeId,
    /// The name in it.
    pub name: Vec<u8>,
}

/// The nodes whose times a change has set: `true` if the mtime is new, too.
pub type Touched = BTreeMap<InodeId, bool>;

impl Model {
    /// Returns an empty volume.
    pub fn new(root: InodeId, mode: u32, times: Times) -> Self {
        let body = Body::Directory { entries: BTreeMap::new(), parent: root };
        let node = Node { mode, uid: 0, gid: 0, nlink: 1, body, xattrs: BTreeMap::new(), times: Some(times) };
        let nodes = BTreeMap::from([(root, Arc::new(node))]);
        Self { root, nodes, read_only: BTreeSet::new(), default: TreeId::FS }
    }

    /// Returns a node that is known to exist.
    ///
    /// # Panics
    /// If it does not exist.
    #[track_caller]
    pub fn node(&self, id: InodeId) -> &Node {
        self.nodes.get(&id).unwrap_or_else(|| panic!("the model has no inode {}", id.ino))
    }

    /// Returns a node that is known to exist, to be changed.
    ///
    /// # Panics
    /// If it does not exist.
    #[track_caller]
    pub fn node_mut(&mut self, id: InodeId) -> &mut Node {
        let node = self.nodes.get_mut(&id).unwrap_or_else(|| panic!("the model has no inode {}", id.ino));
        Arc::make_mut(node)
    }

    /// Returns the inode of a path.
    pub fn resolve(&self, path: &Path) -> Option<InodeId> {
        path.names().try_fold(self.root, |dir, name| self.entry(dir, name))
    }

    /// Returns the directory (or other node) in which a path's last name is looked up, and the
    /// name.
    pub fn place<'a>(&self, path: &'a Path) -> Option<(InodeId, &'a [u8])> {
        let (dir, name) = path.split()?;
        Some((self.resolve(&dir)?, name))
    }

    /// Returns the inode of a name in a directory.
    pub fn entry(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        match &self.nodes.get(&dir)?.body {
            Body::Directory { entries, .. } => entries.get(name).copied(),
            _ => None,
        }
    }

    /// Returns every path with its inode.
    pub fn paths(&self) -> Vec<(Path, InodeId)> {
        let mut found = vec![(Path::default(), self.root)];
        let mut next = 0;
        while let Some((path, id)) = found.get(next).cloned() {
            next += 1;
            if let Body::Directory { entries, .. } = &self.node(id).body {
                let shown = entries.iter().filter(|(_, child)| self.nodes.contains_key(*child));
                found.extend(shown.map(|(name, child)| (path.join(name), *child)));
            }
        }
        found
    }

    /// Returns the contents of a directory and its subdirectories; nothing if it does not exist.
    #[must_use]
    pub fn below(&self, top: InodeId) -> Self {
        let mut nodes = BTreeMap::new();
        let mut next = vec![top];
        while let Some(id) = next.pop() {
            let Some(node) = self.nodes.get(&id).filter(|_| !nodes.contains_key(&id)) else { continue };
            if let Body::Directory { entries, .. } = &node.body {
                next.extend(entries.values());
            }
            nodes.insert(id, Arc::clone(node));
        }
        // The top has no parent in this part.
        let mut part = Self { root: top, nodes, read_only: self.read_only.clone(), default: self.default };
        if part.nodes.contains_key(&top)
            && let Body::Directory { parent, .. } = &mut part.node_mut(top).body
        {
            *parent = top;
        }
        part
    }

    /// Returns the nodes that have no name.
    pub fn orphans(&self) -> BTreeSet<InodeId> {
        self.nodes.iter().filter(|(_, node)| node.nlink == 0).map(|(id, _)| *id).collect()
    }

    /// Removes the nodes without names, as the next mount does.
    pub fn drop_orphans(&mut self) {
        self.nodes.retain(|_, node| node.nlink > 0);
    }

    /// Returns the first difference from another state, as a sentence. Nodes without names are left
    /// out, and times that one side does not know.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let named = |model: &Self| -> BTreeSet<InodeId> {
            model.nodes.iter().filter(|(_, node)| node.nlink > 0).map(|(id, _)| *id).collect()
        };
        let (mine, theirs) = (named(self), named(other));
        if let Some(id) = mine.symmetric_difference(&theirs).next() {
            return Some(format!("inode {} of {:?} is in one of them only", id.ino, id.subvolume));
        }
        if (&self.read_only, self.default) != (&other.read_only, other.default) {
            let shown =
                |model: &Self| format!("{:?} are read-only, {:?} is the default", model.read_only, model.default);
            return Some(format!("{}; and {}", shown(self), shown(other)));
        }
        mine.into_iter().find_map(|id| {
            let (a, b) = (self.node(id), other.node(id));
            (!a.is_like(b)).then(|| format!("inode {} is {a:?}, and {b:?}", id.ino))
        })
    }

    /// Returns the first difference, except for data of files that are written in place, which does
    /// not belong to a commit.
    pub fn difference_except_nodatacow(&self, other: &Self) -> Option<String> {
        self.difference(&other.with_nodatacow_data_of(self))
    }

    /// Returns the state with the data that another model has of files that are written in place,
    /// if the sizes are the same.
    #[must_use]
    pub fn with_nodatacow_data_of(&self, other: &Self) -> Self {
        let mut model = self.clone();
        for (id, node) in &mut model.nodes {
            let theirs = other.nodes.get(id).map(|node| &node.body);
            if let (Body::File(mine), Some(Body::File(theirs))) = (&node.body, theirs)
                && mine.is_nodatacow()
                && theirs.is_nodatacow()
                && mine.size() == theirs.size()
            {
                let body = Body::File(theirs.clone());
                Arc::make_mut(node).body = body;
            }
        }
        model
    }

    /// Removes the times of nodes, since it is not known which time of an operation counts.
    pub fn forget_times(&mut self, of: impl IntoIterator<Item = InodeId>) {
        for id in of {
            if self.nodes.contains_key(&id) {
                self.node_mut(id).times = None;
            }
        }
    }

    /// Returns whether a name can be added.
    pub fn can_add(&self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        if !self.node(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        if self.entry(dir, name).is_some() { Err(Errno::EXIST) } else { Ok(()) }
    }

    /// Adds a node without a name.
    pub fn add_node(&mut self, id: InodeId, dir: InodeId, mut node: Node) {
        let parent = self.node(dir);
        if parent.mode & SET_GID != 0 {
            node.gid = parent.gid;
            if node.mode & TYPE == DIRECTORY {
                node.mode |= SET_GID;
            }
        }
        self.nodes.insert(id, Arc::new(node));
    }

    /// Adds the root directory of a subvolume, which inherits nothing from the directory of its
    /// entry.
    pub(crate) fn add_root(&mut self, id: InodeId, node: Node) {
        self.nodes.insert(id, Arc::new(node));
    }

    /// Adds a name to a node, without a change of the link count.
    pub fn add_entry(&mut self, dir: InodeId, name: &[u8], id: InodeId) {
        if let Body::Directory { entries, .. } = &mut self.node_mut(dir).body {
            entries.insert(name.to_vec(), id);
        }
        if let Body::Directory { parent, .. } = &mut self.node_mut(id).body {
            *parent = dir;
        }
    }

    pub(crate) fn remove_entry(&mut self, dir: InodeId, name: &[u8]) {
        if let Body::Directory { entries, .. } = &mut self.node_mut(dir).body {
            entries.remove(name);
        }
    }

    /// Returns whether a name can be removed, and its inode.
    pub fn can_remove(&self, dir: InodeId, name: &[u8], directory: bool) -> Result<InodeId, Errno> {
        if !self.node(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let id = self.entry(dir, name).ok_or(Errno::NOENT)?;
        match &self.node(id).body {
            Body::Directory { .. } if !directory => Err(Errno::ISDIR),
            Body::Directory { entries, .. } if !entries.is_empty() => Err(Errno::NOTEMPTY),
            _ if self.is_subvolume(id) && id.subvolume == self.default => Err(Errno::PERM),
            Body::Directory { .. } => Ok(id),
            _ if directory => Err(Errno::NOTDIR),
            _ => Ok(id),
        }
    }

    /// Removes a name; the node loses a link and stays.
    pub fn remove(&mut self, dir: InodeId, name: &[u8], id: InodeId, touched: &mut Touched) {
        self.remove_entry(dir, name);
        self.node_mut(id).nlink -= 1;
        touch(touched, dir, true);
        touch(touched, id, false);
    }

    /// Returns whether another name can be added to a node.
    pub fn can_link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        if id.subvolume != dir.subvolume {
            return Err(Errno::XDEV);
        }
        if self.node(id).is_dir() { Err(Errno::PERM) } else { self.can_add(dir, name) }
    }

    /// Returns whether a rename is possible, and the inode that it moves: `None` if both names
    /// belong to one node, so that nothing happens.
    pub fn can_rename(
        &self,
        (dir, name): (InodeId, &[u8]),
        (new_dir, new_name): (InodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<Option<InodeId>, Errno> {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::INVAL);
        }
        if !self.node(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let source = self.entry(dir, name).ok_or(Errno::NOENT)?;
        if !self.node(new_dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let target = self.entry(new_dir, new_name);
        if flags.no_replace && target.is_some() {
            return Err(Errno::EXIST);
        }
        if flags.exchange && target.is_none() {
            return Err(Errno::NOENT);
        }
        let is_subvolume = |id: InodeId| self.is_subvolume(id);
        let exchanged = target.filter(|_| flags.exchange);
        if dir.subvolume != new_dir.subvolume && !(is_subvolume(source) && exchanged.is_none_or(is_subvolume)) {
            return Err(Errno::XDEV);
        }
        if !flags.exchange && target.is_some_and(is_subvolume) {
            return Err(Errno::NOTEMPTY);
        }
        let is_dir = |id: InodeId| self.node(id).is_dir();
        if let Some(target) = target.filter(|_| !flags.exchange) {
            match (is_dir(source), is_dir(target)) {
                (false, true) => return Err(Errno::ISDIR),
                (true, false) => return Err(Errno::NOTDIR),
                _ => {}
            }
        }
        if dir != new_dir {
            if is_dir(source) && self.is_below(new_dir, source) {
                return Err(Errno::INVAL);
            }
            if let Some(target) = target
                && is_dir(target)
                && self.is_below(dir, target)
            {
                return Err(if flags.exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
        }
        if target == Some(source) {
            return Ok(None);
        }
        if let Some(target) = target.filter(|_| !flags.exchange)
            && let Body::Directory { entries, .. } = &self.node(target).body
            && !entries.is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        Ok(Some(source))
    }

    /// Returns whether it is the root of a subvolume inside another one.
    pub(crate) fn is_subvolume(&self, id: InodeId) -> bool {
        id.ino == Ino::ROOT_DIR && id != self.root
    }

    /// Notes that a node was renamed. For a subvolume only the entry records it.
    fn touch_renamed(&self, touched: &mut Touched, id: InodeId) {
        if !self.is_subvolume(id) {
            touch(touched, id, false);
        }
    }

    fn is_below(&self, mut dir: InodeId, ancestor: InodeId) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            match &self.node(dir).body {
                Body::Directory { parent, .. } if *parent != dir => dir = *parent,
                _ => return false,
            }
        }
    }

    /// Renames; `whiteout` is the inode that a whiteout got.
    pub fn rename(
        &mut self,
        (dir, name): (InodeId, &[u8]),
        (new_dir, new_name): (InodeId, &[u8]),
        exchange: bool,
        whiteout: Option<InodeId>,
        touched: &mut Touched,
    ) {
        let Some(source) = self.entry(dir, name) else { return };
        let target = self.entry(new_dir, new_name);
        self.remove_entry(dir, name);
        if let Some(target) = target {
            if exchange {
                self.add_entry(dir, name, target);
            } else {
                self.node_mut(target).nlink -= 1;
            }
            self.touch_renamed(touched, target);
        }
        self.add_entry(new_dir, new_name, source);
        if let Some(id) = whiteout {
            let body = Body::Special(0);
            let node = Node { mode: 0o020_000, uid: 0, gid: 0, nlink: 1, body, xattrs: BTreeMap::new(), times: None };
            self.add_node(id, dir, node);
            self.add_entry(dir, name, id);
            touch(touched, id, true);
        }
        self.touch_renamed(touched, source);
        touch(touched, dir, true);
        touch(touched, new_dir, true);
    }

    /// Clears what a write by an unprivileged process clears.
    pub fn kill_privileges(&mut self, id: InodeId) {
        let node = self.node_mut(id);
        node.mode &= !0o4000;
        if node.mode & 0o0010 != 0 {
            node.mode &= !SET_GID;
        }
        node.xattrs.remove(&b"security.capability"[..]);
    }
}

/// Notes that a node's times have changed.
pub(crate) fn touch(touched: &mut Touched, id: InodeId, content: bool) {
    *touched.entry(id).or_default() |= content;
}

/// Returns whether a mode is that of a regular file.
pub(crate) fn is_regular(mode: u32) -> bool {
    mode & TYPE == REGULAR
}
