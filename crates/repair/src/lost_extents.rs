//! Extents whose file no longer refers to them. The extent tree says of which file an extent is,
//! and where in it.

use std::collections::{BTreeMap, HashSet};

use ubtrfs_format::items::{DataRef, ExtentFlags, ExtentItem, InlineRef, decode_data_ref};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};

use crate::session::Session;
use crate::survey::Survey;

/// An extent that a file has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostExtent {
    /// The offset in the file at which it starts.
    pub offset: u64,
    pub start: Logical,
    /// Its length on disk, in bytes.
    pub length: u64,
    pub generation: Generation,
}

/// The lost extents of all files, by subvolume and inode, in the order of their offsets.
pub type LostExtents = BTreeMap<(TreeId, u64), Vec<LostExtent>>;

/// Returns the extents that have a reference by a file which has no such use of them.
pub fn find(session: &Session, survey: &Survey) -> LostExtents {
    let mut lost = LostExtents::new();
    let Some(root) = session.root_of(TreeId::EXTENT) else { return lost };
    let used: HashSet<(Logical, DataRef)> = survey
        .data_uses
        .iter()
        .filter_map(|used| {
            let root = survey.blocks.get(&used.leaf)?.owner;
            Some((used.extent, DataRef { root, ino: used.ino, offset: used.offset }))
        })
        .collect();
    let mut current: Option<(Logical, u64, Generation)> = None;
    let mut note = |(start, length, generation): (Logical, u64, Generation), data: DataRef| {
        // An extent of which a file uses a part in front of what it starts with wraps around.
        if !used.contains(&(start, data)) && i64::try_from(data.offset).is_ok() {
            let extent = LostExtent { offset: data.offset, start, length, generation };
            lost.entry((data.root, data.ino.0)).or_default().push(extent);
        }
    };
    for item in session.tree(root, true).range(Key::MIN..=Key::MAX) {
        let Ok(item) = item else { break };
        match item.key.item_type {
            ItemType::EXTENT_ITEM => {
                current = None;
                let Ok(extent) = ExtentItem::parse(&item.key, &item) else { continue };
                if extent.flags & ExtentFlags::DATA == 0 {
                    continue;
                }
                let place = (Logical(item.key.objectid), item.key.offset, extent.generation);
                current = Some(place);
                for reference in &extent.inline_refs {
                    if let InlineRef::Data { data, .. } = reference {
                        note(place, *data);
                    }
                }
            }
            ItemType::EXTENT_DATA_REF => {
                if let (Some(place), Ok((data, _))) = (current, decode_data_ref(&item))
                    && place.0.0 == item.key.objectid
                {
                    note(place, data);
                }
            }
            _ => {}
        }
    }
    for extents in lost.values_mut() {
        extents.sort_by_key(|extent| extent.offset);
    }
    lost
}
