//! The structures of messages. A name or data follows some of them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty, $what:literal;)* })*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $(#[doc = $what] pub $field: $kind,)*
        })*
    };
}

messages! {
    /// The header of every request.
    InHeader {
        len: u32, "Length of the whole message.";
        opcode: u32, "Which request.";
        unique: u64, "Its number.";
        nodeid: u64, "The inode it is about.";
        uid: u32, "The caller's file-system user.";
        gid: u32, "The caller's file-system group.";
        pid: u32, "The caller's process.";
        extension_words: u16, "Length of the extensions at the end, in 8-byte words.";
        padding: u16, "Zero.";
    }
    /// The header of every reply and every notification.
    OutHeader {
        len: u32, "Length of the whole message.";
        error: i32, "Zero or a negative errno; a notification's code.";
        unique: u64, "The request's number; zero for a notification.";
    }
    /// Attributes of an inode.
    Attr {
        ino: u64, "Number.";
        size: u64, "Bytes.";
        blocks: u64, "Space taken, in units of 512 bytes.";
        atime: i64, "Access, seconds.";
        mtime: i64, "Modification, seconds.";
        ctime: i64, "Change, seconds.";
        atimensec: u32, "Access, nanoseconds.";
        mtimensec: u32, "Modification, nanoseconds.";
        ctimensec: u32, "Change, nanoseconds.";
        mode: u32, "Type and permissions.";
        nlink: u32, "Names.";
        uid: u32, "User.";
        gid: u32, "Group.";
        rdev: u32, "Device.";
        blksize: u32, "Preferred unit of I/O.";
        flags: u32, "Submount, DAX.";
    }
    /// The inode that a name refers to.
    EntryOut {
        nodeid: u64, "Node; zero: no such name.";
        generation: u64, "Distinguishes reuses of the node.";
        entry_valid: u64, "The name may be cached so many seconds";
        attr_valid: u64, "The attributes may be cached so many seconds";
        entry_valid_nsec: u32, "and nanoseconds.";
        attr_valid_nsec: u32, "and nanoseconds.";
        attr: Attr, "The attributes.";
    }
    /// Reply to GETATTR and SETATTR.
    AttrOut {
        attr_valid: u64, "May be cached so many seconds";
        attr_valid_nsec: u32, "and nanoseconds.";
        dummy: u32, "Zero.";
        attr: Attr, "The attributes.";
    }
    /// FORGET.
    ForgetIn {
        nlookup: u64, "Lookups to forget.";
    }
    /// An element of `BATCH_FORGET`.
    ForgetOne {
        nodeid: u64, "Node.";
        nlookup: u64, "Lookups to forget.";
    }
    /// `BATCH_FORGET`.
    BatchForgetIn {
        count: u32, "Elements that follow.";
        dummy: u32, "Zero.";
    }
    /// GETATTR.
    GetattrIn {
        flags: u32, "Whether the handle counts.";
        dummy: u32, "Zero.";
        fh: u64, "Handle.";
    }
    /// MKNOD.
    MknodIn {
        mode: u32, "Type and permissions.";
        rdev: u32, "Device.";
        umask: u32, "The caller's umask.";
        padding: u32, "Zero.";
    }
    /// MKDIR.
    MkdirIn {
        mode: u32, "Permissions.";
        umask: u32, "The caller's umask.";
    }
    /// RENAME.
    RenameIn {
        newdir: u64, "The new parent.";
    }
    /// RENAME2.
    Rename2In {
        newdir: u64, "The new parent.";
        flags: u32, "`RENAME_*`";
        padding: u32, "Zero.";
    }
    /// LINK.
    LinkIn {
        oldnodeid: u64, "The inode that gets a name.";
    }
    /// SETATTR.
    SetattrIn {
        valid: u32, "Which fields count.";
        padding: u32, "Zero.";
        fh: u64, "Handle.";
        size: u64, "Size.";
        lock_owner: u64, "Lock owner.";
        atime: i64, "Access, seconds.";
        mtime: i64, "Modification, seconds.";
        ctime: i64, "Change, seconds.";
        atimensec: u32, "Access, nanoseconds.";
        mtimensec: u32, "Modification, nanoseconds.";
        ctimensec: u32, "Change, nanoseconds.";
        mode: u32, "Type and permissions.";
        unused4: u32, "Zero.";
        uid: u32, "User.";
        gid: u32, "Group.";
        unused5: u32, "Zero.";
    }
    /// OPEN and OPENDIR.
    OpenIn {
        flags: u32, "`O_*`";
        open_flags: u32, "Whether to clear set-id bits.";
    }
    /// CREATE and TMPFILE.
    CreateIn {
        flags: u32, "`O_*`";
        mode: u32, "Type and permissions.";
        umask: u32, "The caller's umask.";
        open_flags: u32, "Whether to clear set-id bits.";
    }
    /// Reply to OPEN; second part of the reply to CREATE.
    OpenOut {
        fh: u64, "Handle.";
        open_flags: u32, "`FOPEN_*`";
        backing_id: u32, "For passthrough.";
    }
    /// RELEASE and RELEASEDIR.
    ReleaseIn {
        fh: u64, "Handle.";
        flags: u32, "`O_*` of the open.";
        release_flags: u32, "Whether to flush.";
        lock_owner: u64, "Lock owner.";
    }
    /// FLUSH.
    FlushIn {
        fh: u64, "Handle.";
        unused: u32, "Zero.";
        padding: u32, "Zero.";
        lock_owner: u64, "Lock owner.";
    }
    /// READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, "Handle.";
        offset: u64, "From where.";
        size: u32, "How many bytes at most.";
        read_flags: u32, "Whether the lock owner counts.";
        lock_owner: u64, "Lock owner.";
        flags: u32, "`O_*` of the file.";
        padding: u32, "Zero.";
    }
    /// WRITE; the data follows.
    WriteIn {
        fh: u64, "Handle.";
        offset: u64, "To where.";
        size: u32, "How many bytes follow.";
        write_flags: u32, "`FUSE_WRITE_*`";
        lock_owner: u64, "Lock owner.";
        flags: u32, "`O_*` of the file.";
        padding: u32, "Zero.";
    }
    /// Reply to WRITE and `COPY_FILE_RANGE`.
    WriteOut {
        size: u32, "Bytes written.";
        padding: u32, "Zero.";
    }
    /// Reply to STATFS.
    StatfsOut {
        blocks: u64, "All, in fragments.";
        bfree: u64, "Free, in fragments.";
        bavail: u64, "Free for everybody, in fragments.";
        files: u64, "Inodes.";
        ffree: u64, "Free inodes.";
        bsize: u32, "Preferred unit of I/O.";
        namelen: u32, "Longest name.";
        frsize: u32, "Fragment.";
        padding: u32, "Zero.";
        spare: [u32; 6], "Zero.";
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn {
        fh: u64, "Handle.";
        fsync_flags: u32, "Whether only data.";
        padding: u32, "Zero.";
    }
    /// SETXATTR as it is without `SETXATTR_EXT`.
    SetxattrInShort {
        size: u32, "Length of the value.";
        flags: u32, "`XATTR_*`";
    }
    /// SETXATTR.
    SetxattrIn {
        size: u32, "Length of the value.";
        flags: u32, "`XATTR_*`";
        setxattr_flags: u32, "Whether to clear set-group-id.";
        padding: u32, "Zero.";
    }
    /// GETXATTR and LISTXATTR.
    GetxattrIn {
        size: u32, "Room for the value; zero asks for its length.";
        padding: u32, "Zero.";
    }
    /// Reply to GETXATTR and LISTXATTR of size 0.
    GetxattrOut {
        size: u32, "Length.";
        padding: u32, "Zero.";
    }
    /// ACCESS.
    AccessIn {
        mask: u32, "`R_OK`, `W_OK`, `X_OK`";
        padding: u32, "Zero.";
    }
    /// INIT as it was before 7.36.
    InitInShort {
        major: u32, "Protocol.";
        minor: u32, "Protocol.";
        max_readahead: u32, "Bytes.";
        flags: u32, "Capabilities.";
    }
    /// INIT.
    InitIn {
        major: u32, "Protocol.";
        minor: u32, "Protocol.";
        max_readahead: u32, "Bytes.";
        flags: u32, "Capabilities, low half.";
        flags2: u32, "Capabilities, high half.";
        unused: [u32; 11], "Zero.";
    }
    /// Reply to INIT.
    InitOut {
        major: u32, "Protocol.";
        minor: u32, "Protocol.";
        max_readahead: u32, "Bytes.";
        flags: u32, "Capabilities, low half.";
        max_background: u16, "Requests in the background at a time.";
        congestion_threshold: u16, "From how many the kernel holds back.";
        max_write: u32, "Bytes of one WRITE.";
        time_gran: u32, "Granularity of times, nanoseconds.";
        max_pages: u16, "Pages of one request.";
        map_alignment: u16, "For DAX.";
        flags2: u32, "Capabilities, high half.";
        max_stack_depth: u32, "For passthrough.";
        request_timeout: u16, "Seconds.";
        unused: [u16; 11], "Zero.";
    }
    /// INTERRUPT.
    InterruptIn {
        unique: u64, "The request that is to be interrupted.";
    }
    /// IOCTL; the argument's bytes follow.
    IoctlIn {
        fh: u64, "Handle.";
        flags: u32, "`FUSE_IOCTL_*`";
        cmd: u32, "Command.";
        arg: u64, "The argument as the program gave it.";
        in_size: u32, "Bytes that follow.";
        out_size: u32, "Bytes that may come back.";
    }
    /// Reply to IOCTL; the output bytes follow.
    IoctlOut {
        result: i32, "What ioctl(2) returns.";
        flags: u32, "Zero.";
        in_iovs: u32, "Zero.";
        out_iovs: u32, "Zero.";
    }
    /// FALLOCATE.
    FallocateIn {
        fh: u64, "Handle.";
        offset: u64, "From where.";
        length: u64, "How much.";
        mode: u32, "`FALLOC_FL_*`";
        padding: u32, "Zero.";
    }
    /// The header of each name in a listing.
    Dirent {
        ino: u64, "Inode.";
        off: u64, "Where the listing continues after it.";
        namelen: u32, "Length of the name that follows.";
        kind: u32, "`DT_*`";
    }
    /// LSEEK.
    LseekIn {
        fh: u64, "Handle.";
        offset: u64, "From where.";
        whence: u32, "`SEEK_DATA` or `SEEK_HOLE`";
        padding: u32, "Zero.";
    }
    /// Reply to LSEEK.
    LseekOut {
        offset: u64, "Where.";
    }
    /// `COPY_FILE_RANGE`.
    CopyFileRangeIn {
        fh_in: u64, "Handle of the source.";
        off_in: u64, "From where.";
        nodeid_out: u64, "Target.";
        fh_out: u64, "Handle of the target.";
        off_out: u64, "To where.";
        len: u64, "How much.";
        flags: u64, "Zero.";
    }
    /// Reply to `COPY_FILE_RANGE_64`.
    CopyFileRangeOut {
        bytes_copied: u64, "How much.";
    }
    /// SYNCFS.
    SyncfsIn {
        padding: u64, "Zero.";
    }
    /// STATX.
    StatxIn {
        getattr_flags: u32, "Whether the handle counts.";
        reserved: u32, "Zero.";
        fh: u64, "Handle.";
        sx_flags: u32, "`AT_STATX_*`";
        sx_mask: u32, "`STATX_*`";
    }
    /// A time in the reply to STATX.
    StatxTime {
        seconds: i64, "Seconds.";
        nanoseconds: u32, "Nanoseconds.";
        reserved: i32, "Zero.";
    }
    /// Reply to STATX.
    StatxOut {
        attr_valid: u64, "May be cached so many seconds";
        attr_valid_nsec: u32, "and nanoseconds.";
        flags: u32, "Zero.";
        spare: [u64; 2], "Zero.";
        mask: u32, "`STATX_*` that are reported.";
        blksize: u32, "Preferred unit of I/O.";
        attributes: u64, "`STATX_ATTR_*`";
        nlink: u32, "Names.";
        uid: u32, "User.";
        gid: u32, "Group.";
        mode: u16, "Type and permissions.";
        spare0: u16, "Zero.";
        ino: u64, "Number.";
        size: u64, "Bytes.";
        blocks: u64, "Space taken, in units of 512 bytes.";
        attributes_mask: u64, "Which attributes are supported.";
        atime: StatxTime, "Access.";
        btime: StatxTime, "Birth.";
        ctime: StatxTime, "Change.";
        mtime: StatxTime, "Modification.";
        rdev_major: u32, "Device.";
        rdev_minor: u32, "Device.";
        dev_major: u32, "Set by the kernel.";
        dev_minor: u32, "Set by the kernel.";
        spare2: [u64; 14], "Zero.";
    }
    /// The header of each extension.
    ExtHeader {
        size: u32, "Length with this header.";
        kind: u32, "Which extension.";
    }
    /// Notification: an inode's cached attributes and data are stale.
    InvalInodeOut {
        ino: u64, "Node.";
        off: i64, "From where; negative: only attributes.";
        len: i64, "How much; zero or less: to the end.";
    }
    /// Notification: asks the kernel for what it has cached of a file.
    RetrieveOut {
        notify_unique: u64, "Number that the answer shall have.";
        nodeid: u64, "Node.";
        offset: u64, "From where.";
        size: u32, "How much at the most.";
        padding: u32, "Zero.";
    }
    /// Notification: a name is stale. The name follows.
    InvalEntryOut {
        parent: u64, "Directory.";
        namelen: u32, "Length of the name.";
        flags: u32, "Whether only to expire.";
    }
    /// Notification: a name was deleted. The name follows.
    DeleteOut {
        parent: u64, "Directory.";
        child: u64, "What it named.";
        namelen: u32, "Length of the name.";
        padding: u32, "Zero.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_protocol() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<StatfsOut>(), 80),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<IoctlIn>(), 32),
            (size_of::<IoctlOut>(), 16),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<StatxIn>(), 24),
            (size_of::<StatxOut>(), 288),
            (size_of::<Dirent>(), 24),
            (size_of::<FallocateIn>(), 32),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<LseekIn>(), 24),
        ];
        for (index, (ours, theirs)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, theirs, "number {index}");
        }
    }
}
