//! The visible state of a mounted volume, as a model.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs::{Attributes, Errno, Filesystem, InodeId};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::{FileType, InodeFlags};

use crate::model::IN_PLACE_OF_SUBVOLUMES;
use crate::{Body, Content, Model, Node, Path, Times};

/// Files up to this size are read from end to end. Larger ones are read where the engine has data.
const WHOLE: u64 = 256 << 10;

/// Walks a volume and checks that what it shows is consistent: link counts with names, sizes with
/// entries, listings with lookups. Returns a sentence if something is not.
pub fn look(fs: &Filesystem) -> Result<Model, String> {
    let root = fs.root();
    let mut walk = Walk { fs, nodes: BTreeMap::new(), names: BTreeMap::new() };
    let mut open = vec![(Path::default(), root, root)];
    while let Some((path, id, parent)) = open.pop() {
        if let Some(node) = walk.nodes.get(&id) {
            let is_dir = Node::is_dir(node);
            *walk.names.entry(id).or_default() += 1;
            if is_dir {
                return Err(format!("{path:?} (inode {}) is a directory with a second name", id.ino));
            }
            continue;
        }
        let node = walk.node(id, parent).map_err(|what| format!("{path:?} (inode {}): {what}", id.ino))?;
        if let Body::Directory { entries, .. } = &node.body {
            // A snapshot shows one empty directory in place of all subvolumes in its source.
            let shown = entries.iter().filter(|(_, child)| child.ino != IN_PLACE_OF_SUBVOLUMES);
            open.extend(shown.map(|(name, child)| (path.join(name), *child, id)));
        }
        walk.names.insert(id, 1);
        walk.nodes.insert(id, node);
    }
    for (id, node) in &walk.nodes {
        let names = walk.names.get(id).copied().unwrap_or(0);
        if node.nlink != names {
            return Err(format!("inode {} has {names} names, but a link count of {}", id.ino, node.nlink));
        }
    }
    let nodes = walk.nodes.into_iter().map(|(id, node)| (id, node.into())).collect();
    let mut read_only = BTreeSet::new();
    for id in fs.subvolumes().ids() {
        if in_context("subvolume", fs.subvolumes().subvolume_info(id))?.read_only {
            read_only.insert(id);
        }
    }
    Ok(Model { root, nodes, read_only, default: in_context("default subvolume", fs.subvolumes().default_subvolume())? })
}

struct Walk<'a> {
    fs: &'a Filesystem,
    nodes: BTreeMap<InodeId, Node>,
    names: BTreeMap<InodeId, u32>,
}

fn in_context<T>(what: &str, result: ubtrfs::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {}", error.chain()))
}

impl Walk<'_> {
    fn node(&self, id: InodeId, parent: InodeId) -> Result<Node, String> {
        let found = in_context("stat", self.fs.inodes().attributes(id))?;
        let body = match found.file_type {
            FileType::Directory => {
                let held = in_context("parent", self.fs.directories().parent(id))?;
                if held != parent {
                    return Err(format!("its parent is inode {}, but its name is in {}", held.ino, parent.ino));
                }
                Body::Directory { entries: self.entries(id)?, parent }
            }
            FileType::Regular => {
                let mut content = self.content(id, found.size)?;
                if found.flags & InodeFlags::NODATACOW != 0 {
                    content.set_nodatacow();
                }
                Body::File(content)
            }
            FileType::Symlink => Body::Symlink(in_context("readlink", self.fs.files().read_link(id))?),
            _ => Body::Special(found.rdev),
        };
        let node = self.with_attributes(&found, body)?;
        if node.size() != found.size {
            return Err(format!("its size is {}, not {}", found.size, node.size()));
        }
        Ok(node)
    }

    fn with_attributes(&self, found: &Attributes, body: Body) -> Result<Node, String> {
        let mut xattrs = BTreeMap::new();
        for name in in_context("listxattr", self.fs.inodes().list_xattrs(found.id))? {
            let value = in_context("getxattr", self.fs.inodes().get_xattr(found.id, &name))?;
            if xattrs.insert(name.clone(), value.into()).is_some() {
                return Err(format!("xattr {:?} is listed twice", Path(name)));
            }
        }
        Ok(Node {
            mode: found.mode,
            uid: found.uid,
            gid: found.gid,
            nlink: found.nlink,
            body,
            xattrs,
            times: Some(Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime }),
        })
    }

    fn entries(&self, dir: InodeId) -> Result<BTreeMap<Vec<u8>, InodeId>, String> {
        const STEP: usize = 5;
        let mut entries = BTreeMap::new();
        let last = in_context("last index", self.fs.directories().last_index(dir))?;
        let mut after = DirIndex(0);
        loop {
            let step = in_context("list", self.fs.directories().list(dir, after, last, STEP))?;
            for entry in &step {
                let name = Path(entry.name.clone());
                let looked_up = in_context("lookup", self.fs.directories().lookup(dir, &entry.name))
                    .map_err(|what| format!("{name:?}: {what}"))?;
                self.fs.references().forget(looked_up, 1);
                if looked_up != entry.inode {
                    return Err(format!("{name:?} is listed as {}, found as {}", entry.inode.ino, looked_up.ino));
                }
                let found = in_context("stat", self.fs.inodes().attributes(looked_up))?.file_type;
                if found != entry.file_type {
                    return Err(format!("{name:?} is listed as a {:?}, but is a {found:?}", entry.file_type));
                }
                if entries.insert(entry.name.clone(), entry.inode).is_some() {
                    return Err(format!("{name:?} is listed twice"));
                }
            }
            match step.last() {
                Some(entry) if step.len() == STEP => after = entry.index,
                _ => break,
            }
        }
        match self.fs.directories().lookup(dir, b"no such name") {
            Err(error) if error.errno() == Errno::NOENT => Ok(entries),
            other => Err(format!("looking up what is not there gives {other:?}")),
        }
    }

    fn content(&self, id: InodeId, size: u64) -> Result<Content, String> {
        let mut content = Content::default();
        if size <= WHOLE {
            self.read(id, &mut content, 0, size)?;
            let beyond = in_context("read", self.fs.files().read(id, size, 1))?;
            if !beyond.is_empty() {
                return Err("there is data behind its end".into());
            }
        } else {
            let mut at = 0;
            loop {
                let start = match self.fs.files().seek_data(id, at) {
                    Ok(start) => start,
                    Err(error) if error.errno() == Errno::NXIO => break,
                    Err(error) => return Err(format!("seek for data from {at}: {}", error.chain())),
                };
                at = in_context("seek for a hole", self.fs.files().seek_hole(id, start))?;
                if at <= start {
                    return Err(format!("data from {start} ends at {at}"));
                }
                self.read(id, &mut content, start, at)?;
            }
        }
        content.resize(size);
        Ok(content)
    }

    fn read(&self, id: InodeId, content: &mut Content, start: u64, end: u64) -> Result<(), String> {
        const STEP: u64 = 1 << 20;
        for from in (start..end).step_by(STEP as usize) {
            let len = STEP.min(end - from) as usize;
            let bytes = in_context("read", self.fs.files().read(id, from, len))?;
            if bytes.len() != len {
                return Err(format!("read {} bytes at {from}, not {len}", bytes.len()));
            }
            content.write(from, &bytes);
        }
        Ok(())
    }
}
