//! Quota groups, which are counted again after a repair.

use ubtrfs_format::{ItemType, Key, TreeId};
use ubtrfs_tree::EditBatch;

use crate::error::Result;
use crate::session::Session;

/// Returns the edits that have the kernel count quota groups again, if there are some.
pub fn stale_quotas(session: &Session) -> Result<Option<EditBatch>> {
    /// The flag of a quota status that its counts are not those of the trees.
    const INCONSISTENT: u64 = 1 << 2;
    let Some(root) = session.root_of(TreeId::QUOTA) else { return Ok(None) };
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    let Some(item) = session.tree(root, true).get(&key)? else { return Ok(None) };
    // Version, generation, flags, progress of a scan; 8 bytes each.
    let mut bytes = item.to_vec();
    let Some(flags) = bytes.get_mut(16..24) else { return Ok(None) };
    let before = flags.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    if before & INCONSISTENT != 0 {
        return Ok(None);
    }
    flags.copy_from_slice(&(before | INCONSISTENT).to_le_bytes());
    let mut batch = EditBatch::new();
    batch.put(key, bytes);
    Ok(Some(batch))
}
