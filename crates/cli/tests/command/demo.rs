//! Tests that `make demo` reports what is missing before it builds anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

/// Writes a program into a directory that executes a line of shell.
fn program(directory: &Path, name: &str, line: &str) {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the demo with these programs first in the path, and returns its complaint. The demo fails,
/// and never calls cargo, which would print `built`.
fn complaint(path: &str) -> String {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/demo.sh");
    let outcome = run(command("bash", &[demo]).env("PATH", path));
    assert!(outcome.code() == Some(1) && !outcome.report().contains("built"), "{}", outcome.report());
    outcome.stderr
}

#[test]
fn demo_names_the_rust_that_it_needs_when_cargo_is_missing_or_old() {
    require!(Need::Tool("bash"));
    let needed =
        format!("ubtrfs needs Rust {} or newer; get it from https://rustup.rs", env!("CARGO_PKG_RUST_VERSION"));
    let programs = scratch_dir();
    let path = format!("{}:/usr/bin:/bin", programs.path().display());
    if !["/usr/bin/cargo", "/bin/cargo"].iter().any(|file| Path::new(file).exists()) {
        assert!(complaint(&path).contains(&format!("cargo is missing. {needed}")));
    }
    program(programs.path(), "cargo", "echo built");
    program(programs.path(), "rustc", "echo 'rustc 1.85.1 (4eb161250 2025-03-15)'");
    assert!(complaint(&path).contains(&format!("rustc is too old: 1.85.1. {needed}")));
}
