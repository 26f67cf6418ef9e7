//! The checksum tree: sums of data that files have, each once.

use std::collections::BTreeMap;

use ubtrfs_format::items::CsumItem;
use ubtrfs_format::{ItemType, Key, Logical, TreeId, max_item_size, objectid};
use ubtrfs_tree::EditBatch;

use crate::error::Result;
use crate::session::Session;
use crate::space::Ranges;
use crate::survey::Survey;

/// Returns the items of a new checksum tree: all sums that can be read, of the data that the trees
/// use. A part of the tree that can't be read is left out. Sums of the `missing` ranges, which have
/// a length in bytes, are computed.
pub fn kept_sums(session: &Session, survey: &Survey, missing: &[(Logical, u64)]) -> Result<EditBatch> {
    let mut used = Ranges::default();
    for data in &survey.data_uses {
        used.insert(data.extent.0, data.extent.0.saturating_add(data.length));
    }
    let sector = u64::from(session.geometry.sector_size);
    let mut sums: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    if let Some(root) = session.root_of(TreeId::CSUM) {
        let range = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, 0)
            ..=Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, u64::MAX);
        for item in session.tree(root, true).range(range) {
            let item = item?;
            let start = Logical(item.key.offset);
            let Ok(found) = CsumItem::parse(start, &item, session.geometry.checksum, session.geometry.sector_size)
            else {
                continue;
            };
            for (from, to) in used.within(found.start().0, found.end().0) {
                for at in (from.next_multiple_of(sector)..to).step_by(sector as usize) {
                    if let Some(sum) = found.get(Logical(at)) {
                        sums.entry(at).or_insert_with(|| sum.to_vec());
                    }
                }
            }
        }
    }
    for (start, length) in missing {
        let mut data = vec![0; sector as usize];
        for at in (start.0..start.plus(*length).0).step_by(sector as usize).filter(|at| at.is_multiple_of(sector)) {
            if sums.contains_key(&at) {
                continue;
            }
            session.volume.reader().read_data(Logical(at), &mut data, None)?;
            let checksum = session.geometry.checksum;
            sums.insert(at, checksum.compute(&data).0[..checksum.size()].to_vec());
        }
    }
    Ok(packed(session, sums))
}

/// Returns items with these sums, by address. Sums of adjacent sectors share an item.
fn packed(session: &Session, sums: BTreeMap<u64, Vec<u8>>) -> EditBatch {
    let sector = u64::from(session.geometry.sector_size);
    let max = max_item_size(session.geometry.node_size as usize) / 2;
    let mut batch = EditBatch::new();
    let mut run: Option<(u64, u64, Vec<u8>)> = None;
    let put = |batch: &mut EditBatch, (start, _, bytes): (u64, u64, Vec<u8>)| {
        batch.put(Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, start), bytes);
    };
    for (at, sum) in sums {
        match &mut run {
            Some((_, next, bytes)) if *next == at && bytes.len() + sum.len() <= max => {
                *next += sector;
                bytes.extend_from_slice(&sum);
            }
            _ => {
                if let Some(full) = run.replace((at, at + sector, sum)) {
                    put(&mut batch, full);
                }
            }
        }
    }
    if let Some(last) = run {
        put(&mut batch, last);
    }
    batch
}
