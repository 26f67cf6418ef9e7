//! What a repair changes, in sentences.

use std::fmt;

use serde::Serialize;
use ubtrfs_format::TreeId;

/// A range of a file whose content is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u64,
}

/// How much a change means for the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Records of space, counters and copies: no file is different afterwards.
    Space,
    /// Names, link counts and attributes.
    Names,
    /// Some content or some file is given up, since nothing says what it was.
    Content,
}

/// A change that a repair makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it means for files.
    pub level: Level,
    /// The subvolume, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "tree")]
    pub tree: Option<TreeId>,
    /// The inode, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// Its path in the subvolume, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What is done.
    pub what: String,
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn tree<S: serde::Serializer>(tree: &Option<TreeId>, to: S) -> Result<S::Ok, S::Error> {
    tree.map(|tree| tree.0).serialize(to)
}

impl Change {
    /// A change of the volume's records.
    pub fn of_space(what: String) -> Self {
        Self { level: Level::Space, tree: None, inode: None, path: None, what }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tree) = self.tree.filter(|tree| *tree != TreeId::FS) {
            write!(f, "subvolume {}, ", tree.0)?;
        }
        match (&self.path, self.inode) {
            (Some(path), _) => write!(f, "{path}: ")?,
            (None, Some(inode)) => write!(f, "inode {inode}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.what)
    }
}
