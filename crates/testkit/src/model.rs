//! The expected content of a directory after a workload: a whole tree in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::content::Content;
use crate::diff::{Options, diff};
use crate::walk::{Entry, Kind, Time, Tree, show, walk};

/// Number of an inode in the model.
pub type NodeId = u64;

/// What is known of a time of modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mtime {
    /// Nothing.
    Unknown,
    /// It was set to this and nothing was changed since.
    Exactly(Time),
    /// Something was changed at this time or later.
    Since(Time),
}

/// What an inode is and holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A directory: its names, and its own place (`None` for the top).
    Dir {
        /// The names in it.
        names: BTreeMap<Vec<u8>, NodeId>,
        /// The directory that holds it, and its name there.
        parent: Option<(NodeId, Vec<u8>)>,
    },
    /// A file.
    File(Content),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A fifo, a socket or a device node with its numbers.
    Special(Kind, Option<(u32, u32)>),
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is and holds.
    pub body: Body,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for a directory 1, as btrfs has it.
    pub nlink: u64,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Time of modification.
    pub mtime: Mtime,
}

impl Node {
    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }

    /// Returns the content, if it is a file.
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }
}

/// A name: its directory, the name itself, and its inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub dir: NodeId,
    /// The name in it.
    pub name: Vec<u8>,
    /// The inode.
    pub node: NodeId,
}

/// A tree of inodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

/// The top directory.
pub const TOP: NodeId = 0;

impl Model {
    /// Makes the model of `dir`, which is an empty directory.
    pub fn of_empty(dir: &Path) -> Self {
        let meta = std::fs::symlink_metadata(dir).expect("stat the top of a workload");
        let listed = std::fs::read_dir(dir).expect("list the top of a workload");
        assert_eq!(listed.count(), 0, "{} is not empty", dir.display());
        let top = Node {
            body: Body::Dir { names: BTreeMap::new(), parent: None },
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            nlink: 1,
            xattrs: crate::walk::xattrs(dir).expect("xattrs of the top of a workload"),
            mtime: Mtime::Unknown,
        };
        Self { nodes: BTreeMap::from([(TOP, top)]), next: TOP + 1 }
    }

    /// Returns an inode that is known to exist.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    /// Returns an inode that is known to exist, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("an inode of the model")
    }

    /// Adds an inode without a name.
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Removes an inode without names.
    pub fn forget(&mut self, id: NodeId) {
        self.nodes.remove(&id);
    }

    /// Returns the content of file `id`, to be changed.
    pub fn content_mut(&mut self, id: NodeId) -> &mut Content {
        match &mut self.node_mut(id).body {
            Body::File(content) => content,
            other => panic!("not a file: {other:?}"),
        }
    }

    /// Returns the names in directory `id`.
    pub fn names_in(&self, id: NodeId) -> &BTreeMap<Vec<u8>, NodeId> {
        match &self.node(id).body {
            Body::Dir { names, .. } => names,
            other => panic!("not a directory: {other:?}"),
        }
    }

    fn names_in_mut(&mut self, id: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.node_mut(id).body {
            Body::Dir { names, .. } => names,
            other => panic!("not a directory: {other:?}"),
        }
    }

    /// Returns the inode of `name` in `dir`.
    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.names_in(dir).get(name).copied()
    }

    /// Gives `node` a name that is free. The caller changes the link count.
    pub fn attach(&mut self, dir: NodeId, name: &[u8], node: NodeId) {
        let old = self.names_in_mut(dir).insert(name.to_vec(), node);
        assert!(old.is_none(), "the name is taken");
        if let Body::Dir { parent, .. } = &mut self.node_mut(node).body {
            *parent = Some((dir, name.to_vec()));
        }
    }

    /// Removes a name. The caller changes the link count.
    pub fn detach(&mut self, dir: NodeId, name: &[u8]) -> NodeId {
        self.names_in_mut(dir).remove(name).expect("a name of the model")
    }

    /// Returns all directories.
    pub fn dirs(&self) -> Vec<NodeId> {
        let dirs = self.nodes.iter().filter(|(_, node)| node.is_dir());
        dirs.map(|(&id, _)| id).collect()
    }

    /// Returns all names.
    pub fn names(&self) -> Vec<Name> {
        let mut found = Vec::new();
        for (&dir, node) in &self.nodes {
            if let Body::Dir { names, .. } = &node.body {
                found.extend(names.iter().map(|(name, &node)| Name { dir, name: name.clone(), node }));
            }
        }
        found
    }

    /// Returns the path of a directory relative to the top.
    pub fn dir_path(&self, id: NodeId) -> Vec<u8> {
        match &self.node(id).body {
            Body::Dir { parent: Some((dir, name)), .. } => join(&self.dir_path(*dir), name),
            _ => Vec::new(),
        }
    }

    /// Returns how many directories are above `id`.
    pub fn depth(&self, id: NodeId) -> usize {
        self.ancestors(id).len() - 1
    }

    /// Returns `id` and all directories above it.
    pub fn ancestors(&self, id: NodeId) -> Vec<NodeId> {
        let mut chain = vec![id];
        let mut at = id;
        while let Body::Dir { parent: Some((dir, _)), .. } = &self.node(at).body {
            at = *dir;
            chain.push(at);
        }
        chain
    }

    /// Returns the bytes of file content in memory.
    pub fn held(&self) -> u64 {
        let contents = self.nodes.values().filter_map(Node::content);
        contents.map(Content::held).sum()
    }

    /// Returns the tree that a walk over the directory must find.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let mut groups: BTreeMap<NodeId, BTreeSet<Vec<u8>>> = BTreeMap::new();
        tree.entries.insert(Vec::new(), self.entry(TOP));
        for name in self.names() {
            let path = join(&self.dir_path(name.dir), &name.name);
            if !self.node(name.node).is_dir() {
                groups.entry(name.node).or_default().insert(path.clone());
            }
            tree.entries.insert(path, self.entry(name.node));
        }
        tree.links = groups.into_values().filter(|g| g.len() > 1).collect();
        tree
    }

    fn entry(&self, id: NodeId) -> Entry {
        let node = self.node(id);
        let (kind, size) = match &node.body {
            // btrfs counts a name twice, since an item by hash and one by index have it.
            Body::Dir { names, .. } => (Kind::Dir, names.keys().map(|name| 2 * name.len() as u64).sum()),
            Body::File(content) => (Kind::File, content.size()),
            Body::Symlink(target) => (Kind::Symlink, target.len() as u64),
            Body::Special(kind, _) => (*kind, 0),
        };
        Entry {
            kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            nlink: node.nlink,
            size: Some(size),
            mtime: match node.mtime {
                Mtime::Exactly(time) => Some(time),
                _ => None,
            },
            ctime: None,
            atime: None,
            btime: None,
            ino: None,
            rdev: match node.body {
                Body::Special(_, rdev) => rdev,
                _ => None,
            },
            target: match &node.body {
                Body::Symlink(target) => Some(target.clone()),
                _ => None,
            },
            xattrs: node.xattrs.clone(),
            data: None,
            digest: node.content().map(Content::digest),
            flags: None,
        }
    }

    /// Returns every difference between the model and the directory `dir`; none if they agree.
    pub fn verify(&self, dir: &Path) -> Vec<String> {
        let seen = walk(dir);
        let mut found = diff(&self.tree(), &seen, Options::SAME_VOLUME);
        let mut check_time = |path: &[u8], id| {
            if let Mtime::Since(earliest) = self.node(id).mtime
                && let Some(time) = seen.entries.get(path).and_then(|entry| entry.mtime)
                && time < earliest
            {
                let path = show(path);
                found.push(format!("{path}: mtime {time:?}, but changed after {earliest:?}"));
            }
        };
        check_time(&[], TOP);
        for name in self.names() {
            check_time(&join(&self.dir_path(name.dir), &name.name), name.node);
        }
        found
    }

    /// Fails the test unless `dir` agrees with the model.
    #[track_caller]
    pub fn assert_in(&self, what: &str, dir: &Path) {
        let found = self.verify(dir);
        assert!(
            found.is_empty(),
            "{what}: {} differences (left: the model, right: seen), the first of them:\n{}",
            found.len(),
            found.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n")
        );
    }
}

/// Returns `dir/name`, or `name` at the top.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
