//! Volumes that kernels made can be opened, and their tree blocks are read correctly.

use crate::common::{READ_ONLY, all_fixtures, has, open, root_of, unpack};
use ubtrfs_format::items::RootItem;
use ubtrfs_format::{ItemType, Node, NodeExpectation};
use ubtrfs_volume::{Engine, Volume};

/// Reads a block and all blocks below it, and returns how many there were.
fn walk(volume: &Volume, expected: &NodeExpectation, visit: &mut dyn FnMut(ubtrfs_format::Key, &[u8])) -> usize {
    let block = volume.reader().read_node(expected).unwrap_or_else(|error| panic!("{error:?}"));
    match Node::view(&block).unwrap() {
        Node::Leaf(leaf) => {
            leaf.iter().for_each(|(key, data)| visit(key, data));
            1
        }
        Node::Internal(internal) => {
            let level = expected.level.map(|level| level - 1);
            let child = |child: ubtrfs_format::ChildPointer| NodeExpectation {
                bytenr: child.bytenr,
                level,
                generation: Some(child.generation),
                first_key: Some(child.key),
                owner: None,
                fsid: expected.fsid,
            };
            1 + internal.iter().map(|pointer| walk(volume, &child(pointer), visit)).sum::<usize>()
        }
    }
}

#[test]
fn every_fixture_opens_and_all_its_trees_read() {
    if !has("zstd") {
        return;
    }
    let fixtures = all_fixtures();
    if fixtures.is_empty() {
        eprintln!("skipped: no fixtures");
        return;
    }
    assert!(fixtures.iter().any(|(_, images)| images.len() == 4), "fixtures of several devices");
    for (name, images) in fixtures {
        let dir = tempfile::tempdir().unwrap();
        let paths = unpack(&images, dir.path());
        let volume = open(&paths, READ_ONLY, Engine::Auto).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let mut roots = Vec::new();
        let mut blocks = walk(&volume, &root_of(&volume), &mut |key, data| {
            if key.item_type == ItemType::ROOT_ITEM {
                let root = RootItem::parse(data).unwrap();
                roots.push((root.bytenr, root.level, root.generation));
            }
        });
        assert!(roots.len() >= 6, "{name}");
        for (bytenr, level, generation) in roots {
            let expected = NodeExpectation {
                bytenr,
                level: Some(level),
                generation: Some(generation),
                owner: None,
                first_key: None,
                fsid: volume.metadata_fsid(),
            };
            blocks += walk(&volume, &expected, &mut |_, _| {});
        }
        let counters = volume.counters();
        assert!(counters.devices.reads as usize >= blocks, "{name}");
        assert_eq!((counters.checksum_errors, counters.repairs, counters.devices.writes), (0, 0, 0), "{name}");
    }
}
