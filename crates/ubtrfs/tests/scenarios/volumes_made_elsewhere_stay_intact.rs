//! We write to volumes that mkfs.btrfs and the kernel made, in all their forms, and `btrfs check`
//! and the kernel approve of the result.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{image, pattern};
use rustix::fs::FallocateFlags;
use ubtrfs::{Filesystem, FreeingLimits, InodeId, NewInode, Options, RenameFlags, SetAttributes, WriteAt, XattrMode};
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::{fixture, progs, require, scratch};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode};

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;

fn open(path: &Path) -> Arc<Filesystem> {
    image::open(path, Options::default())
}

/// Does work that touches every tree. Returns the contents by path.
fn work(fs: &Filesystem, megabytes: u64) -> BTreeMap<String, Vec<u8>> {
    let mut expected = BTreeMap::new();
    let make = |dir: InodeId, name: &str, mode| {
        fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
    };
    let top = make(fs.root(), "work", DIR);
    for index in 0..300_u64 {
        let name = format!("a rather long file name, so that leaves fill up quickly {index}");
        let id = make(top, &name, FILE);
        let data = pattern(index, (index * 61) as usize);
        fs.files().write(id, WriteAt::Offset(0), &data, false).unwrap();
        fs.inodes().set_xattr(id, b"user.index", index.to_string().as_bytes(), XattrMode::Create).unwrap();
        if index % 2 == 0 {
            fs.directories().unlink(top, name.as_bytes()).unwrap();
        } else {
            expected.insert(format!("work/{name}"), data);
        }
        fs.references().forget(id, 1);
        if index % 50 == 0 {
            fs.durability().sync().unwrap();
        }
    }
    let big = make(top, "big", FILE);
    for megabyte in 0..megabytes {
        fs.files().write(big, WriteAt::Offset(megabyte << 20), &pattern(megabyte, 1 << 20), false).unwrap();
    }
    fs.durability().sync().unwrap();
    let mut content: Vec<u8> = (0..megabytes).flat_map(|megabyte| pattern(megabyte, 1 << 20)).collect();
    fs.files().write(big, WriteAt::Offset(700_001), &pattern(9, 300_000), false).unwrap();
    content[700_001..1_000_001].copy_from_slice(&pattern(9, 300_000));
    let size = (megabytes << 20) - 123_457;
    fs.inodes().set_attributes(big, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
    content.truncate(size as usize);
    fs.inodes()
        .set_attributes(big, &SetAttributes { size: Some(size + 5_000_000), ..SetAttributes::default() })
        .unwrap();
    content.resize(size as usize + 5_000_000, 0);
    fs.directories().rename(top, b"big", fs.root(), b"big", RenameFlags::default()).unwrap();
    expected.insert("big".into(), content);
    let linked = make(top, "linked", FILE);
    for index in 0..200 {
        fs.directories().link(linked, top, format!("link number {index} with a name of some length").as_bytes()).ok();
    }
    fs.durability().sync().unwrap();
    for index in 0..100 {
        fs.directories().unlink(top, format!("link number {index} with a name of some length").as_bytes()).ok();
    }
    expected
}

fn assert_sound(image: &Path, expected: &BTreeMap<String, Vec<u8>>) {
    progs::assert_btrfs_check_clean(image);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
    let options = ubtrfs_check::Options { data_checksums: true, ..ubtrfs_check::Options::default() };
    let report = ubtrfs_check::check(&[device], &options).unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    let mount = KernelMount::new(&[image], "rw");
    for (path, content) in expected {
        assert!(std::fs::read(mount.path().join(path)).unwrap() == *content, "{path}");
    }
    std::fs::write(mount.path().join("by the kernel"), b"hello").unwrap();
    std::fs::remove_dir_all(mount.path().join("work")).unwrap();
    assert_eq!(mount.unmount(), Vec::<String>::new(), "what the kernel said");
    progs::assert_btrfs_check_clean(image);
}

fn assert_sound_after_work(image: &Path, megabytes: u64) {
    let fs = open(image);
    let expected = work(&fs, megabytes);
    fs.close().unwrap();
    drop(fs);
    assert_sound(image, &expected);
}

#[test]
fn fresh_volumes_of_every_form_stay_intact() {
    require!(Need::Kernel);
    let forms: &[&[&str]] = &[
        &[],
        &["-n", "4k"],
        &["-n", "65536", "-m", "single"],
        &["-O", "^no-holes"],
        &["-R", "^free-space-tree"],
        &["--mixed"],
        &["-O", "^skinny-metadata"],
        &["-O", "^extref,^skinny-metadata,^no-holes", "-R", "^free-space-tree"],
        &["--csum", "xxhash", "-d", "dup"],
        &["--csum", "sha256"],
        &["--csum", "blake2b"],
    ];
    for form in forms {
        let dir = scratch::scratch_dir();
        let image = dir.path().join("image");
        eprintln!("mkfs.btrfs {form:?}");
        progs::mkfs_btrfs(&image, 400 << 20, form);
        assert_sound_after_work(&image, 90);
    }
}

#[test]
fn commits_of_more_leaves_than_memory_holds_stay_intact() {
    require!(Need::Kernel);
    for form in [&[][..], &["-n", "4k"], &["-O", "^skinny-metadata"]] {
        let dir = scratch::scratch_dir();
        let image = dir.path().join("image");
        eprintln!("mkfs.btrfs {form:?}");
        progs::mkfs_btrfs(&image, 400 << 20, form);
        let fs = image::open(&image, Options { memory: 1 << 20, ..Options::default() });
        let expected = work(&fs, 12);
        let stats = fs.stats();
        assert!(stats.leaves_written_early > 20, "{stats:?}");
        fs.close().unwrap();
        drop(fs);
        assert_sound(&image, &expected);
    }
}

#[test]
fn a_volume_with_a_block_group_tree_stays_intact() {
    require!(Need::Kernel);
    let dir = scratch::scratch_dir();
    let image = dir.path().join("image");
    image::make(&image, 400 << 20, |options| options.block_group_tree = true);
    assert_sound_after_work(&image, 90);
}

#[test]
fn volumes_that_the_kernel_has_used_stay_intact() {
    require!(Need::Kernel);
    for fixture in fixture::ordinary() {
        eprintln!("{}", fixture.manifest.name);
        let dir = scratch::scratch_dir();
        let image = fixture.unpack(dir.path()).remove(0);
        assert_sound_after_work(&image, 12);
    }
}

#[test]
fn attached_loop_devices_work_like_files() {
    require!(Need::Kernel);
    let dir = scratch::scratch_dir();
    let image = dir.path().join("image");
    progs::mkfs_btrfs(&image, 400 << 20, &[]);
    let device = LoopDevice::attach(&image, false);
    let fs = open(device.path());
    let expected = work(&fs, 10);
    fs.close().unwrap();
    drop(fs);
    drop(device);
    assert_sound(&image, &expected);
}

#[test]
fn files_with_space_reserved_beyond_their_end_are_truncated() {
    const EXTENTS: u64 = 250;
    const STEP: u64 = 8192;
    require!(Need::Kernel);
    let dir = scratch::scratch_dir();
    let image = dir.path().join("image");
    progs::mkfs_btrfs(&image, 400 << 20, &[]);
    let mount = KernelMount::new(&[&image], "rw");
    let sizes = [("truncated", 100), ("grown", 3 << 20)];
    for (name, _) in sizes {
        let file = std::fs::File::create(mount.path().join(name)).unwrap();
        file.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
        for number in 0..EXTENTS {
            let at = (1 << 20) + number * STEP;
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, at, STEP / 2).unwrap();
        }
    }
    assert_eq!(mount.unmount(), Vec::<String>::new(), "what the kernel said");

    let freeing = FreeingLimits { at_once: 8192, per_transaction: 100, at_the_end: 100, queue: 1000 };
    let fs = image::open(&image, Options { freeing, ..Options::default() });
    let mut expected = BTreeMap::new();
    let (done, all) = std::sync::mpsc::channel();
    let truncating = fs.clone();
    std::thread::spawn(move || {
        for (name, size) in sizes {
            let file = truncating.directories().lookup(truncating.root(), name.as_bytes()).unwrap();
            for size in [100_000, size] {
                truncating
                    .inodes()
                    .set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() })
                    .unwrap();
            }
            let blocks = truncating.inodes().attributes(file).unwrap().blocks;
            done.send((name, size, blocks)).unwrap();
        }
    });
    for (name, size) in sizes {
        let truncated = all.recv_timeout(Duration::from_secs(60)).expect("a truncation does not end");
        assert_eq!((truncated.0, truncated.1), (name, size));
        assert!(truncated.2 <= 100_000 / 512 + 8, "{} blocks are left", truncated.2);
        let mut content = pattern(1, 100_000);
        content.resize(size as usize, 0);
        expected.insert(name.to_owned(), content);
    }
    fs.close().unwrap();
    drop(fs);
    progs::assert_btrfs_check_clean(&image);
    let mount = KernelMount::new(&[&image], "rw");
    for (name, content) in &expected {
        assert!(std::fs::read(mount.path().join(name)).unwrap() == *content, "{name}");
    }
    assert_eq!(mount.unmount(), Vec::<String>::new(), "what the kernel said");
}
