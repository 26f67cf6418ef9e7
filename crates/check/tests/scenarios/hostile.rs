//! Tests that any content gives a report or an error in bounded time, and never a panic.

use std::collections::BTreeSet;

use crate::common::{open, unpack};
use ubtrfs_check::{Options, check};
use ubtrfs_damage::Image;
use ubtrfs_format::{Logical, Node, TreeId};
use ubtrfs_random::Rng;

/// The number of damages for each fixture.
const ROUNDS: u64 = 150;

/// All blocks of the trees that hold the volume together.
fn blocks(image: &Image) -> Vec<Logical> {
    let trees =
        [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM, TreeId::FREE_SPACE];
    let mut blocks = BTreeSet::new();
    for tree in trees {
        blocks.insert(image.root(tree));
        blocks.extend(image.leaves(tree));
    }
    blocks.into_iter().collect()
}

#[test]
fn random_damage_with_right_checksums_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = Rng::new(1);
    for name in ["snapshots", "holes"] {
        let images = unpack(name, dir.path());
        let image = Image::open(&images[0]);
        let blocks = blocks(&image);
        let mut objected = 0;
        for _ in 0..ROUNDS {
            let at = blocks[numbers.below(blocks.len() as u64) as usize];
            let whole = image.read_block(at);
            let mut block = whole.clone();
            // Both the start, with header and item headers, and the end, with item data, are
            // damaged.
            for _ in 0..=numbers.below(4) {
                let (start, end) = match (numbers.below(3), Node::view(&whole)) {
                    (0, _) => (48, 200),
                    (1, Ok(Node::Leaf(leaf))) => (16384 - leaf.used().min(16000) as u64, 16384),
                    _ => (101, 1500),
                };
                let place = (start + numbers.below(end - start)) as usize;
                block[place] = match numbers.below(3) {
                    0 => 0xff,
                    1 => block[place].wrapping_add(1),
                    _ => numbers.below(256) as u8,
                };
            }
            image.write_block(at, block);
            let result = check(&open(&images), &Options { keep: 50, ..Options::default() });
            objected += u64::from(result.map_or(true, |report| !report.is_clean()));
            image.write_block(at, whole);
        }
        // Some changes hit bytes that a checker can't judge: times, owners, names of xattrs.
        assert!(objected > ROUNDS / 2, "{name}: only {objected} of {ROUNDS} damages were noticed");
        let report = check(&open(&images), &Options::default()).unwrap();
        assert!(report.is_clean(), "{name} is not as it was");
    }
}

#[test]
fn other_contents_can_not_be_checked() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("nothing.img");
    std::fs::write(&image, vec![0x5a; 1 << 20]).unwrap();
    assert!(matches!(check(&open(&[image]), &Options::default()), Err(ubtrfs_check::Error::NoSuperblock)));
    let images = unpack("plain", dir.path());
    let file = std::fs::OpenOptions::new().write(true).open(&images[0]).unwrap();
    file.set_len(1 << 20).unwrap();
    assert!(matches!(check(&open(&images), &Options::default()), Err(ubtrfs_check::Error::ChunkTree(_))));
    assert!(check(&[], &Options::default()).is_err());
}

#[test]
fn a_chunk_tree_without_any_good_copy_can_not_be_checked() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-dup", dir.path());
    let image = Image::open(&images[0]);
    image.flip_all(image.root(TreeId::CHUNK).plus(300));
    assert!(matches!(check(&open(&images), &Options::default()), Err(ubtrfs_check::Error::ChunkTree(_))));
}

#[test]
fn missing_devices_are_reported_and_the_rest_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-raid1", dir.path());
    let report = check(&open(&images[..1]), &Options::default()).unwrap();
    let is_missing = |fault: &ubtrfs_check::Fault| matches!(fault.kind, ubtrfs_check::FaultKind::DeviceMissing { .. });
    assert_eq!(report.faults.iter().filter(|fault| is_missing(fault)).count(), 1);
    assert!(report.stats.inodes > 400, "the other copies are all there");
}

#[test]
fn a_missing_device_of_four_is_one_fault() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-raid10", dir.path());
    let report = check(&open(&images[..3]), &Options::default()).unwrap();
    assert_eq!(report.fault_count, 1, "{}", crate::common::shown(&report));
    assert_eq!(report.faults[0].level(), ubtrfs_check::Level::Space, "the other devices have everything");
}
