//! How much a fault means for the files of a volume, and what corrects it.

use std::fmt;

use serde::Serialize;

/// How much a fault means for the files of a volume, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Known implementations leave this behind, and all of them accept it.
    Harmless,
    /// Records of space, counters and copies. All files can be read as they were written.
    Space,
    /// Names, link counts and attributes of files, and entries of subvolumes.
    Names,
    /// Content of files, or whole files, can't be read or can't be trusted.
    Content,
}

impl Level {
    /// The name of the level, which programs may rely on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Space => "space",
            Self::Names => "names",
            Self::Content => "content",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What corrects a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mending {
    /// Nothing has to be done.
    Nothing,
    /// The next mount that may write.
    Mount,
    /// A scrub, which rewrites bad copies from good ones.
    Scrub,
    /// A repair of the records from what other records say.
    Repair,
    /// The primary superblock, put back from a copy of it.
    SuperRecover,
    /// The log, given up.
    ZeroLog,
    /// The device that is missing, or another one in its place.
    Device,
    /// A rescan of the quota groups.
    QuotaRescan,
    /// Another default subvolume.
    SetDefault,
    /// The file, from a backup: the volume has no other copy.
    Backup,
}

impl Mending {
    /// The name, which programs may rely on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Mount => "mount",
            Self::Scrub => "scrub",
            Self::Repair => "repair",
            Self::SuperRecover => "super_recover",
            Self::ZeroLog => "zero_log",
            Self::Device => "device",
            Self::QuotaRescan => "quota_rescan",
            Self::SetDefault => "set_default",
            Self::Backup => "backup",
        }
    }
}
