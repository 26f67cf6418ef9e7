//! All blocks of volumes that mkfs.btrfs and kernels made are understood and break no rule.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_format::items::{ExtentItem, InlineRef, decode_data_ref, dir_entries, extrefs, sys_chunks};
use ubtrfs_format::{
    CompatRo, Error, Generation, Header, Incompat, ItemContext, ItemType, Leaf, Logical, MAX_LEVEL, Node,
    NodeExpectation, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_SIZE, SYS_CHUNK_ARRAY_MAX, Superblock, TreeId,
    check_chunk, check_header, check_leaf, extref_hash, name_hash, verify_node_checksum,
};
use ubtrfs_testkit::fixture::{Fixture, names};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

fn superblock(image: &Path) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    File::open(image).unwrap().read_exact_at(&mut bytes, SUPERBLOCK_COPIES[0].0).unwrap();
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap()
}

/// Calls `visit` for every tree block in an image, current or not: for every block with the
/// volume's id and a right checksum. It skips blocks of generation 1, which belong to a temporary
/// volume, not valid in all respects, from which mkfs.btrfs starts.
fn every_block(image: &Path, visit: &mut dyn FnMut(&Superblock, &[u8])) {
    let superblock = superblock(image);
    let image = std::fs::read(image).unwrap();
    let fsid = superblock.metadata_fsid();
    for at in (0..image.len()).step_by(superblock.sector_size as usize) {
        let Some(block) = image.get(at..at + superblock.node_size as usize) else { break };
        let header = Header::parse(block).unwrap();
        // A superblock has the id and a checksum in the same places.
        let is_superblock = block[64..72] == SUPERBLOCK_MAGIC;
        let is_block =
            header.fsid == fsid && header.level < MAX_LEVEL && !is_superblock && header.generation > Generation(1);
        if is_block && verify_node_checksum(block, superblock.checksum).is_ok() {
            visit(&superblock, block);
        }
    }
}

/// Checks every block and counts the item types.
fn check_blocks(image: &Path) -> BTreeMap<ItemType, usize> {
    let mut seen = BTreeMap::new();
    every_block(image, &mut |superblock, block| {
        let header = Header::parse(block).unwrap();
        let context = ItemContext::from(superblock);
        let expected = NodeExpectation {
            bytenr: header.bytenr,
            level: None,
            generation: None,
            owner: None,
            first_key: None,
            fsid: superblock.metadata_fsid(),
        };
        let shown = format!("{} block {} of tree {}", image.display(), header.bytenr, header.owner);
        check_header(&header, header.chunk_tree_uuid).unwrap_or_else(|error| panic!("{shown}: {error}"));
        match Node::check(block, &expected, superblock.sector_size) {
            Ok(Node::Leaf(leaf)) => {
                check_leaf(header.owner, &leaf, &context).unwrap_or_else(|fault| panic!("{shown}: {fault:?}"));
                check_hashes(&leaf, &shown);
                for (key, _) in leaf.iter() {
                    *seen.entry(key.item_type).or_default() += 1;
                }
            }
            Ok(Node::Internal(internal)) => assert!(!internal.is_empty()),
            Err(error) => panic!("{shown}: {error}"),
        }
    });
    seen
}

/// Checks that every hash in a key is the one that we compute.
fn check_hashes(leaf: &Leaf<'_>, shown: &str) {
    for (key, item) in leaf.iter() {
        match key.item_type {
            ItemType::DIR_ITEM | ItemType::XATTR_ITEM => {
                assert!(dir_entries(item).all(|entry| name_hash(entry.unwrap().name) == key.offset), "{shown} {key}");
            }
            ItemType::INODE_EXTREF => {
                let holds = |name: ubtrfs_format::items::ExtRef<'_>| extref_hash(name.parent, name.name) == key.offset;
                assert!(extrefs(item).all(|name| holds(name.unwrap())), "{shown} {key}");
            }
            ItemType::EXTENT_DATA_REF => {
                let (data, _) = decode_data_ref(item).unwrap();
                // References whose hashes are equal are adjacent.
                assert!((0..8).contains(&key.offset.wrapping_sub(data.hash())), "{shown} {key}");
            }
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                let extent = ExtentItem::parse(&key, item).unwrap();
                assert_eq!(extent.to_bytes(), item, "{shown} {key}: not in the order that we write");
            }
            _ => {}
        }
    }
}

#[test]
fn superblocks_of_fixtures_say_what_their_manifests_say() {
    let dir = scratch_dir();
    for name in names() {
        let fixture = Fixture::load(&name);
        let images = fixture.unpack(dir.path());
        for image in &images {
            let superblock = superblock(image);
            let says = |field: &str| fixture.manifest.superblock[field].clone();
            let bits = |field: &str| u64::from_str_radix(says(field).trim_start_matches("0x"), 16).unwrap();
            assert_eq!(superblock.checksum.raw().to_string(), says("csum_type"), "{name}");
            assert_eq!(superblock.checksum.size().to_string(), says("csum_size"), "{name}");
            assert_eq!(superblock.fsid.to_string(), says("fsid"), "{name}");
            assert_eq!(superblock.generation.to_string(), says("generation"), "{name}");
            assert_eq!(superblock.root.to_string(), says("root"), "{name}");
            assert_eq!(superblock.chunk_root.to_string(), says("chunk_root"), "{name}");
            assert_eq!(superblock.log_root.to_string(), says("log_root"), "{name}");
            assert_eq!(superblock.log_root_level.to_string(), says("log_root_level"), "{name}");
            assert_eq!(superblock.total_bytes.to_string(), says("total_bytes"), "{name}");
            assert_eq!(superblock.bytes_used.to_string(), says("bytes_used"), "{name}");
            assert_eq!(superblock.sector_size.to_string(), says("sectorsize"), "{name}");
            assert_eq!(superblock.node_size.to_string(), says("nodesize"), "{name}");
            assert_eq!(superblock.num_devices.to_string(), says("num_devices"), "{name}");
            assert_eq!(superblock.compat_flags, bits("compat_flags"), "{name}");
            assert_eq!(superblock.compat_ro.0, bits("compat_ro_flags"), "{name}");
            assert_eq!(superblock.incompat.0, bits("incompat_flags"), "{name}");
            assert_eq!(superblock.cache_generation.to_string(), says("cache_generation"), "{name}");
            let context = ItemContext::from(&superblock);
            let chunks = sys_chunks(&superblock.sys_chunk_array).unwrap();
            assert!(!chunks.is_empty());
            superblock.check_mountable().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_rules_of_superblocks(&superblock);
            for (key, chunk) in chunks {
                check_chunk(Logical(key.offset), &chunk, &context).unwrap();
            }
            assert_written_again_is_the_same(image, &superblock);
        }
        for image in &images {
            std::fs::remove_file(image).unwrap();
        }
    }
}

/// Breaks each rule between fields once.
fn assert_rules_of_superblocks(good: &Superblock) {
    let fault = |change: fn(&mut Superblock)| {
        let mut bad = good.clone();
        change(&mut bad);
        match bad.check_mountable() {
            Err(Error::BadValue { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fault(|bad| bad.dev_item.fsid.0[0] ^= 1), "superblock dev_item.fsid");
    assert_eq!(fault(|bad| bad.bytes_used = 6 * u64::from(bad.node_size) - 1), "superblock bytes_used");
    assert_eq!(fault(|bad| bad.stripe_size *= 2), "superblock stripesize");
    assert_eq!(fault(|bad| bad.sys_chunk_array.truncate(96)), "superblock sys_chunk_array_size");
    assert_eq!(fault(|bad| bad.compat_ro = CompatRo::BLOCK_GROUP_TREE), "superblock compat_ro_flags");
    let without_no_holes = |bad: &mut Superblock| {
        bad.compat_ro = CompatRo(0b1011);
        bad.incompat = bad.incompat.without(Incompat::NO_HOLES);
    };
    assert_eq!(fault(without_no_holes), "superblock incompat_flags");
}

/// Checks that a superblock that is written again is complete, except for remains of older chunks
/// that kernels leave behind the end of the chunk array.
fn assert_written_again_is_the_same(image: &Path, superblock: &Superblock) {
    const ARRAY: usize = 811;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    File::open(image).unwrap().read_exact_at(&mut bytes, SUPERBLOCK_COPIES[0].0).unwrap();
    bytes[ARRAY + superblock.sys_chunk_array.len()..ARRAY + SYS_CHUNK_ARRAY_MAX].fill(0);
    let again = superblock.to_bytes().unwrap();
    let differs = (32..SUPERBLOCK_SIZE).find(|at| bytes[*at] != again[*at]);
    assert_eq!(differs, None, "{}: first byte that differs", image.display());
}

#[test]
fn no_block_of_a_fixture_breaks_a_rule() {
    let dir = scratch_dir();
    let mut seen = BTreeMap::new();
    for name in names() {
        let images = Fixture::load(&name).unpack(dir.path());
        for image in &images {
            for (item_type, count) in check_blocks(image) {
                *seen.entry(item_type).or_insert(0) += count;
            }
            std::fs::remove_file(image).unwrap();
        }
    }
    for item_type in [
        ItemType::INODE_ITEM,
        ItemType::INODE_REF,
        ItemType::INODE_EXTREF,
        ItemType::XATTR_ITEM,
        ItemType::ORPHAN_ITEM,
        ItemType::DIR_LOG_INDEX,
        ItemType::DIR_ITEM,
        ItemType::DIR_INDEX,
        ItemType::EXTENT_DATA,
        ItemType::EXTENT_CSUM,
        ItemType::ROOT_ITEM,
        ItemType::ROOT_REF,
        ItemType::EXTENT_ITEM,
        ItemType::METADATA_ITEM,
        ItemType::BLOCK_GROUP_ITEM,
        ItemType::FREE_SPACE_INFO,
        ItemType::FREE_SPACE_EXTENT,
        ItemType::DEV_EXTENT,
        ItemType::DEV_ITEM,
        ItemType::CHUNK_ITEM,
        ItemType::UUID_KEY_SUBVOL,
    ] {
        assert!(seen.contains_key(&item_type), "the fixtures hold no {item_type}");
    }
}

#[test]
fn no_block_of_a_fresh_volume_breaks_a_rule() {
    require!(Need::Tool("mkfs.btrfs"));
    let dir = scratch_dir();
    let image = dir.path().join("image");
    for options in [&[][..], &["-n", "4k", "--csum", "blake2"], &["-M"], &["-O", "^skinny-metadata"]] {
        mkfs_btrfs(&image, 128 << 20, options);
        assert!(check_blocks(&image).len() > 10);
    }
}

/// A kernel makes more references to an extent than fit its item, so that some get keys made of
/// hashes.
#[test]
fn references_of_many_files_have_the_hashes_that_we_compute() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 128 << 20, &["-n", "4k"]);
    let mount = ubtrfs_testkit::kernel::KernelMount::new(&[&image], "");
    let first = mount.path().join("first");
    std::fs::write(&first, vec![5; 65536]).unwrap();
    File::open(&first).unwrap().sync_all().unwrap();
    for number in 0..200 {
        let clone = mount.path().join(format!("clone {number}"));
        ubtrfs_testkit::run::run(ubtrfs_testkit::run::command("cp", &["--reflink=always"]).arg(&first).arg(clone)).ok();
    }
    assert_eq!(mount.unmount(), Vec::<String>::new());
    let seen = check_blocks(&image);
    assert!(seen.get(&ItemType::EXTENT_DATA_REF).is_some_and(|count| *count > 20), "{seen:?}");
    let mut most = 0;
    every_block(&image, &mut |_, block| {
        let Ok(Node::Leaf(leaf)) = Node::view(block) else { return };
        if Header::parse(block).unwrap().owner == TreeId::EXTENT {
            for (key, item) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_ITEM) {
                most = most.max(item.len());
                let extent = ExtentItem::parse(&key, item).unwrap();
                assert!(extent.inline_refs.iter().all(|reference| !matches!(reference, InlineRef::Owner { .. })));
            }
        }
    });
    let limit = ExtentItem::max_inline_size(4096);
    assert!(most <= limit && most + 29 > limit, "an item of {most} bytes where {limit} are possible");
}
