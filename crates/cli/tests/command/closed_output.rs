//! Commands do the same, with the same exit status, whether or not their output is read.

use std::fs::{self, File};
use std::io::{PipeWriter, pipe};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ubtrfs_damage::Image;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{ItemType, Key, TreeId};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::success;

/// A command that prints nothing.
const SILENT: &str = "diff image:/base image:/base";

/// Commands, each with its exit status, and with that if its output can't be written. What they
/// change is one of a few: all of it is compared.
const CALLS: [(&str, i32, i32); 22] = [
    ("subvolume create image:/x image:/y image:/z", 0, 1),
    ("subvolume delete image:/a image:/b image:/c", 0, 1),
    ("subvolume delete image:/none image:/a image:/b", 1, 1),
    ("subvolume snapshot image:/a image:/s", 0, 1),
    ("filesystem du image:/none image:/base", 1, 1),
    ("filesystem du --json image:/none image:/base", 1, 1),
    ("device add new1 new2 image", 0, 1),
    ("device remove two3 none two1 --device two2 --device two3", 1, 1),
    ("device stats -c worn", 64, 64),
    ("merge image:/base image:/changed image:/target", 1, 2),
    ("diff image:/base image:/changed", 1, 2),
    ("diff --json image:/base image:/changed", 1, 2),
    (SILENT, 0, 0),
    ("scrub start damaged", 3, 3),
    ("check damaged", 1, 2),
    ("restore -v damaged out", 1, 1),
    ("restore --json damaged out", 1, 1),
    ("mkfs --size 128M made", 0, 1),
    ("tree image", 0, 1),
    ("ls -R image:/", 0, 1),
    ("cat image:/base/f", 0, 1),
    ("export image:/base", 0, 1),
];

fn run(dir: &Path, line: &str, output: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    command.args(line.split(' ')).current_dir(dir).stdin(Stdio::null()).stdout(output).output().unwrap()
}

fn closed_pipe() -> PipeWriter {
    let (_, writer) = pipe().unwrap();
    writer
}

/// Makes the volumes that the commands are given.
fn prepare(dir: &Path) {
    let done = |line: &str| success(&run(dir, line, Stdio::piped()));
    fs::write(dir.join("content"), b"content of a file".repeat(1000)).unwrap();
    for (name, text) in [("one", "one"), ("other", "other")] {
        fs::write(dir.join(name), text).unwrap();
    }
    done("mkfs --size 128M image");
    done("subvolume create image:/a image:/b image:/c image:/base");
    done("cp content image:/base/f");
    done("subvolume snapshot image:/base image:/changed");
    done("subvolume snapshot image:/base image:/target");
    done("cp one image:/changed/f");
    done("cp other image:/target/f");
    done("mkfs --size 64M two1 two2 two3");
    done("mkfs --size 128M damaged");
    done("cp content damaged:/f");
    let image = Image::open(&dir.join("damaged"));
    image.flip_all(image.chunks().iter().find(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap().0);
    done("mkfs --size 128M worn");
    let is_counter = |key: &Key, _: &[u8]| key.item_type == ItemType::PERSISTENT_ITEM;
    Image::open(&dir.join("worn")).edit(TreeId::DEV, is_counter, |_, counters| counters.fill(1));
    for name in ["new1", "new2"] {
        File::create(dir.join(name)).unwrap().set_len(64 << 20).unwrap();
    }
}

/// Describes the volumes after a command, and what it has made.
fn state(dir: &Path) -> String {
    let names = |of: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(of).into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (here, out) = (names(dir), names(&dir.join("out")));
    let shown = |line: &str| String::from_utf8(run(dir, line, Stdio::piped()).stdout).unwrap();
    let devices = |name: &str| {
        let info = if dir.join(name).exists() { shown(&format!("info {name}")) } else { String::new() };
        info.lines().filter(|line| line.starts_with("device ")).count()
    };
    let count = devices("image");
    let list = if count == 1 { shown("ls -aR image:/") + &shown("cat image:/target/f") } else { String::new() };
    format!("{here:?} {out:?} {count} {} {list}", devices("two1"))
}

#[test]
fn a_closed_or_full_output_changes_neither_the_work_nor_the_result() {
    let dir = scratch_dir();
    let (fresh, at) = (dir.path().join("fresh"), dir.path().join("run"));
    fs::create_dir(&fresh).unwrap();
    prepare(&fresh);
    let mut wrong = Vec::new();
    for (line, status, unwritten) in CALLS {
        let outcome = |output: Stdio| {
            fs::create_dir(&at).unwrap();
            let is_named = |name: &&str| line.contains(name);
            let needed = ["image", "new1", "new2", "two1", "two2", "two3", "damaged", "worn"].iter().copied();
            let needed = needed.filter(is_named).map(|name| fresh.join(name));
            let copied =
                Command::new("cp").arg("--sparse=always").args(needed).arg(fresh.join("content")).arg(&at).status();
            assert!(copied.unwrap().success());
            let output = run(&at, line, output);
            let state = state(&at);
            fs::remove_dir_all(&at).unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap(), state)
        };
        let usual = outcome(Stdio::piped());
        let closed = outcome(closed_pipe().into());
        let full = outcome(File::options().write(true).open("/dev/full").unwrap().into());
        if usual.0 != Some(status) || closed != usual {
            wrong.push(format!("{line}: {usual:?}, with a closed output {closed:?}"));
        }
        let is_reported = full.1.contains("No space left on device");
        if full.0 != Some(unwritten) || full.2 != usual.2 || is_reported != (line != SILENT) {
            wrong.push(format!("{line}: {usual:?}, with a full output {full:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_restore_goes_on_if_nobody_reads_its_reports() {
    let dir = scratch_dir();
    prepare(dir.path());
    let mut restore = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    restore.args(["restore", "damaged", "out"]).current_dir(dir.path()).stdin(Stdio::null());
    let status = restore.stdout(closed_pipe()).stderr(closed_pipe()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(dir.path().join("out/f").exists());
}
