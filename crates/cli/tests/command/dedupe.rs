//! Tests that data of several files of an image is stored once (`--dedupe`).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::run;
use crate::editing::{quiet, with_input};
use crate::rootdir::{holds, reproducibly, text};
use crate::{fails, new_volume, success, ubtrfs};

/// Makes files of many sizes. Their data can be compressed, and no two blocks are equal.
fn files(at: &Path) {
    fs::create_dir_all(at.join("dir")).unwrap();
    for (number, len) in [100, 3000, 4096, 5000, 60_000, 131_072, 700_001, 3_000_000, 5 << 20].iter().enumerate() {
        let line = |at: usize| format!("line {at} of the file {number}, which is like the others\n");
        let content: String = (0..=len / 40).map(line).collect();
        fs::write(at.join(format!("dir/file{number}")), &content.as_bytes()[..*len]).unwrap();
    }
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&vec![9; 200_000], 5 << 20).unwrap();
}

/// Makes a tree that contains the files twice.
fn twice(at: &Path) {
    for copy in ["one", "two"] {
        files(&at.join(copy));
    }
}

fn used(image: &Path) -> u64 {
    let info = success(&ubtrfs(&["info", "--json", &text(image)]));
    serde_json::from_str::<serde_json::Value>(&info).unwrap()["used_bytes"].as_u64().unwrap()
}

#[test]
fn two_equal_trees_take_the_space_of_one_and_show_the_same_files() {
    require!(Need::Kernel, Need::Tool("rsync"));
    let dir = scratch_dir();
    let at = |name: &str| dir.path().join(name);
    twice(&at("tree"));
    for options in [&[][..], &["--compress", "zstd"]] {
        let make = |tree: &str, image: &str, more: &[&str]| {
            let (tree, image) = (text(&at(tree)), text(&at(image)));
            success(&ubtrfs(&[&["mkfs", "-f", "--rootdir", &tree, &image], options, more].concat()));
        };
        make("tree/one", "single", &[]);
        make("tree", "both", &[]);
        make("tree", "shared", &["--dedupe"]);
        let [single, both, shared] = ["single", "both", "shared"].map(|name| used(&at(name)));
        assert!(shared < single + (both - single) / 4, "{options:?}: {single} {shared} {both}");
        holds(&at("shared"), &at("tree"));
        // The kernel sees what is shared, and writes to one do not change the other.
        let mount = KernelMount::new(&[&at("shared")], "");
        let large = |copy: &str| mount.path().join(copy).join("dir/file8");
        let du = Command::new("btrfs").args(["filesystem", "du", "--raw", "-s"]).arg(mount.path()).output().unwrap();
        let du = String::from_utf8(du.stdout).unwrap();
        let numbers: Vec<u64> = du.lines().last().unwrap().split_whitespace().flat_map(str::parse).collect();
        assert!(numbers[1] < 16 << 10 && numbers[2] > 256 << 10, "exclusive, then shared: {du}");
        let before = fs::read(large("one")).unwrap();
        let file = fs::File::options().write(true).open(large("two")).unwrap();
        file.write_all_at(b"changed", 1 << 20).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(fs::read(large("one")).unwrap() == before);
        assert_eq!(mount.unmount(), Vec::<String>::new());
    }
}

#[test]
fn files_that_are_equal_in_part_share_that_part() {
    let dir = scratch_dir();
    let at = |name: &str| dir.path().join(name);
    files(&at("tree"));
    let first = fs::read(at("tree/dir/file8")).unwrap();
    let mut changed = first.clone();
    changed[1_000_000] ^= 1;
    fs::write(at("tree/dir/x-changed"), changed).unwrap();
    fs::write(at("tree/dir/x-moved"), [&vec![5; 128 << 10], &first[1 << 20..]].concat()).unwrap();
    fs::write(at("tree/dir/x-longer"), [&first[..], b"and more"].concat()).unwrap();
    fs::write(at("tree/dir/x-shorter"), &first[..first.len() - 5000]).unwrap();
    for options in [&[][..], &["--compress", "lzo"]] {
        let [plain, shared] = ["plain", "shared"].map(|name| text(&at(name)));
        let tree = text(&at("tree"));
        success(&ubtrfs(&[&["mkfs", "-f", "--rootdir", &tree, &plain], options].concat()));
        success(&ubtrfs(&[&["mkfs", "-f", "--rootdir", &tree, "--dedupe", &shared], options].concat()));
        let saved = used(&at("plain")) - used(&at("shared"));
        let least = if options.is_empty() { 18 << 20 } else { 2 << 20 };
        assert!(saved > least, "{options:?}: {saved}");
        if Need::Kernel.missing().is_none() {
            holds(&at("shared"), &at("tree"));
        }
    }
}

#[test]
fn shared_extents_are_reproducible_byte_for_byte() {
    require!(Need::Tool("taskset"));
    let dir = scratch_dir();
    let at = |name: &str| dir.path().join(name);
    twice(&at("tree"));
    for options in [&["--compress", "zstd"][..], &["--shrink", "-u", "two"]] {
        let make = |image: &str| {
            let (tree, image) = (text(&at("tree")), text(&at(image)));
            [&["mkfs", "-f", "--rootdir", &tree, "--dedupe", &image], options].concat().join("\n")
        };
        success(&reproducibly(&make("first").lines().collect::<Vec<_>>()));
        let mut one = Command::new("taskset");
        one.args(["-c", "0", env!("CARGO_BIN_EXE_ubtrfs")]).args(make("second").lines());
        success(&one.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap());
        let same = Command::new("cmp").args([at("first"), at("second")]).output().unwrap();
        assert!(same.status.success(), "{options:?}: {}", String::from_utf8_lossy(&same.stdout));
    }
}

#[test]
fn copies_and_archives_share_too() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    twice(&tree);
    let before = used(Path::new(&image));
    let one_tree = 10 << 20;
    quiet(&["cp", "-a", "--dedupe", &text(&tree), &format!("{image}:copied")]);
    assert!(used(Path::new(&image)) < before + one_tree);
    let archive = text(&dir.path().join("tar"));
    run("tar", &["-C", &text(&tree), "-cSf", &archive, "."]);
    quiet(&["import", "--dedupe", &format!("{image}:imported"), &archive]);
    assert!(used(Path::new(&image)) < before + 2 * one_tree);
    // The lines of a script share data with each other's files.
    let line = |to: &str| format!("cp -a --dedupe {} :{to}\n", text(&tree.join("one")));
    success(&with_input(&["apply", &image, "-"], (line("third") + &line("fourth")).as_bytes()));
    assert!(used(Path::new(&image)) < before + 3 * one_tree);
    for place in ["copied/one", "copied/two", "imported/two", "fourth"] {
        let file = ubtrfs(&["cat", &image, &format!("{place}/dir/file7")]).stdout;
        assert!(file == fs::read(tree.join("one/dir/file7")).unwrap(), "{place}");
    }
    crate::editing::is_clean(&image);
    fails(&ubtrfs(&["cp", "-r", "--dedupe", &format!("{image}:fourth"), &text(dir.path())]), 2, "into an image");
}

/// Files that were replaced in the same edit are removed, but not freed yet.
#[test]
fn data_of_files_that_were_replaced_are_not_shared() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..400_u32 {
        let words = (0..10_000_u32).flat_map(|word| (word * 7919 + number * 104_729).to_le_bytes());
        fs::write(tree.join(number.to_string()), words.collect::<Vec<u8>>()).unwrap();
    }
    let line = format!("cp -a --dedupe {} :/\n", text(&tree));
    success(&with_input(&["apply", "--memory", "16M", &image, "-"], line.repeat(2).as_bytes()));
    let file = ubtrfs(&["cat", &image, "tree/399"]).stdout;
    assert!(file == fs::read(tree.join("399")).unwrap());
    crate::editing::is_clean(&image);
}
