//! Judges whether the state after a crash is one of those that are allowed.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::path::Path;

use super::blocks::version_of;
use super::history::History;
use super::read_back::{ReadBack, ReadBackInode};
use super::{BLOCK, BlocksState, Inode, Name, Promises, UNKNOWN};

impl Promises {
    /// Compares the names in `place` that begin with `prefix`, and their inodes, with what is
    /// allowed. Returns what is wrong.
    pub fn faults(&self, place: &Path, prefix: &str) -> Vec<String> {
        match ReadBack::read(place, prefix) {
            Ok(read_back) => self.judge(&read_back),
            Err(fault) => vec![fault],
        }
    }

    fn judge(&self, read_back: &ReadBack) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, history) in &self.names {
            let found = read_back.names.get(name).copied();
            if !history.allowed().iter().any(|(_, holder)| self.is_meant(read_back, *holder, found)) {
                faults.push(format!("{}: inode {found:?}, but {}", self.show(name), allowed_values(history)));
            }
        }
        for (name, number) in read_back.names.iter().filter(|(name, _)| !self.names.contains_key(name)) {
            faults.push(format!("{}: inode {number} at a name that nobody gave", self.show(name)));
        }
        let none = BTreeSet::new();
        for (number, inode) in &self.inodes {
            let found = read_back.inodes.get(number);
            let names = found.map_or(&none, |found| &found.names);
            if !inode.names.allowed().iter().any(|(_, set)| set == names) {
                faults.push(format!("inode {number} has the names {names:?}, but {}", allowed_values(&inode.names)));
            }
            if let Some(found) = found {
                let describe = |fault| format!("{} (inode {number}): {fault}", found.path);
                faults.extend(inode.judge(found).into_iter().map(describe));
            }
        }
        faults
    }

    /// Returns whether `found` is the inode that is allowed. If its creation was in progress, any
    /// inode that the model doesn't know is allowed.
    fn is_meant(&self, read_back: &ReadBack, allowed: Option<u64>, found: Option<u64>) -> bool {
        match (allowed, found) {
            (Some(UNKNOWN), Some(number)) => {
                !self.inodes.contains_key(&number) && read_back.inodes[&number].bytes.is_empty()
            }
            (allowed, found) => allowed == found,
        }
    }

    fn show(&self, name: &Name) -> String {
        let mut text = name.1.clone();
        let mut dir = name.0;
        // The directories above are those in the model now; the name may have been removed with its
        // directory.
        while let Some(above) = self.inodes.get(&dir).and_then(|inode| inode.names.now().first()) {
            text = format!("{}/{text}", above.1);
            dir = above.0;
        }
        format!("{text} (in directory {})", name.0)
    }

    /// Takes the state in `place`, which has been found right, as the beginning of the next
    /// session.
    pub fn adopt(&mut self, place: &Path, prefix: &str) {
        let read_back = ReadBack::read(place, prefix).unwrap_or_else(|fault| panic!("{fault}"));
        let old = std::mem::take(&mut self.inodes);
        self.names = read_back.names.iter().map(|(name, &number)| (name.clone(), History::new(Some(number)))).collect();
        for (number, found) in read_back.inodes {
            let id = match old.get(&number) {
                Some(inode) => inode.id,
                None if found.is_dir => 0,
                None => self.new_id(),
            };
            let inode = Inode {
                id,
                is_dir: found.is_dir,
                born: None,
                content: History::new(state_of(id, &found).unwrap_or_else(|fault| panic!("{}: {fault}", found.path))),
                mode: History::new(found.mode),
                mark: History::new(found.mark),
                names: History::new(found.names),
            };
            self.inodes.insert(number, inode);
        }
        self.sequence = 0;
        self.book.clear();
    }
}

impl Inode {
    fn judge(&self, found: &ReadBackInode) -> Vec<String> {
        let mut faults = Vec::new();
        let mut judge = |what: &str, right: bool, allowed: String| {
            if !right {
                faults.push(format!("{what}, but {allowed}"));
            }
        };
        judge("a wrong kind", self.is_dir == found.is_dir, "another was made".to_owned());
        judge(&format!("mode {:o}", found.mode), allows(&self.mode, &found.mode), allowed_values(&self.mode));
        judge(&format!("mark {}", found.mark), allows(&self.mark, &found.mark), allowed_values(&self.mark));
        let (links, names) = (found.links, found.names.len() as u64);
        judge(&format!("{links} links"), self.is_dir || links == names, format!("{names} names"));
        match state_of(self.id, found) {
            Ok(state) => judge(&format!("{state:?}"), allows(&self.content, &state), allowed_values(&self.content)),
            Err(fault) => faults.push(fault),
        }
        faults
    }
}

/// Returns the content of a file as versions of blocks.
fn state_of(id: u64, found: &ReadBackInode) -> Result<BlocksState, String> {
    let blocks = found.bytes.chunks(BLOCK as usize).zip(0..);
    let versions = blocks.map(|(bytes, number)| version_of(id, number, bytes)).collect::<Result<_, _>>()?;
    Ok(BlocksState { size: found.bytes.len() as u64, versions })
}

fn allows<T: PartialEq>(history: &History<T>, found: &T) -> bool {
    history.allowed().iter().any(|(_, value)| value == found)
}

/// Returns the allowed values in words; of many values the first and the last ones.
fn allowed_values<T: Debug>(history: &History<T>) -> String {
    let allowed = history.allowed();
    let (first, rest) = allowed.split_first().expect("something is always allowed");
    let mut text = format!("durable up to {} is {:?} of {}", history.floor(), first.1, first.0);
    let skipped = rest.len().saturating_sub(4);
    if skipped > 0 {
        let _ = write!(text, "; {skipped} later ones");
    }
    for (sequence, value) in &rest[skipped..] {
        let _ = write!(text, "; {value:?} of {sequence}");
    }
    text
}
