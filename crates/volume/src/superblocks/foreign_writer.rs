//! Notices that another process has written a superblock, or that a device has lost ours
//! (invariants 12 and 34).

use ubtrfs_format::{Generation, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};

use super::{Copies, Superblocks};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::faults::{self, SuperblockFault};
use crate::member::{DeviceErrorKind, Member};

impl Superblocks {
    /// Fails if another process has written a superblock. Commits always check that, logs if a
    /// check is due.
    pub(super) fn require_ours(&self, copies: Copies) -> Result<()> {
        if copies == Copies::All || self.is_look_due() {
            self.look()?;
            self.note_look();
        }
        Ok(())
    }

    /// Notes that the superblocks on the devices were compared with ours.
    pub(super) fn note_look(&self) {
        self.looks.lock().note_look();
    }

    /// Returns whether a log has to compare the superblocks: the last comparison is too long ago,
    /// or one was found to be lost lately.
    pub(crate) fn is_look_due(&self) -> bool {
        self.looks.lock().is_due()
    }

    /// Fails if another process has written a superblock. A device that returns no superblock, or
    /// one that we had written earlier, while others still have ours, has failed. It lags from now
    /// on if the others have all that it has. It may have lost not only the superblock but
    /// everything that it has got since the one that it returns (invariant 34).
    pub(crate) fn look(&self) -> Result<()> {
        let mut failed = Ok(());
        let set = self.shared.devices.set();
        let (mut looked, mut members) = (false, set.current());
        members.try_for_each(|member| match look_at_superblock(member) {
            Look::Unread(error) => {
                member.note_error(DeviceErrorKind::Read);
                failed = Err(error);
                Ok(())
            }
            // The device then lags, so its superblock is not overwritten.
            Look::Lost(error) => {
                self.looks.lock().note_lost();
                self.shared.devices.tolerate(member, DeviceErrorKind::Corruption, error)
            }
            // By invariant 12 the other writer's superblock stays.
            Look::Foreign(error) => Err(error),
            Look::Ours => {
                looked = true;
                Ok(())
            }
        })?;
        // A device that can't be read does not show who writes; another one does.
        if looked { Ok(()) } else { failed }
    }
}

/// What was found in the place of the primary superblock.
enum Look {
    /// The superblock that was read or written last.
    Ours,
    /// It can't be read.
    Unread(Error),
    /// No superblock, or an earlier one: a write was lost.
    Lost(Error),
    /// Another writer's superblock.
    Foreign(Error),
}

fn look_at_superblock(member: &Member) -> Look {
    let (at, devid) = (SUPERBLOCK_COPIES[0], member.devid());
    let mut is_again = false;
    loop {
        let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
        if let Err(source) = member.device.read_at(at, &mut bytes) {
            return Look::Unread(Error::Read { devid, at, logical: None, len: SUPERBLOCK_SIZE, source });
        }
        let mut ours = member.primary.lock();
        if ours.may_be(&bytes) {
            return Look::Ours;
        }
        let found = Superblock::parse(&bytes, at).ok().map(|found| found.generation);
        if found.is_none() && !std::mem::replace(&mut is_again, true) {
            // A device may return the right content the next time.
            member.note_error(DeviceErrorKind::Corruption);
            continue;
        }
        let expected = ours.newest_generation().unwrap_or_default();
        if !ours.is_lost_by(&bytes) || faults::has(SuperblockFault::MistakeLostForForeign) {
            return Look::Foreign(Error::ForeignWriter { devid, expected, found });
        }
        ours.note_lost(&bytes);
        drop(ours);
        member.set_has_blocks_of(Generation(0));
        return Look::Lost(Error::LostSuperblock { devid, expected, found });
    }
}
