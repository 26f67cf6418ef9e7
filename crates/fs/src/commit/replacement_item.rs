//! What is known of the replacement of a device.

use ubtrfs_format::items::DevReplaceItem;

/// The item as it is to be, and as the last commit has it.
#[derive(Default)]
pub(crate) struct Replacement {
    pub(super) item: DevReplaceItem,
    pub(super) saved: DevReplaceItem,
    /// The new device gets chunks once the commit in progress is durable.
    pub(super) opens_target: bool,
}
