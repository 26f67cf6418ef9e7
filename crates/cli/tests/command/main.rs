//! Tests of the command without a mount: its output, and its exit status.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod archive_forms;
mod archives;
mod archives_beside_tar;
mod archives_of_others;
mod archives_with_rights;
mod bad_input;
mod beside_coreutils;
mod closed_output;
mod completions;
mod composefs;
mod dedupe;
mod deep_trees;
mod demo;
mod diff;
mod dumps;
mod editing;
mod first_hour;
mod fixtures;
mod history;
mod host_files;
mod image_builders;
mod image_reports;
mod json_outputs;
mod layers_beside_umoci;
mod layers_hide_by_names;
mod making;
mod manual;
mod missing_devices;
mod oci_images;
mod oci_layouts;
mod package;
mod partitions;
mod path_syntax;
mod remedies;
mod repair;
mod rescue;
mod restore;
mod rootdir;
mod selection;
mod stand_in;
mod subvolumes;
mod trees_of_others;
mod unprivileged;
mod walks;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `ubtrfs` to its end.
fn ubtrfs<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Returns the standard output of a run that succeeded without a complaint.
#[track_caller]
fn success(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{:?}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that a run failed with this exit status and one sentence that contains `words`.
#[track_caller]
fn fails(output: &Output, status: i32, words: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("ubtrfs: ") && error.contains(words), "{error}");
    for noise in ["Error {", "Some(", "os error", "panicked"] {
        assert!(!error.contains(noise), "{error}");
    }
}

/// Copies the program to a place where all users may run it. Another process does that: processes
/// that other tests start would inherit a descriptor of ours that is open for writing, and the copy
/// would be busy (`ETXTBSY`).
fn copy_program(to: impl AsRef<Path>) {
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_ubtrfs")).arg(to.as_ref()).status();
    assert!(copied.unwrap().success());
}

/// Makes a new volume in `dir`, and returns its path.
fn new_volume(dir: &Path) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--size", "128M", &image]));
    image
}

/// Returns when a file was last written to.
fn changed(image: impl AsRef<Path>) -> std::time::SystemTime {
    std::fs::metadata(image).unwrap().modified().unwrap()
}
