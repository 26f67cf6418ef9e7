//! `mkfs.btrfs` and `btrfs check` of btrfs-progs, and `ubtrfs check`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::need::ubtrfs_binary;
use crate::run::{Outcome, command, run};

/// Makes a sparse image file of `size` bytes at `path`, with a file system made by `mkfs.btrfs
/// OPTIONS`.
pub fn mkfs_btrfs(path: &Path, size: u64, options: &[&str]) {
    blank_image(path, size);
    mkfs_btrfs_on(&[path], options);
}

/// Makes a file system by `mkfs.btrfs OPTIONS` on existing images.
pub fn mkfs_btrfs_on(images: &[impl AsRef<Path>], options: &[&str]) {
    let images = || images.iter().map(AsRef::as_ref);
    undisturbed(|| run(command("mkfs.btrfs", &["-q", "-f"]).args(options).args(images()))).ok();
}

/// Runs a program of btrfs-progs again if concurrent tests disturbed it: it looks at the devices of
/// all mounts, or scans all loop devices, and fails if a device of another test disappears
/// meanwhile; after one that can't be read it may find no further devices of the volume.
fn undisturbed(program: impl Fn() -> Outcome) -> Outcome {
    const DISTURBED: [&str; 3] = ["cannot check mount status", "could not check mount status", "cannot scan "];
    let mut tries = 20;
    loop {
        let outcome = program();
        tries -= 1;
        if tries == 0 || !DISTURBED.iter().any(|words| outcome.stderr.contains(words)) {
            return outcome;
        }
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
}

/// Makes an empty sparse file of `size` bytes at `path`.
pub fn blank_image(path: &Path, size: u64) {
    File::create(path)
        .and_then(|file| file.set_len(size))
        .unwrap_or_else(|error| panic!("make {}: {error}", path.display()));
}

/// Runs `btrfs check` with all data checksums on an image that is not mounted.
pub fn btrfs_check(image: &Path) -> Outcome {
    undisturbed(|| run(command("btrfs", &["check", "--readonly", "--check-data-csum"]).arg(image)))
}

/// Fails the test with the output of `btrfs check` unless it found the image clean.
#[track_caller]
pub fn assert_btrfs_check_clean(image: &Path) {
    let outcome = btrfs_check(image);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    // Some findings do not reach the exit status of older checkers, but all of them are printed
    // with one of these words.
    let grumble = text.lines().find(|line| {
        let line = line.to_ascii_lowercase();
        // These lines are about other devices of the machine, among which the checker searches for
        // the volume's.
        if line.starts_with("error: cannot scan ") {
            return false;
        }
        ["error:", "warning:", "mismatch", "bad ", "corrupt", "missing"].iter().any(|word| line.contains(word))
    });
    assert!(outcome.success() && grumble.is_none(), "btrfs check is not content: {}", outcome.report());
}

/// Runs `ubtrfs check` on an image that is not mounted.
#[track_caller]
pub fn ubtrfs_check(image: &Path) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).arg("check").arg(image))
}

/// Fails the test with the output of `ubtrfs check` unless it found the image clean.
#[track_caller]
pub fn assert_ubtrfs_check_clean(image: &Path) {
    ubtrfs_check(image).ok();
}
