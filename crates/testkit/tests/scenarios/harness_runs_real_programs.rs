//! The programs of the test house, with the kernel's btrfs as the subject: they pass where nothing is wrong.

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::{programs, require};

fn on_the_kernel(work: impl FnOnce(&std::path::Path)) {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 2 << 30, &[]);
    let mount = Subject::Kernel.mount(&[&image], "");
    work(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(&image);
}

#[test]
fn git_tar_make_sqlite_and_rsync_pass() {
    require!(
        Need::Kernel,
        Need::Tool("git"),
        Need::Tool("make"),
        Need::Tool("cc"),
        Need::Tool("sqlite3"),
        Need::Tool("rsync"),
    );
    on_the_kernel(|dir| {
        programs::git(dir);
        programs::untar_and_build(dir);
        programs::sqlite(dir);
        programs::rsync_there_and_back(dir);
    });
}

#[test]
fn fio_dbench_and_stress_pass() {
    require!(Need::Kernel, Need::Tool("fio"), Need::Tool("dbench"), Need::Tool("stress-ng"),);
    on_the_kernel(|dir| {
        programs::fio(dir);
        assert!(programs::dbench(dir, 4, 2) > 0.0);
    });
}

#[test]
#[ignore = "soak: takes a minute"]
fn every_stressor_passes() {
    require!(Need::Kernel, Need::Tool("stress-ng"));
    on_the_kernel(|dir| programs::stress_ng(dir, 2));
}
