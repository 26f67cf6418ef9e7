//! An entry of an archive.

use ubtrfs::format::items::Timespec;

use crate::archive_header::{Fields, Kind};
use crate::error::Result;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// The description of an entry's file by its header and records.
#[derive(Debug)]
pub struct Described {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub mtime: Timespec,
    pub atime: Option<Timespec>,
    /// When the file was made.
    pub btime: Option<Timespec>,
    pub target: Vec<u8>,
    pub xattrs: Vec<Record>,
    /// Flags that the inode gets in the end.
    pub flags: u64,
    /// The size of the file.
    pub size: u64,
    /// The ranges of the file for the data that follows, in order: offset and length in bytes.
    pub ranges: Vec<(u64, u64)>,
}

impl Described {
    pub fn of(fields: &Fields<'_>) -> Result<Self> {
        let kind = Kind::of(fields.kind());
        Ok(Self {
            path: fields.path(),
            kind,
            mode: fields.mode()?,
            uid: fields.uid()?,
            gid: fields.gid()?,
            rdev: if matches!(kind, Kind::Char | Kind::Block) { fields.device()? } else { 0 },
            mtime: fields.mtime()?,
            atime: None,
            btime: None,
            target: fields.target(),
            xattrs: Vec::new(),
            flags: 0,
            size: 0,
            ranges: Vec::new(),
        })
    }
}
