//! Tests that an ordinary user is root on an own image in `ubtrfs shell`.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ubtrfs_testkit::ordinary_user::{NOBODY, in_private_namespace, lend};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::run::{Outcome, run};

use crate::harness::{Volume, ubtrfs};

/// Gives `nobody` access to `/dev/fuse` and subordinate ids, and runs the program as that user.
/// `$1` is a directory for the files that this needs, `$2` the program; the rest are its arguments.
const WITH_IDS: &str = r#"
    set -e
    cp -a /dev/fuse "$1/fuse"
    chmod 666 "$1/fuse"
    mount --bind "$1/fuse" /dev/fuse
    echo nobody:300000:65536 > "$1/ids"
    touch /etc/subuid /etc/subgid
    mount --bind "$1/ids" /etc/subuid
    mount --bind "$1/ids" /etc/subgid
    shift
    exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"#;

fn shell(volume: &Volume, script: &str) -> Outcome {
    let program = lend(volume.dir.path(), env!("CARGO_BIN_EXE_ubtrfs").as_ref(), &[&volume.image]);
    let mut line = in_private_namespace(volume.dir.path());
    line.args(["sh", "-c", WITH_IDS, "sh"]).arg(volume.dir.path()).arg(&program);
    line.arg("shell").arg(&volume.image).args(["--", "sh", "-ec", script]);
    run(&mut line)
}

#[test]
fn an_ordinary_user_is_root_on_an_own_image() {
    assert_ne!(NOBODY, 0);
    let volume = Volume::new();
    let made = shell(
        &volume,
        r#"
        test "$(id -u)" = 0
        test "$PWD" = "$UBTRFS_MOUNT"
        install -m 755 -o root /bin/id id
        install -m 640 -o 33 -g 33 /etc/hostname other
        setfacl -m u:33:r other
        setcap cap_net_raw+ep id
        chmod u+s id
        cp -a /etc/passwd .
        test "$(setpriv --reuid=33 --regid=33 --clear-groups ./id -u)" = 0
        exit 7
        "#,
    );
    assert_eq!(made.status.and_then(|status| status.code()), Some(7), "{}", made.stderr);
    let seen = shell(&volume, r#"stat -c "%n %u %g %a" id other passwd; getfacl -cn other | grep user:33"#).ok().stdout;
    assert_eq!(seen, "id 0 0 4755\nother 33 33 640\npasswd 65534 65534 644\nuser:33:r--\n");
    assert_ubtrfs_check_clean(&volume.image);
    assert_btrfs_check_clean(&volume.image);
}

/// Processes that the command leaves running keep the volume mounted, and lose no data.
#[test]
fn what_stays_in_use_at_the_end_is_kept() {
    let volume = Volume::new();
    let left = shell(&volume, "mkdir dir; echo content > dir/kept; sleep 6 > /dev/null 2>&1 &");
    assert_eq!(left.status.and_then(|status| status.code()), Some(1), "{}", left.stderr);
    assert!(left.stderr.contains("stays in use"), "{}", left.stderr);
    let deadline = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let found = ubtrfs(&["cat".as_ref(), volume.image.as_os_str(), "/dir/kept".as_ref()]);
        if found.success() || Instant::now() > deadline {
            break found;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(found.ok().stdout, "content\n");
    assert_ubtrfs_check_clean(&volume.image);
}

/// Nobody else can clean up after a shell that is killed: once the command has ended, too, its
/// changes are durable, the image is free, and no directory is left.
#[test]
fn a_shell_that_is_killed_leaves_neither_a_server_nor_a_directory() {
    let volume = Volume::new();
    let temporary = volume.dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let go = volume.dir.path().join("go");
    // Otherwise the shell's namespace would keep the mounts of other tests.
    let mut shell = in_private_namespace(volume.dir.path());
    shell
        .arg(env!("CARGO_BIN_EXE_ubtrfs"))
        .env("TMPDIR", &temporary)
        .env("GO", &go)
        .arg("shell")
        .arg(&volume.image)
        .args(["--", "sh", "-c"]);
    shell.arg("touch begun; until test -e \"$GO\"; do sleep 0.1; done; echo content > kept");
    let mut shell = shell.stdin(Stdio::null()).spawn().unwrap();
    let wait_for = |what: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what() {
            assert!(Instant::now() < deadline, "it took a minute");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let is_free = || ubtrfs(&["ls".as_ref(), volume.image.as_os_str(), "/".as_ref()]).success();
    let count = || fs::read_dir(&temporary).unwrap().count();
    // The shell is in a namespace of its own, from which its mount is visible.
    let begun = format!("/proc/{}/root{}", shell.id(), temporary.display());
    let has_begun =
        || fs::read_dir(&begun).is_ok_and(|mut dirs| dirs.any(|dir| dir.unwrap().path().join("begun").exists()));
    wait_for(&has_begun);
    shell.kill().unwrap();
    shell.wait().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!is_free() && count() == 1, "the command still uses it");
    fs::write(&go, "").unwrap();
    wait_for(&|| count() == 0);
    wait_for(&is_free);
    assert_eq!(ubtrfs(&["cat".as_ref(), volume.image.as_os_str(), "/kept".as_ref()]).ok().stdout, "content\n");
    assert_ubtrfs_check_clean(&volume.image);
}
