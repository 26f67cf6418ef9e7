//! Tests the Debian package: the files that `make install` installs, by the list in `Cargo.toml`,
//! are unpacked into an empty directory and used from there. cargo-deb takes minutes to build, so
//! only `make deb` uses it; here dpkg-deb packs the files of the list.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

/// The directory in which the list expects the files of `make install`.
const STAGE: &str = "target/release/package/";

/// Returns `[package.metadata.deb]` of this crate, and its version.
fn metadata() -> (Value, String) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let line = ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path", manifest];
    let all: Value = serde_json::from_str(&run(&mut command(&cargo, &line)).ok().stdout).unwrap();
    let packages = all["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["name"] == "ubtrfs-cli").unwrap();
    (own["metadata"]["deb"].clone(), own["version"].as_str().unwrap().to_owned())
}

/// Returns the files of a directory and all directories below it.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let below = entries.map(|entry| {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() { files(&path) } else { vec![path] }
    });
    below.flatten().collect()
}

/// Returns the files that the source of an asset names: one, or all of a directory.
fn sources(source: &str, stage: &Path) -> Vec<PathBuf> {
    let path = match source.strip_prefix(STAGE) {
        Some(staged) => stage.join(staged),
        None if source == "target/release/ubtrfs" => stage.join("usr/bin/ubtrfs"),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(source),
    };
    if path.ends_with("*") { files(path.parent().unwrap()) } else { vec![path] }
}

/// Adds a file to the package, as cargo-deb does.
fn add(source: &Path, directory: &Path, mode: &str) {
    fs::create_dir_all(directory).unwrap();
    let target = directory.join(source.file_name().unwrap());
    run(command("cp", &["-P"]).args([source, &target])).ok();
    if !target.is_symlink() {
        fs::set_permissions(&target, fs::Permissions::from_mode(u32::from_str_radix(mode, 8).unwrap())).unwrap();
    }
}

#[test]
fn a_package_has_all_that_is_installed_and_works_from_where_it_is_unpacked() {
    require!(Need::Tool("dpkg-deb"), Need::Tool("make"));
    let dir = scratch_dir();
    let [stage, tree, package] = ["stage", "tree", "ubtrfs.deb"].map(|name| dir.path().join(name));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/deb.sh");
    run(Command::new(&script).args(["stage", env!("CARGO_BIN_EXE_ubtrfs")]).arg(&stage)).ok();

    let (deb, version) = metadata();
    let mut left: BTreeSet<PathBuf> = files(&stage).into_iter().collect();
    for asset in deb["assets"].as_array().unwrap() {
        let [source, directory, mode] = [0, 1, 2].map(|at: usize| asset[at].as_str().unwrap());
        for file in sources(source, &stage) {
            add(&file, &tree.join(directory), mode);
            left.remove(&file);
        }
    }
    assert!(left.is_empty(), "installed, and not in the package: {left:?}");
    let licence = deb["license-file"][0].as_str().unwrap();
    add(&Path::new(env!("CARGO_MANIFEST_DIR")).join(licence), &tree.join("usr/share/doc/ubtrfs"), "644");

    let architecture = run(&mut command("dpkg", &["--print-architecture"])).ok().stdout;
    let field = |name: &str| deb[name].as_str().unwrap();
    let control = format!(
        "Package: {}\nVersion: {version}-1\nArchitecture: {}\nMaintainer: {}\nDepends: {}\nDescription: a test\n",
        field("name"),
        architecture.trim(),
        field("maintainer"),
        field("depends").trim_start_matches("$auto, "),
    );
    fs::create_dir(tree.join("DEBIAN")).unwrap();
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    run(command("dpkg-deb", &["--root-owner-group", "-Znone", "--build"]).args([&tree, &package])).ok();

    run(Command::new(&script).arg("check").arg(&package).env("TMPDIR", dir.path())).ok();
}
