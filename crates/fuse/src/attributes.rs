//! The attributes of inodes and of a filesystem.

use std::time::Duration;

use rustix::fs::StatxFlags;

use crate::abi::messages;

/// A time since the epoch; `nanoseconds` is below 1,000,000,000, also before the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// The nanoseconds beyond them.
    pub nanoseconds: u32,
}

/// Attributes of an inode, as stat(2) shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The number that stat(2) shows (may differ from the node).
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Type and permissions (`S_IF*` and twelve bits).
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device of a device node, in the kernel's 32-bit encoding (`(major << 8 | minor & 0xff) |
    /// (minor & !0xff) << 12`).
    pub rdev: u32,
    /// Preferred unit of I/O in bytes.
    pub blksize: u32,
}

impl Attributes {
    pub(crate) fn to_abi(self) -> messages::Attr {
        messages::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.seconds,
            mtime: self.mtime.seconds,
            ctime: self.ctime.seconds,
            atimensec: self.atime.nanoseconds,
            mtimensec: self.mtime.nanoseconds,
            ctimensec: self.ctime.nanoseconds,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }

    pub(crate) fn to_reply(self, ttl: Duration) -> messages::AttrOut {
        messages::AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: self.to_abi(),
        }
    }
}

/// The inode that a name refers to, in the answers to LOOKUP and to requests that create. Each one
/// that is sent adds one to the node's lookup count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node: the number by which requests name the inode until it is forgotten. Never zero.
    pub node: u64,
    /// Distinguishes two inodes that have the same node one after the other.
    pub generation: u64,
    /// How long the kernel may keep the name.
    pub name_ttl: Duration,
    /// How long the kernel may keep the attributes.
    pub attributes_ttl: Duration,
    /// The attributes.
    pub attributes: Attributes,
}

impl Entry {
    pub(crate) fn to_abi(self) -> messages::EntryOut {
        messages::EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid: self.name_ttl.as_secs(),
            attr_valid: self.attributes_ttl.as_secs(),
            entry_valid_nsec: self.name_ttl.subsec_nanos(),
            attr_valid_nsec: self.attributes_ttl.subsec_nanos(),
            attr: self.attributes.to_abi(),
        }
    }

    /// An entry that says that there is no such name, which the kernel may remember for `ttl`.
    pub(crate) fn negative(ttl: Duration) -> messages::EntryOut {
        messages::EntryOut { entry_valid: ttl.as_secs(), entry_valid_nsec: ttl.subsec_nanos(), ..Default::default() }
    }
}

/// What statx(2) shows beyond [`Attributes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statx {
    /// What stat(2) shows.
    pub attributes: Attributes,
    /// The time of the inode's creation, if that is known.
    pub btime: Option<Timestamp>,
    /// The `STATX_ATTR_*` flags that are set.
    pub flags: u64,
    /// The `STATX_ATTR_*` flags that this filesystem supports.
    pub flags_mask: u64,
}

impl Statx {
    pub(crate) fn to_reply(self, ttl: Duration) -> messages::StatxOut {
        let time =
            |at: Timestamp| messages::StatxTime { seconds: at.seconds, nanoseconds: at.nanoseconds, reserved: 0 };
        let mut mask = StatxFlags::BASIC_STATS;
        mask.set(StatxFlags::BTIME, self.btime.is_some());
        let attributes = self.attributes;
        messages::StatxOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            mask: mask.bits(),
            blksize: attributes.blksize,
            attributes: self.flags,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: attributes.mode as u16,
            ino: attributes.ino,
            size: attributes.size,
            blocks: attributes.blocks,
            attributes_mask: self.flags_mask,
            atime: time(attributes.atime),
            btime: time(self.btime.unwrap_or_default()),
            ctime: time(attributes.ctime),
            mtime: time(attributes.mtime),
            rdev_major: attributes.rdev >> 8 & 0xfff,
            rdev_minor: attributes.rdev & 0xff | attributes.rdev >> 12 & !0xff,
            ..Default::default()
        }
    }
}

/// What statfs(2) shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size in fragments.
    pub blocks: u64,
    /// Free fragments.
    pub free: u64,
    /// Free fragments that anybody may use.
    pub available: u64,
    /// Inodes; zero if there is no limit.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred unit of I/O in bytes.
    pub block_size: u32,
    /// Bytes of the longest name.
    pub name_length: u32,
    /// Bytes of a fragment.
    pub fragment_size: u32,
}

impl StatFs {
    pub(crate) fn to_abi(self) -> messages::StatfsOut {
        messages::StatfsOut {
            blocks: self.blocks,
            bfree: self.free,
            bavail: self.available,
            files: self.files,
            ffree: self.files_free,
            bsize: self.block_size,
            namelen: self.name_length,
            frsize: self.fragment_size,
            ..Default::default()
        }
    }
}
