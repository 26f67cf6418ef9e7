//! Tests of the program under the name of mkfs.btrfs: its options, its output, and volumes that
//! equal those of mkfs.btrfs 7.3, which made the volumes of `tests/fixtures/mkfs`.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ubtrfs_testkit::dumps::{items, superblock};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::{success, ubtrfs};

/// The program under the name of mkfs.btrfs.
struct StandIn(tempfile::TempDir);

impl StandIn {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_ubtrfs"), dir.path().join("mkfs.btrfs")).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes an empty image with this name.
    fn image(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path
    }

    fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Output {
        let mut command = Command::new(self.path("mkfs.btrfs"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).output().unwrap()
    }
}

fn unpack(from: &Path, to: &Path) {
    let unpacked = Command::new("zstd").args(["-q", "-d", "-f", "--sparse", "-o"]).arg(to).arg(from).status().unwrap();
    assert!(unpacked.success());
}

/// Returns what ubtrfs writes in place of an item of mkfs.btrfs 7.3 that means nothing, or is
/// wrong; docs/format.md lists the differences.
fn as_meant(item: &str) -> String {
    if item.contains(" QGROUP_LIMIT ") {
        // The values are uninitialised memory.
        return "QUOTA_TREE: limit".to_owned();
    }
    if item.contains("(QUOTA_TREE ROOT_ITEM 0)") || item.contains(": QUOTA_TREE ROOT_ITEM") {
        // The reference count of the tree is 0.
        return item.replace("bytes_used 0 ", "bytes_used 16384 ").replace("refs 0", "refs 1");
    }
    // The first chunk of the temporary volume with which mkfs.btrfs begins.
    item.replace(
        "io_align 4096 io_width 4096 sector_size 4096 num_stripes 1 sub_stripes 0",
        "io_align 65536 io_width 65536 sector_size 4096 num_stripes 1 sub_stripes 1",
    )
    .replace("num_stripes 1 sub_stripes 0", "num_stripes 1 sub_stripes 1")
}

/// The warning of mkfs.btrfs if it turns the feature off only because another one is missing.
const NO_BLOCK_GROUP_TREE: &str =
    "WARNING: disabling block-group-tree feature due to missing no-holes and free-space-tree features\n";

/// Returns the text on the standard error stream of a call that makes a volume.
#[track_caller]
fn says(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.into_owned()
}

#[test]
fn volumes_equal_those_of_mkfs_btrfs() {
    require!(Need::Tool("btrfs"), Need::Tool("zstd"));
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/mkfs");
    let cases = std::fs::read_to_string(fixtures.join("cases")).unwrap();
    let stand_in = StandIn::new();
    let mut tried = 0;
    for case in cases.lines() {
        let mut fields = case.split('|');
        let mut field = || fields.next().unwrap_or_default();
        let (name, options, sizes) = (field(), field(), field());
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (number, mib) in (1..).zip(sizes.split(' ')) {
            ours.push(stand_in.image(&format!("ours.{number}"), mib.parse().unwrap()));
            let image = stand_in.path(&format!("theirs.{number}"));
            unpack(&fixtures.join(format!("{name}.{number}.img.zst")), &image);
            theirs.push(image);
        }
        let words = options.split(' ').filter(|word| !word.is_empty()).map(Into::into);
        let arguments: Vec<PathBuf> = ["-q".into()].into_iter().chain(words).chain(ours.iter().cloned()).collect();
        let output = stand_in.run(&arguments);
        let said = if name == "no-fst" { NO_BLOCK_GROUP_TREE } else { "" };
        assert_eq!((says(&output), output.stdout.is_empty()), (said.to_owned(), true), "{name}");
        let (our_items, their_items) = (items(&ours), items(&theirs));
        if name == "squota" && their_items.is_empty() {
            // Dump programs before 6.7 don't know simple quotas; in crates/mkfs the kernel mounts
            // such volumes.
            continue;
        }
        assert!(our_items.len() > 30, "{name}: the dump was not understood: {our_items:?}");
        let theirs_as_meant: Vec<String> = their_items.iter().map(|item| as_meant(item)).collect();
        let ours_as_meant: Vec<String> = our_items.iter().map(|item| as_meant(item)).collect();
        let only = |a: &[String], b: &[String]| a.iter().filter(|item| !b.contains(item)).cloned().collect::<Vec<_>>();
        assert_eq!(only(&ours_as_meant, &theirs_as_meant), only(&theirs_as_meant, &ours_as_meant), "{name}");
        let count = |items: &[String]| items.iter().filter(|item| item.contains("tree block")).count();
        assert_eq!(count(&ours_as_meant), count(&theirs_as_meant), "{name}");
        assert_eq!(superblock(&ours), superblock(&theirs), "{name}");
        for path in ours.iter().chain(&theirs) {
            std::fs::remove_file(path).unwrap();
        }
        tried += 1;
    }
    assert!(tried > 30, "{tried}");
}

/// Returns the value after a label of the summary, as scripts extract it.
fn value<'a>(summary: &'a str, label: &str) -> &'a str {
    let line = summary.lines().find(|line| line.trim_start().starts_with(label));
    line.unwrap_or_else(|| panic!("no {label} in {summary}")).trim_start()[label.len()..].trim()
}

#[test]
fn the_summary_has_the_lines_that_scripts_look_for() {
    let stand_in = StandIn::new();
    stand_in.image("a", 300);
    let uuid = "11111111-2222-3333-4444-555555555555";
    let device = "11111111-2222-3333-4444-666666666666";
    let summary = success(&stand_in.run(&["-L", "name", "-U", uuid, "--device-uuid", device, "a"]));
    for (label, expected) in [
        ("Label:", "name"),
        ("UUID:", uuid),
        ("Device UUID:", device),
        ("Node size:", "16384"),
        ("Filesystem size:", "300.00MiB"),
        ("Metadata:", "DUP              32.00MiB"),
        ("Data:", "single            8.00MiB"),
        ("System:", "DUP               8.00MiB"),
        ("Features:", "extref, skinny-metadata, no-holes, free-space-tree, block-group-tree"),
        ("Checksum:", "crc32c"),
        ("Number of devices:", "1"),
    ] {
        assert_eq!(value(&summary, label), expected, "{summary}");
    }
    let last = summary.trim_end().lines().last().unwrap();
    assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["1", "300.00MiB", "a"]);
    assert_eq!(success(&stand_in.run(&["-q", "-f", "a"])), "");
    let version = success(&stand_in.run(&["--version"]));
    assert!(version.starts_with("mkfs.btrfs") && version.contains("btrfs-progs v7.3"), "{version}");
    let listed = success(&stand_in.run(&["-O", "list-all"]));
    for feature in ["mixed-bg", "quota", "extref", "free-space-tree", "block-group-tree", "squota", "bgt"] {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(feature)), "{listed}");
    }
    assert_eq!(success(&ubtrfs(&["mkfs", "-O", "list-all"])), listed);
}

/// Makes a tree with directories and files, and an image beside it.
fn with_tree() -> StandIn {
    let stand_in = StandIn::new();
    for dir in ["etc", "home", "srv/data", "usr"] {
        std::fs::create_dir_all(stand_in.path("tree").join(dir)).unwrap();
    }
    std::fs::write(stand_in.path("tree/etc/file"), "content").unwrap();
    std::fs::write(stand_in.path("tree/usr/large"), vec![b'x'; 300_000]).unwrap();
    stand_in.image("a", 300);
    stand_in
}

#[test]
fn the_summary_says_what_the_volume_is_filled_with() {
    let stand_in = with_tree();
    symlink("tree", stand_in.path("link")).unwrap();
    let from = stand_in.path("tree").canonicalize().unwrap().display().to_string();
    let summary = success(&stand_in.run(&[
        "--rootdir=./link",
        "--compress=zlib:9",
        "--inode-flags=nodatacow:.",
        "-uusr",
        "-u./etc/",
        "-uro:home/",
        "-udefault:srv",
        "--inode-flags=nodatacow,nodatasum:etc/file",
        "--inode-flags=nodatasum:/srv",
        "a",
    ]));
    let lines: Vec<&str> = summary.lines().skip_while(|line| !line.starts_with("Rootdir")).collect();
    let expected = [
        format!("Rootdir from:       {from}"),
        "  Compress:         zlib:9".to_owned(),
        "  Subvolume (rw):   usr".to_owned(),
        "  Subvolume (rw):   ./etc/".to_owned(),
        "  Subvolume (ro):   home/".to_owned(),
        "  Subvolume (drw):  srv".to_owned(),
        "  Inode flags (NODATACOW):  .".to_owned(),
        "  Inode flags (NODATACOW):  etc/file".to_owned(),
        "  Inode flags (NODATASUM):  /srv".to_owned(),
        "  Shrink:           no".to_owned(),
    ];
    assert_eq!(lines[..expected.len()], expected.each_ref().map(String::as_str), "{summary}");
    let summary = success(&stand_in.run(&["-f", "-r", "tree", "-u", "default-ro:usr", "a"]));
    assert_eq!((value(&summary, "Compress:"), value(&summary, "Subvolume (dro):")), ("no", "usr"));
    for (given, shown) in [("zstd", "zstd"), ("zstd:", "zstd:3"), ("lzo:1", "lzo:1")] {
        let summary = success(&stand_in.run(&["-f", "-r", "tree", "--compress", given, "a"]));
        assert_eq!(value(&summary, "Compress:"), shown);
        success(&ubtrfs(&["check", stand_in.path("a").to_str().unwrap()]));
    }
}

#[test]
fn a_tree_of_block_groups_that_is_not_made_is_warned_of() {
    let stand_in = StandIn::new();
    stand_in.image("a", 300);
    let words = NO_BLOCK_GROUP_TREE;
    for (features, said) in [("^fst", words), ("^no-holes", words), ("^fst,^bgt", ""), ("^bgt", ""), ("fst", "")] {
        let output = stand_in.run(&["-q", "-f", "-O", features, "a"]);
        assert_eq!((says(&output), output.stdout.is_empty()), (said.to_owned(), true), "{features}");
    }
}

#[test]
fn paths_in_options_may_begin_with_a_dot_and_end_with_a_slash() {
    let stand_in = with_tree();
    let image = stand_in.path("a").display().to_string();
    let listed = |options: &[&str]| {
        success(&stand_in.run(&[&["-q", "-f", "--root", "tree"], options, &["a"]].concat()));
        (
            success(&ubtrfs(&["subvolume", "list", &image])),
            success(&ubtrfs(&["stat", &image, "/etc/file"])).contains("0x3"),
        )
    };
    let (subvolumes, has_flag) = listed(&["-u", "./etc/", "-u", "ro:./srv/./data/"]);
    assert!(subvolumes.contains("etc") && subvolumes.contains("srv/data") && !has_flag, "{subvolumes}");
    for path in [".", "./", "/", "./etc/", "etc", "/etc/file"] {
        assert!(listed(&["--inode-flags", &format!("nodatacow:{path}")]).1, "{path}");
    }
    assert!(!listed(&["--inode-flags", "nodatacow:./srv/"]).1);
}

#[test]
fn a_byte_count_of_nothing_is_none() {
    let stand_in = with_tree();
    for options in [&["-b", "0"][..], &["-b", "200M", "-b0"], &["--byte", "0", "-r", "tree"]] {
        let summary = success(&stand_in.run(&[&["-f"], options, &["a"]].concat()));
        assert_eq!(value(&summary, "Filesystem size:"), "300.00MiB");
        assert_eq!(std::fs::metadata(stand_in.path("a")).unwrap().len(), 300 << 20);
    }
}

#[test]
fn mixed_groups_have_the_profiles_that_mkfs_btrfs_gives_them() {
    let stand_in = StandIn::new();
    let image = stand_in.image("a", 300);
    for options in
        [&["-d", "dup"][..], &["-m", "dup"], &["-d", "single", "-m", "dup"], &["-O", "mixed-bg", "-d", "dup"]]
    {
        refused(&stand_in.run(&[&["-M"], options, &["a"]].concat()), "the same profile for data and metadata");
    }
    assert_eq!(std::fs::metadata(&image).unwrap().blocks(), 0, "nothing was written");
    for (options, profile) in [
        (&["-d", "dup", "-m", "dup"][..], "DUP"),
        (&[], "single"),
        (&["-d", "single"], "single"),
        (&["-m", "single"], "single"),
    ] {
        let summary = success(&stand_in.run(&[&["-f", "-M"], options, &["a"]].concat()));
        assert!(value(&summary, "Data+Metadata:").starts_with(profile), "{summary}");
    }
    // With ubtrfs mkfs the profile that is not given is that of the other.
    success(&ubtrfs(&["mkfs", "-q", "-f", "-M", "-d", "dup", image.to_str().unwrap()]));
}

#[test]
fn options_are_taken_as_getopt_long_takes_them() {
    let stand_in = StandIn::new();
    stand_in.image("a", 300);
    // The options are abbreviated, repeated (the last one counts), joined, and after the device.
    success(&stand_in.run(&["a", "-qKf", "--lab", "first", "-Lsecond", "--nodes=4k", "-n8k", "-vv"]));
    let info: serde_json::Value =
        serde_json::from_str(&success(&ubtrfs(&["info", "--json", stand_in.path("a").to_str().unwrap()]))).unwrap();
    assert_eq!((&info["label"], &info["node_size"]), (&"second".into(), &8192.into()));
}

#[track_caller]
fn refused(output: &Output, words: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(words), "{error}");
}

#[test]
fn what_is_refused_says_why_and_leaves_the_image() {
    let stand_in = StandIn::new();
    let image = stand_in.image("a", 300);
    for (arguments, words) in [
        (&["-O", "zoned"][..], "ERROR: -O zoned: ubtrfs does not write to zoned devices"),
        (&["-O", "raid-stripe-tree"], "does not write RAID stripe trees"),
        (&["-O", "bogus"], "unknown feature 'bogus'"),
        (&["-d", "raid5"], "ubtrfs writes no parity"),
        (&["-d", "raid1"], "raid1 needs at least 2 devices"),
        (&["-O", "bgt,^no-holes"], "a block-group tree needs"),
        (&["-s", "1k"], "sector size 1024 is impossible"),
        (&["-s", "64k", "-n", "16k"], "less than the sector size of 65536"),
        (&["-b", "400M"], "has only 314572800 bytes"),
        (&["--reflink", "--rootdir", "."], "--reflink: ubtrfs copies"),
        (&["--nonesuch"], "--nonesuch"),
        (&["--csum", "md5"], "unknown checksum algorithm"),
    ] {
        refused(&stand_in.run(&[arguments, &["a"]].concat()), words);
    }
    refused(&stand_in.run::<&str>(&[]), "DEVICE");
    assert_eq!(std::fs::metadata(&image).unwrap().blocks(), 0, "nothing was written");
    success(&stand_in.run(&["-q", "a"]));
    refused(&stand_in.run(&["a"]), "ERROR: a holds a btrfs: -f overwrites it");
}

#[test]
fn a_size_that_no_file_can_have_leaves_the_volume_that_is_there() {
    let stand_in = StandIn::new();
    let image = stand_in.image("a", 300);
    let huge = 7 << 60;
    if std::fs::File::options().write(true).open(&image).unwrap().set_len(huge).is_ok() {
        // This file system allows files of that size.
        return;
    }
    success(&stand_in.run(&["-q", "-L", "old", "a"]));
    std::fs::create_dir(stand_in.path("tree")).unwrap();
    refused(&stand_in.run(&["-f", "-b", &huge.to_string(), "-r", "tree", "a"]), "large");
    assert_eq!(success(&ubtrfs(&["label", image.to_str().unwrap()])).trim(), "old");
}

#[test]
fn a_byte_count_leaves_a_larger_image_as_large_as_it_is() {
    let stand_in = StandIn::new();
    let image = stand_in.image("a", 500);
    let summary = success(&stand_in.run(&["-b", "300M", "a"]));
    assert_eq!(value(&summary, "Filesystem size:"), "300.00MiB");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 500 << 20);
    success(&ubtrfs(&["check", image.to_str().unwrap()]));
    // A filled volume can be made in a file that is too small, or does not exist.
    std::fs::create_dir(stand_in.path("tree")).unwrap();
    std::fs::write(stand_in.path("tree/file"), "content").unwrap();
    for name in ["a", "new"] {
        success(&stand_in.run(&["-q", "-f", "-b", "600M", "--rootdir", "tree", name]));
        assert_eq!(std::fs::metadata(stand_in.path(name)).unwrap().len(), 600 << 20);
        assert_eq!(success(&ubtrfs(&["cat", stand_in.path(name).to_str().unwrap(), "/file"])), "content");
    }
    // Image builders do the same with a temporary file, which is empty.
    stand_in.image("empty", 0);
    for arguments in [&["-q", "-r", "tree", "empty"][..], &["-q", "-f", "-r", "tree", "empty", "--shrink"]] {
        success(&stand_in.run(arguments));
        assert_eq!(success(&ubtrfs(&["cat", stand_in.path("empty").to_str().unwrap(), "/file"])), "content");
    }
    // With --shrink the file ends with the volume, whatever size was requested.
    stand_in.image("larger", 500);
    let summary = success(&stand_in.run(&["-b", "300M", "--shrink", "--rootdir", "tree", "larger"]));
    let info = success(&ubtrfs(&["info", "--json", stand_in.path("larger").to_str().unwrap()]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let bytes = std::fs::metadata(stand_in.path("larger")).unwrap().len();
    assert!(bytes < 100 << 20 && info["total_bytes"] == bytes, "{bytes}: {summary}");
    success(&stand_in.run(&["-q", "-f", "--shrink", "--compress", "no", "--rootdir", "tree", "a"]));
    assert!(std::fs::metadata(&image).unwrap().len() < 100 << 20);
    success(&ubtrfs(&["check", image.to_str().unwrap()]));
}

#[test]
fn what_is_behind_the_volume_on_a_block_device_stays() {
    require!(Need::Kernel);
    let stand_in = StandIn::new();
    let image = stand_in.image("disk", 600);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0x5a; 4096], 500 << 20).unwrap();
    file.write_all_at(&[0x5a; 4096], 5 << 20).unwrap();
    drop(file);
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&image).output().unwrap();
    let device = success(&attached).trim().to_owned();
    let byte_at = |mib: u64| {
        let mut byte = [0];
        File::open(&image).unwrap().read_exact_at(&mut byte, mib << 20).unwrap();
        byte[0]
    };
    let made = [
        stand_in.run(&["-q", "-b", "200M", &device]),
        ubtrfs(&["mkfs", "-q", "-f", "--offset", "204800k", "--size", "200M", &device]),
    ];
    let seen = (byte_at(500), byte_at(5));
    assert!(Command::new("losetup").args(["-d", &device]).status().unwrap().success());
    for made in &made {
        success(made);
    }
    assert_eq!(seen, (0x5a, 0), "what the volume takes is discarded, and nothing else");
}

#[test]
fn the_directory_may_be_named_by_a_link() {
    let stand_in = StandIn::new();
    std::fs::create_dir(stand_in.path("tree")).unwrap();
    std::fs::write(stand_in.path("tree/file"), "content").unwrap();
    symlink("tree", stand_in.path("link")).unwrap();
    let image = stand_in.path("image").display().to_string();
    for options in [&[][..], &["-x"]] {
        success(&stand_in.run(&[&["-q", "-f", "-r", "link", "image"], options].concat()));
        assert_eq!(success(&ubtrfs(&["cat", &image, "/file"])), "content");
    }
}
