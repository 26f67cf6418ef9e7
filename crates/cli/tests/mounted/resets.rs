//! Tests that a subvolume of a mount is reset: its path shows the snapshot at once, whatever the
//! kernel has cached of the old content, and open files of that stay as they were.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, fails};

/// The error that a program gets for a file of a deleted subvolume.
const ESTALE: i32 = 116;

/// Runs `ubtrfs subvolume` in a directory.
fn subvolume(dir: &Path, arguments: &[&str]) -> Outcome {
    run(Command::new(env!("CARGO_BIN_EXE_ubtrfs")).arg("subvolume").args(arguments).current_dir(dir))
}

#[test]
fn the_path_shows_the_snapshot_at_once() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    subvolume(point, &["create", "work"]).ok();
    fs::create_dir(point.join("work/dir")).unwrap();
    for name in ["work/file", "work/dir/file", "work/removed"] {
        fs::write(point.join(name), vec![b'a'; 100_000]).unwrap();
    }
    subvolume(point, &["snapshot", "-r", "work", "kept"]).ok();
    fs::remove_file(point.join("work/removed")).unwrap();
    assert!(!point.join("work/removed").exists());
    for name in ["work/file", "work/dir/file", "work/new"] {
        fs::write(point.join(name), "spoilt").unwrap();
    }
    let open = File::options().read(true).write(true).open(point.join("work/file")).unwrap();
    let open_dir = File::open(point.join("work/dir")).unwrap();
    open.read_exact_at(&mut [0; 6], 0).unwrap();
    // The page is dirty in the kernel when the reset arrives.
    open.write_all_at(b"later", 1000).unwrap();

    let said = subvolume(point, &["reset", "work", "kept"]).ok().stdout;
    assert_eq!(said, "Reset subvolume 'work' to 'kept'\n");
    for name in ["work/file", "work/dir/file", "work/removed"] {
        assert!(fs::read(point.join(name)).unwrap() == vec![b'a'; 100_000], "{name}");
    }
    assert!(!point.join("work/new").exists());
    let mut names: Vec<_> = fs::read_dir(point.join("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "file", "removed"]);
    // The open file has its old content.
    let mut content = [0; 5];
    open.read_exact_at(&mut content, 1000).unwrap();
    assert_eq!(&content, b"later");
    open.write_all_at(b"latest", 0).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 1005);
    assert!(open_dir.metadata().unwrap().is_dir());
    drop((open, open_dir));
    // Earlier writes are in the snapshot, though only the kernel has their pages. This time the
    // source is writable, too.
    fs::write(point.join("work/file"), "once more").unwrap();
    subvolume(point, &["snapshot", "work", "other"]).ok();
    fs::write(point.join("other/file"), "of the other").unwrap();
    subvolume(point, &["reset", "work", "other"]).ok();
    assert_eq!(fs::read_to_string(point.join("work/file")).unwrap(), "of the other");
    fs::write(point.join("work/file"), "apart").unwrap();
    assert_eq!(fs::read_to_string(point.join("other/file")).unwrap(), "of the other");

    fs::create_dir(point.join("plain")).unwrap();
    subvolume(point, &["create", "outer", "outer/inner"]).ok();
    for (target, source, words) in [
        ("work", "work", "it is SOURCE itself"),
        ("kept", "work", "it is read-only"),
        ("outer", "work", "there are other subvolumes in it"),
        ("plain", "work", "is not a subvolume"),
        ("work", "plain", "is not a subvolume"),
        ("none", "work", "No such file or directory"),
    ] {
        fails(&subvolume(point, &["reset", target, source]), words);
    }
    subvolume(point, &["sync", "."]).ok();
    assert_eq!(volume.stats()["subvolumes_deleted_left"], 0);
    volume.umount();
    volume.check();
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(fs::read_to_string(kernel.path().join("work/file")).unwrap(), "apart");
    assert!(fs::read(kernel.path().join("work/removed")).unwrap() == vec![b'a'; 100_000]);
    // The kernel does not support a reset.
    fails(&subvolume(kernel.path(), &["reset", "work", "other"]), "is not on a volume that ubtrfs has mounted");
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    volume.check();
}

/// A process that opens a path during the reset finds one content or the other, and nothing else.
#[test]
fn readers_find_one_content_or_the_other() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    subvolume(point, &["create", "work"]).ok();
    for content in ["a", "b"] {
        fs::write(point.join("work/file"), content.repeat(50_000)).unwrap();
        subvolume(point, &["snapshot", "-r", "work", content]).ok();
    }
    let (ended, whole) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let mut content = String::new();
                    let mut file = match File::open(point.join("work/file")) {
                        Ok(file) => file,
                        Err(error) if error.raw_os_error() == Some(ESTALE) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    match file.read_to_string(&mut content) {
                        Ok(_) => {
                            assert!(
                                content == "a".repeat(50_000) || content == "b".repeat(50_000),
                                "{}",
                                content.len()
                            );
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for round in 0..30 {
            let source = ["a", "b"][round % 2];
            subvolume(point, &["reset", "work", source]).ok();
            assert!(fs::read_to_string(point.join("work/file")).unwrap().starts_with(source));
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(whole.into_inner() > 10);
    volume.umount();
    volume.check();
}

/// `$1` is ubtrfs.
const USER: &str = r#"
    set -e
    "$1" subvolume create mine
    echo one > mine/file
    "$1" subvolume snapshot mine kept
    echo two > mine/file
    if "$1" subvolume reset mine others; then exit 1; fi
    if "$1" subvolume reset others mine; then exit 1; fi
    test "$(cat mine/file)" = two
    "$1" subvolume reset mine kept && test "$(cat mine/file)" = one && echo reset
"#;

/// A reset requires the permission to delete the target, and an own source.
#[test]
fn ordinary_users_reset_where_they_may_delete() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"));
    for (options, may_delete) in [("", false), ("user_subvol_rm_allowed", true)] {
        let volume = Volume::new();
        volume.mount(options);
        fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::set_permissions(&volume.point, PermissionsExt::from_mode(0o777)).unwrap();
        subvolume(&volume.point, &["create", "others"]).ok();
        let program = volume.dir.path().join("ubtrfs");
        fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &program).unwrap();
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let mut line = command("setpriv", &[&ids[0], &ids[1], "--clear-groups", "sh", "-c", USER, "sh"]);
        let outcome = run(line.arg(&program).current_dir(&volume.point));
        assert_eq!(outcome.success() && outcome.stdout.ends_with("reset\n"), may_delete, "{}", outcome.report());
        let left = if may_delete { "one\n" } else { "two\n" };
        assert_eq!(fs::read_to_string(volume.point.join("mine/file")).unwrap(), left);
        volume.umount();
        volume.check();
    }
}
