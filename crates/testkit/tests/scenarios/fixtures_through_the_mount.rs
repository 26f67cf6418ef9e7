//! `ubtrfs mount` shows the volumes that a kernel made as the kernel showed them. Those without
//! snapshots are then written to, and the kernel and `btrfs check` find no fault.

use std::path::Path;

use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::fixture::{self, Fixture};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::walk;
use ubtrfs_testkit::workload::{Limits, Workload};

fn single_image(fixture: &Fixture, dir: &Path) -> std::path::PathBuf {
    let mut images = fixture.unpack(dir);
    assert_eq!(images.len(), 1);
    images.remove(0)
}

#[test]
fn every_fixture_reads_back_equal_to_its_manifest() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs);
    for fixture in fixture::ordinary() {
        eprintln!("fixture {}", fixture.manifest.name);
        let dir = scratch_dir();
        let image = single_image(&fixture, dir.path());
        let before = std::fs::read(&image).expect("read the image");
        let mount = Subject::ubtrfs().mount(&[&image], &fixture.options("ro"));
        fixture.assert_shows(&walk(mount.path()));
        mount.unmount();
        assert!(
            before == std::fs::read(&image).expect("read the image"),
            "{}: a read-only mount wrote to the image",
            fixture.manifest.name
        );
    }
}

#[test]
fn fixtures_are_written_to_and_the_kernel_approves() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for fixture in &fixture::ordinary() {
        let name = &fixture.manifest.name;
        eprintln!("fixture {name}");
        let dir = scratch_dir();
        let image = single_image(fixture, dir.path());
        write_and_compare(&Subject::ubtrfs(), fixture, &image);
    }
}

/// The same with the kernel as the writer, which shows that the expectations of this test can be
/// met.
#[test]
fn fixtures_are_written_to_by_the_kernel_itself() {
    require!(Need::Kernel);
    for name in ["mixed", "node-4k", "holes", "old-mkfs", "bgtree", "v1-cache", "orphans"] {
        let fixture = Fixture::load(name);
        let dir = scratch_dir();
        let image = single_image(&fixture, dir.path());
        write_and_compare(&Subject::Kernel, &fixture, &image);
    }
}

fn write_and_compare(writer: &Subject, fixture: &Fixture, image: &Path) {
    let name = &fixture.manifest.name;
    let mount = writer.mount(&[image], &fixture.options(""));
    fixture.assert_shows(&walk(mount.path()));
    let place = mount.path().join("written by the test");
    std::fs::create_dir(&place).expect("mkdir");
    let nodesize = fixture.manifest.superblock["nodesize"].parse();
    let small = Limits { names: 150, bytes: 5 << 20, ..Limits::default() };
    let small = small.in_nodes_of(nodesize.expect("a number of bytes"));
    let mut workload = Workload::new(&place, 42).limited(small);
    // A volume of this size is soon full. Then the last operation failed for lack of space, and the
    // rest must still be right.
    if let Err(failure) = workload.run(400) {
        assert!(failure.what.contains("os error 28"), "{name}: {failure}");
    } else {
        workload.finish().assert_in(name, &place);
    }
    let left = walk(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(image);
    let mount = Subject::Kernel.mount(&[image], &fixture.options(""));
    let seen = walk(mount.path());
    mount.unmount();
    let what = format!("{name} (left: as written, right: as the kernel sees it)");
    // In subvolumes other than the mounted one, ubtrfs shows other inode numbers than the kernel.
    let ino = fixture.manifest.subvolumes.is_empty() || matches!(writer, Subject::Kernel);
    assert_same(&what, &left, &seen, Options { ino, ..Options::SAME_VOLUME });
}

#[test]
fn logs_are_replayed_and_can_be_passed_over() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs);
    for name in fixture::names().iter().filter(|name| name.starts_with("log-")) {
        let fixture = Fixture::load(name);
        let dir = scratch_dir();
        let image = single_image(&fixture, dir.path());
        let refusal = Subject::ubtrfs().try_mount(&[&image], "nologreplay").expect_err("writing beside a log");
        assert!(refusal.stderr.contains("log"), "{name}: {}", refusal.report());
        let before = std::fs::read(&image).expect("read the image");
        let show = |options: &str| {
            let mount = Subject::ubtrfs().mount(&[&image], &fixture.options(options));
            let seen = walk(mount.path());
            mount.unmount();
            seen
        };
        fixture.assert_shows_committed(&show("ro,nologreplay"));
        fixture.assert_shows(&show("ro"));
        let after = std::fs::read(&image).expect("read the image");
        assert!(before == after, "{name}: a read-only mount wrote to the image");
        fixture.assert_shows(&show(""));
        fixture.assert_shows(&show("ro,nologreplay"));
    }
}

#[test]
fn the_default_subvolume_and_subvol_are_honoured() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let fixture = Fixture::load("snapshots");
    for options in ["ro", "ro,subvol=snap1", "ro,subvol=/sv/inner", "ro,subvolid=258"] {
        let dir = scratch_dir();
        let image = single_image(&fixture, dir.path());
        let show = |subject: Subject| {
            let mount = subject.mount(&[&image], options);
            let tree = walk(mount.path());
            mount.unmount();
            tree
        };
        let what = format!("-o {options} (left: the kernel, right: ubtrfs)");
        assert_same(&what, &show(Subject::Kernel), &show(Subject::ubtrfs()), Options::SAME_VOLUME);
    }
}
