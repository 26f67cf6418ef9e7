//! Every command takes places in a volume as `IMAGE:PATH` and as `IMAGE PATH`, and options before,
//! between and behind its other arguments, with the same result.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::scratch::scratch_dir;

use crate::{success, ubtrfs};

/// A word that begins with this is a place in the image.
const PLACE: char = '@';

/// How a command is called.
#[derive(Clone, Copy)]
struct Call {
    /// Its name, with those of the commands above.
    name: &'static str,
    options: &'static [&'static str],
    words: &'static [&'static str],
    /// Why `IMAGE PATH` is not taken, though it names a place in a volume.
    only_with_colon: Option<&'static str>,
    /// It changes what is in the volume.
    changes: bool,
}

const fn call(name: &'static str, options: &'static [&'static str], words: &'static [&'static str]) -> Call {
    Call { name, options, words, only_with_colon: None, changes: false }
}

const fn change(name: &'static str, options: &'static [&'static str], words: &'static [&'static str]) -> Call {
    Call { changes: true, ..call(name, options, words) }
}

const fn only_with_colon(why: &'static str, call: Call) -> Call {
    Call { only_with_colon: Some(why), ..call }
}

/// All commands. Those that name no place in a volume are called for one that is not there.
const CALLS: &[Call] = &[
    call("subvolume list", &["-o", "-p"], &["@/dir"]),
    call("subvolume show", &["--json"], &["@/sub"]),
    call("subvolume find-new", &["--offset", "0"], &["@/sub", "0"]),
    call("property get", &["-t", "subvol"], &["@/old", "ro"]),
    call("filesystem du", &["-s"], &["@/dir", "@/file"]),
    call("history", &["--json"], &["@/file"]),
    call("ls", &["-l", "-a"], &["@/dir"]),
    call("stat", &["--nologreplay"], &["@/file"]),
    call("cat", &["--nologreplay"], &["@/file"]),
    call("diff", &["--stat"], &["@/old", "@/sub"]),
    call("merge", &["-n", "--json"], &["@/old", "@/sub", "@/other"]),
    call("export", &["--format", "composefs"], &["@/dir"]),
    only_with_colon("devices and a directory are named, too", call("restore", &["-n", "-v"], &["@/dir"])),
    change("subvolume create", &["--parents"], &["@/new/a", "@/b"]),
    change("subvolume snapshot", &["-r"], &["@/sub", "@/snap"]),
    change("subvolume delete", &["-c"], &["@/sub", "@/dir/inner"]),
    change("subvolume reset", &["--offset", "0"], &["@/sub", "@/old"]),
    change("subvolume set-default", &["--offset", "0"], &["@/sub"]),
    change("property set", &["-t", "subvol"], &["@/sub", "ro", "true"]),
    change("filesystem defragment", &["-r", "-v"], &["@/dir", "@/sub"]),
    change("mkdir", &["-p", "-m", "0700"], &["@/made/below", "@/dir"]),
    change("rm", &["-r"], &["@/dir/file", "@/file"]),
    change("mv", &["--offset", "0"], &["@/file", "@/dir/moved"]),
    change("ln", &["-f"], &["@/file", "@/dir/file"]),
    change("mknod", &["-m", "0600"], &["@/null", "c", "1", "3"]),
    change("chmod", &["-R"], &["-w", "@/dir", "@/file"]),
    change("chown", &["-R"], &["7:8", "@/dir", "@/file"]),
    change("setfattr", &["-n", "user.a", "-v", "b"], &["@/dir", "@/file"]),
    change("truncate", &["-s", "5k"], &["@/file", "@/dir/file"]),
    change("put", &["-m", "0600"], &["@/file"]),
    only_with_colon("files of the host may be named, too", change("cp", &["-r", "--json"], &["@/dir", "@/copied"])),
    only_with_colon("archives are named, too", change("import", &["--json"], &["@/dir", "/dev/null"])),
    call("apply", &["--json"], &["none", "script"]),
    call("balance start", &["-d"], &["none"]),
    call("balance status", &["--json"], &["none"]),
    call("balance pause", &["--offset", "0"], &["none"]),
    call("balance resume", &["--json"], &["none"]),
    call("balance cancel", &["--offset", "0"], &["none"]),
    call("check", &["--json"], &["none"]),
    call("device add", &["-f"], &["none", "other"]),
    call("device remove", &["--json"], &["1", "none"]),
    call("device stats", &["--json"], &["none"]),
    call("device usage", &["--json"], &["none"]),
    call("device replace start", &["-f"], &["1", "new", "none"]),
    call("device replace resume", &["--json"], &["none"]),
    call("device replace status", &["--json"], &["none"]),
    call("device replace cancel", &[], &["none"]),
    call("filesystem df", &["--json"], &["none"]),
    call("filesystem usage", &["--json"], &["none"]),
    call("filesystem resize", &["--json"], &["-1G", "none"]),
    call("info", &["--json"], &["none"]),
    call("label", &["--offset", "0"], &["none", "new"]),
    call("mkfs", &["--json"], &["none"]),
    call("mount", &["-o", "ro"], &["none", "nowhere"]),
    call("replace start", &["-f"], &["1", "new", "none"]),
    call("replace resume", &["--json"], &["none"]),
    call("replace status", &["--json"], &["none"]),
    call("replace cancel", &[], &["none"]),
    call("rescue zero-log", &["-y"], &["none"]),
    call("rescue super-recover", &["-y"], &["none"]),
    call("scrub start", &["-r"], &["none"]),
    call("scrub resume", &["-r"], &["none"]),
    call("scrub status", &["--json"], &["none"]),
    call("scrub cancel", &[], &["none"]),
    // What is behind the image is a command with its own options.
    call("shell", &[], &["none"]),
    call("stats", &["--json"], &["none"]),
    call("subvolume get-default", &["--offset", "0"], &["none"]),
    call("subvolume sync", &["-s", "1"], &["none", "300"]),
    call("sync", &[], &["none"]),
    call("tree", &["-t", "fs"], &["none"]),
    call("umount", &["--dead"], &["none"]),
];

/// The names of all commands that `--help` shows.
fn commands(above: &[&str]) -> Vec<String> {
    let help = success(&ubtrfs(&[above, &["--help"]].concat()));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> =
        listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    if names.is_empty() {
        return vec![above.join(" ")];
    }
    names.into_iter().flat_map(|name| commands(&[above, &[name]].concat())).collect()
}

/// A volume with files and subvolumes.
fn make(image: &str) {
    success(&ubtrfs(&["mkfs", "--size", "128M", image]));
    let at = |path: &str| format!("{image}:{path}");
    success(&ubtrfs(&["subvolume", "create", &at("/old")]));
    success(&ubtrfs(&["mkdir", &at("/dir")]));
    success(&ubtrfs(&["truncate", "-s", "100k", &at("/file"), &at("/dir/file"), &at("/old/file")]));
    success(&ubtrfs(&["subvolume", "create", &at("/dir/inner")]));
    success(&ubtrfs(&["subvolume", "snapshot", &at("/old"), &at("/sub")]));
    success(&ubtrfs(&["subvolume", "snapshot", &at("/old"), &at("/other")]));
    success(&ubtrfs(&["property", "set", &at("/old"), "ro", "true"]));
    success(&ubtrfs(&["mkdir", &at("/sub/added")]));
}

/// The words of a call with its places as `IMAGE:PATH`.
fn with_colons(call: &Call, image: &str) -> Vec<String> {
    let word = |word: &&str| word.strip_prefix(PLACE).map_or((*word).to_owned(), |path| format!("{image}:{path}"));
    call.words.iter().map(word).collect()
}

/// The same as `IMAGE PATH…`.
fn apart(call: &Call, image: &str) -> Vec<String> {
    let mut words = Vec::new();
    for word in call.words {
        if word.starts_with(PLACE) && words.iter().all(|word| word != image) {
            words.push(image.to_owned());
        }
        words.push(word.trim_start_matches(PLACE).to_owned());
    }
    words
}

/// What a call prints and how it ends, and what is in the image then.
fn result(call: &Call, original: &Path, image: &str, arguments: &[String]) -> (String, String, Option<i32>, String) {
    if call.changes {
        let copied = Command::new("cp").arg("--sparse=always").arg(original).arg(image).status().unwrap();
        assert!(copied.success());
    }
    let output = ubtrfs(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let listed = |what: &[&str]| if call.changes { success(&ubtrfs(what)) } else { String::new() };
    let listed = listed(&["subvolume", "list", "-r", image]) + &listed(&["ls", "-R", image, "/"]);
    (text(&output.stdout), text(&output.stderr), output.status.code(), listed)
}

#[test]
fn every_command_takes_both_forms_and_options_in_any_place() {
    let names = commands(&[]);
    let known: BTreeMap<_, _> = CALLS.iter().map(|call| (call.name, call)).collect();
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains_key(name.as_str())).collect();
    assert!(unknown.is_empty(), "commands without a call here: {unknown:?}");
    assert_eq!(known.len(), CALLS.len());
    for name in known.keys() {
        assert!(names.iter().any(|listed| listed == name), "there is no command {name}");
    }

    let dir = scratch_dir();
    let [original, image] = ["original", "image"].map(|name| dir.path().join(name));
    let image = image.to_str().unwrap();
    make(original.to_str().unwrap());
    fs::copy(&original, image).unwrap();
    for call in CALLS {
        let name: Vec<String> = call.name.split(' ').map(Into::into).collect();
        let options: Vec<String> = call.options.iter().map(|word| (*word).to_owned()).collect();
        let colons = with_colons(call, image);
        let apart = if call.only_with_colon.is_some() { colons.clone() } else { apart(call, image) };
        let first = [&*name, &*options, &*colons].concat();
        let (begin, end) = colons.split_at(1);
        let others = [[&*name, &*apart, &*options].concat(), [&*name, begin, &*options, end].concat()];
        let wanted = result(call, &original, image, &first);
        let is_of_the_image = call.words.iter().any(|word| word.starts_with(PLACE));
        // The command line is understood.
        assert!(!wanted.1.starts_with("error: "), "{first:?}: {wanted:?}");
        // Subvolumes differ, and an empty file is no archive.
        let is_expected = matches!((call.name, wanted.2), ("diff" | "import", Some(1)) | (_, Some(0)));
        assert!(!is_of_the_image || is_expected, "{first:?}: {wanted:?}");
        for other in others.iter().filter(|other| **other != first) {
            assert_eq!(result(call, &original, image, other), wanted, "{other:?} and {first:?}");
        }
        let _ = fs::remove_file("none");
    }
}
