//! Runs the programs of the test kit with the kernel's btrfs as the subject: they pass if nothing
//! is wrong.

use crate::kernels_volume::on_the_kernel;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::{programs, require};

const SIZE: u64 = 2 << 30;

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
    on_the_kernel(SIZE, |dir| {
        programs::git(dir);
        programs::untar_and_build(dir);
        programs::sqlite(dir);
        programs::rsync_there_and_back(dir);
    });
}

#[test]
fn fio_dbench_and_stress_pass() {
    require!(Need::Kernel, Need::Tool("fio"), Need::Tool("dbench"), Need::Tool("stress-ng"),);
    on_the_kernel(SIZE, |dir| {
        programs::fio(dir);
        assert!(programs::dbench(dir, 4, 2) > 0.0);
    });
}

#[test]
#[ignore = "soak: takes a minute"]
fn every_stressor_passes() {
    require!(Need::Kernel, Need::Tool("stress-ng"));
    on_the_kernel(SIZE, |dir| programs::stress_ng(dir, 2));
}
