//! Tests that every command takes places in a volume as `IMAGE:PATH` and as `IMAGE PATH`, and
//! options before, between and after its other arguments, with the same result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs::{Attributes, Dir, Filesystem, Options};
use ubtrfs_format::TreeId;
use ubtrfs_format::items::FileType;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{success, ubtrfs};

/// A word that begins with this is a place in the image.
const PLACE: char = '@';

/// The size of the image.
const SIZE: u64 = 128 << 20;

/// A call of a command.
#[derive(Clone, Copy)]
struct Call {
    /// The name of the command, after those of the commands above it.
    name: &'static str,
    options: &'static [&'static str],
    words: &'static [&'static str],
    /// The reason why `IMAGE PATH` is not accepted, though the argument names a place in a volume.
    only_with_colon: Option<&'static str>,
    /// The command changes the contents of the volume.
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

/// Calls of all commands. Commands that name no place in a volume are called with one that does not
/// exist.
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
    change("defragment", &["-r", "-v"], &["@/dir", "@/sub"]),
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
    call("image dump", &["-s"], &["none", "other"]),
    call("image restore", &["-f"], &["none", "other"]),
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
    call("rescue undo", &["-y"], &["none", "none"]),
    call("scrub start", &["-r"], &["none"]),
    call("scrub resume", &["-r"], &["none"]),
    call("scrub status", &["--json"], &["none"]),
    call("scrub cancel", &[], &["none"]),
    // The words after the image are a command with its own options.
    call("shell", &[], &["none"]),
    call("stats", &["--json"], &["none"]),
    call("subvolume get-default", &["--offset", "0"], &["none"]),
    call("subvolume sync", &["-s", "1"], &["none", "300"]),
    call("sync", &[], &["none"]),
    call("tree", &["-t", "fs"], &["none"]),
    call("umount", &["--dead"], &["none"]),
];

/// A command without subcommands.
pub struct Leaf {
    /// Its name, after those of the commands above it.
    pub name: String,
    pub takes_json: bool,
}

/// Commands that are not for users.
const INTERNAL: [&str; 2] = ["ask-as", "generate"];

/// Returns all commands for users, as the completions for bash list them, which takes a single run
/// of the program.
pub fn leaves() -> Vec<Leaf> {
    let dir = scratch_dir();
    success(&ubtrfs(&["generate".as_ref(), dir.path().as_os_str()]));
    let text = fs::read_to_string(dir.path().join("bash-completion/completions/ubtrfs")).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let quoted = |line: &str, before: &str| {
        line.strip_prefix(before).and_then(|rest| rest.strip_suffix('"')).map(ToOwned::to_owned)
    };
    // The lines are "ABOVE,WORD)" and then "cmd=COMMAND"; "COMMAND)" and then "opts=WORDS".
    let (mut below, mut words) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new());
    for pair in lines.windows(2) {
        let Some(label) = pair[0].strip_suffix(')') else { continue };
        if let (Some((above, word)), Some(command)) = (label.split_once(','), quoted(pair[1], "cmd=\"")) {
            let is_alias = command != format!("{above}__subcmd__{}", word.replace('-', "__subcmd__"));
            if word != "help" && !is_alias {
                below.entry(above.to_owned()).or_default().push((word.to_owned(), command));
            }
        } else if let Some(options) = quoted(pair[1], "opts=\"") {
            words.insert(label.to_owned(), options);
        }
    }
    let (mut leaves, mut left) = (Vec::new(), vec![(String::new(), "ubtrfs".to_owned())]);
    while let Some((name, command)) = left.pop() {
        let named = |word: &str| if name.is_empty() { word.to_owned() } else { format!("{name} {word}") };
        match below.get(&command) {
            Some(commands) => left.extend(commands.iter().map(|(word, command)| (named(word), command.clone()))),
            None => leaves.push(Leaf { takes_json: words[&command].split(' ').any(|word| word == "--json"), name }),
        }
    }
    leaves.retain(|leaf| !INTERNAL.contains(&leaf.name.as_str()));
    leaves
}

/// Makes a volume with files and subvolumes.
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

/// Returns the words of a call with its places as `IMAGE:PATH`.
fn with_colons(call: &Call, image: &str) -> Vec<String> {
    let word = |word: &&str| word.strip_prefix(PLACE).map_or((*word).to_owned(), |path| format!("{image}:{path}"));
    call.words.iter().map(word).collect()
}

/// Returns the words of a call with its places as `IMAGE PATH…`.
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

/// A copy of a volume: the bytes of its image that are not zero.
struct Original(Vec<(u64, Vec<u8>)>);

impl Original {
    fn new(image: &Path) -> Self {
        const PIECE: usize = 1 << 16;
        let (mut pieces, mut piece) = (Vec::new(), vec![0; PIECE]);
        let file = File::open(image).unwrap();
        for at in (0..SIZE).step_by(PIECE) {
            file.read_exact_at(&mut piece, at).unwrap();
            if piece.iter().any(|byte| *byte != 0) {
                pieces.push((at, piece.clone()));
            }
        }
        Self(pieces)
    }

    fn write(&self, image: &str) {
        let file = File::create(image).unwrap();
        file.set_len(SIZE).unwrap();
        self.0.iter().for_each(|(at, piece)| file.write_all_at(piece, *at).unwrap());
    }
}

/// Returns all contents of a volume, except for times and ids.
fn content(image: &str) -> Vec<String> {
    let options = Options { read_only: true, no_atime: true, subvolume_id: Some(TreeId::FS.0), ..Options::default() };
    let fs = Filesystem::open_path(image, options).unwrap();
    let mut found = vec![format!("default {}", fs.subvolumes().default_subvolume().unwrap())];
    for id in fs.subvolumes().ids() {
        found.push(format!("{id} read-only {}", fs.subvolumes().subvolume_info(id).unwrap().read_only));
    }
    let mut left = vec![String::new()];
    while let Some(path) = left.pop() {
        let attributes = Dir::root(&fs).symlink_metadata(format!("/{path}")).unwrap();
        let Attributes { id, mode, nlink, uid, gid, rdev, size, flags, .. } = attributes;
        let xattrs = fs.inodes().list_xattrs(id).unwrap();
        let xattrs: Vec<_> = xattrs.iter().map(|name| (name, fs.inodes().get_xattr(id, name).unwrap())).collect();
        found.push(format!("{path} {id:?} {mode:o} {nlink} {uid}:{gid} {rdev} {size} {flags:x} {xattrs:?}"));
        if attributes.file_type == FileType::Directory {
            for entry in Dir::root(&fs).read_dir(format!("/{path}")).unwrap() {
                left.push(format!("{path}/{}", entry.unwrap().file_name().to_str().unwrap()));
            }
        }
    }
    found
}

/// Returns the output and the exit status of a call, and the contents of the image afterwards.
fn result(
    call: &Call,
    original: &Original,
    image: &str,
    arguments: &[String],
) -> (String, String, Option<i32>, Vec<String>) {
    if call.changes {
        original.write(image);
    }
    let output = ubtrfs(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let content = if call.changes { content(image) } else { Vec::new() };
    (text(&output.stdout), text(&output.stderr), output.status.code(), content)
}

#[test]
fn every_command_takes_both_forms_and_options_in_any_place() {
    let names: BTreeSet<String> = leaves().into_iter().map(|leaf| leaf.name).collect();
    let known: BTreeSet<String> = CALLS.iter().map(|call| call.name.to_owned()).collect();
    assert_eq!(known, names, "commands with a call here, and those that there are");
    assert_eq!(known.len(), CALLS.len());

    let dir = scratch_dir();
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    make(image);
    let original = Original::new(Path::new(image));
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
        // The command line is accepted.
        assert!(!wanted.1.starts_with("error: "), "{first:?}: {wanted:?}");
        // The subvolumes differ, and an empty file is not an archive.
        let is_expected = matches!((call.name, wanted.2), ("diff" | "import", Some(1)) | (_, Some(0)));
        assert!(!is_of_the_image || is_expected, "{first:?}: {wanted:?}");
        let others: BTreeSet<_> = others.iter().filter(|other| **other != first).collect();
        for other in others {
            assert_eq!(result(call, &original, image, other), wanted, "{other:?} and {first:?}");
        }
        let _ = fs::remove_file("none");
    }
}
