//! Tests a subvolume whose deletion was interrupted: its dropped part must not be reported as
//! missing, and the rest must be counted.
//!
//! The image was copied right after the kernel had unlinked a subvolume of eight leaves and before
//! it had dropped any of them. The test drops some as the kernel does: their extents are freed, the
//! subvolume's own blocks stay as they are, and the root item has the progress of the deletion.

use crate::common::{checked, shown, unpack};
use ubtrfs_check::{FaultKind, Report};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{BlockGroupItem, FreeSpaceInfo, RootItem};
use ubtrfs_format::{ItemType, Key, Node, TreeId};

const DELETED: TreeId = TreeId(256);

fn first_key(image: &Image, at: ubtrfs_format::Logical) -> Key {
    Node::view(&image.read_block(at)).unwrap().first_key().unwrap()
}

/// Frees the extents of the first `count` leaves, and notes the progress.
fn drop_leaves(image: &Image, count: usize) {
    let leaves = image.leaves(DELETED);
    let node_size = u64::from(image.superblock.node_size);
    for leaf in &leaves[..count] {
        image.remove(TreeId::EXTENT, |key, _| key.objectid == leaf.0 && key.item_type == ItemType::METADATA_ITEM);
        free(image, leaf.0, leaf.0 + node_size);
    }
    let freed = count as u64 * node_size;
    image.edit(
        TreeId::EXTENT,
        |key, _| {
            key.item_type == ItemType::BLOCK_GROUP_ITEM
                && (key.objectid..key.objectid + key.offset).contains(&leaves[0].0)
        },
        |_, data| {
            let mut group = BlockGroupItem::parse(data).unwrap();
            group.used -= freed;
            *data = group.to_bytes().to_vec();
        },
    );
    image.edit(
        TreeId::ROOT,
        |key, _| key.objectid == DELETED.0 && key.item_type == ItemType::ROOT_ITEM,
        |_, data| {
            let mut root = RootItem::parse(data).unwrap();
            root.drop_progress = first_key(image, leaves[count]);
            root.drop_level = 1;
            *data = root.to_bytes();
        },
    );
    image.edit_superblock(&[0, 1], |superblock| superblock.bytes_used -= freed);
}

/// Adds a range to the free space of the block group that holds it.
fn free(image: &Image, start: u64, end: u64) {
    image.edit_leaf(TreeId::FREE_SPACE, |items| {
        let holds = |key: &Key| {
            key.item_type == ItemType::FREE_SPACE_INFO && (key.objectid..key.objectid + key.offset).contains(&start)
        };
        let Some(group) = items.iter().position(|(key, _)| holds(key)) else { return false };
        let (mut start, mut end) = (start, end);
        items.retain(|(key, _)| {
            let touches = key.item_type == ItemType::FREE_SPACE_EXTENT
                && (key.objectid == end || key.objectid + key.offset == start);
            if touches {
                start = start.min(key.objectid);
                end = end.max(key.objectid + key.offset);
            }
            !touches
        });
        items.push((Key::new(start, ItemType::FREE_SPACE_EXTENT, end - start), Vec::new()));
        items.sort();
        let range = items[group].0.objectid..items[group].0.objectid + items[group].0.offset;
        let extents = items
            .iter()
            .filter(|(key, _)| key.item_type == ItemType::FREE_SPACE_EXTENT && range.contains(&key.objectid));
        let mut info = FreeSpaceInfo::parse(&items[group].1).unwrap();
        info.extent_count = extents.count() as u32;
        items[group].1 = info.to_bytes().to_vec();
        true
    });
}

fn missing_and_unused(report: &Report) -> (usize, usize) {
    let count = |wanted: fn(&FaultKind) -> bool| report.faults.iter().filter(|fault| wanted(&fault.kind)).count();
    (
        count(|kind| matches!(kind, FaultKind::MissingExtentItem { .. })),
        count(|kind| matches!(kind, FaultKind::UnusedExtentItem)),
    )
}

#[test]
fn a_dropped_part_is_not_reported_as_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpack("dropping", dir.path()).remove(0);
    let report = checked(std::slice::from_ref(&path));
    assert!(report.is_clean(), "before the deletion starts:\n{}", shown(&report));
    drop_leaves(&Image::open(&path), 3);
    let report = checked(std::slice::from_ref(&path));
    assert!(report.is_clean(), "after three leaves:\n{}", shown(&report));
}

#[test]
fn progress_that_does_not_fit_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpack("dropping", dir.path()).remove(0);
    let image = Image::open(&path);
    drop_leaves(&image, 3);
    let leaves = image.leaves(DELETED);
    for (reported, expected) in [(2, (1, 0)), (5, (0, 2))] {
        image.edit(
            TreeId::ROOT,
            |key, _| key.objectid == DELETED.0 && key.item_type == ItemType::ROOT_ITEM,
            |_, data| {
                let mut root = RootItem::parse(data).unwrap();
                root.drop_progress = first_key(&image, leaves[reported]);
                *data = root.to_bytes();
            },
        );
        let report = checked(std::slice::from_ref(&path));
        assert_eq!(missing_and_unused(&report), expected, "{}", shown(&report));
    }
}
