//! Inodes and names in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ubtrfs_fuse::{Attributes, Entry, Errno, ROOT, Timestamp};

use super::data::Data;

/// How long the kernel may cache answers, which is as long as with ubtrfs.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The bits of the type in a mode.
pub const TYPE: u32 = 0o170_000;
/// The type of directories.
pub const DIRECTORY: u32 = 0o040_000;
/// The type of ordinary files.
pub const REGULAR: u32 = 0o100_000;
/// The type of symbolic links.
pub const LINK: u32 = 0o120_000;
/// The number of the first name; those below are "." and "..".
const FIRST: u64 = 3;

/// What an inode holds.
pub enum Content {
    /// Bytes.
    File(Arc<Data>),
    /// Names.
    Directory(Directory),
    /// The target of a symbolic link.
    Link(Vec<u8>),
    /// Nothing.
    Other,
}

/// The names of a directory, by name and by number.
pub struct Directory {
    names: HashMap<Box<[u8]>, (u64, u64)>,
    order: BTreeMap<u64, (Box<[u8]>, u64)>,
    next: u64,
    parent: u64,
}

/// A name in a listing: its number, the name, and its inode.
pub type Listed = (u64, Box<[u8]>, u64);

/// An inode, to which the kernel has `lookups` references.
pub struct Inode {
    /// The attributes that stat(2) shows, except for the size of files.
    pub attributes: Attributes,
    /// Its content.
    pub content: Content,
    lookups: u64,
}

/// All inodes by number.
pub struct Inodes {
    slots: Vec<Option<Box<Inode>>>,
    free: Vec<u64>,
}

/// The attributes of a new inode.
#[derive(Clone, Copy)]
pub struct New {
    /// Type and permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// The device number of a device node.
    pub rdev: u32,
}

/// Returns the present time.
pub fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

impl Inode {
    fn new(new: New, ino: u64, parent: u64) -> Self {
        let time = now();
        let content = match new.mode & TYPE {
            REGULAR => Content::File(Arc::default()),
            DIRECTORY => {
                Content::Directory(Directory { names: HashMap::new(), order: BTreeMap::new(), next: FIRST, parent })
            }
            _ => Content::Other,
        };
        let attributes = Attributes {
            ino,
            mode: new.mode,
            nlink: if matches!(content, Content::Directory(_)) { 2 } else { 1 },
            uid: new.owner.0,
            gid: new.owner.1,
            rdev: new.rdev,
            atime: time,
            mtime: time,
            ctime: time,
            blksize: 4096,
            ..Attributes::default()
        };
        Self { attributes, content, lookups: 0 }
    }

    /// Returns the attributes that stat(2) shows.
    pub fn shown(&self) -> Attributes {
        let size = match &self.content {
            Content::File(data) => data.size(),
            Content::Directory(directory) => directory.names.len() as u64 * 32,
            Content::Link(target) => target.len() as u64,
            Content::Other => 0,
        };
        Attributes { size, blocks: size.div_ceil(512), ..self.attributes }
    }

    fn directory(&self) -> Result<&Directory, Errno> {
        if let Content::Directory(directory) = &self.content { Ok(directory) } else { Err(Errno::NOTDIR) }
    }

    fn directory_mut(&mut self) -> Result<&mut Directory, Errno> {
        let time = now();
        self.attributes.mtime = time;
        self.attributes.ctime = time;
        if let Content::Directory(directory) = &mut self.content { Ok(directory) } else { Err(Errno::NOTDIR) }
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }
}

impl Inodes {
    /// Makes an empty root.
    pub fn new() -> Self {
        let mut root = Inode::new(New { mode: DIRECTORY | 0o777, owner: (0, 0), rdev: 0 }, ROOT, ROOT);
        root.lookups = 1;
        Self { slots: vec![None, Some(Box::new(root))], free: Vec::new() }
    }

    /// Returns an inode by its number.
    pub fn get(&self, node: u64) -> Result<&Inode, Errno> {
        self.slots.get(node as usize).and_then(|slot| slot.as_deref()).ok_or(Errno::STALE)
    }

    /// Returns an inode by its number, to be changed.
    pub fn get_mut(&mut self, node: u64) -> Result<&mut Inode, Errno> {
        self.slots.get_mut(node as usize).and_then(|slot| slot.as_deref_mut()).ok_or(Errno::STALE)
    }

    /// Returns the content of a file.
    pub fn data(&self, node: u64) -> Result<Arc<Data>, Errno> {
        if let Content::File(data) = &self.get(node)?.content { Ok(Arc::clone(data)) } else { Err(Errno::INVAL) }
    }

    /// Returns the number of bytes of all files that were written since the last call.
    pub fn take_dirty(&self) -> u64 {
        let dirty = |inode: &Inode| if let Content::File(data) = &inode.content { data.take_dirty() } else { 0 };
        self.slots.iter().flatten().map(|inode| dirty(inode)).sum()
    }

    /// Makes an inode without a name.
    pub fn make(&mut self, new: New, parent: u64) -> u64 {
        let node = self.free.pop().unwrap_or(self.slots.len() as u64);
        let inode = Some(Box::new(Inode::new(new, node, parent)));
        match self.slots.get_mut(node as usize) {
            Some(slot) => *slot = inode,
            None => self.slots.push(inode),
        }
        node
    }

    /// Returns the inode of a name.
    pub fn find(&self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        self.get(directory)?.directory()?.names.get(name).map(|(node, _)| *node).ok_or(Errno::NOENT)
    }

    /// Adds a name that does not exist yet.
    pub fn add(&mut self, directory: u64, name: &[u8], node: u64) -> Result<(), Errno> {
        if self.find(directory, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let below = u32::from(self.get(node)?.is_directory());
        let inode = self.get_mut(directory)?;
        inode.attributes.nlink += below;
        let names = inode.directory_mut()?;
        let number = names.next;
        names.next += 1;
        names.names.insert(name.into(), (node, number));
        names.order.insert(number, (name.into(), node));
        Ok(())
    }

    /// Removes a name, but not the inode.
    fn take(&mut self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        let node = self.find(directory, name)?;
        let below = u32::from(self.get(node)?.is_directory());
        let inode = self.get_mut(directory)?;
        inode.attributes.nlink -= below;
        let names = inode.directory_mut()?;
        let (node, number) = names.names.remove(name).ok_or(Errno::NOENT)?;
        names.order.remove(&number);
        Ok(node)
    }

    /// Removes the name of an empty directory, or that of another inode.
    pub fn remove(&mut self, directory: u64, name: &[u8], of_directory: bool) -> Result<(), Errno> {
        let node = self.find(directory, name)?;
        match (&self.get(node)?.content, of_directory) {
            (Content::Directory(_), false) => return Err(Errno::ISDIR),
            (Content::Directory(names), true) if !names.names.is_empty() => return Err(Errno::NOTEMPTY),
            (Content::Directory(_), true) | (_, false) => {}
            (_, true) => return Err(Errno::NOTDIR),
        }
        self.take(directory, name)?;
        self.unlink(node)
    }

    fn unlink(&mut self, node: u64) -> Result<(), Errno> {
        let inode = self.get_mut(node)?;
        inode.attributes.ctime = now();
        inode.attributes.nlink = if inode.is_directory() { 0 } else { inode.attributes.nlink.saturating_sub(1) };
        self.drop_if_unused(node);
        Ok(())
    }

    /// Renames. The inode that had the new name loses it.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), replace: bool) -> Result<(), Errno> {
        let node = self.find(from.0, from.1)?;
        match self.find(to.0, to.1) {
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(there) if there == node => return Ok(()),
            Ok(there) => self.remove(to.0, to.1, self.get(there)?.is_directory())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        self.take(from.0, from.1)?;
        self.add(to.0, to.1, node)?;
        let inode = self.get_mut(node)?;
        inode.attributes.ctime = now();
        if let Content::Directory(directory) = &mut inode.content {
            directory.parent = to.0;
        }
        Ok(())
    }

    /// Returns the kernel's entry for an inode, and counts one more reference to it.
    pub fn entry(&mut self, node: u64) -> Result<Entry, Errno> {
        let inode = self.get_mut(node)?;
        inode.lookups += 1;
        Ok(Entry { node, generation: 0, name_ttl: DAY, attributes_ttl: DAY, attributes: inode.shown() })
    }

    /// Notes that the kernel has dropped so many references.
    pub fn forget(&mut self, node: u64, lookups: u64) {
        if let Ok(inode) = self.get_mut(node) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            self.drop_if_unused(node);
        }
    }

    fn drop_if_unused(&mut self, node: u64) {
        let unused = |inode: &Inode| inode.attributes.nlink == 0 && inode.lookups == 0;
        if node != ROOT && self.get(node).is_ok_and(unused) {
            self.slots[node as usize] = None;
            self.free.push(node);
        }
    }

    /// Returns whether the kernel has references to the inode.
    pub fn is_looked_up(&self, node: u64) -> bool {
        self.get(node).is_ok_and(|inode| inode.lookups > 0)
    }

    /// Returns at most `limit` names of a directory with numbers above `after`, with these numbers;
    /// "." and ".." come first.
    pub fn list(&self, directory: u64, after: u64, limit: usize) -> Result<Vec<Listed>, Errno> {
        let names = self.get(directory)?.directory()?;
        let dots: [(u64, &[u8], u64); 2] = [(1, b".", directory), (2, b"..", names.parent)];
        let dots = dots
            .into_iter()
            .filter(|(number, ..)| *number > after)
            .map(|(number, name, node)| (number, name.into(), node));
        let from = (after + 1).max(FIRST);
        let others = names.order.range(from..).map(|(number, (name, node))| (*number, name.clone(), *node));
        Ok(dots.chain(others).take(limit).collect())
    }
}
