//! Tests that a comparison of subvolumes on a mount shows the same as one in the unmounted image,
//! including all changes that are not committed yet, however many they are and however slowly they
//! are read.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};
use crate::merge::keep_stream;
use crate::users_mount::UsersMount;

fn diff(arguments: &[&str]) -> Outcome {
    ubtrfs(&[&["diff"], arguments].concat())
}

/// Returns the output of a comparison that found differences.
#[track_caller]
fn different(arguments: &[&str]) -> String {
    let outcome = diff(arguments);
    assert_eq!((outcome.code(), &*outcome.stderr), (Some(1), ""), "{}", outcome.report());
    outcome.stdout
}

/// Asserts that a comparison failed with one sentence that contains `words`.
#[track_caller]
fn has_trouble(arguments: &[&str], words: &str) {
    let outcome = diff(arguments);
    assert_eq!(outcome.code(), Some(2), "{}", outcome.report());
    assert!(outcome.stderr.lines().count() == 1 && outcome.stderr.contains(words), "{}", outcome.report());
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Makes a mount with the snapshot `old` and later changes. Returns the words for both.
fn with_changes() -> (Volume, String, String) {
    let volume = Volume::new();
    volume.mount("commit=300");
    let point = &volume.point;
    fs::create_dir_all(point.join("dir/below")).unwrap();
    fs::write(point.join("dir/below/file"), vec![1; 20_000]).unwrap();
    fs::write(point.join("gone"), "gone").unwrap();
    fs::write(point.join("kept"), "kept").unwrap();
    let (old, new) = (text(&point.join("old")), text(point));
    ubtrfs(&["subvolume", "snapshot", "-r", &new, &old]).ok();
    fs::rename(point.join("dir"), point.join("moved")).unwrap();
    fs::write(point.join("moved/below/file"), vec![2; 30_000]).unwrap();
    fs::set_permissions(point.join("moved/below/file"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(point.join("gone")).unwrap();
    fs::hard_link(point.join("kept"), point.join("linked")).unwrap();
    symlink("target", point.join("link")).unwrap();
    fs::write(point.join("made"), vec![3; 5000]).unwrap();
    (volume, old, new)
}

#[test]
fn a_mount_shows_what_its_image_shows_later() {
    require!(FUSE);
    let (volume, old, new) = with_changes();
    let forms: [&[&str]; 4] = [&[], &["--name-only"], &["--stat"], &["--json"]];
    let on = |old: &str, new: &str| forms.map(|form| different(&[form, &[old, new]].concat()));
    let on_mount = on(&old, &new);
    for line in ["R dir/ -> moved/", "D gone", "A linked = kept", "A link", "A made"] {
        assert!(on_mount[0].lines().any(|shown| shown == line), "{}", on_mount[0]);
    }
    let back = different(&[&new, &old]);
    assert!(back.contains("R moved/ -> dir/\n") && back.contains("A gone\n"), "{back}");
    assert_eq!(diff(&[&old, &old]).ok().stdout, "");

    // This change belongs to the next commit.
    let next = (volume.stats()["generation"].as_u64().unwrap() + 1).to_string();
    fs::write(volume.point.join("later"), "later").unwrap();
    let since = different(&["--since", &next, &new]);
    assert!(since.contains("A later\n") && !since.contains("made"), "{since}");
    fs::remove_file(volume.point.join("later")).unwrap();
    let on_mount = (on(&old, &new), back);

    volume.umount();
    let image = text(&volume.image);
    let (old, new) = (format!("{image}:old"), format!("{image}:"));
    assert_eq!((on(&old, &new), different(&[&new, &old])), on_mount);
    volume.check();
}

#[test]
fn what_can_not_be_compared_is_said_with_status_two() {
    require!(FUSE);
    let (volume, old, new) = with_changes();
    let image = format!("{}:", text(&volume.image));
    has_trouble(&[&old, &format!("{new}/moved")], "not a subvolume");
    has_trouble(&[&old, &format!("{new}/kept")], "neither a directory");
    has_trouble(&[&old, &format!("{new}/absent")], "exists");
    has_trouble(&[&image, &format!("{image}old")], "if it is mounted, name the directories on the mount instead");
    has_trouble(&[&old, &image], "all on its mount");
    has_trouble(&["/proc", &new], "not on a btrfs volume");
    let other = Volume::new();
    other.mount("");
    has_trouble(&[&old, &text(&other.point)], "same volume");
}

#[test]
fn only_who_may_read_all_of_a_volume_compares_its_subvolumes() {
    require!(FUSE);
    let (volume, old, new) = with_changes();
    fs::set_permissions(volume.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    let line = [&*ids[0], &ids[1], "--clear-groups", env!("CARGO_BIN_EXE_ubtrfs"), "diff", &old, &new];
    let as_nobody = |program: &str| {
        let mut line = line.map(str::to_owned);
        line[3] = program.to_owned();
        run(&mut command("setpriv", &line))
    };
    // The tests' own program may be in a directory that other users can't enter.
    let program = volume.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &program).unwrap();
    let outcome = as_nobody(&text(&program));
    assert_eq!((outcome.code(), &*outcome.stdout), (Some(2), ""), "{}", outcome.report());
    assert!(outcome.stderr.contains("only root, or the user who has mounted it"), "{}", outcome.report());
    assert_eq!(keep_stream(&volume.point, 77), Err(rustix::io::Errno::NXIO));

    let users = Volume::new();
    users.mount("");
    std::os::unix::fs::chown(&users.point, Some(NOBODY), Some(NOBODY)).unwrap();
    users.umount();
    let mount = UsersMount::new(&users, "");
    let script = "cd $2 && echo one >file && $1 subvolume snapshot -r . old && echo two >file && $1 diff old .";
    let outcome = mount.as_user(script, &users);
    assert_eq!(outcome.code(), Some(1), "{}", outcome.report());
    assert!(outcome.stdout.contains("M file: "), "{}", outcome.report());
}

/// Returns the peak of a process's resident memory, in bytes.
fn peak_memory(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_slow_reader_gets_everything_and_costs_the_server_little_memory() {
    const FILES: usize = 40_000;
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let (old, new) = (text(&volume.point.join("old")), text(&volume.point));
    ubtrfs(&["subvolume", "snapshot", "-r", &new, &old]).ok();
    let name = |number: usize| format!("{number:0200}");
    fs::create_dir(volume.point.join("dir")).unwrap();
    for number in 0..FILES {
        fs::File::create(volume.point.join("dir").join(name(number))).unwrap();
    }
    // By now all nodes have been read once.
    assert_eq!(different(&["--name-only", &old, &new]).lines().count(), FILES + 2);
    let pid = volume.stats()["pid"].as_u64().unwrap();
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = peak_memory(pid);

    let mut slow = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut slow = slow.args(["diff", &old, &new]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    // The mount can be used as before; the answer does not contain what is committed now.
    fs::write(volume.point.join("later"), "later").unwrap();
    ubtrfs(&["sync", &new]).ok();
    let mut shown = String::new();
    slow.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert_eq!(slow.wait().unwrap().code(), Some(1));
    let mut lines: Vec<_> = shown.lines().filter(|line| line.starts_with("A dir/0")).collect();
    lines.sort_unstable();
    let expected: Vec<_> = (0..FILES).map(|number| format!("A dir/{}", name(number))).collect();
    assert!(lines == expected, "{} of {FILES} files", lines.len());
    assert!(!shown.contains("later"));
    // The records take some 50 MB.
    // Linux updates the peak only when memory shrinks; a smaller peak has cost nothing.
    let more = peak_memory(pid).saturating_sub(before);
    assert!(more < 12 << 20, "the server took {more} bytes more");

    // Readers that are killed leave room for others.
    for _ in 0..20 {
        let mut gone = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        let mut gone = gone.args(["diff", &old, &new]).stdout(Stdio::piped()).spawn().unwrap();
        gone.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
        gone.wait().unwrap();
    }
    assert_eq!(different(&["--name-only", &old, &new]).lines().count(), FILES + 3);
}

#[test]
fn a_comparison_in_a_pager_keeps_no_state_of_the_volume() {
    const FILES: usize = 30_000;
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let (old, new) = (text(&volume.point.join("old")), text(&volume.point));
    ubtrfs(&["subvolume", "snapshot", "-r", &new, &old]).ok();
    fs::create_dir(volume.point.join("dir")).unwrap();
    for number in 0..FILES {
        fs::File::create(volume.point.join("dir").join(format!("{number:0200}"))).unwrap();
    }
    // The first stream of the mount: some 40 MB, of which nothing has been read yet.
    let mut paged = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut paged = paged.args(["diff", "--name-only", &old, &new]).stdout(Stdio::piped()).spawn().unwrap();
    let is_there = || keep_stream(&volume.point, 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_there() != Ok(()) {
        assert!(Instant::now() < deadline && paged.try_wait().unwrap().is_none(), "it never began");
    }
    while is_there() != Err(rustix::io::Errno::NXIO) {
        assert!(Instant::now() < deadline, "the server still waits for a reader");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(paged.try_wait().unwrap().is_none());
    // The whole answer is kept, whatever happens to the mount.
    volume.umount();
    let mut shown = String::new();
    paged.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert_eq!(paged.wait().unwrap().code(), Some(1));
    assert_eq!(shown.lines().filter(|line| line.starts_with("dir/0")).count(), FILES);
}

#[test]
fn another_mount_is_no_volume_of_ours() {
    require!(FUSE, ubtrfs_testkit::need::Need::Kernel);
    let dir = ubtrfs_testkit::scratch::scratch_dir();
    let image = dir.path().join("image");
    ubtrfs_testkit::progs::mkfs_btrfs(&image, 256 << 20, &[]);
    let mount = ubtrfs_testkit::kernel::KernelMount::new(&[&image], "");
    let path = text(mount.path());
    has_trouble(&[&path, &path], "not on a volume that ubtrfs has mounted");
    fails(&ubtrfs(&["stats", &path]), "not on a volume that ubtrfs has mounted");
}
