//! Tests of `mkfs --rootdir`: which files of a tree or an archive are copied, and who owns them.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::{fails, success, ubtrfs};

/// Makes a tree with files in several directories.
fn tree(top: &Path) {
    for dir in ["a/build", "proc/1", "b"] {
        std::fs::create_dir_all(top.join(dir)).unwrap();
    }
    for file in ["a/x.c", "a/x.o", "a/build/out", "proc/1/status", "b/y.o", "b/proc"] {
        std::fs::write(top.join(file), file).unwrap();
    }
}

/// Returns the paths of an image, sorted.
fn paths(image: &str) -> Vec<String> {
    let exported = ubtrfs(&["export", image]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let archive = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(archive.path(), &exported.stdout).unwrap();
    let listed = success(&Command::new("tar").arg("-tf").arg(archive.path()).output().unwrap());
    let mut paths: Vec<String> = listed.lines().map(|line| line.trim_end_matches('/').to_owned()).collect();
    paths.sort();
    paths
}

/// Packs a tree.
fn pack(top: &Path, archive: &Path) {
    let packed = Command::new("tar").arg("-C").arg(top).args(["--sort=name", "-caf"]).arg(archive).arg(".").status();
    assert!(packed.unwrap().success());
}

/// Makes images of a directory and of its archive with the same options.
fn make_both(dir: &Path, top: &Path, options: &[&str]) -> [String; 2] {
    let archive = dir.join("archive.tar");
    pack(top, &archive);
    [("of-directory", top), ("of-archive", &archive)].map(|(name, from)| {
        let image = dir.join(name).display().to_string();
        let arguments = ["mkfs", "-q", "-f", "--size", "200M", "--rootdir", from.to_str().unwrap(), &image];
        assert_eq!(success(&ubtrfs(&[&arguments[..], options].concat())), "");
        success(&ubtrfs(&["check", &image]));
        image
    })
}

#[test]
fn patterns_leave_names_and_paths_out() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("tree");
    tree(&top);
    let options = ["--exclude", "*.o", "--exclude=/proc/*", "--exclude", "build"];
    for image in make_both(dir.path(), &top, &options) {
        assert_eq!(paths(&image), [".", "./a", "./a/x.c", "./b", "./b/proc", "./proc"], "{image}");
    }
    let image = dir.path().join("new").display().to_string();
    let wrong = ["mkfs", "--size", "200M", "--rootdir", top.to_str().unwrap(), "--exclude", "a[", &image];
    fails(&ubtrfs(&wrong), 2, "--exclude: 'a[' is no pattern");
    assert!(!Path::new(&image).exists());
}

#[test]
fn a_hard_link_to_what_is_left_out_is_refused_in_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("tree");
    tree(&top);
    std::fs::hard_link(top.join("a/x.o"), top.join("b/z")).unwrap();
    let archive = dir.path().join("archive.tar");
    pack(&top, &archive);
    let image = dir.path().join("image").display().to_string();
    let arguments = ["mkfs", "--size", "200M", "--exclude", "x.o", "--rootdir", archive.to_str().unwrap(), &image];
    fails(&ubtrfs(&arguments), 1, "b/z");
    assert!(!Path::new(&image).exists());
}

/// Returns the user and the group of a path in an image.
fn owner(image: &str, path: &str) -> String {
    let shown = success(&ubtrfs(&["stat", image, path]));
    let line = shown.lines().find(|line| line.contains("uid") || line.contains("owner")).unwrap_or(&shown);
    line.trim().to_owned()
}

#[test]
fn images_of_equal_trees_of_two_users_are_equal() {
    require!(Need::Root);
    let dir = tempfile::tempdir().unwrap();
    let mut images = Vec::new();
    for user in [1001, 1002] {
        let top = dir.path().join(format!("tree-{user}"));
        tree(&top);
        for found in [
            "",
            "a",
            "a/x.c",
            "a/x.o",
            "a/build",
            "a/build/out",
            "proc",
            "proc/1",
            "proc/1/status",
            "b",
            "b/y.o",
            "b/proc",
        ] {
            chown(top.join(found), Some(user), Some(user)).unwrap();
        }
        let map = format!("{user}:7");
        for options in [&["--all-root"][..], &["--owner-map", &map]] {
            let image = dir.path().join(format!("image-{user}-{}", options.len()));
            let made = Command::new(env!("CARGO_BIN_EXE_ubtrfs"))
                .args(["mkfs", "-q", "--size", "200M", "--rootdir"])
                .args([&top, &image])
                .args(options)
                .env("SOURCE_DATE_EPOCH", "1700000000")
                .output();
            success(&made.unwrap());
            images.push(image);
        }
    }
    let bytes = |index: usize| std::fs::read(&images[index]).unwrap();
    assert!(bytes(0) == bytes(2), "--all-root");
    assert!(bytes(1) == bytes(3), "--owner-map");
    let image = |index: usize| images[index].to_str().unwrap();
    assert_ne!(owner(image(0), "/a/x.c"), owner(image(1), "/a/x.c"));
    assert!(owner(image(1), "/a/x.c").contains('7'));
    assert!(owner(image(1), "/").contains('7'));
}

#[test]
fn other_file_systems_are_left_out_on_request() {
    require!(Need::Root);
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("tree");
    tree(&top);
    let script = format!(
        "mount -t tmpfs none {0}/b && echo other > {0}/b/other && {1} mkfs -q --size 200M --rootdir {0} -x {2}/one && {1} mkfs -q --size 200M --rootdir {0} {2}/all",
        top.display(),
        env!("CARGO_BIN_EXE_ubtrfs"),
        dir.path().display()
    );
    // A mount in a namespace of this process, with which it ends.
    success(&Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap());
    let image = |name: &str| dir.path().join(name).display().to_string();
    assert!(paths(&image("all")).contains(&"./b/other".to_owned()));
    let one = paths(&image("one"));
    assert!(one.contains(&"./b".to_owned()) && !one.iter().any(|path| path.starts_with("./b/")), "{one:?}");
    assert_eq!(std::fs::metadata(top.join("a")).unwrap().uid(), 0);
}

#[test]
fn an_archive_has_no_file_systems() {
    let dir = tempfile::tempdir().unwrap();
    let (top, archive) = (dir.path().join("tree"), dir.path().join("archive.tar"));
    tree(&top);
    pack(&top, &archive);
    let image = dir.path().join("image");
    let arguments = ["mkfs", "-q", "-x", "--rootdir", archive.to_str().unwrap(), image.to_str().unwrap()];
    fails(&ubtrfs(&arguments), 2, "--one-file-system is for directories");
    assert!(!image.exists());
}

#[test]
fn what_is_no_archive_leaves_the_volume_that_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    success(&ubtrfs(&["mkfs", "--size", "200M", "-L", "old", &path("image")]));
    std::fs::write(path("text"), "this is no archive, whatever its length is".repeat(100)).unwrap();
    fails(&ubtrfs(&["mkfs", "-f", "--rootdir", &path("text"), &path("image")]), 1, "no tar archive");
    assert_eq!(success(&ubtrfs(&["label", &path("image")])).trim(), "old");
}

/// The size stays the same, whether the file is a volume already, and the contents before a part of
/// it stay.
#[test]
fn a_volume_that_is_not_made_leaves_a_file_of_the_same_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(path("tree")).unwrap();
    std::fs::write(path("tree/large"), vec![7; 150 << 20]).unwrap();
    let image = path("image");
    let size = || std::fs::metadata(&image).unwrap().len();
    let filled = |options: &[&str]| {
        let make = ["mkfs", "-q", "-f", "--rootdir", &path("tree"), &image];
        fails(&ubtrfs(&[&make[..], options].concat()), 1, "give a larger --size");
    };
    for bytes in [10 << 20, (10 << 20) + 1, 500 << 20] {
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        for options in [&["--size", "120M"][..], &["-b", "120M"], &["--size", "120M", "--shrink"]] {
            filled(options);
            assert_eq!(size(), bytes, "{options:?}");
        }
    }
    std::fs::write(&image, vec![5; 8 << 20]).unwrap();
    filled(&["--offset", "4M", "--size", "120M"]);
    let content = std::fs::read(&image).unwrap();
    assert!(content.len() == 8 << 20 && content[..4 << 20].iter().all(|byte| *byte == 5));
    // A volume of another size.
    success(&ubtrfs(&["mkfs", "-q", "-f", "--size", "200M", &image]));
    let before = std::fs::read(&image).unwrap();
    for (options, words) in [
        (&["--size", "1M"][..], "too small"),
        (&["--size", "300M", "-d", "raid1"], "raid1 needs"),
        (&["--size", "300M", "--rootdir", &path("none")], "No such file"),
    ] {
        fails(&ubtrfs(&[&["mkfs", "-f", &image], options].concat()), 1, words);
        assert!(std::fs::read(&image).unwrap() == before, "{words}");
    }
    filled(&["--size", "120M"]);
    assert_eq!(size(), 200 << 20);
}

#[test]
fn a_volume_without_room_leaves_a_file_of_the_same_size() {
    require!(Need::Root);
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs -o size=256k none .; cd .; cd "$PWD"
        for bytes in 10485760 524288000; do
            truncate -s "$bytes" e.img
            if "$UBTRFS" mkfs -q --size 120M e.img; then exit 1; fi
            test "$(stat -c %s e.img)" = "$bytes"
        done"#;
    let mut line = Command::new("unshare");
    line.args(["-m", "sh", "-ec", script]).current_dir(dir.path()).env("UBTRFS", env!("CARGO_BIN_EXE_ubtrfs"));
    let output = line.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("No space left"), "{error}");
}

#[test]
fn a_volume_of_a_compressed_archive_has_room_for_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let (top, archive) = (dir.path().join("tree"), dir.path().join("archive.tar.gz"));
    std::fs::create_dir(&top).unwrap();
    // More data than the additional room, which compresses to two kilobytes.
    let line = b"the same again and again, of which little is left ".repeat(20_000);
    for number in 0..700 {
        std::fs::write(top.join(number.to_string()), &line).unwrap();
    }
    pack(&top, &archive);
    let image = dir.path().join("image").display().to_string();
    success(&ubtrfs(&["mkfs", "-q", "--rootdir", archive.to_str().unwrap(), &image]));
    let info: serde_json::Value = serde_json::from_str(&success(&ubtrfs(&["info", "--json", &image]))).unwrap();
    assert!(info["total_bytes"].as_u64().unwrap() > 1_200 << 20, "{info}");
}

/// The data ranges of this file system begin and end at blocks of 1 KiB.
#[test]
fn images_are_equal_whatever_blocks_the_host_has() {
    require!(Need::Kernel, Need::Tool("mkfs.ext4"));
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
        truncate -s 64M ext4; mkfs.ext4 -q -b 1024 ext4; mkdir small large; mount -o loop ext4 small; mount -t tmpfs none large
        for to in small large; do
            mkdir "$to/tree"; truncate -s 40960 "$to/tree/f"
            for at in 0 2 4 9 13; do
                head -c 1024 /dev/zero | tr '\0' x | dd of="$to/tree/f" bs=1024 seek="$at" conv=notrunc status=none
            done
            "$UBTRFS" mkfs -q --size 200M --all-root --rootdir "$to/tree" "$to.img"
        done
        umount small large
        cmp small.img large.img"#;
    let mut line = Command::new("unshare");
    line.args(["-m", "sh", "-ec", script]).current_dir(dir.path()).env("UBTRFS", env!("CARGO_BIN_EXE_ubtrfs"));
    success(&line.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap());
}
