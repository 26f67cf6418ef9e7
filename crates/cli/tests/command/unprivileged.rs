//! Tests in which an unprivileged user makes and edits images without FUSE.
//!
//! The sizes are unusual: only root may look at what the loop devices of other tests hold, so an
//! image of the same size might be taken for the one behind such a device.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{NOBODY, without_fuse};
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::run;
use crate::editing::{difference, is_clean, make_tree};
use crate::rootdir::text;

/// Runs a shell as that user, in a directory that belongs to the user; `$U` is the program.
fn as_nobody(dir: &Path, script: &str) -> String {
    let program = dir.join("ubtrfs");
    if !program.exists() {
        crate::copy_program(&program);
        chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut shell = without_fuse(dir);
    shell.args(["sh", "-euc", script]).current_dir(dir).env("U", &program);
    let output = shell.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{:?}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_for_images_works_without_privileges_and_without_fuse() {
    require!(Need::Kernel, Need::Tool("setpriv"), Need::Tool("unshare"));
    let dir = scratch_dir();
    let script = r#"
        test "$(id -u)" = 65534
        ! "$U" mount no-image no-place 2>/dev/null
        ! ( : <> /dev/fuse ) 2>/dev/null || test ! -c /dev/fuse || test "$(stat -c %t:%T /dev/fuse)" = 1:3
        "$U" mkfs --size 277M --root-owner 0:0 image > /dev/null
        "$U" mkdir -p --owner 0:0 -m 1777 image:a/b image:gone image:a/c
        echo content | "$U" put --owner 0:0 -m 4755 image:a/tool
        "$U" cp --owner 7:8 /bin/true image:a/true
        "$U" ln image:a/tool image:a/b/second
        "$U" ln -s --owner 0:0 ../tool image:a/b/link
        "$U" mknod --owner 0:0 -m 666 image:a/null c 1 3
        "$U" mknod --owner 0:0 image:a/disk b 8 1
        "$U" mknod --owner 3:4 image:a/pipe p
        "$U" chmod u+s,g+s image:a/true
        "$U" chown 0:42 image:a/true
        "$U" setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 image:a/true
        "$U" setfattr -n trusted.overlay.opaque -v y image:a/b
        "$U" truncate -s 1M image:a/hole
        "$U" mv image:a/hole image:a/b
        "$U" rm -r image:gone
        printf '%s\n' 'mkdir --owner 0:0 :applied' 'cp --owner 0:0 /bin/true :applied' 'chmod 6755 :applied/true' > script
        "$U" apply --commit-every 1k image script
        "$U" export image:a > a.tar
        "$U" import --dedupe image:imported a.tar
        "$U" import --oci-layer image:layers a.tar
        "$U" cp -a image:a image:copied
        "$U" cp -a image:a/true image:a/b out 2>/dev/null || { mkdir out; "$U" cp -a image:a/true image:a/b out; }
        "$U" cp -a --dedupe out image:back
        "$U" subvolume create image:subvolume > /dev/null
        "$U" subvolume snapshot -r image:subvolume image:snapshot > /dev/null
        "$U" mkfs --rootdir a.tar --size 311M --shrink --dedupe --compress zstd --subvol ro:c second > /dev/null
        "$U" mkfs --rootdir - --size 203M third < a.tar > /dev/null
        "$U" mkfs --rootdir out --size 307M fourth > /dev/null
        for image in image second third fourth; do "$U" check $image > /dev/null; done
        "$U" ls -l image a
        "$U" cat image a/tool
        "$U" stat image a/true > /dev/null
        "$U" info image > /dev/null
        "$U" diff --name-only image:subvolume image:snapshot
        "$U" history image > /dev/null
        mkdir restored
        "$U" restore fourth restored > /dev/null 2>&1
    "#;
    let shown = as_nobody(dir.path(), script);
    assert!(shown.contains("-rwsr-sr-x   1     0    42") && shown.ends_with("content\n"), "{shown}");
    let images = ["image", "second", "third", "fourth"].map(|name| dir.path().join(name));
    for image in &images {
        is_clean(&text(image));
        assert_btrfs_check_clean(image);
        assert_eq!(fs::metadata(image).unwrap().uid(), NOBODY);
    }
    let mount = KernelMount::new(&[&images[0]], "ro");
    let at = |path: &str| mount.path().join(path);
    for copy in ["a", "imported", "layers", "copied"] {
        let found = |name: &str| fs::symlink_metadata(at(copy).join(name)).unwrap();
        let owner = |name: &str| (found(name).uid(), found(name).gid(), found(name).mode());
        assert_eq!(owner("tool"), (0, 0, 0o104_755), "{copy}");
        assert_eq!(owner("true"), (0, 42, 0o106_755), "{copy}");
        assert_eq!(owner("null"), (0, 0, 0o020_666), "{copy}");
        assert_eq!(owner("pipe"), (3, 4, 0o010_644), "{copy}");
        assert_eq!(owner("b"), (0, 0, 0o041_777), "{copy}");
        assert_eq!(found("null").rdev(), rustix::fs::makedev(1, 3), "{copy}");
        assert_eq!(found("disk").rdev(), rustix::fs::makedev(8, 1), "{copy}");
        assert_eq!(found("tool").ino(), found("b/second").ino(), "{copy}");
        let mut value = [0; 32];
        for (name, attribute, len) in [("true", "security.capability", 20), ("b", "trusted.overlay.opaque", 1)] {
            assert_eq!(rustix::fs::getxattr(at(copy).join(name), attribute, &mut value), Ok(len), "{copy}/{name}");
        }
    }
    assert_eq!(fs::metadata(at("applied/true")).unwrap().mode() & 0o7777, 0o6755);
    assert_eq!(difference(&at("a"), &at("imported")), "");
    assert_eq!(mount.unmount(), Vec::<String>::new());
    let mount = KernelMount::new(&[&images[2]], "ro");
    let again = mount.path().join("true");
    assert_eq!(fs::metadata(again).unwrap().mode() & 0o7777, 0o6755);
    // Outside of an image, nothing is made that only root may make.
    assert_eq!(fs::metadata(dir.path().join("out/true")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_root_tree_of_debian_that_nobody_made_an_image_of_is_the_same_in_the_kernel_and_runs() {
    const PACKAGES: [&str; 9] =
        ["base-files", "bash", "coreutils", "dash", "libc6", "libtinfo6", "login", "mount", "passwd"];
    require!(Need::Kernel, Need::Tool("dpkg"), Need::Tool("rsync"), Need::Tool("setpriv"), Need::Tool("setfacl"));
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    let at = |path: &str| tree.join(path);
    // The links to directories come first, as on an installed system.
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        fs::create_dir_all(at(target)).unwrap();
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    let listed = Command::new("dpkg").arg("-L").args(PACKAGES).output().unwrap();
    let list = dir.path().join("list");
    let paths = String::from_utf8(listed.stdout).unwrap();
    let is_file = |path: &&str| fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir());
    fs::write(&list, paths.lines().filter(is_file).collect::<Vec<_>>().join("\n")).unwrap();
    let copy =
        "tar -C / -cP --xattrs --acls -T \"$1\" | tar -C \"$2\" -xp --keep-directory-symlink --xattrs 2>/dev/null";
    run("sh", &["-c", copy, "sh", &text(&list), &text(&tree)]);
    make_tree(&at("srv"));
    fs::create_dir_all(at("dev/sub")).unwrap();
    for (node, kind, major, minor) in
        [("null", "c", "1", "3"), ("vda", "b", "254", "0"), ("large", "b", "259", "70000")]
    {
        run("mknod", &[&text(&at("dev").join(node)), kind, major, minor]);
    }
    run("mkfifo", &[&text(&at("dev/initctl"))]);
    run("chown", &["-h", "12345:3000000000", &text(&at("dev/initctl")), &text(&at("srv/link"))]);
    run("setfacl", &["-m", "u:77:rwx,d:g:88:r", &text(&at("srv/sub"))]);
    run("chmod", &["6711", &text(&at("usr/bin/env"))]);
    fs::hard_link(at("usr/bin/env"), at("usr/bin/second")).unwrap();
    let capability: Vec<u8> = [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(at("usr/bin/cat"), "security.capability", &capability, flags).unwrap();
    let archive = text(&dir.path().join("root.tar"));
    let all = ["--xattrs", "--xattrs-include=*", "--acls", "--format=posix", "--numeric-owner", "-C"];
    run("tar", &[&all[..], &[&text(&tree), "-cf", &archive, "."]].concat());
    as_nobody(dir.path(), "\"$U\" mkfs --rootdir root.tar --size 1021M root.img > /dev/null");
    let image = dir.path().join("root.img");
    assert_btrfs_check_clean(&image);
    let mount = KernelMount::new(&[&image], "");
    assert_eq!(difference(&tree, mount.path()), "");
    assert!(fs::read_dir(mount.path().join("usr/bin")).unwrap().count() > 100);
    let inside = Command::new("chroot").arg(mount.path()).args(["/bin/bash", "-c", "/bin/true && echo runs"]).output();
    assert_eq!(String::from_utf8(inside.unwrap().stdout).unwrap(), "runs\n");
    assert_eq!(mount.unmount(), Vec::<String>::new());
}
