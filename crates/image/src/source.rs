//! The sources from which files are copied.

use ubtrfs::format::items::{FileType, Timespec};

use crate::error::Result;

/// A name of a directory, and the node that it refers to.
pub type Child<N> = (Vec<u8>, N);

/// All of an inode except its content and its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of a device node in btrfs's form: `major << 20 | minor`.
    pub rdev: u64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The identity of the inode, if it may have several names.
    pub identity: Option<(u64, u64)>,
}

impl Description {
    /// The type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode)
    }
}

/// A function that takes a piece of data of a file with its offset in bytes.
pub type TakeData<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// A tree of files.
pub trait Source {
    /// A file of the tree.
    type Node;

    /// Describes a file. A symbolic link is not followed.
    fn describe(&self, node: &Self::Node) -> Result<Description>;

    /// The entries of a directory, sorted by name.
    fn children(&self, node: &Self::Node) -> Result<Vec<Child<Self::Node>>>;

    /// Reads the data of a regular file of this size in bytes, without its holes. Returns the size
    /// that was found, which is less if the file has shrunk since it was described.
    fn read(&self, node: &Self::Node, size: u64, take: &mut TakeData<'_>) -> Result<u64>;

    /// The inode, if the tree is in the volume that is copied to.
    fn inode(&self, _node: &Self::Node) -> Option<ubtrfs::InodeId> {
        None
    }
}
