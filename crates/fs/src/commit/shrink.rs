//! Shrinks devices to the end of their last chunks.

use super::owner::Committer;
use crate::error::{Errno, Result};
use ubtrfs_space::Shortage;

impl Committer {
    /// Commits, removes all empty chunks, and shrinks the devices to the end of their last chunks.
    pub(crate) fn shrink_devices(&self) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.commit()?;
        // Each commit may empty a chunk, since trees move out of nearly empty ones.
        let most = 2 * self.info.volume.chunk_map().all().len();
        for _ in 0..most {
            if !self.has_chunks_to_empty() {
                break;
            }
            self.info.space.lock().want_empty_groups(Shortage::Data);
            self.commit()?;
        }
        self.info.space.lock().devices_mut().shrink();
        self.commit()
    }
}
