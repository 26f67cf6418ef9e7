//! A replacement in progress, and the devices that are left when it has ended.

use std::io;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_threads::atomic::{AtomicU64, Ordering};

use crate::buffer::Buffer;
use crate::device::DeviceWrite;
use crate::member::Member;

/// The number of a device that is to replace another one.
pub const TARGET: DeviceId = DeviceId(0);

/// A replacement in progress.
#[derive(Debug)]
pub(crate) struct Replacing {
    pub(crate) source: DeviceId,
    pub(crate) target: Arc<Member>,
    /// The source is read only where no other device has it.
    pub(crate) avoids_source: bool,
    /// The commit that swaps the devices; 0 while it is not known.
    swaps_by: AtomicU64,
}

impl Replacing {
    pub(crate) fn new(source: DeviceId, target: Arc<Member>, avoids_source: bool) -> Self {
        Self { source, target, avoids_source, swaps_by: AtomicU64::new(0) }
    }

    /// Returns whether the target still gets what the source gets.
    pub(crate) fn is_alive(&self) -> bool {
        !self.target.lags()
    }

    /// Has the commit of this generation put the target into the source's place.
    pub(crate) fn swap_by(&self, generation: Generation) {
        self.swaps_by.store(generation.0, Ordering::Release);
    }

    /// Returns the target's item, given the current one of the source.
    pub(crate) fn target_item(&self, source: &DevItem) -> DevItem {
        let DevItem { devid, uuid, .. } = *self.target.item.lock();
        DevItem { devid, uuid, ..*source }
    }

    /// Returns whether the commit of this generation puts the target into the source's place.
    pub(crate) fn swaps_by(&self, generation: Generation) -> bool {
        self.is_alive() && self.swaps_by.load(Ordering::Acquire) == generation.0
    }
}

/// Wipes the superblocks of a device that no longer belongs to the volume. A failed write is only
/// logged.
pub(crate) fn forget_volume(member: &Member) {
    if member.is_missing() {
        return;
    }
    let zeroes = Buffer::zeroed(SUPERBLOCK_SIZE).share();
    let is_within = |at: &&Physical| at.0 + SUPERBLOCK_SIZE as u64 <= member.device.size();
    // The primary is wiped last: as long as it is there, no program takes a copy for the remains of
    // a volume.
    let places = SUPERBLOCK_COPIES.iter().rev().filter(is_within);
    let wipe = |at| {
        let write = DeviceWrite { at, data: zeroes.clone() };
        member.device.submit(vec![write]).wait().map_err(Into::into).and_then(|()| member.device.flush())
    };
    // If a copy can't be wiped, the primary must be wiped nevertheless, since the kernel reads no
    // other.
    let failures: Vec<io::Error> = places.copied().filter_map(|at| wipe(at).err()).collect();
    if let Some(error) = failures.first() {
        tracing::error!(
            "superblocks of a device that no longer belongs to the volume are still there, and kernels may refuse to \
             mount the volume beside it until they are wiped: {}",
            sentence(error)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, FaultyDevice, Lasting, MemoryDevice, Operation, SharedBuffer};

    #[test]
    fn the_primary_superblock_is_wiped_though_a_copy_is_not() {
        const SIZE: usize = 128 << 20;
        let memory = Arc::new(MemoryDevice::new(SIZE));
        let places = [SUPERBLOCK_COPIES[0], SUPERBLOCK_COPIES[1]];
        for at in places {
            let write = DeviceWrite { at, data: SharedBuffer::from(vec![7; SUPERBLOCK_SIZE]) };
            memory.submit(vec![write]).wait().unwrap();
        }
        let faulty = Arc::new(FaultyDevice::new(memory.clone()));
        faulty.fail(Operation::Write, 0, 5, Lasting::Once);
        let item = DevItem { devid: TARGET, total_bytes: SIZE as u64, ..DevItem::default() };
        forget_volume(&Member::new(faulty, item, Buffer::zeroed(SUPERBLOCK_SIZE)));
        let bytes = memory.to_bytes();
        assert_eq!(places.map(|at| bytes[at.0 as usize]), [0, 7]);
    }
}
