//! What is known of the replacement of a device.

use ubtrfs_format::items::DevReplaceItem;

/// The item as it is to be, and as the last commit has it.
#[derive(Default)]
pub(crate) struct Replacement {
    pub(super) item: DevReplaceItem,
    pub(super) saved: DevReplaceItem,
    /// The new device gets chunks once the commit in progress is durable.
    pub(super) opens_target: bool,
    /// The commit that is under way gives the target up. A commit that has an older item which says
    /// so does not: the target of now is another one's.
    pub(super) ends_target: bool,
}
