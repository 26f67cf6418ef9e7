//! Why a repair can't be made.

/// A failed repair. The devices are as they were, unless the error says something else.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checker could not read the volume at all.
    #[error("the volume can't be checked")]
    Check(#[from] ubtrfs_check::Error),
    /// Devices and chunks.
    #[error(transparent)]
    Volume(#[from] ubtrfs_volume::Error),
    /// A tree.
    #[error(transparent)]
    Tree(#[from] ubtrfs_tree::Error),
    /// An item.
    #[error(transparent)]
    Item(#[from] ubtrfs_format::Error),
    /// A device failed.
    #[error("a device failed")]
    Io(#[from] std::io::Error),
    /// A device failed while the repair was being written.
    #[error("a device failed while the repair was being written; {}", undo_advice(*.has_undo))]
    Interrupted {
        /// The failure.
        source: std::io::Error,
        /// Whether the overwritten blocks were kept.
        has_undo: bool,
    },
    /// No space is left for new tree blocks.
    #[error("no space is left in which new tree blocks could be written")]
    NoSpace,
    /// The file with overwritten blocks is not one, or of another volume.
    #[error("the undo file {0}")]
    BadUndo(&'static str),
    /// The volume holds a log, whose items a repair does not know.
    #[error("the volume holds a log, which a repair would lose")]
    HasLog,
    /// The volume is in a state that a repair does not handle.
    #[error("{0}")]
    Refused(&'static str),
}

fn undo_advice(has_undo: bool) -> &'static str {
    if has_undo { "the undo file has what was overwritten" } else { "repair it again" }
}

/// The result of a step of a repair.
pub type Result<T> = std::result::Result<T, Error>;
