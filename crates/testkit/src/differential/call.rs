//! The calls of a sequence as data, which is generated, printed, sent to the process that makes the
//! calls, and read again from a report.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The user that makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// Root with all capabilities.
    Root,
    /// User 0 without any capability.
    Powerless,
    /// User 1000 with group 1000, in group 2000 as well.
    Owner,
    /// User 1001, whose group is 1000.
    Member,
    /// User 1003, who is in group 1000 by a supplementary group.
    Supplementary,
    /// User 1002, who shares no group with others.
    Other,
    /// User 1002 with one capability, whose number this is.
    Capable(u8),
    /// Root of a user namespace in which users 1000 and 1001 are 0 and 1.
    SpaceRoot,
    /// User 1 of that namespace.
    SpaceUser,
}

impl Actor {
    /// Returns whether a process of the user namespace has to make the call.
    pub fn is_in_space(self) -> bool {
        matches!(self, Self::SpaceRoot | Self::SpaceUser)
    }
}

/// The mount through which a call reaches the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// The mount itself.
    Plain,
    /// A read-only bind mount of it.
    ReadOnly,
    /// An idmapped mount of it, which exchanges some ids and lacks others.
    Idmapped,
}

impl View {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ReadOnly, Self::Idmapped];
}

/// The object of a call: a path of the sequence's directory, or an open file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum On {
    /// A path, which is not followed if it is a symbolic link.
    Path(String),
    /// An open file.
    Slot(u8),
}

/// A number whose digits are shown in base 8.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Octal(pub u32);

impl fmt::Debug for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#o}", self.0)
    }
}

/// A number whose digits are shown in base 16.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hex(pub u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Bytes of a value, shown by their beginning and length.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 48;
        write!(f, "\"{}\"", self.0[..self.0.len().min(SHOWN)].escape_ascii())?;
        if self.0.len() > SHOWN { write!(f, "… of {} bytes", self.0.len()) } else { Ok(()) }
    }
}

/// Flags of open(2), shown by name.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFlags(pub i32);

impl fmt::Debug for OpenFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [(i32, &str); 13] = [
            (libc::O_TMPFILE, "TMPFILE"),
            (libc::O_CREAT, "CREAT"),
            (libc::O_EXCL, "EXCL"),
            (libc::O_TRUNC, "TRUNC"),
            (libc::O_APPEND, "APPEND"),
            (libc::O_SYNC, "SYNC"),
            (libc::O_DSYNC, "DSYNC"),
            (libc::O_DIRECT, "DIRECT"),
            (libc::O_PATH, "PATH"),
            (libc::O_NOFOLLOW, "NOFOLLOW"),
            (libc::O_DIRECTORY, "DIRECTORY"),
            (libc::O_NOATIME, "NOATIME"),
            (libc::O_NONBLOCK, "NONBLOCK"),
        ];
        f.write_str(["RDONLY", "WRONLY", "RDWR", "3"][(self.0 & libc::O_ACCMODE) as usize])?;
        let mut rest = self.0 & !libc::O_ACCMODE;
        for (flag, word) in WORDS {
            if rest & flag == flag {
                rest &= !flag;
                write!(f, "|{word}")?;
            }
        }
        if rest == 0 { Ok(()) } else { write!(f, "|{rest:#x}") }
    }
}

/// A time for utimensat(2): seconds, or the special values `UTIME_NOW` and `UTIME_OMIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Time {
    /// Seconds since 1970.
    At(i64),
    /// The present time (`UTIME_NOW`).
    Now,
    /// No change (`UTIME_OMIT`).
    Omit,
}

/// A system call, or a few that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the calls and their arguments are the system's")]
pub enum Call {
    Open { slot: u8, path: String, flags: OpenFlags, mode: Octal },
    OpenResolving { slot: u8, path: String, flags: OpenFlags, resolve: Hex },
    Close { slot: u8 },
    Read { slot: u8, offset: i64, length: u32 },
    Write { slot: u8, offset: i64, length: u32, seed: u8 },
    WriteFlagged { slot: u8, offset: i64, length: u32, seed: u8, flags: Hex },
    ReadOn { slot: u8, length: u32 },
    WriteOn { slot: u8, length: u32, seed: u8 },
    Seek { slot: u8, offset: i64, whence: i32 },
    Truncate { on: On, length: i64 },
    Allocate { slot: u8, mode: Hex, offset: i64, length: i64 },
    CopyRange { from: u8, to: u8, from_offset: i64, to_offset: i64, length: u32 },
    SendFile { from: u8, to: u8, offset: i64, length: u32 },
    Sync { slot: u8, how: Syncing },
    Advise { slot: u8, offset: i64, length: i64, advice: i32 },
    Map { map: u8, slot: u8, offset: i64, pages: u8, writable: bool, shared: bool },
    Store { map: u8, offset: u32, length: u32, seed: u8 },
    Load { map: u8, offset: u32, length: u32 },
    SyncMap { map: u8, flags: i32 },
    Unmap { map: u8 },
    Stat { on: On, follow: bool },
    Access { path: String, mode: i32, flags: i32 },
    StatVolume { on: On },
    ReadLink { path: String },
    List { on: On },
    MakeDirectory { path: String, mode: Octal },
    MakeNode { path: String, mode: Octal, device: (u32, u32) },
    RemoveDirectory { path: String },
    Unlink { path: String },
    Symlink { target: String, path: String },
    Link { from: String, to: String, follow: bool },
    LinkSlot { slot: u8, to: String, by_proc: bool },
    Rename { from: String, to: String, flags: Hex },
    Chmod { on: On, mode: Octal },
    Chown { on: On, user: Option<u32>, group: Option<u32> },
    Times { on: On, access: Time, modification: Time },
    SetXattr { on: On, name: String, value: Bytes, flags: i32 },
    GetXattr { on: On, name: String, room: u32 },
    ListXattrs { on: On, room: u32 },
    RemoveXattr { on: On, name: String },
    GetFlags { on: On },
    SetFlags { on: On, flags: Hex },
    GetFsx { on: On },
    SetFsx { on: On, flags: Hex, project: u32, extent_size: u32 },
    GetFileAttributes { path: String },
    SetFileAttributes { path: String, flags: Hex },
    MakeSubvolume { on: On, name: String, old: bool, flags: Hex },
    MakeSnapshot { on: On, name: String, source: String, old: bool, flags: Hex },
    DestroySubvolume { on: On, name: String, old: bool, by_id: bool },
    GetSubvolumeFlags { on: On },
    SetSubvolumeFlags { on: On, flags: Hex },
    SetDefault { on: On, target: String },
    LookUpInode { on: On, inode: u64 },
    LookUpAsUser { on: On, target: String },
    SubvolumeInfo { on: On },
    SubvolumeReferences { on: On, least: u64 },
    SearchTree { on: On, kinds: (u32, u32), most: u32 },
    SetReceived { on: On, seed: u8 },
    SyncVolume { on: On, wait: bool },
    Defragment { on: On },
    DefragmentRange { on: On, start: u64, length: u64, flags: Hex, compression: u32 },
    Trim { on: On, start: u64, length: u64 },
    VolumeInfo { on: On },
    DeviceInfo { on: On, device: u64 },
    DeviceErrors { on: On, device: u64, reset: bool },
    Features { on: On, which: Features },
    GetLabel { on: On },
    SetLabel { on: On, label: String },
    Clone { to: u8, from: u8 },
    CloneRange { to: u8, from: u8, from_offset: u64, length: u64, to_offset: u64 },
    Deduplicate { from: u8, from_offset: u64, length: u64, to: u8, to_offset: u64 },
    MapExtents { on: On },
    PlainIoctl { on: On, number: Hex },
    NameToHandle { handle: u8, on: On },
    OpenHandle { slot: u8, handle: u8, flags: OpenFlags },
    Lock { slot: u8, how: i32, start: i64, length: i64 },
    Flock { slot: u8, how: i32 },
    SetFileFlags { slot: u8, flags: OpenFlags },
    GetFileFlags { slot: u8 },
    Umask { mask: Octal },
}

/// The call that makes dirty data durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the system's")]
pub enum Syncing {
    File,
    Data,
    Volume,
    Range,
}

/// The features that an ioctl asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Features {
    Of,
    Supported,
}

/// A call, the user that makes it, and the mount.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStep {
    /// The user.
    pub actor: Actor,
    /// The mount.
    pub view: View,
    /// The call.
    pub call: Call,
}

impl fmt::Debug for CallStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.actor)?;
        if self.view != View::Plain {
            write!(f, " ({:?})", self.view)?;
        }
        write!(f, ": {:?}", self.call)
    }
}

impl Call {
    /// Returns its name.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    /// Returns whether it changes nothing but times of access, whatever it returns.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Load { .. }
                | Self::Advise { .. }
                | Self::Stat { .. }
                | Self::Access { .. }
                | Self::StatVolume { .. }
                | Self::ReadLink { .. }
                | Self::List { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs { .. }
                | Self::GetFlags { .. }
                | Self::GetFsx { .. }
                | Self::GetFileAttributes { .. }
                | Self::GetSubvolumeFlags { .. }
                | Self::LookUpInode { .. }
                | Self::LookUpAsUser { .. }
                | Self::SubvolumeInfo { .. }
                | Self::SubvolumeReferences { .. }
                | Self::SearchTree { .. }
                | Self::SyncVolume { .. }
                | Self::Sync { .. }
                | Self::Trim { .. }
                | Self::VolumeInfo { .. }
                | Self::DeviceInfo { .. }
                | Self::Features { .. }
                | Self::GetLabel { .. }
                | Self::MapExtents { .. }
                | Self::PlainIoctl { .. }
                | Self::GetFileFlags { .. }
        )
    }
}
