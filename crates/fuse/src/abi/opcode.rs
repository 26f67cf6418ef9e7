//! Numbers of the requests and notifications.

macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        $(#[doc = concat!("`FUSE_", stringify!($name), "`")] pub const $name: u32 = $value;)*

        /// The name of a request, for messages.
        pub fn name(opcode: u32) -> &'static str {
            match opcode {
                $($value => stringify!($name),)*
                _ => "UNKNOWN",
            }
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

/// Notifications: messages to the kernel that answer no request.
pub mod notify {
    /// Cached attributes and data of an inode are stale.
    pub const INVAL_INODE: i32 = 2;
    /// A cached name is stale.
    pub const INVAL_ENTRY: i32 = 3;
    /// Asks the kernel for what it has cached of a file. The kernel answers with a message that
    /// begins like a request.
    pub const RETRIEVE: i32 = 5;
    /// A name was deleted.
    pub const DELETE: i32 = 6;
    /// All cached names are stale (since 7.44).
    pub const INC_EPOCH: i32 = 8;
}
