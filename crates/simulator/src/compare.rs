//! Compares everything that the engine shows with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use ubtrfs::{Errno, Filesystem, InodeId};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::FileType;

use crate::{Body, Content, Model, Node, Path, Times};

/// Files up to this size are read from end to end. Larger ones are read where the model or the
/// engine has data.
const WHOLE: u64 = 256 << 10;

/// What is compared besides the rest.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    /// Times, where the model knows them.
    pub times: bool,
    /// Nodes without names, which the engine still has open.
    pub nameless: bool,
}

/// Returns the first difference between a mounted volume and the model, as a sentence.
pub fn compare(fs: &Filesystem, model: &Model, how: Compare) -> Result<(), String> {
    for (path, id) in model.paths() {
        compare_node(fs, model, id, how).map_err(|what| format!("{path:?} (inode {}): {what}", id.ino))?;
    }
    same("default subvolume", &in_context("default subvolume", fs.subvolumes().default_subvolume())?, &model.default)?;
    if how.nameless { compare_nameless(fs, model) } else { Ok(()) }
}

/// Returns the first difference in a node without a name, as a sentence. Data that is overwritten
/// in place is left out, since its state after a crash is unknown.
pub(crate) fn compare_nameless(fs: &Filesystem, model: &Model) -> Result<(), String> {
    let how = Compare { times: true, nameless: true };
    let is_known = |id: &InodeId| !model.node(*id).is_nodatacow();
    model.orphans().into_iter().filter(is_known).try_for_each(|id| {
        compare_node(fs, model, id, how).map_err(|what| format!("nameless inode {}: {what}", id.ino))
    })
}

fn same<T: PartialEq + Debug>(what: &str, engine: &T, model: &T) -> Result<(), String> {
    if engine == model { Ok(()) } else { Err(format!("{what}: the engine has {engine:?}, the model {model:?}")) }
}

fn in_context<T>(what: &str, result: ubtrfs::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {}", error.chain()))
}

fn compare_node(fs: &Filesystem, model: &Model, id: InodeId, how: Compare) -> Result<(), String> {
    let node = model.node(id);
    let found = in_context("stat", fs.inodes().attributes(id))?;
    same("mode", &format!("{:o}", found.mode), &format!("{:o}", node.mode))?;
    same("owner", &(found.uid, found.gid), &(node.uid, node.gid))?;
    same("link count", &found.nlink, &node.nlink)?;
    same("size", &found.size, &node.size())?;
    if let (true, Some(times)) = (how.times, node.times) {
        same("times", &Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime }, &times)?;
    }
    compare_xattrs(fs, id, node)?;
    match &node.body {
        Body::Directory { entries, parent } => {
            if node.nlink > 0 && id != model.root {
                same("parent", &in_context("parent", fs.directories().parent(id))?, parent)?;
            }
            compare_entries(fs, model, id, entries)
        }
        Body::File(content) => compare_content(fs, id, content),
        Body::Symlink(target) => same("target", &in_context("readlink", fs.files().read_link(id))?, target),
        Body::Special(number) => same("device number", &found.rdev, number),
    }
}

fn compare_entries(
    fs: &Filesystem,
    model: &Model,
    dir: InodeId,
    wanted: &BTreeMap<Vec<u8>, InodeId>,
) -> Result<(), String> {
    let mut left = wanted.clone();
    let last = in_context("last index", fs.directories().last_index(dir))?;
    let mut after = DirIndex(0);
    loop {
        let entries = in_context("list", fs.directories().list(dir, after, last, 5))?;
        let Some(end) = entries.last() else { break };
        after = end.index;
        for entry in &entries {
            let name = Path(entry.name.clone());
            match left.remove(&entry.name) {
                Some(id) if id == entry.inode => {
                    let mode = model.nodes.get(&id).map_or(0o040_000, |node| node.mode);
                    let file_type = FileType::from_mode(mode);
                    same(&format!("type of entry {name:?}"), &entry.file_type, &file_type)?;
                }
                Some(id) => return Err(format!("entry {name:?} points to {}, not {}", entry.inode.ino, id.ino)),
                None => return Err(format!("entry {name:?} is listed though it should not be there, or twice")),
            }
        }
    }
    if let Some(name) = left.into_keys().next() {
        return Err(format!("entry {:?} is not listed", Path(name)));
    }
    for (name, id) in wanted {
        let found = in_context("lookup", fs.directories().lookup(dir, name))
            .map_err(|what| format!("{:?}: {what}", Path(name.clone())))?;
        fs.references().forget(found, 1);
        same("lookup", &found, id)?;
    }
    match fs.directories().lookup(dir, b"no such name") {
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        other => Err(format!("looking up what is not there gives {other:?}")),
    }
}

fn compare_xattrs(fs: &Filesystem, id: InodeId, node: &Node) -> Result<(), String> {
    let found: BTreeSet<Vec<u8>> = in_context("listxattr", fs.inodes().list_xattrs(id))?.into_iter().collect();
    let wanted: BTreeSet<Vec<u8>> = node.xattrs.keys().cloned().collect();
    let shown = |names: &BTreeSet<Vec<u8>>| names.iter().map(|name| Path(name.clone())).collect::<Vec<_>>();
    same("xattrs", &shown(&found), &shown(&wanted))?;
    for (name, value) in &node.xattrs {
        let found = in_context("getxattr", fs.inodes().get_xattr(id, name))?;
        if *found != **value {
            let lens = (found.len(), value.len());
            return Err(format!("xattr {:?} has another value; lengths {lens:?}", Path(name.clone())));
        }
    }
    Ok(())
}

fn compare_content(fs: &Filesystem, id: InodeId, wanted: &Content) -> Result<(), String> {
    let size = wanted.size();
    if size <= WHOLE {
        return compare_range(fs, id, wanted, 0, size.max(1));
    }
    let mut at = 0;
    let mut ranges = wanted.data_ranges();
    loop {
        let start = match fs.files().seek_data(id, at) {
            Ok(start) => start,
            Err(error) if error.errno() == Errno::NXIO => break,
            Err(error) => return Err(format!("seek for data from {at}: {}", error.chain())),
        };
        at = in_context("seek for a hole", fs.files().seek_hole(id, start))?;
        if at <= start {
            return Err(format!("data from {start} ends at {at}"));
        }
        ranges.push(start..at);
    }
    ranges.into_iter().try_for_each(|range| compare_range(fs, id, wanted, range.start, range.end - range.start))
}

fn compare_range(fs: &Filesystem, id: InodeId, wanted: &Content, start: u64, len: u64) -> Result<(), String> {
    const STEP: u64 = 1 << 20;
    for from in (start..start + len).step_by(STEP as usize) {
        let len = STEP.min(start + len - from) as usize;
        let found = in_context("read", fs.files().read(id, from, len))?;
        let wanted = wanted.read(from, len);
        if found.len() != wanted.len() {
            return Err(format!("read {} bytes at {from}, not {}", found.len(), wanted.len()));
        }
        if let Some(at) = found.iter().zip(&wanted).position(|(a, b)| a != b) {
            let shown = |bytes: &[u8]| format!("{:02x?}", &bytes[at..(at + 8).min(bytes.len())]);
            let differing = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            return Err(format!(
                "content at {}: the engine has {}, the model {}; {differing} of {} bytes differ",
                from + at as u64,
                shown(&found),
                shown(&wanted),
                found.len()
            ));
        }
    }
    Ok(())
}
