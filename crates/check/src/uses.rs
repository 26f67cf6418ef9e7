//! The users of each extent that were found in the trees.

use std::fmt;

use ubtrfs_format::items::{DataRef, InlineRef};
use ubtrfs_format::{Ino, Logical, TreeId};

/// The kinds of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum UserKind {
    /// A tree that uses a block.
    Tree,
    /// A block that uses a block.
    Block,
    /// A file that uses data.
    File,
    /// A leaf that uses data.
    Leaf,
}

/// A user of an extent. Fields that a kind does not need are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct User {
    pub(crate) kind: UserKind,
    /// The tree's id, or the block's address.
    pub(crate) by: u64,
    pub(crate) ino: u64,
    pub(crate) offset: u64,
}

impl User {
    pub(crate) fn tree(tree: TreeId) -> Self {
        Self { kind: UserKind::Tree, by: tree.0, ino: 0, offset: 0 }
    }

    pub(crate) fn block(parent: Logical) -> Self {
        Self { kind: UserKind::Block, by: parent.0, ino: 0, offset: 0 }
    }

    pub(crate) fn file(data: DataRef) -> Self {
        Self { kind: UserKind::File, by: data.root.0, ino: data.ino.0, offset: data.offset }
    }

    pub(crate) fn leaf(parent: Logical) -> Self {
        Self { kind: UserKind::Leaf, by: parent.0, ino: 0, offset: 0 }
    }

    /// The user that a backref names, and its count; `None` for an item that is no backref.
    pub(crate) fn of(reference: &InlineRef) -> Option<(Self, u64)> {
        Some(match *reference {
            InlineRef::TreeBlock { root } => (Self::tree(root), 1),
            InlineRef::SharedBlock { parent } => (Self::block(parent), 1),
            InlineRef::Data { data, count } => (Self::file(data), count.into()),
            InlineRef::SharedData { parent, count } => (Self::leaf(parent), count.into()),
            InlineRef::Owner { .. } => return None,
        })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            UserKind::Tree => write!(f, "a use by tree {}", self.by.cast_signed()),
            UserKind::Block => write!(f, "a use by the block at {}", self.by),
            UserKind::File => write!(
                f,
                "a use by inode {} of tree {} from offset {}",
                Ino(self.ino),
                self.by.cast_signed(),
                self.offset.cast_signed()
            ),
            UserKind::Leaf => write!(f, "a use by the leaf at {}", self.by),
        }
    }
}

/// One use of an extent, ordered by extent, then by user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) extent: u64,
    pub(crate) user: User,
    /// The length of the extent in sectors by this user, saturating; 0 for blocks.
    pub(crate) sectors: u32,
}

/// All uses that were found in the trees.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) list: Vec<Use>,
    /// Whether a part of the trees could not be read, so that uses may be missing.
    pub(crate) incomplete: bool,
    /// Whether a subvolume is being dropped; its blocks may then be between two forms of backrefs.
    pub(crate) dropping: bool,
}

impl Uses {
    pub(crate) fn block(&mut self, block: Logical, user: User) {
        self.list.push(Use { extent: block.0, user, sectors: 0 });
    }

    pub(crate) fn data(&mut self, extent: Logical, user: User, sectors: u64) {
        self.list.push(Use { extent: extent.0, user, sectors: u32::try_from(sectors).unwrap_or(u32::MAX) });
    }
}
