//! Tree blocks are destroyed, all copies of one at a time: what does not depend on the block stays.

use std::collections::BTreeSet;

use ubtrfs_format::{Logical, Node, TreeId};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{Sound, TREES};

/// Returns the blocks of a tree, from the root downwards.
fn blocks(image: &ubtrfs_damage::Image, tree: TreeId) -> BTreeSet<Logical> {
    let mut all = BTreeSet::new();
    let mut waiting = vec![image.root(tree)];
    while let Some(at) = waiting.pop() {
        if all.insert(at)
            && let Node::Internal(node) = Node::view(&image.read_block(at)).unwrap()
        {
            waiting.extend(node.iter().map(|child| child.bytenr));
        }
    }
    all
}

/// How a block is destroyed.
#[derive(Clone, Copy, Debug)]
enum Destruction {
    /// All of it is zeros.
    Zeros,
    /// One bit is another one.
    Bit,
}

fn blocks_that_are_destroyed_take_little_with_them(name: &str, step: usize) {
    let sound = Sound::load(name);
    let image = ubtrfs_damage::Image::open(&sound.image);
    for tree in TREES {
        for (number, at) in blocks(&image, tree).into_iter().enumerate().step_by(step) {
            for destruction in [Destruction::Zeros, Destruction::Bit] {
                let what = format!("tree {}, block {number} at {at}: {destruction:?}", tree.0.cast_signed());
                let outcome = sound.repair_after(&what, |image| match destruction {
                    Destruction::Bit => image.flip_all(at.plus(900)),
                    Destruction::Zeros => {
                        let zeros = vec![0; image.superblock.node_size as usize];
                        image.places(at).into_iter().for_each(|place| image.write_raw(place, &zeros));
                    }
                });
                let is_of_files = tree == TreeId::FS || tree == TreeId::ROOT;
                if tree == TreeId::CSUM {
                    continue;
                }
                assert!(outcome.left.is_clean(), "{what}: {:?}", outcome.left.faults);
                if !is_of_files {
                    outcome.assert_derived(&sound);
                }
            }
        }
    }
}

#[test]
fn blocks_of_a_volume_with_snapshots_take_little_with_them() {
    require!(Need::Kernel);
    blocks_that_are_destroyed_take_little_with_them("snapshots", 1);
}

#[test]
fn blocks_of_a_plain_volume_take_little_with_them() {
    require!(Need::Kernel);
    blocks_that_are_destroyed_take_little_with_them("plain", 5);
}

#[test]
#[ignore = "a soak: all blocks of many volumes"]
fn all_blocks_of_many_volumes_take_little_with_them() {
    require!(Need::Kernel);
    for name in ["plain", "snapshots", "comp-zstd", "node-4k", "bgtree", "holes", "csum-xxhash"] {
        blocks_that_are_destroyed_take_little_with_them(name, 1);
    }
}
