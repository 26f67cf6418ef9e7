//! Tests of volumes that are filled when they are made.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::run;
use crate::editing::{difference, is_clean, make_tree, quiet, with_input};
use crate::{fails, success, ubtrfs};

const EPOCH: &str = "1700000000";

/// Runs `ubtrfs` as reproducible builds do.
pub fn reproducibly(arguments: &[&str]) -> Output {
    let command = Path::new(env!("CARGO_BIN_EXE_ubtrfs"));
    Command::new(command).args(arguments).env("SOURCE_DATE_EPOCH", EPOCH).output().unwrap()
}

pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Makes many files, in this order or in reverse.
fn many_files(at: &Path, reverse: bool) {
    let mut numbers: Vec<u32> = (0..3000).collect();
    if reverse {
        numbers.reverse();
    }
    for number in numbers {
        let dir = at.join(format!("dir{}", number % 37));
        fs::create_dir_all(&dir).unwrap();
        let len = (number * 7919 % 9000) as usize * if number % 500 == 0 { 1000 } else { 1 };
        let content: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
        fs::write(dir.join(format!("file{number}")), content).unwrap();
        if number % 11 == 0 {
            symlink(format!("file{number}"), dir.join(format!("link{number}"))).unwrap();
        }
    }
}

/// Asserts that the kernel shows the tree, and that both checks are clean.
pub fn holds(image: &Path, tree: &Path) {
    is_clean(&text(image));
    let check = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(image).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let mount = KernelMount::new(&[image], "ro");
    assert_eq!(difference(tree, mount.path()), "");
}

#[test]
fn a_volume_holds_the_directory_that_it_was_made_of() {
    require!(Need::Kernel, Need::Tool("rsync"), Need::Tool("mknod"));
    let dir = scratch_dir();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    make_tree(&tree);
    let node = Command::new("mknod").arg(tree.join("device")).args(["c", "4", "7"]).status().unwrap();
    assert!(node.success());
    std::os::unix::fs::chown(tree.join("small"), Some(12), Some(34)).unwrap();
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o2751)).unwrap();
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), &text(&image)]));
    holds(&image, &tree);
    // The size was not given, and there is room for more.
    quiet(&["mkdir", &format!("{}:new", text(&image))]);
    // The same volume with the smallest possible size.
    let small = dir.path().join("small");
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), "--shrink", "--size", "1G", &text(&small)]));
    holds(&small, &tree);
    assert!(fs::metadata(&small).unwrap().len() <= 80 << 20, "{}", fs::metadata(&small).unwrap().len());
    // An archive of the tree results in the same contents.
    let archive = dir.path().join("tree.tar");
    let command = ["--xattrs", "--xattrs-include=*", "--acls", "-cS", "--format=posix", "-C", &text(&tree), "-f"];
    assert!(Command::new("tar").args(command).arg(&archive).arg(".").status().unwrap().success());
    let third = dir.path().join("third");
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&archive), "--shrink", &text(&third)]));
    holds(&third, &tree);
    let fourth = dir.path().join("fourth");
    let piped = ["mkfs", "--rootdir", "-", "--shrink", "--root-owner", "5:6", &text(&fourth)];
    success(&with_input(&piped, &fs::read(&archive).unwrap()));
    for image in [&third, &fourth] {
        let len = fs::metadata(image).unwrap().len();
        assert!(len <= 256 << 20, "{len}");
    }
    let mount = KernelMount::new(&[&fourth], "ro");
    let root = fs::metadata(mount.path()).unwrap();
    assert_eq!((root.uid(), root.gid(), root.mode() & 0o7777), (5, 6, 0o2751));
}

#[test]
fn a_tree_survives_the_round_trip_through_two_images_and_an_archive() {
    require!(Need::Root, Need::Tool("rsync"));
    let dir = scratch_dir();
    let at = |name: &str| text(&dir.path().join(name));
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    make_tree(&tree);
    many_files(&tree.join("many"), false);
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), "--shrink", &at("one")]));
    let archive = ubtrfs(&["export", &at("one")]);
    assert!(archive.status.success());
    fs::write(at("tar"), archive.stdout).unwrap();
    success(&ubtrfs(&["mkfs", "--rootdir", &at("tar"), &at("two")]));
    fs::create_dir(&back).unwrap();
    quiet(&["cp", "-a", &format!("{}:/", at("two")), &text(&back)]);
    let rest = difference(&tree, &back);
    assert!(rest.is_empty() || rest == ".d..t...... ./\n", "{rest}");
    is_clean(&at("two"));
}

#[test]
fn the_same_input_makes_the_same_image_byte_for_byte() {
    require!(Need::Root, Need::Tool("mount"), Need::Tool("setpriv"), Need::Tool("taskset"));
    let dir = scratch_dir();
    let tmpfs = dir.path().join("tmpfs");
    fs::create_dir(&tmpfs).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&tmpfs).status().unwrap();
    assert!(mounted.success());
    let _mount = Unmounted(&tmpfs);
    let trees = [dir.path().join("tree"), tmpfs.join("tree")];
    for (tree, reverse) in trees.iter().zip([false, true]) {
        many_files(tree, reverse);
        make_tree(&tree.join("other"));
    }
    let images = [dir.path().join("image"), tmpfs.join("image")];
    let options = ["--subvol", "ro:dir1", "--subvol", "default:other/sub", "--label", "name"];
    for more in [
        &[][..],
        &["--shrink", "--compress", "zstd:5"],
        &["--uuid", "6f70e1a2-97b6-4c2d-8d6e-3cb21dc3b6d4", "--csum", "xxhash64"],
    ] {
        for (number, (tree, image)) in trees.iter().zip(&images).enumerate() {
            let _ = fs::remove_file(image);
            let (tree, image) = (text(tree), text(image));
            let command = [&["mkfs", "--rootdir", &tree][..], &options, more, &[&image]].concat();
            // With one processor, and with all of them.
            let output = if number == 0 {
                let own = env!("CARGO_BIN_EXE_ubtrfs");
                let mut one = Command::new("taskset");
                one.args(["-c", "0", own]).args(&command).env("SOURCE_DATE_EPOCH", EPOCH).output().unwrap()
            } else {
                reproducibly(&command)
            };
            success(&output);
        }
        let same = Command::new("cmp").args(&images).output().unwrap();
        assert!(same.status.success(), "{more:?}: {}", String::from_utf8_lossy(&same.stdout));
        is_clean(&text(&images[0]));
    }
    // The result does not depend on the user, or on the previous contents.
    let first = text(&images[0]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let others = tmpfs.join("others");
    fs::create_dir(&others).unwrap();
    std::os::unix::fs::chown(&others, Some(1000), Some(1000)).unwrap();
    fs::set_permissions(&others, fs::Permissions::from_mode(0o777)).unwrap();
    let plain = tmpfs.join("plain");
    many_files(&plain, false);
    let build =
        |image: &str| ["mkfs", "-f", "--rootdir", plain.to_str().unwrap(), "--shrink", image].map(str::to_owned);
    let noise: Vec<u8> = (0..300_u64 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    fs::write(&first, noise).unwrap();
    for _ in 0..2 {
        success(&reproducibly(&build(&first).each_ref().map(String::as_str)));
    }
    let copy = tmpfs.join("ubtrfs");
    crate::copy_program(&copy);
    let second = text(&others.join("image"));
    let mut user = Command::new("setpriv");
    user.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(&copy).args(build(&second));
    success(&user.env("SOURCE_DATE_EPOCH", EPOCH).output().unwrap());
    let same = Command::new("cmp").args([&first, &second]).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    let _ = fs::remove_file(&first);
    success(&reproducibly(&["mkfs", "--rootdir", &text(&trees[0]), &first]));
    // Another input results in another id.
    let before = fs::read(&images[0]).unwrap()[65568..65584].to_vec();
    fs::write(trees[0].join("dir1/file1"), "other").unwrap();
    fs::remove_file(&images[0]).unwrap();
    success(&reproducibly(&["mkfs", "--rootdir", &text(&trees[0]), &text(&images[0])]));
    assert_ne!(fs::read(&images[0]).unwrap()[65568..65584], before);
    let image = text(&images[1]);
    fails(&reproducibly(&["mkfs", "-f", "--rootdir", "-", &image]), 1, "give --uuid");
    // The same applies to two archives with one order of entries.
    let archive = text(&dir.path().join("tar"));
    let sorted = ["--sort=name", "--mtime=@5", "--pax-option=delete=atime,delete=ctime", "--format=posix", "-cf"];
    let tar = Command::new("tar").args(sorted).args([&archive, "-C", &text(&trees[1]), "."]).status().unwrap();
    assert!(tar.success());
    for image in &images {
        fs::remove_file(image).unwrap();
        success(&reproducibly(&["mkfs", "--rootdir", &archive, "--shrink", &text(image)]));
    }
    assert!(Command::new("cmp").args(&images).status().unwrap().success());
}

/// Unmounts a directory at the end.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn directories_become_subvolumes() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    make_tree(&tree);
    fs::create_dir_all(tree.join("home/user")).unwrap();
    fs::hard_link(tree.join("small"), tree.join("home/user/small")).unwrap();
    let subvolumes = ["-u", "default:sub", "-u", "ro:home", "--subvol", "home/user"];
    let (tree_path, image_path) = (text(&tree), text(&image));
    let command = [&["mkfs", "--rootdir", &tree_path][..], &subvolumes, &[&image_path]].concat();
    success(&ubtrfs(&command));
    is_clean(&image_path);
    {
        let mount = KernelMount::new(&[&image], "subvolid=5");
        let ino = |name: &str| fs::metadata(mount.path().join(name)).unwrap().ino();
        assert_eq!([ino("sub"), ino("home"), ino("home/user")], [256; 3]);
        assert_eq!(fs::read(mount.path().join("home/user/small")).unwrap(), fs::read(tree.join("small")).unwrap());
        assert!(fs::write(mount.path().join("home/new"), "").is_err());
        fs::write(mount.path().join("home/user/new"), "").unwrap();
    }
    let mount = KernelMount::new(&[&image], "ro");
    assert!(mount.path().join("deep/second").exists());
    drop(mount);
    let missing = [&["mkfs", "-f", "--rootdir", &tree_path, "-u", "none"][..], &[&image_path]].concat();
    fails(&ubtrfs(&missing), 1, "none is no directory");
    // The error was found before anything was changed.
    is_clean(&image_path);
    let twice = [&["mkfs", "-f", "--rootdir", &tree_path, "-u", "sub", "-u", "ro:sub"][..], &[&image_path]].concat();
    fails(&ubtrfs(&twice), 1, "twice");
}

#[test]
fn files_get_the_flags_of_their_paths() {
    require!(Need::Kernel, Need::Tool("lsattr"));
    let dir = scratch_dir();
    let (tree, archive) = (dir.path().join("tree"), dir.path().join("tar"));
    make_tree(&tree);
    fs::create_dir_all(tree.join("db/deep")).unwrap();
    for name in ["db/one", "db/deep/two", "plain", "sums"] {
        fs::write(tree.join(name), vec![7; 50_000]).unwrap();
    }
    // The archive has no entries for directories.
    let files = ["db/one", "db/deep/two", "plain", "sums", "small"];
    let tar = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).args(files).status().unwrap();
    assert!(tar.success());
    let options =
        ["--inode-flags", "nodatacow:/db", "--inode-flags", "nodatasum:sums", "--compress", "zstd", "--dedupe"];
    for (from, more) in [(&tree, &[][..]), (&tree, &["-u", "db"]), (&archive, &[])] {
        let images = ["first", "second"].map(|name| text(&dir.path().join(name)));
        for image in &images {
            let _ = fs::remove_file(image);
            let command = [&["mkfs", "--rootdir", from.to_str().unwrap(), image][..], &options, more].concat();
            success(&reproducibly(&command));
        }
        let same = Command::new("cmp").args(&images).output().unwrap();
        assert!(same.status.success(), "{more:?}: {}", String::from_utf8_lossy(&same.stdout));
        let image = Path::new(&images[0]);
        is_clean(&images[0]);
        let check = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(image).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
        let items = Command::new("btrfs").args(["inspect-internal", "dump-tree"]).arg(image).output().unwrap();
        let items = String::from_utf8_lossy(&items.stdout);
        assert_eq!(items.matches("(NODATASUM)").count(), 1, "sums");
        // One file, and one in the directory below it: these directories hand the flag down to new
        // files.
        assert_eq!(items.matches("(NODATASUM|NODATACOW)").count(), 2);
        let mount = KernelMount::new(&[image], "");
        fs::write(mount.path().join("db/deep/new"), "new").unwrap();
        let flags = |name: &str| {
            let output = Command::new("lsattr").arg("-d").arg(mount.path().join(name)).output().unwrap();
            String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        for name in ["db", "db/one", "db/deep", "db/deep/two", "db/deep/new"] {
            assert!(flags(name).contains('C'), "{name}: {}", flags(name));
        }
        assert!(!flags("plain").contains('C'));
        for name in files {
            assert!(fs::read(mount.path().join(name)).unwrap() == fs::read(tree.join(name)).unwrap(), "{name}");
        }
    }
    let image = text(&dir.path().join("first"));
    let tree = text(&tree);
    fails(&ubtrfs(&["mkfs", "-f", "--rootdir", &tree, "--inode-flags", "nodatacow:none", &image]), 1, "none is not in");
    let unknown = ubtrfs(&["mkfs", "-f", "--rootdir", &tree, "--inode-flags", "nodump:db", &image]);
    assert_eq!(unknown.status.code(), Some(2));
    is_clean(&image);
}

#[test]
fn what_is_behind_a_shrunk_volume_stays_but_for_its_own_superblocks() {
    let dir = scratch_dir();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    make_tree(&tree);
    let (len, behind, copy) = (600 << 20, 500 << 20, (1 << 20) + SUPERBLOCK_COPIES[1].0);
    let file = fs::File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(b"another volume", behind).unwrap();
    let (tree, image) = (text(&tree), text(&image));
    let place = ["mkfs", "--offset", "1M", "--size", "400M", &image];
    success(&ubtrfs(&place));
    let read = |at: u64| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    assert_ne!(read(copy), [0; SUPERBLOCK_SIZE]);
    success(&ubtrfs(&[&place[..], &["-f", "--rootdir", &tree, "--shrink"]].concat()));
    assert_eq!(file.metadata().unwrap().len(), len);
    assert!(read(behind).starts_with(b"another volume"));
    // A copy there would be taken for a better state of the volume than a lost primary superblock.
    assert_eq!(read(copy), [0; SUPERBLOCK_SIZE]);
    assert!(success(&ubtrfs(&["check", "--offset", "1M", &image])).contains("no fault found"));
}

#[test]
fn a_volume_that_can_not_be_filled_is_not_left_behind() {
    let dir = scratch_dir();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let noise: Vec<u8> = (0..200_u64 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    fs::write(tree.join("large"), noise).unwrap();
    fails(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), "--size", "150M", &text(&image)]), 1, "larger --size");
    assert!(!image.exists());
    fails(&ubtrfs(&["mkfs", "--rootdir", &text(&dir.path().join("none")), &text(&image)]), 1, "No such file");
    fails(
        &with_input(&["mkfs", "--rootdir", "-", "--size", "200M", &text(&image)], b"no archive"),
        1,
        "standard input",
    );
    fails(&with_input(&["mkfs", "--rootdir", "-", &text(&image)], b""), 1, "--size SIZE makes it");
    assert!(!image.exists());
    // The file existed before; no volume is left in it.
    fs::File::create(&image).unwrap().set_len(150 << 20).unwrap();
    fails(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), &text(&image)]), 1, "larger --size");
    fails(&ubtrfs(&["info", &text(&image)]), 1, "");
    // An image can't be made of a directory that contains it, either.
    fails(&ubtrfs(&["mkfs", "--rootdir", &text(dir.path()), &text(&image)]), 1, "make it elsewhere");
}

#[test]
fn a_compressed_volume_is_smaller_and_holds_the_same() {
    require!(Need::Kernel, Need::Tool("rsync"));
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    fs::write(tree.join("text"), "all work and no play makes jack a dull boy. ".repeat(200_000)).unwrap();
    let used = |image: &Path| {
        let info = success(&ubtrfs(&["info", "--json", &text(image)]));
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["used_bytes"].as_u64().unwrap()
    };
    let plain = dir.path().join("plain");
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), &text(&plain)]));
    for algorithm in ["zlib:9", "lzo", "zstd", "zstd:-3"] {
        let image = dir.path().join(algorithm);
        success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), "--compress", algorithm, &text(&image)]));
        holds(&image, &tree);
        assert!(used(&image) + (7 << 20) < used(&plain), "{algorithm}: {} of {}", used(&image), used(&plain));
    }
    let wrong = ubtrfs(&["mkfs", "--rootdir", &text(&tree), "--compress", "lz4", &text(&plain)]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// Neither the old volume nor an empty or incomplete new one is left.
#[test]
fn what_is_killed_while_it_fills_a_volume_leaves_none() {
    let dir = scratch_dir();
    let (tree, image, archive) = (dir.path().join("tree"), text(&dir.path().join("image")), dir.path().join("tar"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("first"), "content").unwrap();
    fs::write(tree.join("second"), vec![1; 16 << 20]).unwrap();
    success(
        &Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).args(["first", "second"]).output().unwrap(),
    );
    let archive = fs::read(archive).unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        success(&ubtrfs(&["mkfs", "-f", "--size", "256M", "--label", "old", &image]));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.args(["mkfs", "-f", "--label", "new", "--rootdir", "-", &image]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // The command waits for more input.
        child.stdin.as_mut().unwrap().write_all(&archive[..8 << 20]).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        for command in ["info", "check", "label"] {
            let left = ubtrfs(&[command, &image]);
            assert!(!left.status.success(), "{signal:?}: {}", String::from_utf8_lossy(&left.stdout));
        }
    }
    success(&ubtrfs(&["mkfs", "-f", "--label", "new", "--rootdir", &text(&tree), &image]));
    assert_eq!(success(&ubtrfs(&["cat", &image, "first"])), "content");
    is_clean(&image);
}

/// The size of a volume is that of the data which it gets, and not the apparent size of the files.
#[test]
fn holes_and_further_names_count_nothing_in_the_size_of_a_volume() {
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("data"), vec![7; 10 << 20]).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(20 << 30).unwrap();
    sparse.write_all_at(b"x", 5 << 30).unwrap();
    for number in 0..100 {
        fs::hard_link(tree.join("data"), tree.join(format!("link{number}"))).unwrap();
    }
    let size = |arguments: &[&str]| {
        let image = dir.path().join("image");
        success(&ubtrfs(&[&["mkfs", "--rootdir", &text(&tree)], arguments, &[&text(&image)]].concat()));
        is_clean(&text(&image));
        let bytes = fs::metadata(&image).unwrap().len();
        fs::remove_file(image).unwrap();
        bytes
    };
    let (default, shrunk) = (size(&[]), size(&["--shrink"]));
    assert!(default < 640 << 20, "{default}");
    assert!(shrunk < 64 << 20, "{shrunk}");
}

#[test]
fn a_volume_that_is_not_made_takes_no_space_of_the_host() {
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("data"), vec![7; 200 << 20]).unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    fails(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), &text(&image)]), 1, "give a larger --size");
    let found = fs::metadata(&image).unwrap();
    assert_eq!((found.len(), found.blocks()), (128 << 20, 0));
}

/// This applies to every kind of input, and with any number of commits in between.
#[test]
fn a_volume_that_is_shrunk_is_little_larger_than_what_is_in_it() {
    let dir = scratch_dir();
    let (tree, tar) = (dir.path().join("tree"), dir.path().join("tree.tar"));
    for number in 0..12_000 {
        let at = tree.join(format!("{:02}", number % 97));
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join(format!("{number:05}")), vec![number as u8; number % 4000]).unwrap();
    }
    run("tar", &["-cf", &text(&tar), "-C", &text(&tree), "."]);
    let archive = fs::read(&tar).unwrap();
    for from in [text(&tree), text(&tar), "-".to_owned()] {
        let image = text(&dir.path().join("image"));
        let make = ["mkfs", "--memory", "16M", "--shrink", "--rootdir", &from, &image];
        success(&if from == "-" { with_input(&make, &archive) } else { ubtrfs(&make) });
        is_clean(&image);
        let shown = success(&ubtrfs(&["filesystem", "usage", "--json", &image]));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let groups = shown["groups"].as_array().unwrap();
        let copies = |group: &serde_json::Value| if group["profile"] == "DUP" { 2 } else { 1 };
        let bytes = |group: &serde_json::Value| group["total_bytes"].as_u64().unwrap() * copies(group);
        let (size, allocated) = (fs::metadata(&image).unwrap().len(), groups.iter().map(bytes).sum::<u64>());
        assert!(size - allocated <= 24 << 20, "{from}: {size}, of which {allocated} are allocated");
        fs::remove_file(image).unwrap();
    }
}
