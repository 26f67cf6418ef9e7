//! Very many unnamed files are open at a power cut, and snapshots were made of some of them. The
//! next mount frees them, ours or the kernel's.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{Mount, Subject};

const ORPHANS: usize = 100_000;
/// The number of files that one process can have open.
const EACH: usize = 900;
/// The variable with the directory in which a holder opens its files.
const DIR: &str = "UBTRFS_TEST_HOLD";
const READY: &str = "all are open";
/// Extents of a file, so many that several transactions are needed to free it.
const EXTENTS: u64 = 70_000;

fn unnamed(dir: &Path) -> File {
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    OpenOptions::new().write(true).custom_flags(flags).open(dir).unwrap()
}

/// This is not a test but a process of one: it keeps unnamed files open until it is killed.
#[test]
fn hold() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let files: Vec<File> = (0..EACH).map(|_| unnamed(Path::new(&dir))).collect();
    for (number, file) in files.iter().enumerate().filter(|(number, _)| number % 10 == 0) {
        file.write_all_at(&[number as u8; 5000], 0).unwrap();
    }
    println!("{READY}");
    std::thread::sleep(Duration::from_secs(600));
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens unnamed files, in as many processes as needed.
fn hold_many(dir: &Path) -> Vec<Holder> {
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["orphans_back_and_forth::hold", "--exact", "--nocapture"]).env(DIR, dir).stdout(Stdio::piped());
        Holder(command.spawn().unwrap())
    };
    let mut holders: Vec<Holder> = (0..ORPHANS.div_ceil(EACH)).map(|_| start()).collect();
    for holder in &mut holders {
        let output = BufReader::new(holder.0.stdout.as_mut().unwrap());
        assert!(output.lines().any(|line| line.unwrap().contains(READY)));
    }
    holders
}

/// Returns the statistics of a mount's server.
fn stats(mount: &Mount) -> serde_json::Value {
    let Subject::Ubtrfs(binary) = Subject::ubtrfs() else { unreachable!() };
    let outcome = run(Command::new(binary).args(["stats", "--json"]).arg(mount.path())).ok();
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn number(stats: &serde_json::Value, name: &str) -> u64 {
    stats[name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

fn wait_until(mount: &Mount, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
    let start = Instant::now();
    while !is_so(&stats(mount)) {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}: {}", stats(mount));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Mounts a volume of ours by the kernel, and then checks it.
fn is_cleaned_by_kernel(image: &Path) {
    let mount = Subject::Kernel.mount(&[image], "");
    assert_eq!(std::fs::read(mount.path().join("kept")).unwrap(), b"content");
    mount.unmount();
    assert_btrfs_check_clean(image);
    assert_eq!(inodes(image), 2);
}

/// Returns the number of inodes in the volume's file tree.
fn inodes(image: &Path) -> usize {
    let tree = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "5"]).arg(image)).ok();
    tree.stdout.lines().filter(|line| line.contains("INODE_ITEM 0) itemoff")).count()
}

#[test]
fn the_kernel_frees_what_we_left() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 4 << 30, &[]);
    let mount = Subject::ubtrfs().mount(&[&image], "");
    std::fs::write(mount.path().join("kept"), "content").unwrap();
    let path = mount.path().join("large");
    let large = File::create(&path).unwrap();
    for extent in 0..EXTENTS {
        large.write_all_at(&[1; 4096], extent * 8192).unwrap();
    }
    large.sync_all().unwrap();
    let holders = hold_many(mount.path());
    std::fs::remove_file(&path).unwrap();
    let Subject::Ubtrfs(binary) = Subject::ubtrfs() else { unreachable!() };
    run(Command::new(binary).arg("sync").arg(mount.path())).ok();
    drop(large);
    let before = number(&stats(&mount), "commits");
    wait_until(&mount, "a part is freed", |stats| number(stats, "commits") > before);
    let pid = i32::try_from(number(&stats(&mount), "pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    drop(holders);
    mount.unmount();
    assert!(inodes(&image) > ORPHANS, "{} inodes were left", inodes(&image));
    assert_btrfs_check_clean(&image);
    is_cleaned_by_kernel(&image);
}

#[test]
fn we_free_what_the_kernel_left() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    mkfs_btrfs(&image, 4 << 30, &[]);
    let mount = Subject::Kernel.mount(&[&image], "");
    std::fs::write(mount.path().join("kept"), "content").unwrap();
    let holders = hold_many(mount.path());
    run(command("sync", &["-f"]).arg(mount.path())).ok();
    run(command("cp", &["--sparse=always"]).arg(&image).arg(&copy)).ok();
    drop(holders);
    mount.unmount();
    std::fs::remove_file(&image).unwrap();

    let start = Instant::now();
    let mount = Subject::ubtrfs().mount(&[&copy], "");
    eprintln!("mounted after {:.2?}", start.elapsed());
    // The volume can be used in the meantime.
    let file = unnamed(mount.path());
    file.write_all_at(b"mine", 0).unwrap();
    wait_until(&mount, "all are found", |stats| stats["inactivation_orphans_left"] == false);
    assert!(number(&stats(&mount), "orphans_cleaned") as usize >= ORPHANS);
    assert_eq!(file.metadata().unwrap().len(), 4);
    drop(file);
    mount.unmount();
    assert_eq!(inodes(&copy), 2);
    is_cleaned_by_kernel(&copy);
}

/// Returns the number of orphan items of inodes in all subvolumes.
fn orphans(image: &Path) -> usize {
    let trees = run(command("btrfs", &["inspect-internal", "dump-tree"]).arg(image)).ok();
    trees.stdout.lines().filter(|line| line.contains("(ORPHAN ORPHAN_ITEM ")).count()
}

const UNLINKED: u64 = 20 << 20;

/// Makes two read-only snapshots, on a mount of a new volume, of a subvolume that has an open file
/// without a name, among files that share a leaf with it. Returns that file.
fn snapshots_with_an_open_file(subject: &Subject, top: &Path) -> File {
    let program = match subject {
        Subject::Kernel => Path::new("btrfs"),
        Subject::Ubtrfs(binary) => binary,
    };
    let source = top.join("source");
    run(Command::new(program).args(["subvolume", "create"]).arg(&source)).ok();
    let few = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            std::fs::write(source.join(format!("file{number}")), "content").unwrap();
        }
    };
    few(0..300);
    let open = unnamed(&source);
    for at in (0..UNLINKED).step_by(1 << 20) {
        open.write_all_at(&vec![at as u8; 1 << 20], at).unwrap();
    }
    few(300..600);
    for name in ["first", "second"] {
        run(Command::new(program).args(["subvolume", "snapshot", "-r"]).args([&source, &top.join(name)])).ok();
    }
    open
}

/// Asserts that a mount by one side frees the orphans in the snapshots that the other side made
/// before it crashed.
fn frees_in_snapshots(subject: &Subject, image: &Path) {
    let before = orphans(image);
    assert!(before >= 2, "the crash left {before} orphans");
    let mount = subject.mount(&[image], "");
    for name in ["source", "first", "second"] {
        assert_eq!(std::fs::read_dir(mount.path().join(name)).unwrap().count(), 600);
    }
    if matches!(subject, Subject::Ubtrfs(_)) {
        wait_until(&mount, "all are found", |stats| {
            stats["inactivation_orphans_left"] == false && number(stats, "inactivation_inodes") == 0
        });
    }
    run(command("sync", &["-f"]).arg(mount.path())).ok();
    let space = rustix::fs::statvfs(mount.path()).unwrap();
    let used = (space.f_blocks - space.f_bfree) * space.f_frsize;
    assert!(used < UNLINKED / 2, "{used} bytes are in use");
    mount.unmount();
    assert_eq!(orphans(image), 0);
    assert_btrfs_check_clean(image);
    assert_ubtrfs_check_clean(image);
}

#[test]
fn either_frees_what_the_other_left_in_read_only_snapshots() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    for (number, subject) in [Subject::Kernel, Subject::ubtrfs()].iter().enumerate() {
        let image = dir.path().join(format!("image{number}"));
        mkfs_btrfs(&image, 1 << 30, &[]);
        let mount = subject.mount(&[&image], "");
        let open = snapshots_with_an_open_file(subject, mount.path());
        // Copies the state of the last commit, which is what a crash leaves.
        let crashed = dir.path().join(format!("crashed{number}"));
        run(command("cp", &["--sparse=always"]).arg(&image).arg(&crashed)).ok();
        // Without a crash, no snapshot keeps the file.
        drop(open);
        mount.unmount();
        assert_eq!(orphans(&image), 0, "after a mount by {}", subject.name());
        assert_btrfs_check_clean(&image);

        assert_ubtrfs_check_clean(&crashed);
        for other in [Subject::Kernel, Subject::ubtrfs()] {
            run(command("cp", &["--sparse=always"]).arg(&crashed).arg(&image)).ok();
            frees_in_snapshots(&other, &image);
        }
    }
}
