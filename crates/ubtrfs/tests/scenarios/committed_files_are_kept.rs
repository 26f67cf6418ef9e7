//! Files that a commit made durable are there when the volume is opened again, and `btrfs check`
//! finds nothing wrong.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::image;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags, SetAttributes, WriteAt, XattrMode};
use ubtrfs_mkfs::MkfsOptions;

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;

fn make(path: &Path, change: impl FnOnce(&mut MkfsOptions)) {
    image::make(path, 512 << 20, change);
}

fn open(path: &Path, read_only: bool) -> Arc<Filesystem> {
    image::open(path, Options { read_only, ..Options::default() })
}

fn assert_clean(path: &Path) {
    let output = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(path).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn has_btrfs_progs() -> bool {
    let there = Command::new("btrfs").arg("--version").output().is_ok();
    assert!(there || std::env::var_os("UBTRFS_TEST_KERNEL").is_none(), "btrfs-progs is missing");
    if !there {
        eprintln!("skipped: btrfs-progs is missing");
    }
    there
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31).wrapping_add(seed * 7) >> 3) as u8).collect()
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
}

fn find(fs: &Filesystem, path: &str) -> InodeId {
    path.split('/').fold(fs.root(), |dir, name| fs.directories().lookup(dir, name.as_bytes()).unwrap())
}

fn content(fs: &Filesystem, path: &str) -> Vec<u8> {
    let id = find(fs, path);
    fs.files().read(id, 0, fs.inodes().attributes(id).unwrap().size as usize).unwrap()
}

#[test]
fn files_directories_links_and_xattrs_survive() {
    if !has_btrfs_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, |_| {});
    let fs = open(&image, false);
    let root = fs.root();
    let sub = create(&fs, root, "sub", DIR);
    for index in 0..2000 {
        let id = create(&fs, sub, &format!("file-{index}"), FILE);
        fs.files().write(id, WriteAt::Offset(0), &pattern(index, index as usize * 7), false).unwrap();
    }
    let big = create(&fs, root, "big", FILE);
    let big_content = pattern(1, 20 << 20);
    for (index, chunk) in big_content.chunks(100_003).enumerate() {
        fs.files().write(big, WriteAt::Offset(index as u64 * 100_003), chunk, false).unwrap();
    }
    fs.inodes().set_xattr(big, b"user.colour", b"blue", XattrMode::Create).unwrap();
    fs.directories().link(big, sub, b"big-too").unwrap();
    fs.durability().sync().unwrap();
    assert_clean(&image);

    // A second transaction changes the state of the first.
    for index in (0..2000).step_by(3) {
        fs.directories().unlink(sub, format!("file-{index}").as_bytes()).unwrap();
    }
    for index in (1..2000).step_by(3) {
        let (old, new) = (format!("file-{index}"), format!("moved-{index}"));
        fs.directories().rename(sub, old.as_bytes(), root, new.as_bytes(), RenameFlags::default()).unwrap();
    }
    fs.files().write(big, WriteAt::Offset(5_000_001), b"in the middle", false).unwrap();
    fs.inodes().set_attributes(big, &SetAttributes { size: Some(12_345_678), ..SetAttributes::default() }).unwrap();
    fs.inodes().remove_xattr(big, b"user.colour").unwrap();
    fs.inodes().set_xattr(big, b"user.shape", &[7; 3000], XattrMode::Set).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&image);

    let fs = open(&image, true);
    let mut expected = big_content;
    expected[5_000_001..5_000_014].copy_from_slice(b"in the middle");
    expected.truncate(12_345_678);
    assert!(content(&fs, "big") == expected);
    assert!(content(&fs, "sub/big-too") == expected);
    assert_eq!(fs.inodes().attributes(find(&fs, "big")).unwrap().nlink, 2);
    assert_eq!(fs.inodes().list_xattrs(find(&fs, "big")).unwrap(), [b"user.shape"]);
    for index in 0..2000_u64 {
        let name = format!("file-{index}");
        match index % 3 {
            0 => assert!(fs.directories().lookup(find(&fs, "sub"), name.as_bytes()).is_err()),
            1 => assert_eq!(content(&fs, &format!("moved-{index}")), pattern(index, index as usize * 7)),
            _ => assert_eq!(content(&fs, &format!("sub/{name}")), pattern(index, index as usize * 7)),
        }
    }
}

#[test]
fn many_small_commits_stay_consistent() {
    if !has_btrfs_progs() {
        return;
    }
    for (node_size, skinny_tree) in [(4096, false), (16384, true), (65536, false)] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        make(&image, |options| {
            options.node_size = Some(node_size);
            options.block_group_tree = skinny_tree;
        });
        let fs = open(&image, false);
        let root = fs.root();
        let mut expected = vec![Vec::new(); 40];
        let files: Vec<_> = (0..40).map(|index| create(&fs, root, &format!("f{index}"), FILE)).collect();
        for round in 0..120_u64 {
            let index = (round * 17 % 40) as usize;
            let at = (round * 7919) % 50_000;
            let data = pattern(round, 1 + (round * 977 % 9000) as usize);
            fs.files().write(files[index], WriteAt::Offset(at), &data, false).unwrap();
            let end = at as usize + data.len();
            if expected[index].len() < end {
                expected[index].resize(end, 0);
            }
            expected[index][at as usize..end].copy_from_slice(&data);
            if round % 5 == 0 {
                let size = expected[index].len() / 2;
                fs.inodes()
                    .set_attributes(
                        files[index],
                        &SetAttributes { size: Some(size as u64), ..SetAttributes::default() },
                    )
                    .unwrap();
                expected[index].truncate(size);
            }
            fs.durability().sync().unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&image);
        let fs = open(&image, true);
        for (index, expected) in expected.iter().enumerate() {
            assert!(content(&fs, &format!("f{index}")) == *expected, "file {index}");
        }
    }
}
