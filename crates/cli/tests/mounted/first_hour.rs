//! Tests of what a new user tries first on a mount: an own file, cp and install as root of an own
//! volume, the label, the statistics.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{self, NOBODY, in_private_namespace, shell};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};

/// `$1` is ubtrfs, `$2` an image that does not exist, `$3` the mount point.
const NEW_VOLUME: &str = r#"
    set -e
    "$1" mkfs --size 128M "$2"
    "$1" mount "$2" "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    touch "$3/file"
    mkdir "$3/directory"
    test "$("$1" label "$3")" = ""
    "$1" label "$3" mine
    test "$("$1" label "$3")" = mine
    fstrim "$3"
"#;

/// Mistakes of a user with mounts. `$1` is ubtrfs, `$2` the image, `$3` the mount point, `$4` a
/// directory.
const SLIPS: &str = r#"
    set -e
    says() {
        words=$1
        shift
        if said=$("$@" 2>&1); then exit 9; fi
        case "$said" in *"$words"*) ;; *) echo "$said"; echo "has not: $words"; exit 8 ;; esac
    }
    "$1" mkfs --size 131M "$4/other" > /dev/null
    "$1" mkfs --size 131M "$2" > /dev/null
    "$1" mount "$2" "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    says "is mounted on $3 already by user 65534: 'ubtrfs umount $3' ends it" "$1" mount "$4/other" "$3"
    mkdir "$3/inside"
    says "mount on a directory outside of it" "$1" mount "$4/other" "$3/inside"
    says "'mkdir' makes one" "$1" mount "$4/other" /etc
    says "its top level has no entry" "$1" subvolume delete "$3"
    says "but on" "$1" subvolume list "$4"
    # What is advised works as it is typed.
    says "truncate -s" "$1" filesystem resize +200M "$3"
    eval "$(echo "$said" | sed "s/.*'\(truncate [^']*\)'.*/\1/")"
    "$1" filesystem resize +200M "$3"
"#;

/// `$1` is ubtrfs, `$2` the image, `$3` the mount point, `$4` a directory.
const AS_ROOT: &str = r#"
    set -e
    cd "$4"
    mkdir -p from/directory
    echo content > from/file
    chmod 640 from/file
    setfacl -m u:7:r from/file
    ln -s file from/link
    "$1" mount -o fakeroot "$2" "$3"
    trap 'cd /; "$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    cp -a from "$3/copy"
    getfacl -cn "$3/copy/file" | grep -q '^user:7:r--'
    test "$(stat -c %a "$3/copy/file")" = 640
    install -m 755 -o root -g root /bin/true "$3/installed"
    test "$(stat -c '%u %g %a' "$3/installed")" = '0 0 755'
    install -D -m 4711 -o 7 -g 8 /bin/true "$3/a/b/other"
    test "$(stat -c '%u %g %a' "$3/a/b/other")" = '7 8 4711'
    # What stat(2) has shown of another owner keeps nobody from the next change.
    stat "$3/a/b/other"
    setfacl -m u:9:rw "$3/a/b/other"
    getfacl -cn "$3/a/b/other" | grep -q '^user:9:rw-'
    tar -C from --acls --xattrs -cf archive.tar .
    mkdir "$3/unpacked"
    tar -C "$3/unpacked" --acls --xattrs --same-owner -xpf archive.tar
    getfacl -cn "$3/unpacked/file" | grep -q '^user:7:r--'
    mkdir -m 1777 "$3/sticky"
    touch "$3/sticky/file"
    chown 5 "$3/sticky/file" "$3/sticky"
    stat "$3/sticky/file" "$3/sticky"
    ln "$3/sticky/file" "$3/name"
    rm "$3/sticky/file"
    test "$(stat -c %u "$3/name")" = 5
"#;

/// Makes a place where an ordinary user has the program, an image and a mount point.
fn lend(volume: &Volume) -> std::path::PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ubtrfs"));
    ordinary_user::lend(volume.dir.path(), program, &[&volume.image, &volume.point])
}

fn as_user(volume: &Volume, binary: &Path, script: &str) -> Outcome {
    run(shell(volume.dir.path(), script).arg(binary).args([&volume.image, &volume.point]).arg(volume.dir.path()))
}

#[test]
fn an_ordinary_users_new_volume_is_that_users() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::without_image();
    let binary = lend(&volume);
    let outcome = as_user(&volume, &binary, NEW_VOLUME);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    volume.check();
}

#[test]
fn slips_of_a_user_with_mounts_are_answered_with_the_next_step() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::without_image();
    let binary = lend(&volume);
    let outcome = as_user(&volume, &binary, SLIPS);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    // On a mount by root.
    volume.mount("");
    let umount = as_user(&volume, &binary, r#""$1" umount "$3""#);
    fails(
        &umount,
        &format!("was mounted by another user: root can end it, by 'ubtrfs umount {}'", volume.point.display()),
    );
    fails(&as_user(&volume, &binary, r#""$1" label "$3" no"#), "only root, or who has mounted it without being root");
    assert!(!as_user(&volume, &binary, r#"fstrim "$3""#).success());
    volume.umount();
    volume.check();
}

#[test]
fn a_place_on_no_volume_and_a_subvolume_by_its_mount_are_named() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    for command in [&["subvolume", "list"][..], &["filesystem", "df"], &["label"], &["subvolume", "show"]] {
        fails(
            &ubtrfs(&[command, &["/proc"]].concat()),
            "/proc is not on a btrfs volume, but on proc (mounted on /proc)",
        );
    }
    volume.mount("");
    let point = volume.point.to_str().unwrap();
    fails(&ubtrfs(&["subvolume", "delete", point]), "name a subvolume below it");
    ubtrfs(&["subvolume", "create", &format!("{point}/sub")]).ok();
    volume.umount();
    volume.mount("subvol=sub");
    fails(&ubtrfs(&["subvolume", "delete", point]), "is where the subvolume 256 is mounted");
    volume.umount();
}

#[test]
fn with_fakeroot_cp_and_install_work_as_for_root() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    require!(Need::Tool("setfacl"));
    let volume = Volume::new();
    let binary = lend(&volume);
    let outcome = as_user(&volume, &binary, AS_ROOT);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    volume.mount("");
    let owner = |path: &str| fs::metadata(volume.point.join(path)).unwrap().uid();
    assert_eq!(["installed", "a/b/other", "name", "copy/file"].map(owner), [0, 7, 5, NOBODY]);
    volume.umount();
    volume.check();
}

#[test]
fn without_access_to_dev_fuse_the_error_says_what_to_do() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::new();
    let binary = lend(&volume);
    let script = r#"mknod "$4/fuse" c 10 229; chmod 600 "$4/fuse"; mount --bind "$4/fuse" /dev/fuse
        exec setpriv --reuid=65534 --regid=65534 --clear-groups "$1" mount "$2" "$3""#;
    let mut line = in_private_namespace(volume.dir.path());
    line.args(["sh", "-c", script, "sh"]);
    let outcome = run(line.arg(&binary).args([&volume.image, &volume.point]).arg(volume.dir.path()));
    fails(&outcome, "chmod 666 /dev/fuse");
}

#[test]
fn a_mount_is_labelled_by_the_ioctl() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = volume.point.as_os_str();
    let progs = |arguments: &[&str]| {
        let mut line = command("btrfs", &["filesystem", "label"]);
        run(line.arg(point).args(arguments)).ok().stdout.trim().to_owned()
    };
    progs(&["by the tool"]);
    assert_eq!(progs(&[]), "by the tool");
    assert_eq!(ubtrfs(&["label".as_ref(), point]).ok().stdout.trim(), "by the tool");
    ubtrfs(&["label".as_ref(), point, "by ours".as_ref()]).ok();
    assert_eq!(progs(&[]), "by ours");
    volume.umount();
    volume.mount("ro");
    assert_eq!(progs(&[]), "by ours");
    fails(&ubtrfs(&["label".as_ref(), point, "no".as_ref()]), "Read-only");
    volume.umount();
    assert_eq!(ubtrfs(&["label".as_ref(), volume.image.as_os_str()]).ok().stdout.trim(), "by ours");
    volume.check();
}

#[test]
fn a_mount_is_watched_second_by_second() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let watched = std::thread::scope(|scope| {
        let point = volume.point.as_os_str();
        let watch = scope.spawn(move || ubtrfs(&["stats".as_ref(), "--watch".as_ref(), "--count=1".as_ref(), point]));
        let file = fs::File::create(volume.point.join("file")).unwrap();
        while !watch.is_finished() {
            std::io::Write::write_all(&mut &file, &[7; 5000]).unwrap();
            file.sync_data().unwrap();
        }
        watch.join().unwrap().ok().stdout
    });
    let lines: Vec<Vec<&str>> = watched.lines().map(|line| line.split_whitespace().collect()).collect();
    let [_, seen] = lines.as_slice() else { panic!("{watched}") };
    let number = |at: usize| seen[at].parse::<f64>().unwrap_or_else(|_| panic!("{watched}"));
    let (requests, fsyncs, [half, most, all]) = (number(0), number(3), [4, 5, 6].map(number));
    assert!(requests >= fsyncs && fsyncs >= 1.0, "{watched}");
    assert!(0.0 < half && half <= most && most <= all, "{watched}");
    volume.umount();
    // There is nothing to watch any more.
    fails(&ubtrfs(&["stats".as_ref(), "--watch".as_ref(), volume.point.as_os_str()]), "is not on a volume");
}
