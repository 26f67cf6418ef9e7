//! Damaged volumes are dumped as they are.

use std::os::unix::fs::FileExt;

use ubtrfs_damage::Image;
use ubtrfs_format::{SUPERBLOCK_COPIES, TreeId};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::{blocks_of, check, dump, faults, restore};

#[test]
fn the_good_copy_is_dumped_when_the_other_one_is_bad() {
    let dir = scratch_dir();
    let images = Fixture::load("prof-dup").unpack(dir.path());
    let clean = dump(&images, false, 0).1;
    let image = Image::open(&images[0]);
    for (index, tree) in [TreeId::FS, TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT].into_iter().enumerate() {
        for leaf in image.leaves(tree) {
            image.flip(leaf, &[index % 2]);
        }
    }
    let (dumped, bytes) = dump(&images, false, 0);
    assert_eq!((dumped.bad_blocks, dumped.problems.count), (0, 0), "{:?}", dumped.problems);
    assert!(bytes == clean);
}

#[test]
fn a_block_without_a_good_copy_is_dumped_as_it_is_and_reported() {
    let dir = scratch_dir();
    let images = Fixture::load("prof-dup").unpack(dir.path());
    let image = Image::open(&images[0]);
    let leaf = image.leaves(TreeId::FS)[0];
    let blocks = dump(&images, false, 0).0.blocks;
    image.flip_all(leaf);
    let before = check(&images);
    assert!(!before.is_clean());
    let (dumped, bytes) = dump(&images, false, 0);
    assert_eq!((dumped.bad_blocks, dumped.blocks), (1, blocks));
    assert!(dumped.problems.first[0].contains(&leaf.to_string()), "{:?}", dumped.problems);
    let node = check(&images).stats.used_bytes.min(16384) as usize;
    assert_eq!(blocks_of(&bytes, node).1[&leaf.0], image.read_block(leaf));
    let (_, targets) = restore(&bytes, dir.path());
    assert_eq!(faults(&check(&targets)), faults(&before));
}

#[test]
fn a_bad_block_is_dumped_without_items_when_names_are_replaced() {
    let dir = scratch_dir();
    let images = Fixture::load("prof-dup").unpack(dir.path());
    let image = Image::open(&images[0]);
    let leaf = image.leaves(TreeId::FS)[0];
    image.flip_all(leaf);
    let (dumped, bytes) = dump(&images, true, 0);
    assert_eq!(dumped.bad_blocks, 1);
    let block = &blocks_of(&bytes, 16384).1[&leaf.0];
    assert_eq!(block[..101], image.read_block(leaf)[..101]);
    assert!(block[101..].iter().all(|byte| *byte == 0));
}

#[test]
fn missing_devices_are_done_without_when_the_others_have_all() {
    for (name, missing) in [("prof-raid1", 1), ("prof-raid10", 1), ("prof-raid5", 1), ("prof-raid6", 2)] {
        for first in [false, true] {
            let dir = scratch_dir();
            let images = Fixture::load(name).unpack(dir.path());
            let before = check(&images);
            let left = if first { images[missing..].to_vec() } else { images[..images.len() - missing].to_vec() };
            let (dumped, bytes) = dump(&left, false, 3);
            assert_eq!((dumped.bad_blocks, dumped.problems.count), (0, missing as u64), "{name} {:?}", dumped.problems);
            assert!(dumped.problems.first.iter().all(|problem| problem.contains("is missing")));
            let (_, targets) = restore(&bytes, dir.path());
            assert_eq!(targets.len(), images.len(), "{name}");
            assert_eq!(faults(&check(&targets)), faults(&before), "{name}");
            // What is restored can do without devices, too: its parity is right.
            for left in [&targets[missing..], &targets[..targets.len() - missing]] {
                assert_eq!(dump(left, false, 3).0.bad_blocks, 0, "{name}: restored");
            }
        }
    }
}

#[test]
fn the_copy_of_a_superblock_is_dumped_when_the_primary_is_bad() {
    let dir = scratch_dir();
    let images = Fixture::load("plain").unpack(dir.path());
    let clean = dump(&images, false, 0).1;
    let file = std::fs::File::options().write(true).open(&images[0]).unwrap();
    file.write_all_at(&[0; 4096], SUPERBLOCK_COPIES[0].0).unwrap();
    let (dumped, bytes) = dump(&images, false, 0);
    assert_eq!(dumped.problems.count, 1, "{:?}", dumped.problems);
    assert!(bytes == clean);
}

#[test]
fn blocks_in_no_chunk_are_listed_when_the_chunk_tree_is_bad() {
    let dir = scratch_dir();
    let images = Fixture::load("plain").unpack(dir.path());
    let bytes = dump(&images, false, 0).1;
    let image = Image::open(&images[0]);
    let leaf = image.leaves(TreeId::CHUNK)[0];
    // The dump was whole, and its block of the chunk tree is damaged afterwards.
    let mut bad = bytes.clone();
    let block = image.read_block(leaf);
    let at = bytes.windows(101).position(|window| window[48..101] == block[48..101]).unwrap();
    bad[at + 60] ^= 0xff;
    let (restored, targets) = restore(&bad, dir.path());
    assert!(restored.unmapped > 0 && restored.problems.count > 1, "{restored:?}");
    assert_eq!(targets.len(), 1);
    // The volume itself with that damage can be dumped, too.
    image.flip_all(leaf);
    let (dumped, bytes) = dump(&images, false, 0);
    assert!(dumped.bad_blocks > 0 && dumped.problems.count > 0);
    restore(&bytes, dir.path());
}
