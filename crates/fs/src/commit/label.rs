//! The volume's label: a field of the superblock, which the next commit writes.

use super::owner::Committer;
use crate::error::{Errno, Result};
use ubtrfs_format::LABEL_SIZE;

impl Committer {
    /// Sets the label of the volume, and commits. `EINVAL` if the label is too long, or can't be
    /// shown in one line.
    pub(crate) fn set_label(&self, label: &[u8]) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        if label.len() >= LABEL_SIZE || label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return Err(Errno::INVAL.into());
        }
        let mut padded = [0; LABEL_SIZE];
        padded[..label.len()].copy_from_slice(label);
        self.requests.set_label(padded);
        let done = self.commit();
        self.requests.label_ends(&padded);
        done
    }
}
