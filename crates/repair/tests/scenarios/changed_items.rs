//! A bit of an item is another one, in a block whose checksum is right, as memory that fails leaves
//! it. Whatever follows from it, a repair makes nothing worse.

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{Sound, TREES, edit_at, samples};

/// The parts of an item in which a bit is changed, in sixteenths of its length.
const PARTS: [usize; 5] = [0, 2, 5, 9, 15];

fn changed_items_are_put_right_or_left(name: &str, parts: &[usize]) {
    let sound = Sound::load(name);
    let image = ubtrfs_damage::Image::open(&sound.image);
    for tree in TREES {
        for (item_type, position) in samples(&image, tree) {
            for part in parts {
                let what = format!("tree {}, {item_type} {position}, part {part}", tree.0.cast_signed());
                sound.repair_after(&what, |image| {
                    edit_at(image, tree, (item_type, position), |items, index| {
                        let bytes = &mut items[index].1;
                        let at = bytes.len() * part / 16;
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << (part % 8);
                        }
                    });
                });
            }
        }
    }
}

#[test]
fn a_repair_makes_nothing_worse_when_a_bit_of_an_item_is_changed() {
    require!(Need::Kernel);
    changed_items_are_put_right_or_left("snapshots", &PARTS[1..3]);
}

#[test]
#[ignore = "a soak: many bits of many items"]
fn a_repair_makes_nothing_worse_when_any_bit_of_an_item_is_changed() {
    require!(Need::Kernel);
    for name in ["plain", "snapshots", "comp-zstd", "node-4k", "bgtree", "holes"] {
        changed_items_are_put_right_or_left(name, &PARTS);
    }
}
