//! btrfs-image and ubtrfs restore each other's dumps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ubtrfs_format::{Logical, Superblock};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run, run_within};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{OpenOptions, Volume};

use crate::common::{blocks_of, check, devices, dump, essence, faults, restore};

const ONE_DEVICE: [&str; 8] =
    ["plain", "prof-dup", "node-4k", "node-64k", "mixed", "csum-sha256", "bgtree", "log-rename"];
const SEVERAL_DEVICES: [(&str, usize); 8] = [
    ("single", 2),
    ("raid0", 3),
    ("raid1", 2),
    ("raid1c3", 3),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 3),
    ("raid6", 4),
];

/// Runs btrfs-image, which may wait for ever after an error.
fn btrfs_image(options: &[&str], from: &Path, to: &Path) {
    run_within(command("btrfs-image", options).arg(from).arg(to), Duration::from_secs(120)).ok();
}

fn superblock(image: &Path) -> Superblock {
    Volume::superblock_of(&*devices(&[image.to_owned()])[0]).unwrap()
}

/// Fails unless the volume on the images has the blocks of a dump, read by the volume's own chunks.
fn assert_has_blocks(images: &[PathBuf], dump: &[u8], what: &str) {
    let Superblock { node_size: node, checksum, .. } = superblock(&images[0]);
    let volume = Volume::open(devices(images), OpenOptions { read_only: true }).unwrap();
    let (_, blocks) = blocks_of(dump, node as usize);
    assert!(blocks.len() > 5, "{what}: {} blocks", blocks.len());
    for (at, block) in blocks {
        let mut read = vec![0; node as usize];
        volume.reader().read_data(Logical(at), &mut read, None).unwrap();
        // btrfs-image writes CRC-32Cs to blocks that it changes, whatever the volume's checksum is.
        let has_csum = ubtrfs_format::verify_node_checksum(&block, checksum).is_ok();
        assert!(
            read[if has_csum { 0 } else { 32 }..] == block[if has_csum { 0 } else { 32 }..],
            "{what}: {at} differs"
        );
    }
}

fn assert_btrfs_check_accepts(image: &Path, what: &str) {
    // The data is missing, so that its checksums can't be compared.
    let outcome = run(command("btrfs", &["check", "--readonly"]).arg(image));
    assert!(outcome.success(), "{what}: {}", outcome.report());
}

#[test]
fn dumps_of_btrfs_image_are_restored_block_by_block() {
    require!(Need::Root);
    for name in ONE_DEVICE {
        let dir = scratch_dir();
        let images = Fixture::load(name).unpack(dir.path());
        let before = check(&images);
        for options in [&[][..], &["-c1"], &["-c9", "-t4"], &["-w"], &["-w", "-c6"], &["-s"], &["-s", "-s"]] {
            let what = format!("{name} {options:?}");
            let file = dir.path().join("dump");
            btrfs_image(options, &images[0], &file);
            let bytes = std::fs::read(&file).unwrap();
            let (restored, targets) = restore(&bytes, dir.path());
            assert_eq!((restored.problems.count, restored.unmapped), (0, 0), "{what}: {:?}", restored.problems);
            assert_has_blocks(&targets, &bytes, &what);
            // What btrfs-image sanitises has faults, by its own checker, too.
            if !options.contains(&"-s") {
                assert_btrfs_check_accepts(&targets[0], &what);
                let mut after = check(&targets);
                // btrfs-image zeroes the targets of symbolic links, too.
                after.faults.retain(|fault| !fault.to_string().contains("is not the length of its target"));
                assert_eq!(faults(&after), faults(&before), "{what}");
            }
        }
    }
}

/// Makes a volume of several devices by the kernel. Volumes of fixtures would have the ids of those
/// that other tests use at the same time, and btrfs-image looks at all devices of the machine.
fn volume_of_kernel(dir: &Path, profile: &str, count: usize) -> Vec<PathBuf> {
    let images: Vec<PathBuf> = (1..=count).map(|number| dir.join(format!("{profile}.{number}"))).collect();
    for image in &images {
        blank_image(image, 300 << 20);
    }
    mkfs_btrfs_on(&images, &["-m", profile, "-d", profile]);
    let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    let mount = KernelMount::new(&paths, "");
    for number in 0..600 {
        std::fs::write(mount.path().join(format!("a file with the number {number}")), "content").unwrap();
    }
    mount.unmount();
    images
}

#[test]
fn dumps_of_several_devices_by_btrfs_image_are_restored_block_by_block() {
    require!(Need::Root, Need::Kernel);
    for (profile, count) in SEVERAL_DEVICES {
        let dir = scratch_dir();
        let images = volume_of_kernel(dir.path(), profile, count);
        let before = check(&images);
        let loops: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        let file = dir.path().join("dump");
        btrfs_image(&["-c3"], loops[0].path(), &file);
        drop(loops);
        let bytes = std::fs::read(&file).unwrap();
        let (restored, targets) = restore(&bytes, dir.path());
        assert_eq!((restored.problems.count, restored.unmapped), (0, 0), "{profile}: {:?}", restored.problems);
        assert_eq!(targets.len(), images.len(), "{profile}");
        assert_has_blocks(&targets, &bytes, profile);
        assert_eq!(faults(&check(&targets)), faults(&before), "{profile}");
    }
}

#[test]
fn btrfs_image_restores_what_ubtrfs_dumped() {
    require!(Need::Root);
    // btrfs-image 6.2 restores no volume with another checksum than CRC-32C, not even from its own
    // dumps.
    for name in ONE_DEVICE.into_iter().filter(|name| !name.starts_with("csum-")) {
        let dir = scratch_dir();
        let images = Fixture::load(name).unpack(dir.path());
        for (sanitise, level) in [(false, 0), (false, 3), (false, 9), (true, 3)] {
            let what = format!("{name}, sanitised: {sanitise}, level {level}");
            let (_, bytes) = dump(&images, sanitise, level);
            let (file, theirs) = (dir.path().join("dump"), dir.path().join("theirs"));
            std::fs::write(&file, &bytes).unwrap();
            let _ = std::fs::remove_file(&theirs);
            // With more threads it sometimes writes other system chunks than those of its chunk
            // tree.
            btrfs_image(&["-r", "-t", "1"], &file, &theirs);
            assert_btrfs_check_accepts(&theirs, &what);
            assert_has_blocks(std::slice::from_ref(&theirs), &bytes, &what);
            let (_, ours) = restore(&bytes, dir.path());
            assert_eq!(superblock(&theirs), superblock(&ours[0]), "{what}");
        }
    }
}

#[test]
fn btrfs_check_and_the_kernel_accept_what_ubtrfs_restores() {
    require!(Need::Root, Need::Kernel);
    for name in ["plain", "prof-dup", "node-4k", "bgtree", "mixed", "prof-raid1", "prof-raid10", "prof-raid6"] {
        let dir = scratch_dir();
        let fixture = Fixture::load(name);
        let images = fixture.unpack(dir.path());
        for sanitise in [false, true] {
            let what = format!("{name}, sanitised: {sanitise}");
            let (_, targets) = restore(&dump(&images, sanitise, 3).1, dir.path());
            if let [target] = &targets[..] {
                assert_btrfs_check_accepts(target, &what);
            }
            let paths: Vec<&Path> = targets.iter().map(PathBuf::as_path).collect();
            let mount = KernelMount::new(&paths, "ro");
            let count = run(command("find", &[mount.path()]).args(["-mindepth", "1"])).ok().stdout;
            let found = if sanitise { count.len() } else { count.lines().count() };
            assert!(found > 3, "{what}: {count}");
            let complaints = mount.unmount();
            assert!(complaints.is_empty(), "{what}: {complaints:?}");
        }
    }
}

/// The paths in a directory, sorted.
fn paths_in(directory: &Path) -> Vec<String> {
    let listed = run(command("find", &[directory]).args(["-mindepth", "1", "-printf", "%P\\n"])).ok().stdout;
    let mut paths: Vec<String> = listed.lines().map(ToOwned::to_owned).collect();
    paths.sort();
    paths
}

#[test]
fn the_kernel_replays_a_log_that_was_restored() {
    require!(Need::Root, Need::Kernel);
    for name in ["log-rename", "log-link", "log-subvols"] {
        let dir = scratch_dir();
        let fixture = Fixture::load(name);
        let images = fixture.unpack(dir.path());
        let [plain, sanitised] = [false, true].map(|sanitise| dump(&images, sanitise, 0));
        let original = KernelMount::new(&[&images[0]], "");
        let wanted = paths_in(original.path());
        original.unmount();
        for (sanitise, (_, bytes)) in [(false, plain), (true, sanitised)] {
            let (_, targets) = restore(&bytes, dir.path());
            let mount = KernelMount::new(&[&targets[0]], "");
            let found = paths_in(mount.path());
            mount.unmount();
            assert_eq!(found.len(), wanted.len(), "{name}, sanitised: {sanitise}");
            assert_eq!(found == wanted, !sanitise, "{name}, sanitised: {sanitise}");
            assert_btrfs_check_accepts(&targets[0], name);
        }
    }
}

/// Fails unless both programs dump the same blocks of a volume, and the same of each.
fn assert_dumped_alike(image: &Path, directory: &Path, what: &str) {
    let file = directory.join("dump");
    for options in [&[][..], &["-w"]] {
        btrfs_image(options, image, &file);
        let (ours, theirs) = (dump(&[image.to_owned()], false, 0).1, std::fs::read(&file).unwrap());
        let Superblock { node_size, sector_size, .. } = superblock(image);
        let sectors = [&ours, &theirs].map(|bytes| blocks_of(bytes, sector_size as usize));
        assert!(sectors[0].1.keys().eq(sectors[1].1.keys()), "{what} {options:?}");
        assert!(sectors[0].0 == sectors[1].0, "{what} {options:?}: the superblocks");
        let nodes = [&ours, &theirs].map(|bytes| blocks_of(bytes, node_size as usize).1);
        for (at, block) in &nodes[0] {
            let Some(other) = nodes[1].get(at) else { continue };
            if ubtrfs_format::Header::parse(block).unwrap().bytenr.0 == *at {
                assert_eq!(essence(block), essence(other), "{what} {options:?} {at}");
            }
        }
    }
}

#[test]
fn both_programs_dump_the_same_blocks() {
    require!(Need::Root);
    for name in ONE_DEVICE {
        let dir = scratch_dir();
        let images = Fixture::load(name).unpack(dir.path());
        assert_dumped_alike(&images[0], dir.path(), name);
    }
}

#[test]
fn free_space_caches_are_dumped_and_restored() {
    require!(Need::Root, Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    // Kernels write caches of block groups of at least 100 MiB.
    blank_image(&image, 8 << 30);
    mkfs_btrfs_on(&[&image], &["-R", "^free-space-tree"]);
    let mount = KernelMount::new(&[&image], "space_cache=v1");
    for number in 0..40 {
        std::fs::write(mount.path().join(format!("file {number}")), vec![number; 200_000]).unwrap();
    }
    mount.unmount();
    let root = ubtrfs_damage::Image::open(&image).items(ubtrfs_format::TreeId::ROOT);
    let caches = root.iter().filter(|(key, _)| key.item_type == ubtrfs_format::ItemType::EXTENT_DATA).count();
    assert!(caches > 0, "the kernel wrote no cache");
    assert_dumped_alike(&image, dir.path(), "caches");
    let (_, targets) = restore(&dump(&[image], false, 3).1, dir.path());
    assert_btrfs_check_accepts(&targets[0], "caches");
}
