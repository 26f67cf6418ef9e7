//! ubtrfs and the kernel use a volume in turn, and each finds the state that the other left:
//! content, mode, owner, times, extended attributes, links and holes. The kernel logs nothing, and
//! `btrfs check` finds no fault.

use std::path::Path;

use ubtrfs_testkit::chaos::chaos;
use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::model::Model;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::{Tree, walk};
use ubtrfs_testkit::workload::{Limits, Workload, run_threads};

const SIZE: u64 = 1 << 30;

/// Mounts by `subject`, does `work`, and returns the tree as it was before the unmount.
fn session(subject: &Subject, image: &Path, work: impl FnOnce(&Path)) -> Tree {
    let mount = subject.mount(&[image], "");
    work(mount.path());
    let tree = walk(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(image);
    tree
}

/// Mounts by `subject`, and compares the tree with what another one showed.
#[track_caller]
fn assert_shows(subject: &Subject, image: &Path, wanted: &Tree, what: &str) {
    let mount = subject.mount(&[image], "");
    let seen = walk(mount.path());
    mount.unmount();
    let what = format!("{what} (left: before, right: as {} sees it)", subject.name());
    assert_same(&what, wanted, &seen, Options::SAME_VOLUME);
    assert_btrfs_check_clean(image);
}

/// Does `rounds` rounds of random operations through ubtrfs and the kernel in turn.
fn back_and_forth(mkfs: &[&str], seed: u64, rounds: u64, operations: usize) {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, mkfs);
    let nodesize = if mkfs.contains(&"4k") { 4096 } else { 16384 };
    let mut model: Option<Model> = None;
    for round in 0..rounds {
        let (writer, reader) = match round % 2 {
            0 => (Subject::ubtrfs(), Subject::Kernel),
            _ => (Subject::Kernel, Subject::ubtrfs()),
        };
        let what = format!("mkfs {mkfs:?}, seed {seed}, round {round}, written by {}", writer.name());
        eprintln!("{what}");
        let left = session(&writer, &image, |top| {
            let place = top.join("work");
            let seed = seed << 8 | round;
            let mut workload = match model.take() {
                None => {
                    std::fs::create_dir(&place).expect("mkdir");
                    Workload::new(&place, seed)
                }
                Some(model) => Workload::resume(&place, model, seed),
            };
            workload = workload.limited(Limits::default().in_nodes_of(nodesize));
            workload.run_or_panic(operations);
            let left = workload.finish();
            left.assert_in(&what, &place);
            model = Some(left);
        });
        assert_shows(&reader, &image, &left, &what);
        // The caches of the writer are dropped, so it reads from the disk.
        assert_shows(&writer, &image, &left, &what);
    }
}

#[test]
fn random_operations_go_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for seed in seeds(2) {
        back_and_forth(&[], seed, 4, 700);
    }
}

#[test]
fn other_layouts_go_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let layouts: [&[&str]; 6] = [
        &["-n", "4k", "-m", "single"],
        &["-n", "64k"],
        &["--csum", "sha256", "-d", "dup"],
        &["--csum", "xxhash", "-O", "^no-holes"],
        &["--csum", "blake2", "-O", "^extref,^skinny-metadata"],
        &["-R", "^free-space-tree"],
    ];
    for (layout, number) in layouts.into_iter().zip(100..) {
        for seed in seeds(1) {
            back_and_forth(layout, seed + number, 2, 500);
        }
    }
}

#[test]
fn threads_leave_what_the_kernel_then_finds() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for seed in seeds(1) {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, SIZE, &[]);
        let left = session(&Subject::ubtrfs(), &image, |top| {
            for (dir, model) in run_threads(top, seed, 4, 400) {
                model.assert_in("after threads", &dir);
            }
            let place = top.join("race");
            std::fs::create_dir(&place).expect("mkdir");
            chaos(&place, seed, 4, 1500);
        });
        assert_shows(&Subject::Kernel, &image, &left, "after threads");
    }
}

/// `statx` returns times of birth. The walk leaves out missing ones, so this test checks them.
#[test]
fn ubtrfs_shows_times_of_birth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, &[]);
    let tree = session(&Subject::ubtrfs(), &image, |top| {
        std::fs::write(top.join("file"), "content").expect("write");
    });
    assert!(tree.entries.values().all(|entry| entry.btime.is_some()));
}
