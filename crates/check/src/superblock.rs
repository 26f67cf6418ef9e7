//! Finds the superblock that is valid for the volume, and compares all copies with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, SuperblockFlags, Uuid};
use ubtrfs_volume::Device;

use crate::fault::{FaultKind, Location};
use crate::report::Faults;

/// A copy of the superblock on a device, if the volume has room for it there.
struct Copy {
    device: usize,
    number: u8,
    found: Result<Superblock, String>,
}

/// All copies on all devices.
pub(crate) struct Copies {
    copies: Vec<Copy>,
    /// The number of each given device, if one of its copies is good.
    devids: Vec<Option<u64>>,
}

fn read(device: &dyn Device, at: Physical) -> Result<Superblock, String> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(at, &mut bytes).map_err(|error| sentence(&error))?;
    Superblock::parse(&bytes, at).map_err(|error| sentence(&error))
}

impl Copies {
    pub(crate) fn read(devices: &[Arc<dyn Device>]) -> Self {
        let mut copies = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            // A volume has no copy behind its end; an older one may have left a copy there.
            let mut end = device.size();
            for (number, at) in (0..).zip(SUPERBLOCK_COPIES) {
                if at.0 + SUPERBLOCK_SIZE as u64 > end {
                    break;
                }
                let found = read(device.as_ref(), at);
                if let (0, Ok(primary)) = (number, &found) {
                    end = end.min(primary.dev_item.total_bytes.saturating_sub(1));
                }
                copies.push(Copy { device: index, number, found });
            }
        }
        let first_good = |index: usize| {
            let mut own = copies.iter().filter(|copy| copy.device == index);
            own.find_map(|copy| copy.found.as_ref().ok())
        };
        let of_devices: Vec<_> = (0..devices.len()).map(first_good).collect();
        // A mount also leaves out these devices.
        let is_left_out = |own: &Superblock| of_devices.iter().flatten().any(|newer| newer.has_the_number_of(own));
        let left_out: Vec<bool> = of_devices.iter().map(|own| own.is_some_and(is_left_out)).collect();
        let devids = of_devices.iter().zip(&left_out);
        let devids = devids.map(|(own, left_out)| own.filter(|_| !left_out).map(|own| own.dev_item.devid.0)).collect();
        copies.retain(|copy| !left_out[copy.device]);
        Self { copies, devids }
    }

    /// The devices by their numbers; those without any good copy of the superblock are left out.
    pub(crate) fn by_devid(&self, devices: &[Arc<dyn Device>]) -> BTreeMap<u64, Arc<dyn Device>> {
        self.devids.iter().zip(devices).filter_map(|(devid, device)| Some(((*devid)?, Arc::clone(device)))).collect()
    }

    /// The superblock of the last commit: the newest primary copy, as for a mount, or if no primary
    /// copy is good, the newest copy. A seed beside a device of another volume belongs to that
    /// volume.
    pub(crate) fn current(&self) -> Option<&Superblock> {
        self.copies
            .iter()
            .filter_map(|copy| Some((copy.found.as_ref().ok()?, copy.number == 0)))
            .max_by_key(|(found, primary)| (*primary, !is_seed(found), found.generation))
            .map(|(found, _)| found)
    }

    /// The newest of the copies with this number.
    pub(crate) fn numbered(&self, number: u8) -> Option<&Superblock> {
        let copies = self.copies.iter().filter(|copy| copy.number == number);
        copies.filter_map(|copy| copy.found.as_ref().ok()).max_by_key(|found| (!is_seed(found), found.generation))
    }

    /// The ids in the blocks of seeds.
    pub(crate) fn seeds(&self, current: &Superblock) -> Vec<Uuid> {
        let found = self.copies.iter().filter_map(|copy| copy.found.as_ref().ok());
        found.filter(|found| may_be_seed_of(found, current)).map(Superblock::metadata_fsid).collect()
    }

    /// Returns whether a device has the current superblock, and all others have that of the commit
    /// before, with no new epoch in between. Then a crash came while the superblocks of the commit
    /// were written, of which those of added devices are first. A generation may be skipped.
    fn is_ahead(&self, device: usize, current: &Superblock) -> bool {
        let primary = |copy: &&Copy| copy.number == 0;
        let mut others = self.copies.iter().filter(primary).filter(|copy| copy.device != device).peekable();
        let is_before = |found: &Superblock| {
            let commits = current.generation.0.checked_sub(found.generation.0);
            matches!(commits, Some(1 | 2)) && found.epochs.last() == current.epochs.last()
        };
        let mut own = self.copies.iter().filter(primary).filter(|copy| copy.device == device);
        own.any(|copy| copy.found.as_ref().is_ok_and(|found| found.generation == current.generation))
            && others.peek().is_some()
            && others.all(|copy| copy.found.as_ref().is_ok_and(is_before))
    }

    /// Compares all copies with the current superblock.
    pub(crate) fn judge(&self, current: &Superblock, faults: &mut Faults) {
        for copy in &self.copies {
            let device = self.devids.get(copy.device).copied().flatten().unwrap_or(0);
            let number = copy.number;
            let kind = match &copy.found {
                Ok(found) if may_be_seed_of(found, current) => continue,
                // This copy is from before the commit by which the device joins the volume.
                Err(_) if number > 0 && self.is_ahead(copy.device, current) => {
                    let expected = current.generation.0;
                    FaultKind::SuperblockCopyStale { device, copy: number, found: 0, expected }
                }
                Err(reason) => FaultKind::SuperblockCopyBad { device, copy: number, reason: reason.clone() },
                // A crash in the middle of a commit leaves such copies behind.
                Ok(found) if found.generation != current.generation => FaultKind::SuperblockCopyStale {
                    device,
                    copy: number,
                    found: found.generation.0,
                    expected: current.generation.0,
                },
                Ok(found) if !agree(found, current) => FaultKind::SuperblockCopyDiffers { device, copy: number },
                Ok(_) => continue,
            };
            faults.add(kind, Location::volume());
        }
    }
}

fn is_seed(superblock: &Superblock) -> bool {
    superblock.flags.contains(SuperblockFlags::SEEDING)
}

/// Returns whether a superblock is that of a seed from which the volume may have been made.
fn may_be_seed_of(superblock: &Superblock, current: &Superblock) -> bool {
    is_seed(superblock) && superblock.fsid != current.fsid
}

/// Returns whether two copies are equal except for fields of the copy or device. Only primary
/// copies refer to a log tree; an epoch may begin with a log tree; and a superblock with a log tree
/// does not have how far a device was brought up.
fn agree(one: &Superblock, other: &Superblock) -> bool {
    let one = Superblock {
        bytenr: other.bytenr,
        log_root: other.log_root,
        log_root_level: other.log_root_level,
        log_root_transid: other.log_root_transid,
        dev_item: other.dev_item,
        epochs: other.epochs.clone(),
        resilvered: other.resilvered,
        ..one.clone()
    };
    one == *other
}

/// Checks fields that must be consistent with others.
pub(crate) fn judge_fields(superblock: &Superblock, faults: &mut Faults) {
    let mut require = |field, found, expected| {
        if found != expected {
            faults.add(FaultKind::SuperblockField { field, found, expected }, Location::volume());
        }
    };
    let node = u64::from(superblock.node_size);
    require("bytes_used", superblock.bytes_used, superblock.bytes_used.max(6 * node));
    require("stripesize", superblock.stripe_size.into(), superblock.sector_size.into());
    require("root_dir_objectid", superblock.root_dir_objectid, 6);
    let same = superblock.dev_item.fsid == superblock.metadata_fsid();
    require("dev_item.fsid is the metadata's", u64::from(same), 1);
}
