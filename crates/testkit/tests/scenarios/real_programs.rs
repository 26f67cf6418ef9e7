//! Real programs work on a volume that ubtrfs has mounted. Afterwards the kernel finds what they
//! left.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::walk;
use ubtrfs_testkit::{programs, require};

/// Lets `work` work on a volume mounted by ubtrfs; afterwards the kernel must see it as it was
/// left.
fn on_ubtrfs(options: &str, work: impl FnOnce(&Path)) {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 2 << 30, &[]);
    let mount = Subject::ubtrfs().mount(&[&image], options);
    work(mount.path());
    let left = walk(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(&image);
    assert_ubtrfs_check_clean(&image);
    let mount = Subject::Kernel.mount(&[&image], "");
    let seen = walk(mount.path());
    mount.unmount();
    let what = "left: through ubtrfs, right: through the kernel";
    assert_same(what, &left, &seen, Options::SAME_VOLUME);
}

#[test]
fn git_clones_commits_and_verifies() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("git"));
    on_ubtrfs("", programs::git);
}

#[test]
fn a_program_is_unpacked_and_built() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("tar"), Need::Tool("make"), Need::Tool("cc"),);
    on_ubtrfs("", programs::untar_and_build);
}

#[test]
fn sqlite_keeps_its_integrity() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("sqlite3"));
    on_ubtrfs("", programs::sqlite);
}

#[test]
fn rsync_finds_nothing_to_do_after_copying() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("rsync"), Need::Tool("setfacl"));
    on_ubtrfs("", programs::rsync_there_and_back);
}

#[test]
fn fio_reads_back_what_it_wrote() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("fio"));
    on_ubtrfs("", programs::fio);
}

#[test]
fn dbench_runs() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("dbench"));
    on_ubtrfs("", |dir| {
        let throughput = programs::dbench(dir, 4, 5);
        eprintln!("dbench with 4 clients: {throughput:.0} MB/s");
    });
}

#[test]
#[ignore = "soak: takes minutes"]
fn stress_ng_finds_nothing() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("stress-ng"));
    on_ubtrfs("", |dir| programs::stress_ng(dir, 3));
}

/// Returns an hour, or as many minutes as `UBTRFS_SOAK_MINUTES` says.
fn soak_time() -> Duration {
    let minutes = std::env::var("UBTRFS_SOAK_MINUTES").map_or(60, |minutes| minutes.parse().expect("minutes"));
    Duration::from_secs(60 * minutes)
}

#[test]
#[ignore = "soak: takes an hour"]
fn stressors_rsync_and_dbench_run_together() {
    const CLIENTS: u32 = 4;
    require!(
        Need::Kernel,
        Need::Fuse,
        Need::Ubtrfs,
        Need::Tool("stress-ng"),
        Need::Tool("rsync"),
        Need::Tool("dbench")
    );
    let deadline = Instant::now() + soak_time();
    let again_and_again = |dir: &Path, name: &str, work: &dyn Fn(&Path)| {
        let mut rounds = 0;
        while Instant::now() < deadline {
            let place = dir.join(name);
            std::fs::create_dir(&place).expect("mkdir");
            work(&place);
            std::fs::remove_dir_all(&place).expect("remove what a program left");
            rounds += 1;
        }
        eprintln!("{name}: {rounds} rounds");
    };
    on_ubtrfs("", |dir| {
        thread::scope(|scope| {
            scope.spawn(|| again_and_again(dir, "stressors", &|place| programs::stress_ng(place, 5)));
            scope.spawn(|| again_and_again(dir, "copies", &programs::rsync_there_and_back));
            scope.spawn(|| {
                again_and_again(dir, "clients", &|place| {
                    programs::dbench(place, CLIENTS, 20);
                });
            });
            scope.spawn(|| programs::rsync_keeps_up(dir, deadline));
        });
    });
}
