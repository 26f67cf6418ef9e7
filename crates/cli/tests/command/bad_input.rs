//! Tests with devices that do not hold what they should: commands print a sentence and return an
//! exit status, whatever the contents are.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;
use ubtrfs_random::Rng;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{changed, fails, new_volume, success, ubtrfs};

/// Returns all commands that read a device, with the exit status when they can't.
fn readers(image: &str) -> [(Vec<&str>, i32); 8] {
    [
        (vec!["check", image], 2),
        (vec!["info", image], 1),
        (vec!["tree", image], 1),
        (vec!["ls", image, "/"], 1),
        (vec!["stat", image, "/"], 1),
        (vec!["cat", image, "/x"], 1),
        (vec!["history", image], 1),
        (vec!["history", image, "/x"], 1),
    ]
}

#[test]
fn no_btrfs_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for size in [0, 4096, 100 << 20] {
        File::create(&image).unwrap().set_len(size).unwrap();
        for (arguments, status) in readers(image.to_str().unwrap()) {
            let words = if status == 2 { "superblock" } else { "no btrfs" };
            fails(&ubtrfs(&arguments), status, words);
        }
        let mount = ["mount", image.to_str().unwrap(), dir.path().to_str().unwrap()];
        fails(&ubtrfs(&mount), 1, "no btrfs");
    }
}

#[test]
fn what_is_there_instead_of_btrfs_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let contents: [(u64, &[u8], &str); 9] = [
        (0, b"\x1f\x8b\x08", "gzip -d"),
        (0, b"\x28\xb5\x2f\xfd", "zstd -d"),
        (0, b"QFI\xfb", "qcow2: 'qemu-img convert -O raw'"),
        (0, b"KDMV", "VMDK: 'qemu-img convert -O raw'"),
        (64, b"\x7f\x10\xda\xbe", "VDI: 'qemu-img convert -O raw'"),
        (510, &[0x55, 0xaa], "MBR partition table; name the device of a partition, or where it begins with --offset;"),
        (512, b"EFI PART", "the GPT's header has an impossible size; name where a partition begins with --offset"),
        (0, b"XFSB", "instead: XFS"),
        (0, b"LUKS\xba\xbe", "cryptsetup open"),
    ];
    for (at, magic, words) in contents {
        let file = File::create(&image).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(magic, at).unwrap();
        fails(&ubtrfs(&["info", image.to_str().unwrap()]), 1, words);
        fails(&ubtrfs(&["ls", image.to_str().unwrap(), "/"]), 1, words);
        // A mount gives the same advice in terms of its options.
        let words = &words.replace("--offset", "-o offset=");
        let mount = ["mount", image.to_str().unwrap(), dir.path().to_str().unwrap()];
        fails(&ubtrfs(&mount), 1, words);
        // The start of the image does not describe a part that begins elsewhere.
        let part = ubtrfs(&["ls", "--offset", "64K", image.to_str().unwrap(), "/"]);
        fails(&part, 1, "no btrfs found");
        assert!(!String::from_utf8_lossy(&part.stderr).contains(words));
        let part = ubtrfs(&["mount", "-o", "offset=64K", image.to_str().unwrap(), dir.path().to_str().unwrap()]);
        fails(&part, 1, "no btrfs found");
        assert!(!String::from_utf8_lossy(&part.stderr).contains(words));
    }
}

#[test]
fn files_of_other_types_are_reported_as_no_devices() {
    for (arguments, status) in readers("/dev/null") {
        fails(&ubtrfs(&arguments), status, "neither a block device nor an image file");
    }
    for (arguments, status) in readers("/does/not/exist") {
        fails(&ubtrfs(&arguments), status, "No such file or directory");
    }
}

#[test]
fn a_truncated_image_is_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    OpenOptions::new().write(true).open(&image).unwrap().set_len(100 << 20).unwrap();
    let point = dir.path().to_str().unwrap();
    fails(&ubtrfs(&["mount", &image, point]), 1, "truncated");
    let check = ubtrfs(&["check", &image]);
    assert_eq!(check.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&check.stdout).contains("fault: "));
    // What remains can be read.
    success(&ubtrfs(&["ls", &image, "/"]));
}

/// Returns the offsets on the device of the copies of the block at this address. The dump lists the
/// stripes of every chunk.
fn places(image: &str, block: u64) -> Vec<u64> {
    let dump = success(&ubtrfs(&["tree", image, "--tree", "chunk"]));
    for line in dump.lines().filter(|line| line.contains("CHUNK_ITEM")) {
        let number = |after: &str| -> u64 {
            let rest = &line[line.find(after).unwrap() + after.len()..];
            rest.trim_start().split([' ', ')', ':']).next().unwrap().parse().unwrap()
        };
        let (start, length) = (number("CHUNK_ITEM"), number("length"));
        if (start..start + length).contains(&block) {
            let stripes = line.split("device 1 at ").skip(1);
            return stripes.map(|at| at.trim_end_matches(", ").parse::<u64>().unwrap() + block - start).collect();
        }
    }
    panic!("no chunk has {block}:\n{dump}");
}

#[test]
fn one_bad_copy_is_made_up_for_and_two_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let dump = success(&ubtrfs(&["tree", &image, "--tree", "fs"]));
    let block = dump.split("root at ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let places = places(&image, block);
    assert_eq!(places.len(), 2);
    let device = OpenOptions::new().write(true).open(&image).unwrap();
    device.write_all_at(&[0xff; 4096], places[0]).unwrap();
    success(&ubtrfs(&["stat", &image, "/"]));
    assert_eq!(ubtrfs(&["check", &image]).status.code(), Some(1));
    device.write_all_at(&[0xff; 4096], places[1] + 4096).unwrap();
    for command in ["ls", "stat", "cat"] {
        fails(&ubtrfs(&[command, &image, "/x"]), 1, "");
    }
    // Everything on such a mount would return errors.
    let point = dir.path().to_str().unwrap();
    for options in ["rw", "ro"] {
        let refused = ubtrfs(&["mount", "-o", options, &image, point]);
        fails(&refused, 1, "cannot be read");
        fails(&refused, 1, "'ubtrfs restore' copies what can be read");
    }
    assert_eq!(ubtrfs(&["tree", &image]).status.code(), Some(1));
    assert_eq!(ubtrfs(&["check", &image]).status.code(), Some(1));
    success(&ubtrfs(&["info", &image]));
}

#[test]
fn a_held_image_is_said_to_be_held() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let holder = File::open(&image).unwrap();
    rustix::fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    fails(&ubtrfs(&["check", &image]), 2, "in use by another program");
    fails(&ubtrfs(&["ls", &image, "/"]), 1, "in use by another program");
    fails(&ubtrfs(&["mkfs", "-f", &image]), 1, "in use by another program");
    fails(&ubtrfs(&["mount", &image, dir.path().to_str().unwrap()]), 1, "in use by another program");
    // Commands that only look at the volume work.
    success(&ubtrfs(&["info", &image]));
}

#[test]
fn a_mount_that_cannot_be_is_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let point = dir.path().to_str().unwrap();
    fails(&ubtrfs(&["mount", &image, "/does/not/exist"]), 1, "mount point /does/not/exist does not exist");
    fails(&ubtrfs(&["mount", "-f", &image, "/does/not/exist"]), 1, "mount point /does/not/exist does not exist");
    fails(&ubtrfs(&["mount", &image, &image]), 1, "not a directory");
    fails(&ubtrfs(&["mount", "-o", "ro,compres=zstd", &image, point]), 1, "unknown mount option 'compres=zstd'");
    fails(&ubtrfs(&["mount", "-o", "subvol=/nowhere", &image, point]), 1, "no subvolume at '/nowhere'");
    fails(&ubtrfs(&["mount", "-o", "subvolid=999", &image, point]), 1, "no subvolume with the id 999");
    fails(&ubtrfs(&["umount", point]), 1, "nothing is mounted");
    fails(&ubtrfs(&["umount", "/proc"]), 1, "not ubtrfs");
    fails(&ubtrfs(&["sync", point]), 1, "not on a volume that ubtrfs has mounted");
    fails(&ubtrfs(&["stats", "/does/not/exist"]), 1, "no such file or directory");
}

#[test]
fn a_closed_output_pipe_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_ubtrfs"))
        .args(["tree", &image])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

/// With any damaged bytes the command returns one of its exit statuses without a panic, and nothing
/// is written.
#[test]
fn damaged_volumes_are_survived() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let dump = success(&ubtrfs(&["tree", &image]));
    let blocks: Vec<u64> = dump
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("leaf ")?.split(' ').next()?.parse().ok())
        .flat_map(|block| places(&image, block))
        .chain([64 << 10])
        .collect();
    let mut rng = Rng::new(7);
    for _ in 0..16 {
        let device = OpenOptions::new().read(true).write(true).open(&image).unwrap();
        let mut undo = Vec::new();
        for _ in 0..4 {
            let at = blocks[rng.index(blocks.len())] + rng.below(600);
            let mut old = [0; 3];
            device.read_exact_at(&mut old, at).unwrap();
            undo.push((at, old));
            device.write_all_at(&[rng.below(256) as u8; 3], at).unwrap();
        }
        let damaged = changed(&image);
        for (arguments, _) in readers(&image) {
            let output = ubtrfs(&arguments);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0..=2)), "{arguments:?}: {:?} {error}", output.status);
            assert!(!error.contains("panicked"), "{error}");
        }
        assert_eq!(changed(&image), damaged, "a reader has written");
        for (at, old) in undo.into_iter().rev() {
            device.write_all_at(&old, at).unwrap();
        }
    }
}

/// Memory is bounded, whatever the input is.
#[test]
fn a_script_without_an_end_is_refused() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    fails(&ubtrfs(&["apply", &image, "/dev/zero"]), 1, "a script has at most 64 MiB");
    let zeros = fs::File::open("/dev/zero").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    fails(&command.args(["apply", &image, "-"]).stdin(zeros).output().unwrap(), 1, "a script has at most 64 MiB");
}

#[test]
fn a_file_with_a_slash_behind_it_is_no_directory() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    success(&ubtrfs(&["mkdir", &format!("{image}:dir")]));
    success(&ubtrfs(&["cp", "/etc/passwd", &format!("{image}:file")]));
    success(&ubtrfs(&["ln", "-s", "file", &format!("{image}:link")]));
    for command in ["ls", "stat", "cat"] {
        for path in ["file/", "file/.", "file/..", "link/", "link/."] {
            fails(&ubtrfs(&[command, &format!("{image}:/{path}")]), 1, "Not a directory");
        }
    }
    success(&ubtrfs(&["ls", &format!("{image}:/dir/")]));
    success(&ubtrfs(&["ls", &format!("{image}:/dir/./..")]));
}

#[test]
fn what_names_no_subvolume_is_said() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    success(&ubtrfs(&["subvolume", "create", &format!("{image}:sub")]));
    let (top, sub) = (format!("{image}:/"), format!("{image}:sub"));
    for (command, words) in [
        (&["set-default", "999", &image][..], "there is no such subvolume"),
        (&["delete", "--subvolid", "999", &image], "there is no such subvolume"),
        (&["delete", &image], "the top level of a volume can't be deleted"),
        (&["delete", &top], "the top level of a volume can't be deleted"),
        (&["reset", &top, &sub], "the top level of a volume can't be replaced"),
        (&["create", &image], "the name of a subvolume is missing"),
    ] {
        fails(&ubtrfs(&[&["subvolume"], command].concat()), 1, words);
    }
}

/// An ioctl of btrfs that other file systems know, too, or none at all, must not make a command
/// succeed there.
#[test]
fn other_file_systems_are_left_alone() {
    require!(Need::Kernel, Need::Tool("mkfs.ext4"), Need::Tool("e2label"));
    let dir = scratch_dir();
    let script = r#"
        cd "$1"
        truncate -s 64M ext4; mkfs.ext4 -q -L theirs ext4; mkdir mnt; mount -o loop ext4 mnt
        trap 'umount mnt' EXIT
        mkfifo mnt/fifo; : >mnt/empty
        for words in "label mnt" "label mnt ours" "filesystem du mnt/fifo" "defragment mnt/fifo" "defragment -r mnt" \
            "filesystem du mnt/empty"; do
            if "$2" $words >out 2>&1; then echo "succeeds: $words"; fi
            grep -q 'btrfs\|neither a regular file' out || { echo "$words"; cat out; }
        done
        umount mnt; trap - EXIT
        e2label ext4
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", &dir.path().display().to_string(), env!("CARGO_BIN_EXE_ubtrfs")]);
    assert_eq!(success(&command.output().unwrap()), "theirs\n");
}
