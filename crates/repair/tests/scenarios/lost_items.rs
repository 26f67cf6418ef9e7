//! Items of all types and trees are lost, one at a time.

use ubtrfs_format::{ItemType, TreeId};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{Sound, TREES, edit_at, samples};

/// What becomes of a volume that has lost an item.
enum Fate {
    /// It follows from others.
    Derived,
    /// Nothing else says what it was, and the plan says so.
    GivenUp,
    /// It is derived, or given up.
    Either,
    /// Nothing shows that it was there.
    Unnoticed,
    /// The fault is found, and stays.
    Left,
}

fn fate(tree: TreeId, item_type: ItemType) -> Fate {
    match (tree, item_type) {
        (TreeId::FS, ItemType::INODE_ITEM) => Fate::GivenUp,
        (TreeId::FS, ItemType::EXTENT_DATA) | (TreeId::ROOT, ItemType::ROOT_ITEM) => Fate::Either,
        (_, ItemType::XATTR_ITEM) | (TreeId::ROOT, ItemType::INODE_ITEM | ItemType::INODE_REF | ItemType::DIR_ITEM) => {
            Fate::Unnoticed
        }
        (TreeId::CSUM, _) => Fate::Left,
        _ => Fate::Derived,
    }
}

fn items_that_are_lost_are_derived(name: &str) {
    let sound = Sound::load(name);
    let image = ubtrfs_damage::Image::open(&sound.image);
    for tree in TREES {
        for (item_type, position) in samples(&image, tree) {
            let what = format!("tree {} without {item_type} {position}", tree.0.cast_signed());
            let outcome = sound.repair_after(&what, |image| {
                edit_at(image, tree, (item_type, position), |items, index| drop(items.remove(index)));
            });
            match fate(tree, item_type) {
                Fate::Derived => outcome.assert_derived(&sound),
                Fate::GivenUp => outcome.assert_given_up(),
                Fate::Either if outcome.loses_content() => outcome.assert_given_up(),
                Fate::Either => assert!(outcome.left.is_clean(), "{what}"),
                Fate::Unnoticed => assert!(outcome.is_empty, "{what}"),
                Fate::Left => assert!(!outcome.left.is_clean() && outcome.is_empty, "{what}"),
            }
        }
    }
}

#[test]
fn items_of_a_plain_volume_are_derived_when_they_are_lost() {
    require!(Need::Kernel);
    items_that_are_lost_are_derived("plain");
}

#[test]
fn items_of_a_volume_with_snapshots_are_derived_when_they_are_lost() {
    require!(Need::Kernel);
    items_that_are_lost_are_derived("snapshots");
}
