//! A volume that was dumped and restored has all blocks of the dumped one.

use ubtrfs_damage::Image;
use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, Superblock, SuperblockFlags};
use ubtrfs_testkit::fixture::{Fixture, names};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::Volume;

use crate::common::{blocks_of, check, devices, dump, essence, faults, restore};

#[test]
fn every_fixture_is_restored_block_by_block() {
    for name in names() {
        let dir = scratch_dir();
        let images = Fixture::load(&name).unpack(dir.path());
        let before = check(&images);
        let (dumped, bytes) = dump(&images, false, 6);
        assert_eq!((dumped.problems.count, dumped.bad_blocks), (0, 0), "{name}: {:?}", dumped.problems);
        assert_eq!(dumped.blocks, before.stats.blocks + before.stats.log.blocks, "{name}: blocks");
        let (restored, targets) = restore(&bytes, dir.path());
        assert_eq!((restored.problems.count, restored.unmapped), (0, 0), "{name}: {:?}", restored.problems);
        assert_eq!(targets.len(), images.len(), "{name}");
        let after = check(&targets);
        assert_eq!(faults(&after), faults(&before), "{name}");
        assert_eq!(serde_json::to_value(after.stats).unwrap(), serde_json::to_value(before.stats).unwrap(), "{name}");
        for (image, target) in images.iter().zip(&targets) {
            let sizes = [image, target].map(|path| path.metadata().unwrap().len());
            assert_eq!(sizes[0], sizes[1], "{name}");
        }
    }
}

#[test]
fn every_copy_of_every_block_is_restored() {
    for name in ["plain", "prof-dup", "node-4k", "node-64k", "mixed", "log-rename"] {
        let dir = scratch_dir();
        let images = Fixture::load(name).unpack(dir.path());
        let (_, bytes) = dump(&images, false, 0);
        let (_, targets) = restore(&bytes, dir.path());
        let (old, new) = (Image::open(&images[0]), Image::open(&targets[0]));
        let node = Volume::superblock_of(&*devices(&images)[0]).unwrap().node_size as usize;
        let (_, blocks) = blocks_of(&bytes, node);
        assert!(blocks.len() > 5, "{name}");
        for (at, block) in blocks {
            let places = new.places(ubtrfs_format::Logical(at));
            assert_eq!(places, old.places(ubtrfs_format::Logical(at)), "{name}");
            for place in places {
                assert_eq!(read(&devices(&targets)[0], place, node), block, "{name} {at}");
                assert_eq!(essence(&read(&devices(&images)[0], place, node)), essence(&block), "{name} {at}");
            }
        }
    }
}

fn read(device: &std::sync::Arc<dyn ubtrfs_volume::Device>, at: Physical, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn superblocks_of_all_devices_are_restored_with_the_mark_of_a_dump() {
    let dir = scratch_dir();
    let images = Fixture::load("prof-raid6").unpack(dir.path());
    let (_, targets) = restore(&dump(&images, false, 0).1, dir.path());
    for (image, target) in devices(&images).iter().zip(devices(&targets)) {
        for at in [SUPERBLOCK_COPIES[0], SUPERBLOCK_COPIES[1]] {
            let [old, new] = [image, &target].map(|device| Superblock::parse(&read(device, at, 4096), at).unwrap());
            assert_eq!(new.flags, old.flags.with(SuperblockFlags::METADUMP_V2));
            assert_eq!(Superblock { flags: old.flags, resilvered: old.resilvered, ..new }, old);
        }
    }
}

#[test]
fn contents_of_files_are_not_in_a_dump() {
    const SECRET: &[u8] = b"this is the content of a small file and of no other place";
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..300 {
        std::fs::write(tree.join(format!("file-{number}")), SECRET).unwrap();
    }
    std::os::unix::fs::symlink("the-target-of-a-link", tree.join("link")).unwrap();
    ubtrfs_testkit::progs::blank_image(&image, 128 << 20);
    let rootdir = ["--rootdir", tree.to_str().unwrap()];
    ubtrfs_testkit::progs::mkfs_btrfs_on(&[&image], &rootdir);
    let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    assert!(has(&std::fs::read(&image).unwrap(), SECRET), "it is inline");
    for sanitise in [false, true] {
        let (_, bytes) = dump(std::slice::from_ref(&image), sanitise, 0);
        assert!(!has(&bytes, &SECRET[..20]), "sanitised: {sanitise}");
        assert_eq!(has(&bytes, b"the-target-of-a-link"), !sanitise);
        assert_eq!(has(&bytes, b"file-299"), !sanitise);
    }
}
