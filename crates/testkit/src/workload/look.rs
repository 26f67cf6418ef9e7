//! Reads of existing files, between the changes.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::io::Errno;

use super::{Step, Workload, errno, expect};
use crate::content::Content;
use crate::model::{Body, Mtime};
use crate::names::random_name;

impl Workload {
    pub(super) fn look_at_inode(&mut self) -> Step {
        let Some(entry) = self.random_entry(|_| true) else {
            return Ok(());
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("stat {shown}"));
        let meta = std::fs::symlink_metadata(&path).map_err(|error| format!("stat: {error}"))?;
        let node = self.model.node(entry.node);
        let wanted = (node.mode, node.uid, node.gid, node.nlink);
        let got = (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.nlink());
        if got != wanted {
            return Err(format!("stat: {got:?} instead of {wanted:?} (mode, owner, group, links)"));
        }
        let time = (meta.mtime(), meta.mtime_nsec() as u32);
        match node.mtime {
            Mtime::Exactly(set) if set != time => {
                return Err(format!("mtime {time:?} instead of {set:?}"));
            }
            Mtime::Since(earliest) if time < earliest => {
                return Err(format!("mtime {time:?}, but changed after {earliest:?}"));
            }
            _ => {}
        }
        match &node.body {
            Body::File(content) if content.size() != meta.len() => {
                return Err(format!("size {} instead of {}", meta.len(), content.size()));
            }
            Body::Symlink(target) => {
                let got = std::fs::read_link(&path).map_err(|error| format!("readlink: {error}"))?;
                if got.into_os_string().into_vec() != *target {
                    return Err("the target of a symbolic link is another".to_owned());
                }
            }
            _ => {}
        }
        let got = crate::walk::xattrs(&path).map_err(|error| format!("xattrs: {error}"))?;
        if got != node.xattrs {
            let names = |map: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| {
                let names = map.iter().map(|(n, v)| format!("{}={}", n.escape_ascii(), v.len()));
                names.collect::<Vec<_>>().join(" ")
            };
            return Err(format!("xattrs (name=length): {} instead of {}", names(&got), names(&node.xattrs)));
        }
        Ok(())
    }

    pub(super) fn look_at_bytes(&mut self) -> Step {
        let Some(entry) = self.random_entry(|node| node.content().is_some()) else {
            return Ok(());
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        let size = self.model.node(entry.node).content().map_or(0, Content::size);
        let offset = self.rng.below(size + 1);
        let length = 1 + self.rng.below(200_000);
        self.note(&format!("read {length} bytes at {offset} of {shown}"));
        let file = File::open(&path).map_err(|error| format!("open: {error}"))?;
        let mut got = vec![0; length as usize];
        let mut filled = 0;
        while filled < got.len() {
            match file.read_at(&mut got[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        got.truncate(filled);
        let node = self.model.node(entry.node);
        let wanted = node.content().map_or_else(Vec::new, |c| c.read(offset, length));
        if got == wanted {
            return Ok(());
        }
        let first = got.iter().zip(&wanted).position(|(a, b)| a != b);
        let at = offset + first.unwrap_or(got.len().min(wanted.len())) as u64;
        Err(format!("read {} bytes instead of {}, the first difference at {at}", got.len(), wanted.len()))
    }

    pub(super) fn look_at_dir(&mut self) -> Step {
        let dir = self.random_dir();
        let (path, shown) = self.place(dir, b".");
        self.note(&format!("list {shown}"));
        let mut got = Vec::new();
        for item in std::fs::read_dir(&path).map_err(|error| format!("list: {error}"))? {
            let item = item.map_err(|error| format!("list: {error}"))?;
            got.push(item.file_name().into_vec());
        }
        let wanted: BTreeSet<&Vec<u8>> = self.model.names_in(dir).keys().collect();
        let listed: BTreeSet<&Vec<u8>> = got.iter().collect();
        if listed == wanted && got.len() == wanted.len() {
            return Ok(());
        }
        let describe = |names: Vec<&&Vec<u8>>| {
            let names = names.iter().map(|name| name.escape_ascii().to_string());
            names.collect::<Vec<_>>().join(" ")
        };
        Err(format!(
            "a listing of {} names instead of {}; missing: {}; too many: {}",
            got.len(),
            wanted.len(),
            describe(wanted.difference(&listed).collect()),
            describe(listed.difference(&wanted).collect()),
        ))
    }

    /// Looks up names that do not exist, or cannot exist.
    pub(super) fn look_for_nothing(&mut self) -> Step {
        let dir = self.random_dir();
        let name = if self.rng.one_in(4) { vec![b'n'; 256] } else { random_name(&mut self.rng) };
        let wanted = if name.len() > 255 {
            Some(Errno::NAMETOOLONG)
        } else if self.model.lookup(dir, &name).is_some() {
            None
        } else {
            Some(Errno::NOENT)
        };
        let (path, shown) = self.place(dir, &name);
        self.note(&format!("stat {shown}"));
        let result = std::fs::symlink_metadata(&path).map_err(|error| errno(&error));
        expect(result, wanted, "stat")
    }
}
