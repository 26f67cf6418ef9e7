//! Restoring a volume from a dump.
//!
//! Every device gets the size that it had, and every block is written to all its copies, so that
//! the restored volume has the chunks of the dumped one. Its superblocks are marked as those of a
//! dump ([`SuperblockFlags::METADUMP_V2`]), since the content of files is missing.

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, SuperblockChange, SuperblockFlags};

use crate::chunks::Geometry;
use crate::error::{Error, Result};
use crate::plan::RestorePlan;
use crate::reader::{Reader, Source};
use crate::report::Restored;
use crate::targets::{Target, Targets};

/// How to restore.
#[derive(Clone, Copy)]
pub struct RestoreOptions<'a> {
    /// How many threads decompress.
    pub threads: usize,
    /// Gets how many bytes of the dump have been read, and how many there are. It returns false to
    /// end the work.
    pub progress: &'a dyn Fn(u64, u64) -> bool,
}

/// Restores a dump. There is one target for each of the [devices](RestorePlan::devices), in their
/// order.
pub fn restore(
    source: &dyn Source,
    plan: &RestorePlan,
    targets: &mut [&mut dyn Target],
    options: &RestoreOptions<'_>,
) -> Result<Restored> {
    let devices = plan.devices();
    if devices.is_empty() {
        return Err(Error::NoDevice);
    }
    if devices.len() != targets.len() {
        return Err(Error::Targets { devices: devices.len(), targets: targets.len() });
    }
    let failed = |device: DeviceId, at, source| Error::Target { device: device.0, at, source };
    let mut restored = Restored { problems: plan.problems.clone(), ..Restored::default() };
    for (device, target) in devices.iter().zip(targets.iter_mut()) {
        if device.fsid != plan.superblock.metadata_fsid() {
            restored
                .problems
                .add(|| format!("device {} is a seed, whose own superblock a dump does not have", device.devid));
        }
        target.set_size(device.total_bytes).map_err(|error| failed(device.devid, device.total_bytes, error))?;
    }
    let by_number = devices.iter().zip(targets.iter_mut());
    let devices_by_number = by_number.map(|(device, target)| (device.devid.0, &mut **target as &mut dyn Target));
    let mut targets = Targets { devices: devices_by_number.collect() };
    let reader = Reader::new(source)?;
    let geometry = Geometry::of(&plan.superblock);
    let node = geometry.node_size as usize;
    let sector = u64::from(plan.superblock.sector_size);
    let mut at = 0;
    while let Some(cluster) = reader.cluster(at)? {
        let mut contents = reader.contents(&cluster, options.threads)?;
        // The first item is the superblock.
        let items = cluster.places.iter().zip(&mut contents).skip(usize::from(at == 0));
        for (place, content) in items {
            for (index, block) in content.chunks_exact_mut(node).enumerate() {
                geometry.mend_checksum(place.logical.plus((index * node) as u64), block);
            }
            let unmapped = targets.write_logical(&plan.chunks.map, place.logical, content, sector)?;
            if unmapped > 0 {
                restored.problems.add(|| format!("{unmapped} bytes at {} are in no chunk: left out", place.logical));
            }
            restored.items += 1;
            restored.bytes += content.len() as u64;
            restored.unmapped += unmapped;
        }
        at = cluster.next;
        if !(options.progress)(at.min(reader.size()), reader.size()) {
            return Err(Error::Interrupted);
        }
    }
    // They come last, since nothing that a damaged dump has may overwrite them.
    for device in &devices {
        write_superblocks(plan, device, &mut targets)?;
    }
    Ok(restored)
}

fn write_superblocks(plan: &RestorePlan, device: &DevItem, targets: &mut Targets<'_>) -> Result<()> {
    let size = device.total_bytes;
    let fits = |at: u64| at.checked_add(SUPERBLOCK_SIZE as u64).is_some_and(|end| end < size);
    for at in SUPERBLOCK_COPIES.into_iter().filter(|at| fits(at.0)) {
        let mut bytes = plan.superblock_bytes.clone();
        let change = SuperblockChange {
            bytenr: Some(at),
            flags: Some(plan.superblock.flags.with(SuperblockFlags::METADUMP_V2)),
            dev_item: Some(*device),
            label: None,
        };
        change.apply(&mut bytes).map_err(Error::Superblock)?;
        targets.write(device.devid.0, at, &bytes)?;
    }
    Ok(())
}
