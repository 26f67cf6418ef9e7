//! Tests with very deep trees: the memory of a walk grows with the depth, and not with its square.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tar::EntryType;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::archive;
use crate::editing::is_clean;
use crate::{new_volume, success};

/// How many directories are nested.
const DEPTH: usize = 10_000;

/// Kilobytes of memory that a command may map. A path for each directory would take more.
const MAX: &str = "400000";

/// Runs `ubtrfs` with that limit of memory.
fn within_memory(arguments: &[&str]) -> Output {
    let limited = format!("ulimit -v {MAX}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    // How much allocators map in advance depends on the number of processors.
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_ubtrfs")]).args(arguments).env("MALLOC_ARENA_MAX", "1");
    command.output().unwrap()
}

/// Removes a tree of the host that may be too deep for the paths of the standard library.
fn remove(path: &Path) {
    assert!(Command::new("rm").arg("-rf").arg(path).status().unwrap().success());
}

#[test]
fn a_walk_takes_memory_by_the_depth_of_a_tree() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    let path = format!("{}file", "d/".repeat(DEPTH));
    let tar = dir.path().join("deep.tar");
    let entries: [(_, _, _, &[u8]); 2] =
        [("././@LongLink", EntryType::GNULongName, "", path.as_bytes()), ("file", EntryType::Regular, "", b"content")];
    fs::write(&tar, archive(&entries)).unwrap();
    let tar = tar.to_str().unwrap();
    let out = dir.path().join("out");
    let walks: [&[&str]; 9] = [
        &["import", &image, tar],
        &["chmod", "-R", "u=rwX,go=", &at("d")],
        &["chown", "-R", "0:0", &at("d")],
        &["cp", "-a", &at("d"), &at("copy")],
        &["cp", "-r", &at("d"), out.to_str().unwrap()],
        &["rm", "-r", &at("d")],
        &["cp", "-r", out.to_str().unwrap(), &at("again")],
        &["rm", "-r", &at("copy")],
        &["filesystem", "defragment", "-r", &at("again")],
    ];
    for walk in walks {
        assert_eq!(success(&within_memory(walk)), "", "{walk:?}");
    }
    let filled = dir.path().join("filled");
    success(&within_memory(&["mkfs", "--rootdir", out.to_str().unwrap(), "--shrink", filled.to_str().unwrap()]));
    is_clean(filled.to_str().unwrap());
    remove(&out);
    is_clean(&image);
    let restored = dir.path().join("restored");
    let said = within_memory(&["restore", &image, restored.to_str().unwrap()]);
    let (counts, ok) = (String::from_utf8_lossy(&said.stdout), said.status.success());
    assert!(ok && counts.contains(&format!("{} directories, 1 files", DEPTH + 1)), "{said:?}");
    remove(&restored);
    let left = success(&within_memory(&["filesystem", "du", "-s", &at("again")]));
    assert!(left.lines().count() == 2, "{left}");
}
