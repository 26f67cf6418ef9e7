//! When no inode number, name of a file or other number is left, users get the error of the
//! kernel's btrfs.

use std::fs::File;
use std::path::Path;

use ubtrfs::{Errno, NewInode, Options};
use ubtrfs_damage::Image;
use ubtrfs_format::{Ino, ItemType, TreeId};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::common::image;

/// Makes a volume whose only file has a number `below` the last one.
fn with_high_number(path: &Path, below: u64) {
    image::make(path, 128 << 20, |_| ());
    let fs = image::open(path, Options::default());
    let file =
        fs.directories().create(fs.root(), b"high", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.close().unwrap();
    let number = Ino::LAST_FREE.0 - below;
    // The items of the file are the last of the tree, and remain the last.
    Image::open(path).edit_leaf(TreeId::FS, |items| {
        for (key, data) in items {
            let is_entry = matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
            if key.objectid == file.ino.0 {
                key.objectid = number;
            } else if is_entry && data[..8] == file.ino.0.to_le_bytes() {
                data[..8].copy_from_slice(&number.to_le_bytes());
            }
        }
        true
    });
}

/// The limit is the kernel's, with which a soak compares it.
#[test]
fn names_of_a_file() {
    const MAX: u32 = 65_535;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| ());
    let fs = image::open(&path, Options::default());
    let file = fs.directories().create(fs.root(), b"1", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    for number in 2..=MAX {
        fs.directories().link(file, fs.root(), number.to_string().as_bytes()).unwrap();
    }
    assert_eq!(fs.inodes().attributes(file).unwrap().nlink, MAX);
    assert_eq!(fs.directories().link(file, fs.root(), b"more").unwrap_err().errno(), Errno::MLINK);
    fs.close().unwrap();
}

#[test]
fn inodes() {
    require!(Need::Kernel);
    let dir = tempfile::tempdir().unwrap();
    for (below, left) in [(1, 0), (2, 1), (4, 3)] {
        let (ours, theirs) = (dir.path().join(format!("ours{below}")), dir.path().join(format!("theirs{below}")));
        with_high_number(&ours, below);
        with_high_number(&theirs, below);

        let fs = image::open(&ours, Options::default());
        let create = |number: u64| {
            fs.directories().create(
                fs.root(),
                number.to_string().as_bytes(),
                &NewInode { mode: 0o100_644, ..NewInode::default() },
            )
        };
        for number in 0..left {
            create(number).unwrap();
        }
        for number in left..left + 3 {
            assert_eq!(create(number).unwrap_err().errno(), Errno::NOSPC);
        }
        fs.close().unwrap();

        let mount = KernelMount::new(&[&theirs], "");
        let made = (0..left + 3).map(|number| File::create_new(mount.path().join(number.to_string())));
        let made: Vec<bool> = made.map(|made| made.is_ok()).collect();
        assert_eq!(made, (0..left + 3).map(|number| number < left).collect::<Vec<_>>());
        mount.unmount();
    }
}
