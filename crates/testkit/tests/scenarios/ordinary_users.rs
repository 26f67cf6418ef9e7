//! A user who is not root mounts a volume with the help of `fusermount3`, works on it, and unmounts
//! it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::ordinary_user::{NOBODY, shell};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::{mount_points, scratch_dir};
use ubtrfs_testkit::subject::Subject;

/// What the user does. `$1` is ubtrfs, `$2` the image, `$3` the mount point.
const SESSION: &str = r#"
    set -e
    "$1" mount "$2" "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    mkdir "$3/dir"
    echo content > "$3/dir/file"
    ln "$3/dir/file" "$3/link"
    chmod 600 "$3/link"
    "$1" sync "$3"
    mv "$3/dir" "$3/renamed"
    test "$(cat "$3/renamed/file")" = content
"#;

/// The user makes a volume, uses snapshots and compares them, without help. `$1` is ubtrfs, `$2`
/// the image, `$3` the mount point.
const SNAPSHOTS: &str = r#"
    set -e
    "$1" mkfs --size 256M "$2"
    "$1" mount "$2" "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    "$1" subvolume create "$3/tree"
    echo one > "$3/tree/file"
    "$1" subvolume snapshot -r "$3/tree" "$3/before"
    echo two > "$3/tree/file"
    echo new > "$3/tree/new"
    "$1" subvolume snapshot "$3/tree" "$3/after"
    "$1" subvolume snapshot "$3/tree" "$3/gone"
    "$1" subvolume delete "$3/gone"
    "$1" subvolume create "$3/empty"
    rmdir "$3/empty"
    "$1" subvolume reset "$3/tree" "$3/before"
    test "$(cat "$3/tree/file")" = one
    test ! -e "$3/tree/new"
    "$1" subvolume list "$3"
    "$1" umount "$3"
    trap - EXIT
    "$1" diff --name-only "$2:before" "$2:tree" && echo "as before"
    "$1" diff "$2:before" "$2:after" || echo "differs: $?"
    "$1" subvolume reset "$2:tree" "$2:after"
    test "$("$1" cat "$2" tree/new)" = new
    "$1" subvolume delete "$2:after"
    "$1" check "$2"
"#;

/// The user adds, removes, replaces and resizes devices, on a mount and without one. `$1` is
/// ubtrfs, `$2` the first image, `$3` the mount point.
const DEVICES: &str = r#"
    set -e
    cd "$(dirname "$2")"
    truncate -s 300M image b c d
    "$1" mkfs -d raid1 -m raid1 image b
    "$1" mount -o device=b image "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    head -c 20000000 /dev/urandom > "$3/file"
    sha256sum < "$3/file"
    "$1" device add c "$3"
    "$1" balance start "$3"
    "$1" device remove 1 "$3"
    "$1" scrub start "$3"
    "$1" replace start 2 d "$3"
    "$1" filesystem resize 3:250M "$3"
    "$1" device usage "$3"
    "$1" umount "$3"
    trap - EXIT
    "$1" device add -f image c --device d
    "$1" balance start c --device d --device image
    "$1" device remove 2 c --device d --device image
    "$1" scrub start c image
    "$1" check c image
"#;

/// Runs such a session as an ordinary user.
fn session(dir: &Path, image: &Path, point: &Path, script: &str) -> Outcome {
    // Others than its builder may have no access to the binary's place.
    let binary = dir.join("ubtrfs");
    fs::copy(ubtrfs_binary().expect("the binary"), &binary).expect("copy the binary");
    fs::create_dir(point).expect("mkdir");
    for path in [dir, image, point] {
        if path.exists() {
            chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
        }
    }
    fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("chmod");
    let outcome = run(shell(dir, script).args([binary.as_path(), image, point]).current_dir("/"));
    if mount_points().iter().any(|mounted| mounted == point) {
        run(command("umount", &["-l"]).arg(point));
    }
    outcome
}

#[test]
fn a_user_takes_snapshots_and_compares_them() {
    require!(
        Need::Root,
        Need::Fuse,
        Need::Ubtrfs,
        Need::Tool("fusermount3"),
        Need::Tool("setpriv"),
        Need::Tool("unshare")
    );
    let dir = scratch_dir();
    let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
    let said = session(dir.path(), &image, &point, SNAPSHOTS).ok().stdout;
    for words in [" path tree\n", " path before\n", "as before\n", "differs: 1\n", "no fault found"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(!said.contains(" path gone\n") && !said.contains(" path empty\n"), "{said}");
    assert_btrfs_check_clean(&image);
}

#[test]
fn a_user_changes_the_devices_of_a_volume() {
    require!(
        Need::Kernel,
        Need::Fuse,
        Need::Ubtrfs,
        Need::Tool("fusermount3"),
        Need::Tool("setpriv"),
        Need::Tool("unshare")
    );
    let dir = scratch_dir();
    let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
    let said = session(dir.path(), &image, &point, DEVICES).ok().stdout;
    let scrubbed = said.lines().filter(|line| line.contains(" compared, no error"));
    assert_eq!(scrubbed.count(), 3, "two devices of a mount, and a volume: {said}");
    let sum = said.lines().find(|line| line.ends_with("  -")).expect("a checksum");
    let mount = Subject::Kernel.mount(&[&image, &dir.path().join("c")], "");
    let read = run(command("sha256sum", &[""; 0]).arg(mount.path().join("file"))).ok().stdout;
    assert_eq!(read.split_whitespace().next(), sum.split_whitespace().next());
    mount.unmount();
}

#[test]
fn a_user_mounts_works_and_unmounts() {
    require!(
        Need::Kernel,
        Need::Fuse,
        Need::Ubtrfs,
        Need::Tool("fusermount3"),
        Need::Tool("setpriv"),
        Need::Tool("unshare")
    );
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 256 << 20, &[]);
    let mount = Subject::Kernel.mount(&[&image], "");
    chown(mount.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    mount.unmount();

    let point = dir.path().join("mnt");
    session(dir.path(), &image, &point, SESSION).ok();

    assert_btrfs_check_clean(&image);
    let mount = Subject::Kernel.mount(&[&image], "");
    let read = fs::read_to_string(mount.path().join("renamed/file")).expect("read");
    assert_eq!(read, "content\n");
    let meta = fs::metadata(mount.path().join("link")).expect("stat");
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let owner = std::os::unix::fs::MetadataExt::uid(&meta);
    assert_eq!((owner, std::os::unix::fs::MetadataExt::nlink(&meta)), (NOBODY, 2));
    mount.unmount();
}
