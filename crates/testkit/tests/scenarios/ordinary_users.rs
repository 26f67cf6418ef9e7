//! A user who is not root mounts a volume with the help of `fusermount3`, works on it, and unmounts
//! it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::ordinary_user::{NOBODY, shell};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
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

    // The binary may be where only its builder has access.
    let binary = dir.path().join("ubtrfs");
    fs::copy(ubtrfs_binary().expect("the binary"), &binary).expect("copy the binary");
    let point = dir.path().join("mnt");
    fs::create_dir(&point).expect("mkdir");
    for path in [dir.path(), &image, &point] {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("chmod");
    let outcome = run(shell(dir.path(), SESSION).args([&binary, &image, &point]).current_dir("/"));
    if mount_points().contains(&point) {
        run(command("umount", &["-l"]).arg(&point));
    }
    outcome.ok();

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
