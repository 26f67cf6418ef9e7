//! The operation of a request.

use rustix::fs::{FallocateFlags, OFlags, RenameFlags, StatxFlags, XattrFlags};
use zerocopy::FromBytes;

use crate::abi::{
    flags::{Capabilities, IoctlFlags, WriteFlags},
    messages::ForgetOne,
};
use crate::attributes::Timestamp;

/// Every request that is understood.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the protocol's requests by name; arguments are documented where they are structs")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// FORGET and `BATCH_FORGET`; has no reply.
    Forget(Forgets<'a>),
    GetAttr {
        handle: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod(MkNod<'a>),
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    /// RENAME and RENAME2.
    Rename(Rename<'a>),
    /// Gives `node` the name `name` in the directory that the request is about.
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(Open),
    Read(Read),
    Write(Write<'a>),
    StatFs,
    Release(Release),
    Fsync {
        handle: u64,
        data_only: bool,
    },
    SetXattr(SetXattr<'a>),
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    Init(Init),
    OpenDir(Open),
    ReadDir(Read),
    ReadDirPlus(Read),
    ReleaseDir(Release),
    FsyncDir {
        handle: u64,
        data_only: bool,
    },
    Access {
        mask: u32,
    },
    Create(Create<'a>),
    /// Has no reply, except for errors.
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl(Ioctl<'a>),
    Fallocate(Fallocate),
    Lseek(Lseek),
    CopyFileRange(CopyFileRange),
    SyncFs,
    /// `name` has no meaning here.
    TmpFile(Create<'a>),
    Statx {
        handle: Option<u64>,
        flags: u32,
        mask: StatxFlags,
    },
    /// The answer to a RETRIEVE notification, which is a marker here; has no reply.
    NotifyReply,
    /// All other operations; answered ENOSYS.
    Unknown {
        opcode: u32,
    },
}

/// Lookups to forget, node by node.
#[derive(Debug, Clone, Copy)]
pub enum Forgets<'a> {
    /// Lookups of one node.
    One {
        /// The node.
        node: u64,
        /// How many lookups.
        lookups: u64,
    },
    /// Lookups of many nodes, in the protocol's form.
    Many(&'a [u8]),
}

impl Forgets<'_> {
    /// Nodes, each with the number of lookups to take off its count. A node may come more than
    /// once.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let (one, many) = match *self {
            Self::One { node, lookups } => (Some((node, lookups)), &[][..]),
            Self::Many(bytes) => (None, bytes),
        };
        one.into_iter().chain(
            many.chunks_exact(size_of::<ForgetOne>())
                .filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok())
                .map(|one| (one.nodeid, one.nlookup)),
        )
    }
}

/// A time that SETATTR sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The server's current time.
    Now,
    /// A given time.
    At(Timestamp),
}

/// What SETATTR changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Type and permissions; only the twelve permission bits may differ from the present mode.
    pub mode: Option<u32>,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The new size in bytes. open(2) with `O_TRUNC` comes as such a change, too.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (only from a kernel that keeps times itself, with the writeback
    /// cache).
    pub ctime: Option<Timestamp>,
    /// The handle by which it is changed.
    pub handle: Option<u64>,
    /// Clear set-user-id, set-group-id if the group may execute, and `security.capability` (under
    /// `HANDLE_KILLPRIV_V2`). The kernel sets this with a size, unless the caller may keep these
    /// bits, and with a new owner.
    pub kill_suidgid: bool,
}

/// A node that is neither directory nor symbolic link.
#[derive(Debug, Clone, Copy)]
pub struct MkNod<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Type and permissions (the umask applied already, unless `DONT_MASK` was granted).
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// The device number, if the node is a device.
    pub rdev: u32,
}

/// RENAME and RENAME2.
#[derive(Debug, Clone, Copy)]
pub struct Rename<'a> {
    /// The present name.
    pub name: &'a [u8],
    /// The directory of the new name.
    pub new_parent: u64,
    /// The new name.
    pub new_name: &'a [u8],
    /// Whether to exchange, not to replace, or to leave a whiteout.
    pub flags: RenameFlags,
}

/// OPEN and OPENDIR.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// The flags of open(2), without `O_CREAT`, `O_EXCL`, `O_NOCTTY` (and `O_TRUNC`, unless
    /// `ATOMIC_O_TRUNC` was granted).
    pub flags: OFlags,
    /// Clear set-id bits (with `O_TRUNC` only).
    pub kill_suidgid: bool,
}

/// CREATE and TMPFILE.
#[derive(Debug, Clone, Copy)]
pub struct Create<'a> {
    /// The new file's name; without meaning for TMPFILE.
    pub name: &'a [u8],
    /// The flags of open(2).
    pub flags: OFlags,
    /// Type and permissions (the umask applied already, unless `DONT_MASK` was granted).
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Clear set-id bits if the file exists and is truncated.
    pub kill_suidgid: bool,
}

/// READ, READDIR and READDIRPLUS.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The handle of OPEN or OPENDIR; zero if that was answered ENOSYS.
    pub handle: u64,
    /// The first byte to read, or the position at which an earlier listing ended.
    pub offset: u64,
    /// How many bytes at most.
    pub size: u32,
    /// The flags of the open file.
    pub flags: OFlags,
    /// The lock owner, if it is valid.
    pub lock_owner: Option<u64>,
}

/// WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The handle of OPEN; zero if that was answered ENOSYS.
    pub handle: u64,
    /// The offset to write to, in bytes.
    pub offset: u64,
    /// The bytes to write, which are valid until the method returns.
    pub data: &'a [u8],
    /// The flags of the open file.
    pub flags: OFlags,
    /// Flags: the data comes from the page cache, set-id bits are to be cleared.
    pub write_flags: WriteFlags,
    /// The lock owner, if it is valid.
    pub lock_owner: Option<u64>,
}

/// RELEASE and RELEASEDIR.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    /// The handle of OPEN or OPENDIR.
    pub handle: u64,
    /// The flags of the open file.
    pub flags: OFlags,
    /// Flush too.
    pub flush: bool,
    /// The lock owner.
    pub lock_owner: u64,
}

/// SETXATTR.
#[derive(Debug, Clone, Copy)]
pub struct SetXattr<'a> {
    /// The attribute's name with its namespace.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Only create, or only replace.
    pub flags: XattrFlags,
    /// Clear set-group-id, since a process outside the file's group sets an access ACL.
    pub kill_sgid: bool,
}

/// INIT: what the kernel offers.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// The protocol's major version.
    pub major: u32,
    /// The protocol's minor version.
    pub minor: u32,
    /// The longest read-ahead, in bytes.
    pub max_readahead: u32,
    /// The capabilities that it offers.
    pub capabilities: Capabilities,
}

/// IOCTL.
#[derive(Debug, Clone, Copy)]
pub struct Ioctl<'a> {
    /// The handle of OPEN or OPENDIR.
    pub handle: u64,
    /// What kind of program and file the request comes from.
    pub flags: IoctlFlags,
    /// The command.
    pub command: u32,
    /// The argument as the program gave it.
    pub argument: u64,
    /// The bytes that the argument points to, as many as the command says.
    pub data: &'a [u8],
    /// How many bytes may go back.
    pub reply_size: u32,
}

impl Ioctl<'_> {
    /// Returns the same request with other data, by which a request can outlive the buffer in which
    /// it came.
    pub fn with_data<'a>(&self, data: &'a [u8]) -> Ioctl<'a> {
        let Self { handle, flags, command, argument, reply_size, .. } = *self;
        Ioctl { handle, flags, command, argument, data, reply_size }
    }
}

/// FALLOCATE.
#[derive(Debug, Clone, Copy)]
pub struct Fallocate {
    /// The handle of OPEN.
    pub handle: u64,
    /// The offset at which to begin, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
    /// The mode.
    pub mode: FallocateFlags,
}

/// What LSEEK searches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte of data.
    Data,
    /// The next hole, or the end.
    Hole,
}

/// LSEEK.
#[derive(Debug, Clone, Copy)]
pub struct Lseek {
    /// The handle of OPEN.
    pub handle: u64,
    /// The offset at which to begin, in bytes.
    pub offset: u64,
    /// What to search for.
    pub whence: Seek,
}

/// `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`.
#[derive(Debug, Clone, Copy)]
pub struct CopyFileRange {
    /// The handle of OPEN for the source, which is the inode of the request.
    pub handle_in: u64,
    /// The offset at which to begin, in bytes.
    pub offset_in: u64,
    /// The target.
    pub node_out: u64,
    /// The handle of OPEN for the target.
    pub handle_out: u64,
    /// The offset to write to, in bytes.
    pub offset_out: u64,
    /// The most bytes to copy.
    pub length: u64,
    /// Whether the reply has 64 bits for the length. If not, at most `u32::MAX` bytes must be
    /// copied.
    pub wide: bool,
}
