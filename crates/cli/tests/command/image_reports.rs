//! Tests the reports of commands that handle many files of an image, and their commits.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tar::EntryType;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::archive;
use crate::editing::{is_clean, listing, quiet, with_input};
use crate::rootdir::text;
use crate::{fails, new_volume, success, ubtrfs};

/// Returns what a command printed with `--json`.
#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&success(&ubtrfs(arguments))).unwrap()
}

#[test]
fn programs_learn_what_was_done() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("one"), vec![7; 100_000]).unwrap();
    fs::write(tree.join("sub/two"), vec![7; 100_000]).unwrap();
    fs::hard_link(tree.join("one"), tree.join("three")).unwrap();
    std::os::unix::fs::symlink("one", tree.join("link")).unwrap();
    let counts = |value: &Value| ["files", "directories", "bytes", "shared_bytes"].map(|key| value[key].as_u64());
    let is = |files, directories, bytes, shared| [Some(files), Some(directories), Some(bytes), Some(shared)];
    let (tree, there) = (text(&tree), format!("{image}:there"));
    let copied = json(&["cp", "-a", "--json", &tree, &there]);
    assert_eq!(counts(&copied), is(4, 2, 200_000, 0));
    let copied = counts(&json(&["cp", "-a", "--json", "--dedupe", &tree, &format!("{image}:shared")]));
    assert!(copied[3] >= Some(100_000), "{copied:?}");
    let within = json(&["cp", "-a", "--json", &there, &format!("{image}:again")]);
    assert_eq!(counts(&within), is(4, 2, 200_000, 200_000));
    let out = json(&["cp", "-a", "--json", &there, &text(&dir.path().join("out"))]);
    assert_eq!(counts(&out), is(4, 2, 200_000, 0));
    let exported = ubtrfs(&["export", "--json", &there]);
    assert!(exported.status.success());
    let said: Value = serde_json::from_slice(&exported.stderr).unwrap();
    assert_eq!(counts(&said), is(4, 2, 200_000, 0));
    let imported = with_input(&["import", "--json", &format!("{image}:imported")], &exported.stdout);
    let imported: Value = serde_json::from_str(&success(&imported)).unwrap();
    assert_eq!(counts(&imported), is(4, 2, 200_000, 0));
    let script = format!("cp -a {tree} :scripted\nrm -r :scripted/sub\n");
    let applied = with_input(&["apply", "--json", &image, "-"], script.as_bytes());
    assert_eq!(counts(&serde_json::from_str(&success(&applied)).unwrap()), is(4, 2, 200_000, 0));
    let made = text(&dir.path().join("made"));
    let filled = json(&["mkfs", "--json", "--rootdir", &tree, &made]);
    assert_eq!(counts(&filled["filled_with"]), is(4, 2, 200_000, 0));
    assert_eq!(filled["device"], made.as_str());
    assert_eq!(filled["bytes"].as_u64(), Some(fs::metadata(&made).unwrap().len()));
    let info = json(&["info", "--json", &made]);
    assert!(info.to_string().contains(filled["id"].as_str().unwrap()), "{info}");
    let empty = json(&["mkfs", "--json", "-f", &made]);
    assert!(empty.get("filled_with").is_none());
    is_clean(&image);
}

#[test]
fn progress_is_for_terminals_alone() {
    require!(Need::Tool("script"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..500 {
        fs::write(tree.join(number.to_string()), [1; 100]).unwrap();
    }
    quiet(&["cp", "-r", &text(&tree), &format!("{image}:silent")]);
    let line = format!("{} cp -r {} {image}:shown", env!("CARGO_BIN_EXE_ubtrfs"), text(&tree));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    let output = script.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains(" files, "), "{shown}");
}

#[test]
fn with_commits_in_between_a_failure_keeps_what_was_committed() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let megabyte: Vec<u8> = (0..1_u64 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let names: Vec<String> = (0..8).map(|number| format!("dir/file{number}")).collect();
    let directory = ("dir", EntryType::Directory, "", &b""[..]);
    let files = names.iter().map(|name| (name.as_str(), EntryType::Regular, "", &megabyte[..]));
    let bad = ("../out", EntryType::Regular, "", &b""[..]);
    let whole = archive(&[directory].into_iter().chain(files.clone()).collect::<Vec<_>>());
    let broken = archive(&[directory].into_iter().chain(files).chain([bad]).collect::<Vec<_>>());
    let before = listing(&image);
    fails(&with_input(&["import", &image], &broken), 1, "'..' in its path");
    assert_eq!(listing(&image), before);
    let every = ["import", "--commit-every", "3M", &image];
    fails(&with_input(&every, &broken), 1, "'..' in its path; the image has what was committed before");
    // Three at a time, each of which is complete.
    let shown = success(&ubtrfs(&["ls", &image, "dir"]));
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["file0", "file1", "file2", "file3", "file4", "file5"]);
    for name in &names[..6] {
        assert!(ubtrfs(&["cat", &image, name]).stdout == megabyte, "{name}");
    }
    is_clean(&image);
    success(&with_input(&every, &whole));
    assert_eq!(success(&ubtrfs(&["ls", &image, "dir"])).lines().count(), 8);
    is_clean(&image);
    // With commits in between, files that are replaced don't need space twice.
    for number in 0..30 {
        fs::write(dir.path().join(format!("big{number}")), &megabyte).unwrap();
    }
    let bigs: Vec<String> = (0..30).map(|number| text(&dir.path().join(format!("big{number}")))).collect();
    let copy = |options: &[&str]| {
        let place = format!("{image}:");
        let all: Vec<&str> = options.iter().copied().chain(bigs.iter().map(String::as_str)).chain([&*place]).collect();
        ubtrfs(&[&["cp"], &all[..]].concat())
    };
    success(&copy(&[]));
    fails(&copy(&["-a"]), 1, "No space left on device; the image is as it was");
    success(&copy(&["-a", "--commit-every", "5M"]));
    is_clean(&image);
    // The same in a script.
    let script = format!("cp {} :x\nmkdir :done\ncp {} :y\nrm :none\n", bigs[0], bigs[1]);
    let applied = with_input(&["apply", "--commit-every", "1M", &image, "-"], script.as_bytes());
    fails(&applied, 1, "line 4 of -: ");
    assert!(success(&ubtrfs(&["ls", &image, "/"])).contains("\nx\n"));
    fails(&with_input(&["apply", &image, "-"], b"cp --json /etc/passwd :z\n"), 1, "options of apply");
    for option in ["--compress zstd", "--memory 32M"] {
        let line = format!("cp {option} /etc/passwd :z\n");
        fails(&with_input(&["apply", &image, "-"], line.as_bytes()), 1, "options of apply");
        let words = ["cp"].into_iter().chain(option.split(' '));
        let outside = words.map(str::to_owned).chain([format!("{image}:x"), text(dir.path())]).collect::<Vec<_>>();
        fails(&ubtrfs(&outside), 2, "is for files that are copied into an image");
    }
    let outside = ["cp", "--commit-every", "1M", &format!("{image}:x"), &text(dir.path())];
    fails(&ubtrfs(&outside), 2, "--commit-every is for files that are copied into an image");
}
