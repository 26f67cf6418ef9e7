//! Tests that `ubtrfs check --repair` corrects what can be derived, announces what it will do, and
//! changes nothing else.

use std::path::Path;

use ubtrfs_format::items::{BlockGroupItem, DevItem, FileType, FreeSpaceInfo, InodeItem};
use ubtrfs_format::{ItemType, Key, Physical, TreeId, objectid};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::walk::walk;

use crate::{success, ubtrfs};
use ubtrfs_damage::Image;

/// A kind of damage, the fixture that gets it, and the function that causes it.
struct Damage(&'static str, &'static str, fn(&Image));

fn of_type(item_type: ItemType) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.item_type == item_type
}

pub fn change_inode(image: &Image, wanted: impl Fn(&Key, &InodeItem) -> bool, change: impl Fn(&mut InodeItem)) {
    let wanted = |key: &Key, data: &[u8]| {
        key.item_type == ItemType::INODE_ITEM && InodeItem::parse(data).is_ok_and(|item| wanted(key, &item))
    };
    image.edit(TreeId::FS, wanted, |_, data| {
        let mut item = InodeItem::parse(data).unwrap();
        change(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

pub fn is_file(_: &Key, item: &InodeItem) -> bool {
    FileType::from_mode(item.mode) == FileType::Regular
}

fn change_group(image: &Image, tree: TreeId) {
    image.edit(tree, of_type(ItemType::BLOCK_GROUP_ITEM), |_, data| {
        let mut item = BlockGroupItem::parse(data).unwrap();
        item.used += 12288;
        *data = item.to_bytes().to_vec();
    });
}

const OF_SPACE: [Damage; 11] = [
    Damage("use of a block group", "plain", |image| change_group(image, TreeId::EXTENT)),
    Damage("use of a block group in its own tree", "bgtree", |image| change_group(image, TreeId::BLOCK_GROUP)),
    Damage("use of a device", "plain", |image| {
        image.edit(TreeId::CHUNK, of_type(ItemType::DEV_ITEM), |_, data| {
            let mut item = DevItem::parse(data).unwrap();
            item.bytes_used -= 1 << 20;
            *data = item.to_bytes().to_vec();
        });
    }),
    Damage("totals of the superblock", "plain", |image| {
        image.edit_superblock(&[0, 1], |superblock| superblock.bytes_used += 1 << 20);
    }),
    Damage("a copy of the superblock", "plain", |image| image.flip_raw(Physical((64 << 20) + 1000))),
    Damage("a free range is gone", "plain", |image| {
        image.remove(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_EXTENT));
    }),
    Damage("a count of free ranges", "plain", |image| {
        image.edit(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_INFO), |_, data| {
            let mut info = FreeSpaceInfo::parse(data).unwrap();
            info.extent_count += 3;
            *data = info.to_bytes().to_vec();
        });
    }),
    Damage("a free range over used space", "plain", |image| {
        image.edit(
            TreeId::FREE_SPACE,
            |key, _| key.item_type == ItemType::FREE_SPACE_EXTENT && key.offset > 1 << 20,
            |key, _| key.objectid -= 4096,
        );
    }),
    Damage("free space of a group that is not there", "plain", |image| {
        let end = image.items(TreeId::FREE_SPACE).last().unwrap().0;
        let start = (end.objectid + end.offset).next_multiple_of(1 << 30) + (1 << 30);
        let info = FreeSpaceInfo { extent_count: 0, flags: 0 };
        image.add(TreeId::FREE_SPACE, Key::new(start, ItemType::FREE_SPACE_INFO, 1 << 20), &info.to_bytes());
    }),
    Damage("a free-space tree that cannot be read", "plain", |image| {
        let root = image.root(TreeId::FREE_SPACE);
        image.flip_all(root);
    }),
    Damage("what belongs to another tree in the free-space tree", "plain", |image| {
        image.edit(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_INFO), |key, _| {
            key.item_type = ItemType::INODE_ITEM;
        });
    }),
];

const OF_INODES: [Damage; 8] = [
    Damage("the size of a directory", "plain", |image| {
        change_inode(image, |key, _| key.objectid == 256, |item| item.size += 2);
    }),
    Damage("a link count too high", "plain", |image| change_inode(image, is_file, |item| item.nlink += 5)),
    Damage("a link count of a file with many names", "plain", |image| {
        change_inode(image, |_, item| item.nlink > 2, |item| item.nlink -= 1);
    }),
    Damage("a link count of nothing", "plain", |image| change_inode(image, is_file, |item| item.nlink = 0)),
    Damage("an orphan that is not noted", "orphans", |image| {
        image.remove(TreeId::FS, |key, _| key.objectid == objectid::ORPHAN);
    }),
    Damage("space of a volume with snapshots", "snapshots", |image| {
        change_group(image, TreeId::EXTENT);
        image.remove(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_EXTENT));
    }),
    Damage("inodes of a volume with snapshots", "snapshots", |image| {
        change_inode(image, |key, _| key.objectid == 256, |item| item.size += 2);
        change_inode(image, is_file, |item| item.nlink += 5);
    }),
    Damage("several at once", "plain", |image| {
        change_group(image, TreeId::EXTENT);
        image.remove(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_EXTENT));
        change_inode(image, |key, _| key.objectid == 256, |item| item.size += 2);
        change_inode(image, is_file, |item| item.nlink += 1);
    }),
];

fn check(image: &Path, options: &[&str]) -> std::process::Output {
    let mut arguments: Vec<&std::ffi::OsStr> = vec!["check".as_ref()];
    arguments.extend(options.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    arguments.push(image.as_os_str());
    ubtrfs(&arguments)
}

#[test]
fn what_can_be_derived_of_space_is_put_right() {
    require!(Need::Kernel);
    are_put_right(&OF_SPACE);
}

#[test]
fn what_can_be_derived_of_inodes_is_put_right() {
    require!(Need::Kernel);
    are_put_right(&OF_INODES);
}

fn are_put_right(damages: &[Damage]) {
    for Damage(what, name, damage) in damages {
        let dir = scratch_dir();
        let fixture = Fixture::load(name);
        let image = fixture.unpack(dir.path()).remove(0);
        damage(&Image::open(&image));
        let damaged = std::fs::read(&image).unwrap();
        let stale = *what == "free space of a group that is not there";
        assert_eq!(check(&image, &[]).status.code(), Some(i32::from(!stale)), "{what}: not damaged");

        // Without a terminal for the question the plan is shown, but not carried out.
        let asked = check(&image, &["--repair"]);
        assert_eq!(asked.status.code(), Some(1), "{what}");
        let plan = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert!(plan.contains("to be "), "{what}: {plan}");
        assert!(String::from_utf8_lossy(&asked.stderr).contains("nothing was changed"), "{what}: {asked:?}");
        assert!(damaged == std::fs::read(&image).unwrap(), "{what}: the image was changed without a yes");

        let output = check(&image, &["--repair", "--yes"]);
        let reported = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{what}: {reported}{}", String::from_utf8_lossy(&output.stderr));
        assert!(reported.starts_with(&plan) && reported.contains("no fault found"), "{what}: {reported}");
        assert_btrfs_check_clean(&image);
        let mount = KernelMount::new(&[&image], &fixture.options("noatime"));
        fixture.assert_shows(&walk(mount.path()));
        assert_eq!(mount.unmount(), Vec::<String>::new(), "{what}");
        assert_btrfs_check_clean(&image);
        assert!(success(&check(&image, &[])).contains("no fault found"), "{what}");
    }
}

const OF_NAMES: [Damage; 6] = [
    Damage("references of an extent", "plain", |image| {
        image.edit(TreeId::EXTENT, of_type(ItemType::EXTENT_ITEM), |_, data| data[0] += 1);
    }),
    Damage("a directory index", "plain", |image| image.remove(TreeId::FS, of_type(ItemType::DIR_INDEX))),
    Damage("a directory item", "plain", |image| image.remove(TreeId::FS, of_type(ItemType::DIR_ITEM))),
    Damage("a reference of an inode", "snapshots", |image| image.remove(TreeId::FS, of_type(ItemType::INODE_REF))),
    Damage("a back reference of a subvolume", "snapshots", |image| {
        image.remove(TreeId::ROOT, of_type(ItemType::ROOT_BACKREF));
    }),
    Damage("a device extent", "plain", |image| image.remove(TreeId::DEV, of_type(ItemType::DEV_EXTENT))),
];

#[test]
fn names_and_references_are_derived_from_the_others() {
    require!(Need::Kernel);
    are_put_right(&OF_NAMES);
}

#[test]
fn a_volume_with_a_log_is_left_as_it_is() {
    let dir = scratch_dir();
    let image = Fixture::load("log-new-file").unpack(dir.path()).remove(0);
    change_inode(&Image::open(&image), |key, _| key.objectid == 256, |item| item.size += 2);
    let damaged = std::fs::read(&image).unwrap();
    let output = check(&image, &["--repair", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("holds a log") && said.contains("rescue zero-log"), "{said}");
    assert!(damaged == std::fs::read(&image).unwrap(), "the image was changed");
}

/// Without an inode item nobody knows whose the file was: that is more than a wrong counter.
#[test]
fn content_is_given_up_only_on_demand() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = Fixture::load("plain").unpack(dir.path()).remove(0);
    Image::open(&image).remove(TreeId::FS, |key, data| {
        key.item_type == ItemType::INODE_ITEM && InodeItem::parse(data).is_ok_and(|item| is_file(key, &item))
    });
    let damaged = std::fs::read(&image).unwrap();
    let output = check(&image, &["--repair", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("to be given up"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--lose-content"), "{output:?}");
    assert!(damaged == std::fs::read(&image).unwrap(), "the image was changed");
    success(&check(&image, &["--repair", "--yes", "--lose-content"]));
    assert_btrfs_check_clean(&image);
}

#[test]
fn a_repair_is_shown_and_can_be_undone() {
    let dir = scratch_dir();
    let image = Fixture::load("plain").unpack(dir.path()).remove(0);
    change_group(&Image::open(&image), TreeId::EXTENT);
    let damaged = std::fs::read(&image).unwrap();
    let shown = check(&image, &["--repair", "--dry-run"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("no fault found after the repair"), "{shown:?}");
    let json = check(&image, &["--repair", "--dry-run", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["faults_before"], &json["faults_after"]), (&1.into(), &0.into()));
    assert!(damaged == std::fs::read(&image).unwrap(), "the image was changed by a dry run");

    let file = dir.path().join("undo");
    let option = format!("--undo={}", file.display());
    success(&check(&image, &["--repair", "--yes", &option]));
    let repaired = std::fs::read(&image).unwrap();
    // The file is not overwritten by another repair.
    change_group(&Image::open(&image), TreeId::EXTENT);
    assert!(!check(&image, &["--repair", "--yes", &option]).status.success());
    let undo = |image: &Path, file: &Path| {
        ubtrfs(&["rescue".as_ref(), "undo".as_ref(), "--yes".as_ref(), file.as_os_str(), image.as_os_str()])
    };
    // A file that was cut off changes nothing.
    std::fs::write(&image, &repaired).unwrap();
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 8, 100, whole.len() / 2, whole.len() - 1] {
        let cut = dir.path().join("cut");
        std::fs::write(&cut, &whole[..length]).unwrap();
        assert!(!undo(&image, &cut).status.success(), "{length}");
    }
    assert!(repaired == std::fs::read(&image).unwrap());
    success(&undo(&image, &file));
    assert!(damaged == std::fs::read(&image).unwrap(), "the image is not as it was before the repair");
    // The volume is not the one that the repair has left.
    assert!(String::from_utf8_lossy(&undo(&image, &file).stderr).contains("the volume has changed since"));
}

#[test]
fn a_sound_volume_is_not_written_to() {
    let dir = scratch_dir();
    let image = Fixture::load("plain").unpack(dir.path()).remove(0);
    let before = std::fs::read(&image).unwrap();
    assert!(success(&check(&image, &["--repair", "--yes"])).contains("no fault found"));
    assert!(before == std::fs::read(&image).unwrap());
    assert_eq!(check(&image, &["--yes"]).status.code(), Some(2), "--yes alone makes no sense");
}

/// mkfs.btrfs leaves unusual items in new volumes of several devices, which are no faults.
#[test]
fn a_sound_volume_of_two_devices_is_left_as_it_is() {
    require!(Need::Tool("mkfs.btrfs"));
    let dir = scratch_dir();
    let images = ["one", "two"].map(|name| dir.path().join(name));
    for image in &images {
        std::fs::File::create(image).unwrap().set_len(256 << 20).unwrap();
    }
    let mut mkfs = std::process::Command::new("mkfs.btrfs");
    assert!(mkfs.args(["-q", "-d", "raid1", "-m", "raid1"]).args(&images).output().unwrap().status.success());
    let paths = images.each_ref().map(|image| image.to_str().unwrap());
    let repair = [&["check", "--repair", "--yes"], &paths[..]].concat();
    assert!(success(&ubtrfs(&repair)).contains("no fault found"));
}
