//! Tests the harness, with the kernel's btrfs as the subject: it passes when all is well, and
//! reports each fault.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::kernels_volume::on_the_kernel;
use ubtrfs_testkit::chaos::chaos;
use ubtrfs_testkit::diff::{Options, assert_same, diff};
use ubtrfs_testkit::fixture::{self, Fixture};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, btrfs_check, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::{Kind, walk};
use ubtrfs_testkit::workload::{Limits, Workload, run_threads};

const SIZE: u64 = 1 << 30;

#[test]
fn workloads_pass_on_the_kernels_own_btrfs() {
    require!(Need::Kernel);
    on_the_kernel(SIZE, |top| {
        for seed in 1..=6 {
            let dir = top.join(format!("seed-{seed}"));
            fs::create_dir(&dir).expect("make a directory");
            let mut workload = Workload::new(&dir, seed);
            workload.run_or_panic(1500);
            let none = workload.unsupported();
            assert!(none.is_empty(), "refused by the kernel: {none:?}");
            let model = workload.finish();
            model.assert_in("after the workload", &dir);
            let mut again = Workload::resume(&dir, model, seed + 1000);
            again.run_or_panic(300);
            again.finish().assert_in("after the second one", &dir);
        }
    });
}

#[test]
fn one_seed_leaves_one_tree() {
    require!(Need::Kernel);
    on_the_kernel(SIZE, |top| {
        let leave = |name: &str| {
            let dir = top.join(name);
            fs::create_dir(&dir).expect("make a directory");
            let mut workload = Workload::new(&dir, 77);
            workload.run_or_panic(800);
            workload.finish()
        };
        let options = Options { mtime: false, ..Options::SAME_VOLUME };
        let (one, two) = (leave("one"), leave("two"));
        assert_same("the models", &one.tree(), &two.tree(), options);
        assert!(one.tree().entries.len() > 50);
    });
}

#[test]
fn threads_and_races_pass_on_the_kernels_own_btrfs() {
    require!(Need::Kernel);
    on_the_kernel(SIZE, |top| {
        for (dir, model) in run_threads(top, 5, 3, 300) {
            model.assert_in("after threads", &dir);
        }
        let dir = top.join("race");
        fs::create_dir(&dir).expect("make a directory");
        chaos(&dir, 9, 4, 500);
    });
}

#[test]
fn fixtures_read_back_as_their_manifests_say() {
    require!(Need::Kernel);
    for fixture in fixture::ordinary() {
        let dir = scratch_dir();
        let images = fixture.unpack(dir.path());
        let mount = Subject::Kernel.mount(&[&images[0]], &fixture.options("ro"));
        fixture.assert_shows(&walk(mount.path()));
        mount.unmount();
    }
}

#[test]
fn a_fixture_of_several_devices_and_one_with_a_log_read_back_too() {
    require!(Need::Kernel);
    for name in ["prof-raid1", "log-dir"] {
        let fixture = Fixture::load(name);
        let dir = scratch_dir();
        let images = fixture.unpack(dir.path());
        let images: Vec<&Path> = images.iter().map(AsRef::as_ref).collect();
        let mount = Subject::Kernel.mount(&images, &fixture.options(""));
        fixture.assert_shows(&walk(mount.path()));
        mount.unmount();
    }
}

/// Changes a tree in ways that the comparison must notice, each with a word that its message must
/// contain.
#[test]
fn every_kind_of_difference_is_seen() {
    let dir = scratch_dir();
    populate(dir.path());
    let before = walk(dir.path());
    assert_same("an untouched tree", &before, &walk(dir.path()), Options::SAME_VOLUME);
    let path = |name: &str| dir.path().join(name);

    let damage: [(&str, &dyn Fn()); 11] = [
        ("content", &|| {
            let file = File::options().write(true).open(path("file")).expect("open");
            file.write_all_at(b"!", 70_000).expect("write");
        }),
        ("size", &|| {
            let file = File::options().write(true).open(path("file")).expect("open");
            file.set_len(100_001).expect("truncate");
        }),
        ("mode", &|| {
            fs::set_permissions(path("file"), fs::Permissions::from_mode(0o604)).expect("chmod");
        }),
        ("mtime", &|| {
            let file = File::options().write(true).open(path("file")).expect("open");
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1);
            file.set_modified(time).expect("utimens");
        }),
        ("only left", &|| fs::remove_file(path("sub/other")).expect("unlink")),
        ("only right", &|| fs::write(path("new"), "x").expect("create")),
        ("target", &|| {
            fs::remove_file(path("symlink")).expect("unlink");
            std::os::unix::fs::symlink("elsewhere!", path("symlink")).expect("symlink");
        }),
        ("names of one inode", &|| {
            fs::remove_file(path("hard")).expect("unlink");
            fs::copy(path("file"), path("hard")).expect("copy");
        }),
        ("kind", &|| {
            fs::remove_file(path("symlink")).expect("unlink");
            fs::create_dir(path("symlink")).expect("mkdir");
        }),
        ("data ranges", &|| {
            let file = File::options().write(true).open(path("sparse")).expect("open");
            file.write_all_at(&[0; 4096], 8 << 20).expect("write");
        }),
        ("xattr user.one", &|| {
            rustix::fs::setxattr(path("file"), "user.one", b"two", rustix::fs::XattrFlags::empty()).expect("setxattr");
        }),
    ];
    let mut seen = before;
    for (word, act) in damage {
        act();
        let now = walk(dir.path());
        let found = diff(&seen, &now, Options::SAME_VOLUME);
        assert!(found.iter().any(|line| line.contains(word)), "\"{word}\" was not noticed: {found:#?}");
        seen = now;
    }
}

/// Makes a small tree with a file of each kind.
fn populate(dir: &Path) {
    fs::create_dir(dir.join("sub")).expect("mkdir");
    fs::write(dir.join("file"), vec![b'a'; 100_000]).expect("write");
    fs::write(dir.join("sub/other"), "other").expect("write");
    fs::hard_link(dir.join("file"), dir.join("hard")).expect("link");
    std::os::unix::fs::symlink("somewhere", dir.join("symlink")).expect("symlink");
    let sparse = File::create(dir.join("sparse")).expect("create");
    sparse.set_len(20 << 20).expect("truncate");
    sparse.write_all_at(b"data", 4 << 20).expect("write");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir.join("file"), "user.one", b"one", flags).expect("setxattr");
}

/// Changes a file behind a workload's back.
type Spoil = fn(&Path);

#[test]
fn a_workload_notices_what_it_did_not_do() {
    require!(Need::Kernel);
    on_the_kernel(SIZE, |top| {
        let spoil: [(&str, Spoil); 4] = [
            ("content", |file| {
                let meta = fs::metadata(file).expect("stat");
                let file = File::options().read(true).write(true).open(file).expect("open");
                let mut byte = [0];
                file.read_exact_at(&mut byte, meta.len() / 2).expect("read");
                file.write_all_at(&[!byte[0]], meta.len() / 2).expect("write");
            }),
            ("mode", |file| {
                fs::set_permissions(file, fs::Permissions::from_mode(0o123)).expect("chmod");
            }),
            ("only left", |file| fs::remove_file(file).expect("unlink")),
            ("xattr", |file| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(file, "user.spoilt", b"", flags).expect("setxattr");
            }),
        ];
        for (number, (word, act)) in spoil.into_iter().enumerate() {
            let dir = top.join(word);
            fs::create_dir(&dir).expect("mkdir");
            let mut workload =
                Workload::new(&dir, number as u64).limited(Limits { names: 300, bytes: 8 << 20, ..Limits::default() });
            workload.run_or_panic(500);
            let model = workload.model().clone();
            let tree = model.tree();
            // Takes one name of each inode, so that no inode is spoilt twice.
            let is_first = |path: &Vec<u8>| {
                let mut groups = tree.links.iter();
                groups.find(|g| g.contains(path)).is_none_or(|g| g.first() == Some(path))
            };
            let files = tree.entries.iter().filter(|(path, entry)| {
                let size = entry.size.unwrap_or(0);
                entry.kind == Kind::File && (1..1 << 20).contains(&size) && is_first(path)
            });
            files.for_each(|(path, _)| act(&dir.join(OsStr::from_bytes(path))));
            let found = model.verify(&dir);
            assert!(found.iter().any(|line| line.contains(word)), "\"{word}\" was not noticed: {found:#?}");
            let noticed = workload.run(2000);
            assert!(noticed.is_err(), "\"{word}\" was not noticed by the operations");
        }
    });
}

#[test]
fn btrfs_check_notices_a_damaged_block() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 256 << 20, &["-m", "single"]);
    let mount = Subject::Kernel.mount(&[&image], "");
    fs::write(mount.path().join("file"), vec![7; 1 << 20]).expect("write");
    mount.unmount();
    assert_btrfs_check_clean(&image);
    let bytes = fs::read(&image).expect("read the image");
    let at = bytes
        .windows(4096)
        .step_by(4096)
        .position(|block| block.iter().all(|&byte| byte == 7))
        .expect("a block of the file");
    let file = File::options().write(true).open(&image).expect("open");
    file.write_all_at(b"!", at as u64 * 4096).expect("write");
    assert!(!btrfs_check(&image).success());
}
