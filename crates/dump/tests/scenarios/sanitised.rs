//! A dump without names restores a volume without other faults.

use std::path::PathBuf;

use ubtrfs_damage::Image;
use ubtrfs_format::{ItemType, Key, TreeId};
use ubtrfs_testkit::fixture::{Fixture, names};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::{check, dump, faults, restore};

#[test]
fn fixtures_have_no_other_faults_when_their_names_are_replaced() {
    for name in names() {
        let dir = scratch_dir();
        let images = Fixture::load(&name).unpack(dir.path());
        let before = check(&images);
        let (dumped, bytes) = dump(&images, true, 0);
        assert_eq!((dumped.problems.count, dumped.bad_blocks), (0, 0), "{name}: {:?}", dumped.problems);
        let (restored, targets) = restore(&bytes, dir.path());
        assert_eq!(restored.problems.count, 0, "{name}");
        let after = check(&targets);
        assert_eq!(faults(&after), faults(&before), "{name}");
        assert_eq!(after.stats.entries, before.stats.entries, "{name}");
    }
}

const SECRETS: [&str; 8] = [
    "name-of-a-file",
    "name-of-a-directory",
    "name-of-a-link",
    "target/of/the/link",
    "name-of-a-subvolume",
    "name-of-an-attribute",
    "value-of-the-attribute",
    "label-of-the-volume",
];

/// Names that are the only ones with their hashes.
const SHORT: [&str; 6] = ["k", "q7", "wzj", "tmpq", "q_xj", "~~~~"];

/// A volume of the kernel with a secret wherever one can be.
fn volume_with_secrets(dir: &std::path::Path) -> PathBuf {
    let image = dir.join("image");
    blank_image(&image, 256 << 20);
    mkfs_btrfs_on(&[&image], &["-L", SECRETS[7]]);
    let mount = KernelMount::new(&[&image], "");
    let at = |name: &str| mount.path().join(name);
    std::fs::create_dir(at(SECRETS[1])).unwrap();
    for number in 0..400 {
        let path = at(SECRETS[1]).join(format!("{}{number}", SECRETS[0]));
        std::fs::write(&path, "content of a file").unwrap();
        for link in 0..3 {
            std::fs::hard_link(&path, at(SECRETS[1]).join(format!("{}-{number}-{link}", SECRETS[0]))).unwrap();
        }
    }
    let many = at("many");
    std::fs::write(&many, "").unwrap();
    for number in 0..1200 {
        std::fs::hard_link(&many, at(SECRETS[1]).join(format!("{}-extended-{number}", SECRETS[0]))).unwrap();
    }
    for short in SHORT {
        std::fs::write(at(SECRETS[1]).join(short), "").unwrap();
        std::fs::create_dir(at(short)).unwrap();
    }
    std::os::unix::fs::symlink(SECRETS[3], at(SECRETS[2])).unwrap();
    let attribute = format!("user.{}", SECRETS[5]);
    run(command("setfattr", &["-n", &attribute, "-v", SECRETS[6]]).arg(&many)).ok();
    run(command("setfacl", &["-m", "u:1000:r"]).arg(&many)).ok();
    run(command("btrfs", &["subvolume", "create"]).arg(at(SECRETS[4]))).ok();
    std::fs::write(at(SECRETS[4]).join(SECRETS[0]), "").unwrap();
    let snapshot = at(&format!("{}-snapshot", SECRETS[4]));
    run(command("btrfs", &["subvolume", "snapshot"]).arg(mount.path()).arg(snapshot)).ok();
    mount.unmount();
    image
}

#[test]
fn no_name_is_left_and_btrfs_check_finds_no_fault() {
    require!(Need::Root, Need::Kernel);
    let dir = scratch_dir();
    let image = volume_with_secrets(dir.path());
    let has = |bytes: &[u8], what: &str| bytes.windows(what.len()).any(|window| window == what.as_bytes());
    let (_, plain) = dump(std::slice::from_ref(&image), false, 0);
    for secret in SECRETS {
        assert!(has(&plain, secret), "without --sanitize the dump has '{secret}'");
    }
    let (dumped, bytes) = dump(std::slice::from_ref(&image), true, 0);
    for secret in SECRETS {
        assert!(!has(&bytes, secret), "'{secret}' is in the dump");
    }
    assert!(dumped.replaced > 5000, "{dumped:?}");
    // Those at the beginning of a leaf are kept.
    assert!(dumped.kept < 20, "{dumped:?}");
    let short = SHORT.iter().filter(|name| name.len() == 4 && has(&bytes, name)).count();
    assert!(short <= 1, "{short} short names are in the dump");
    let (_, targets) = restore(&bytes, dir.path());
    let outcome = run(command("btrfs", &["check", "--readonly"]).arg(&targets[0]));
    assert!(outcome.success(), "{}", outcome.report());
    let (before, after) = (check(std::slice::from_ref(&image)), check(&targets));
    assert_eq!((faults(&after), after.stats.entries), (faults(&before), before.stats.entries));
    // The kernel finds each name by its hash, as `ls -l` looks all of them up.
    let mount = KernelMount::new(&[&targets[0]], "ro");
    let listed = run(command("find", &[mount.path()]).args(["-size", "-1000000k"])).ok();
    assert!(listed.stderr.is_empty(), "{}", listed.stderr);
    mount.unmount();
}

#[test]
fn blocks_stay_at_their_places_when_names_are_replaced() {
    let dir = scratch_dir();
    let images = Fixture::load("plain").unpack(dir.path());
    let (_, targets) = restore(&dump(&images, true, 0).1, dir.path());
    let (old, new) = (Image::open(&images[0]), Image::open(&targets[0]));
    for tree in [TreeId::ROOT, TreeId::FS, TreeId::EXTENT, TreeId::CHUNK, TreeId::DEV] {
        // The hashes of short names change.
        let is_hashed = |key: Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::XATTR_ITEM);
        let without_hash = |key: Key| if is_hashed(key) { Key { offset: 0, ..key } } else { key };
        let keys = |image: &Image| {
            let items = image.items(tree).into_iter();
            items.map(|(key, data)| (without_hash(key), data.len())).collect::<Vec<_>>()
        };
        assert_eq!(keys(&old), keys(&new));
        assert_eq!(old.leaves(tree), new.leaves(tree));
    }
}
