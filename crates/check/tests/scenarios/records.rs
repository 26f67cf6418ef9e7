//! Tests that a check notices records that are lost, misplaced or contradict the trees: root items,
//! items of other trees, the UUID tree, the default subvolume and quota groups.

use crate::common::cases::{Case, Progs, is, judge, of_type};
use crate::common::{checked, shown, unpack};
use ubtrfs_check::{Level, Options, check};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{FileExtent, FileExtentKind, InodeItem, dir_entries};
use ubtrfs_format::{ItemType, Key, TreeId, objectid};

/// A type that no tree has.
const UNKNOWN: ItemType = ItemType(77);
const QGROUP_256: u64 = 256;
const QGROUP_1_0: u64 = 1 << 48;

fn remove_root(image: &Image, tree: TreeId) {
    image.remove(TreeId::ROOT, is(tree.0, ItemType::ROOT_ITEM));
}

fn change_word(image: &Image, wanted: impl Fn(&Key, &[u8]) -> bool, word: usize, by: u64) {
    image.edit(TreeId::QUOTA, wanted, |_, data| {
        let field = &mut data[word * 8..word * 8 + 8];
        let value = u64::from_le_bytes(field.try_into().unwrap());
        field.copy_from_slice(&value.wrapping_add(by).to_le_bytes());
    });
}

fn of_group(item_type: ItemType, group: u64) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.item_type == item_type && key.offset == group
}

const CASES: &[Case] = &[
    Case {
        name: "root of the data relocation tree gone",
        fixture: "prof-dup",
        damage: |image| remove_root(image, TreeId::DATA_RELOC),
        kinds: &["missing_tree", "unused_extent_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "root item of a subvolume gone",
        fixture: "snapshots",
        damage: |image| remove_root(image, TreeId(257)),
        kinds: &["subvolume_without_root", "uuid_surplus"],
        progs: Progs::Objects,
    },
    Case {
        name: "root of the UUID tree gone",
        fixture: "prof-dup",
        damage: |image| remove_root(image, TreeId::UUID),
        kinds: &["uuid_tree_missing", "unused_extent_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "default subvolume does not exist",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(TreeId::ROOT, is(6, ItemType::DIR_ITEM), |_, data| {
                data[..8].copy_from_slice(&999_u64.to_le_bytes());
            });
        },
        kinds: &["default_subvolume_missing"],
        progs: Progs::Silent,
    },
    Case {
        name: "subvolume without any item",
        fixture: "quota",
        damage: |image| {
            image.edit_leaf(TreeId::FS, |items| {
                items.clear();
                true
            });
        },
        kinds: &["empty_tree", "missing_inode", "root_ref_without_entry"],
        progs: Progs::Objects,
    },
    Case {
        name: "root of a subvolume is a file",
        fixture: "nested",
        damage: |image| {
            image.edit(TreeId(257), is(256, ItemType::INODE_ITEM), |_, data| {
                let mut item = InodeItem::parse(data).unwrap();
                item.mode = 0o100_644;
                *data = item.to_bytes().to_vec();
            });
        },
        kinds: &["root_not_directory", "unexpected_content"],
        progs: Progs::Objects,
    },
    Case {
        name: "device's UUID in the superblock",
        fixture: "prof-dup",
        damage: |image| image.edit_superblock(&[0, 1], |superblock| superblock.dev_item.uuid.0[3] ^= 1),
        kinds: &["device_uuid"],
        progs: Progs::Objects,
    },
    Case {
        name: "device's UUID in a chunk",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::CHUNK,
                |key, _| key.item_type == ItemType::CHUNK_ITEM && key.offset == 131_072_000,
                |_, data| data[64] ^= 1,
            );
        },
        kinds: &["device_uuid"],
        progs: Progs::Objects,
    },
    Case {
        name: "unknown item in a subvolume",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::FS, Key::new(257, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the root tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::ROOT, Key::new(257, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the extent tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::EXTENT, Key::new(u64::MAX - 4096, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the checksum tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::CSUM, Key::new(u64::MAX - 4, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the device tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::DEV, Key::new(9, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the chunk tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::CHUNK, Key::new(900, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "unknown item in the free-space tree",
        fixture: "prof-dup",
        damage: |image| image.add(TreeId::FREE_SPACE, Key::new(u64::MAX - 4096, UNKNOWN, 0), b"what"),
        kinds: &["unknown_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "inode item in the checksum tree",
        fixture: "prof-dup",
        damage: |image| {
            image.add(TreeId::CSUM, Key::new(257, ItemType::INODE_ITEM, 0), &InodeItem::default().to_bytes());
        },
        kinds: &["misplaced_item"],
        progs: Progs::Silent,
    },
    Case {
        name: "extent item in a subvolume",
        fixture: "prof-dup",
        damage: |image| {
            let items = image.items(TreeId::EXTENT);
            let (key, data) = items.iter().find(|(key, _)| key.item_type == ItemType::METADATA_ITEM).unwrap();
            image.add(TreeId::FS, *key, data);
        },
        kinds: &["misplaced_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "checksums under another object id",
        fixture: "prof-dup",
        damage: |image| {
            let (key, data) = image.items(TreeId::CSUM).remove(0);
            image.add(TreeId::CSUM, Key { objectid: 7, ..key }, &data);
        },
        kinds: &["misplaced_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "the inode cache of an old kernel",
        fixture: "prof-dup",
        damage: |image| {
            let inode = InodeItem { nlink: 1, mode: 0o100_600, ..InodeItem::default() };
            image.add(TreeId::FS, Key::new(objectid::FREE_INO, ItemType(0), 0), &[0; 41]);
            image.add(TreeId::FS, Key::new(objectid::FREE_INO, ItemType::INODE_ITEM, 0), &inode.to_bytes());
        },
        kinds: &["inode_cache"],
        progs: Progs::Silent,
    },
    Case {
        name: "quota group refers to more",
        fixture: "quota",
        damage: |image| change_word(image, of_group(ItemType::QGROUP_INFO, QGROUP_256), 1, 4096),
        kinds: &["qgroup_use"],
        progs: Progs::Objects,
    },
    Case {
        name: "quota group of a higher level has less alone",
        fixture: "quota",
        damage: |image| change_word(image, of_group(ItemType::QGROUP_INFO, QGROUP_1_0), 3, 4096_u64.wrapping_neg()),
        kinds: &["qgroup_use"],
        progs: Progs::Objects,
    },
    Case {
        name: "quota group without a limit item",
        fixture: "quota",
        damage: |image| image.remove(TreeId::QUOTA, of_group(ItemType::QGROUP_LIMIT, QGROUP_256)),
        kinds: &["qgroup_item_missing"],
        progs: Progs::Silent,
    },
    Case {
        name: "half of a relation of quota groups",
        fixture: "quota",
        damage: |image| image.remove(TreeId::QUOTA, is(QGROUP_1_0, ItemType::QGROUP_RELATION)),
        kinds: &["qgroup_relation"],
        progs: Progs::Silent,
    },
    Case {
        name: "quota groups that are marked as inconsistent",
        fixture: "quota",
        damage: |image| {
            change_word(image, of_type(ItemType::QGROUP_STATUS), 2, 4);
            change_word(image, of_group(ItemType::QGROUP_INFO, QGROUP_256), 1, 4096);
        },
        kinds: &["qgroups_inconsistent"],
        progs: Progs::Silent,
    },
];

#[test]
fn every_record_that_is_wrong_is_found_and_nothing_else() {
    judge(CASES);
}

#[test]
fn consistent_quota_groups_have_no_fault_and_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let report = checked(&unpack("quota", dir.path()));
    assert!(report.is_clean() && report.warning_count == 0, "{}", shown(&report));
    let groups: Vec<_> = report.qgroups.iter().map(|group| group.qgroup.as_str()).collect();
    assert_eq!(groups, ["0/5", "0/256", "0/257", "0/258", "0/259", "0/260", "1/0"]);
    let high = report.qgroups.last().unwrap();
    assert_eq!((high.referenced_found, high.exclusive_found), (995_328, 69_632));
}

#[test]
fn extents_of_a_subvolume_are_listed_with_all_who_share_them() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("quota", dir.path());
    let options = Options { extents_of: Some(TreeId(260)), ..Options::default() };
    let report = check(&crate::common::open(&images), &options).unwrap();
    let sum: u64 = report.extents.iter().map(|extent| extent.length).sum();
    let alone = |ids: &[u64]| ids == [260];
    let exclusive: u64 =
        report.extents.iter().filter(|extent| alone(&extent.subvolumes)).map(|extent| extent.length).sum();
    assert_eq!((sum, exclusive), (458_752, 12_288), "as the quota group of the subvolume has it");
    assert!(report.extents.iter().any(|extent| extent.subvolumes == [256, 258, 260]), "{:?}", report.extents);
}

#[test]
fn a_subvolume_that_lost_its_root_is_one_fault_of_content() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("snapshots", dir.path());
    remove_root(&Image::open(&images[0]), TreeId(257));
    let report = checked(&images);
    assert_eq!(report.fault_count, 1, "{}", shown(&report));
    assert_eq!(report.faults[0].level(), Level::Content);
}

#[test]
fn a_bad_block_that_snapshots_share_is_one_fault_with_the_paths_of_lost_files() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("quota", dir.path());
    let image = Image::open(&images[0]);
    // A leaf that subvolume 257 ("t") shares with its snapshot 259 ("t1").
    let others = image.leaves(TreeId(259));
    let leaves = image.leaves(TreeId(257));
    let leaf = leaves.iter().rev().find(|leaf| others.contains(leaf)).unwrap();
    let inodes: Vec<u64> = image.leaf(*leaf).iter().map(|(key, _)| key.objectid).collect();
    image.flip_all(leaf.plus(300));
    let report = checked(&images);
    assert_eq!(report.fault_count, 1, "{}", shown(&report));
    let place = &report.faults[0].place;
    assert_eq!((place.tree, &place.shared_with), (Some(TreeId(257)), &vec![259]), "{}", shown(&report));
    let (first, last) = place.inodes.unwrap();
    assert!(inodes.iter().all(|ino| (first..=last).contains(ino)), "{first} to {last}: {inodes:?}");
    assert!(place.files.iter().any(|path| path.starts_with("/t/file-with-a-long-name-")), "{:?}", place.files);
    assert_eq!(report.faults[0].level(), Level::Content);
}

#[test]
fn wrong_data_is_reported_with_the_paths_of_all_files_that_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("quota", dir.path());
    let image = Image::open(&images[0]);
    // "clone" shares the data of "s/file-with-a-long-name-50".
    let clone = image.items(TreeId(257)).into_iter().rev().find(|(key, data)| {
        key.item_type == ItemType::DIR_INDEX && dir_entries(data).any(|entry| entry.unwrap().name == b"clone")
    });
    let inode = dir_entries(&clone.unwrap().1).next().unwrap().unwrap().location.objectid;
    let (_, extent) = image
        .items(TreeId(257))
        .into_iter()
        .find(|(key, _)| key.objectid == inode && key.item_type == ItemType::EXTENT_DATA)
        .unwrap();
    let FileExtentKind::Regular { disk_bytenr, .. } = FileExtent::parse(&extent).unwrap().kind else {
        panic!("inline")
    };
    image.flip_all(disk_bytenr);
    let report = checked(&images);
    assert_eq!(report.fault_count, 1, "{}", shown(&report));
    let files = &report.faults[0].place.files;
    assert!(files.contains(&"/t/clone".to_owned()), "{files:?}");
    assert!(files.contains(&"/s/file-with-a-long-name-50".to_owned()), "{files:?}");
}
