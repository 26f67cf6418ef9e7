//! Tests that archives in all formats, and those of package registries, are imported as GNU tar and
//! bsdtar extract them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use ubtrfs_random::Rng;
use ubtrfs_testkit::diff::{Options, diff};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::many_seeds;
use ubtrfs_testkit::walk::{Kind, Tree, walk};

use crate::archive_forms::{Entry, Style, archive_of, record, sum_up};
use crate::archives::run;
use crate::editing::{is_clean, make_tree};
use crate::{success, ubtrfs};

const STYLES: [Style; 5] = [Style::V7, Style::Ustar, Style::Gnu, Style::Pax, Style::Star];

/// The program with which the import of an archive is compared: the one that follows POSIX, where
/// the two differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Both,
    Tar,
    Bsdtar,
}

struct Case {
    what: String,
    archive: Vec<u8>,
    beside: Beside,
}

impl Case {
    fn by(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }
}

fn case(what: impl Into<String>, entries: &[Entry]) -> Case {
    Case { what: what.into(), archive: archive_of(entries), beside: Beside::Both }
}

/// Imports archives, and extracts them on the kernel's btrfs in the same volume. Returns all
/// differences.
fn differences(cases: &[Case]) -> Vec<String> {
    let dir = scratch_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--size", "8G", &image]));
    let path = |number: usize| dir.path().join(format!("{number}.tar"));
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 - 1;
    let mut found = Vec::new();
    let mut imported = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        fs::write(path(number), &case.archive).unwrap();
        let output = ubtrfs(&["import", &format!("{image}:ubtrfs/{number}"), path(number).to_str().unwrap()]);
        imported.push(output);
    }
    is_clean(&image);
    let mount = KernelMount::new(&[Path::new(&image)], "");
    for (number, case) in cases.iter().enumerate() {
        let ours = &imported[number];
        let error = String::from_utf8_lossy(&ours.stderr);
        let own = mount.path().join("ubtrfs").join(number.to_string());
        for (program, beside) in [("tar", Beside::Tar), ("bsdtar", Beside::Bsdtar)] {
            if case.beside != Beside::Both && case.beside != beside {
                continue;
            }
            let to = mount.path().join(program).join(number.to_string());
            fs::create_dir_all(&to).unwrap();
            let mut command = Command::new(program);
            if program == "tar" {
                command.args(["--xattrs", "--xattrs-include=*"]);
            }
            let output = command
                .args(["--acls", "--numeric-owner", "-C"])
                .arg(&to)
                .arg("-xpf")
                .arg(path(number))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let other = String::from_utf8_lossy(&output.stderr);
            match (ours.status.success(), output.status.success()) {
                (true, true) => {
                    let (left, right) = (seen(&own, start), seen(&to, start));
                    let unlike = diff(&left, &right, Options::COPY);
                    found.extend(unlike.iter().map(|unlike| format!("{}: {program}: {unlike}", case.what)));
                }
                (false, false) => {}
                (true, false) => found.push(format!("{}: only {program} refuses it: {other}", case.what)),
                (false, true) => found.push(format!("{}: {program} takes it: {error}", case.what)),
            }
        }
    }
    assert_eq!(mount.unmount(), Vec::<String>::new());
    found
}

/// Returns the contents of a directory. Directories without an entry have the current time.
fn seen(path: &Path, start: i64) -> Tree {
    let mut tree = walk(path);
    for entry in tree.entries.values_mut().filter(|entry| entry.kind == Kind::Dir) {
        entry.mtime = entry.mtime.filter(|(sec, _)| *sec < start);
    }
    tree
}

#[track_caller]
fn are_alike(cases: &[Case]) {
    let found = differences(cases);
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// Returns archives of one format with all kinds of names and targets.
fn forms_of(style: Style) -> Vec<Case> {
    let of = |what: &str, entries: &[Entry]| case(format!("{style:?}: {what}"), entries);
    let file = |name: &str, content: &str| Entry::file(style, name, content.as_bytes());
    let dir = |name: &str| Entry::new(style, name, b'5');
    let link = |name: &str, target: &str| Entry::link(style, name, b'1', target);
    let symlink = |name: &str, target: &str| Entry::link(style, name, b'2', target);
    let numbers = |entry: Entry| Entry { is_binary: true, owner: (3_000_000, 4_000_000), mtime: -5, ..entry };
    let mut cases = vec![
        of("a tree", &[dir("d/"), file("d/f", "content"), link("d/l", "d/f"), symlink("d/s", "f"), file("top", "")]),
        of("no directories", &[file("a/b/c/f", "content"), symlink("a/x/s", "/etc/passwd")]),
        of("a directory as old archives have it", &[Entry { kind: b'0', ..dir("d/") }, file("d/f", "1")]),
        of("odd paths", &[file("./a", "1"), file("/b", "2"), file("c//d", "3"), file("./e/./f", "4"), dir("./")]),
        of("the directory itself", &[Entry { mode: 0o1751, owner: (5, 6), ..dir("./") }, file("./f", "1")]),
        of("the last one counts", &[file("f", "first"), file("f", "second"), link("l", "f"), file("f", "third")]),
        of("a file becomes a link", &[file("f", "1"), symlink("f", "x"), file("g", "2"), link("f", "g")]),
        of("a link becomes a file", &[symlink("f", "g"), file("g", "1"), file("f", "2")]),
        of("a file becomes a directory", &[file("f", "1"), dir("f/"), file("f/g", "2")]),
        of("a link becomes a directory", &[dir("d/"), symlink("f", "d"), dir("f/"), file("f/g", "2")]),
        of("an empty directory becomes a file", &[dir("d/"), file("d", "1")]),
        of("an empty directory becomes a link", &[dir("d/"), symlink("d", "x")]),
        of("an empty directory becomes a hard link", &[file("f", "1"), dir("d/"), link("d", "f")]),
        of("a full directory would become a file", &[dir("d/"), file("d/f", "1"), file("d", "1")]),
        of("a hard link to a symbolic one", &[symlink("s", "x"), link("l", "s")]),
        of("a hard link to itself", &[file("f", "1"), link("f", "f")]).by(Beside::Tar),
        of(
            "hard links with odd targets",
            &[file("a/f", "1"), link("l", "./a/f"), link("m", "/a/f"), link("n", "a//f")],
        ),
        of("a hard link to nothing", &[link("l", "none"), file("f", "1")]),
        of("a hard link to a directory", &[dir("d/"), link("l", "d")]),
        of("modes", &[Entry { mode: 0o6755, ..file("f", "1") }, Entry { mode: 0o7000, ..dir("d/") }]),
        of("a directory that nobody may write to", &[Entry { mode: 0o500, ..dir("d/") }, file("d/f", "1")]),
        of("names of 100 bytes", &[file(&"n".repeat(100), "1"), symlink("s", &"t".repeat(100))]),
        of(
            "contiguous files, and types that nobody knows",
            &[
                Entry { kind: b'7', ..file("f", "1") },
                Entry { kind: 0, ..file("g", "2") },
                Entry { kind: b'Q', ..file("h", "3") },
            ],
        ),
        of(
            "strange bytes",
            &[
                Entry { name: b"\xff\xfe \n\t\\".to_vec(), ..file("", "1") },
                Entry { target: b"\xc3\x28\n".to_vec(), ..symlink("s", "") },
            ],
        ),
        of("an empty name", &[file("", "1"), file("f", "2")]),
        of("a path that leads out", &[file("a/../../f", "1"), file("g", "2")]),
    ];
    if style != Style::V7 {
        let device = |kind, name, device| Entry { device, ..Entry::new(style, name, kind) };
        let (char, block) = (device(b'3', "c", (5, 300)), device(b'4', "b", (259, 7)));
        cases.push(of("devices", &[char, block, device(b'6', "p", (0, 0))]));
        let long = format!("{}/{}/{}", "a".repeat(60), "b".repeat(60), "c".repeat(90));
        cases.push(of("long names", &[file(&long, "1"), dir("d/")]));
        cases.push(of("binary numbers", &[numbers(file("f", "content")), numbers(dir("d/"))]));
    }
    if matches!(style, Style::Gnu | Style::Pax) {
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
        cases.push(of("very long names", &[file(&long, "1"), link("l", &long), symlink("s", &long)]));
        let deep = "deep/".repeat(60);
        cases.push(of("a long name of a directory", &[dir(&deep), file(&format!("{deep}f"), "1")]));
    }
    cases
}

/// Returns archives with records of pax, about files and other attributes.
fn records() -> Vec<Case> {
    let pax = Style::Pax;
    let file = |name: &str| Entry::file(pax, name, b"content");
    let global = |key: &str, value: &[u8]| Entry { content: record(key, value), ..Entry::new(Style::Ustar, "g", b'g') };
    let acl = b"user::rw-,user:77:r--,group::---,mask::rw-,other::r--";
    vec![
        case(
            "times",
            &[
                file("a").with("mtime", b"1500000000.123456789"),
                Entry::new(pax, "d/", b'5').with("mtime", b"1000000000.5"),
                Entry::link(pax, "s", b'2', "a").with("mtime", b"1000000000.75"),
            ],
        ),
        case("owners", &[file("a").with("uid", b"4000000000").with("gid", b"3000000000")]),
        case(
            "names",
            &[file("x").with("path", b"dir/name"), Entry::link(pax, "s", b'2', "x").with("linkpath", b"\xff/y")],
        )
        .by(Beside::Tar),
        case("a size", &[Entry { content: b"content".to_vec(), ..file("a") }.with("size", b"7"), file("b")]),
        case(
            "attributes",
            &[
                file("a").with("SCHILY.xattr.user.one", b"value").with("SCHILY.xattr.trusted.two", b"\0\n=\xff"),
                Entry::new(pax, "d/", b'5').with("SCHILY.xattr.user.empty", b""),
            ],
        ),
        case(
            "lists of rights",
            &[
                Entry { mode: 0o664, ..file("a") }.with("SCHILY.acl.access", acl),
                Entry::new(pax, "d/", b'5').with("SCHILY.acl.default", acl),
            ],
        ),
        case("a time before 1970", &[file("b").with("mtime", b"-1.5").with("atime", b"7.25")]).by(Beside::Tar),
        case("for all entries", &[global("mtime", b"1234567890"), file("a"), file("b").with("mtime", b"1234567891")])
            .by(Beside::Tar),
        case("for all entries, taken back", &[global("uid", b"7"), file("a"), global("uid", b"8"), file("b")])
            .by(Beside::Tar),
        case("keys that nobody knows", &[file("a").with("VENDOR.x", b"1").with("comment", b"words")]),
        case(
            "two headers of records",
            &[Entry { content: record("path", b"first"), ..Entry::new(Style::Ustar, "pax", b'x') }, file("second")],
        ),
    ]
}

/// Returns archives with bytes that no current program writes.
fn odd_bytes() -> Vec<Case> {
    let file = |name: &str| Entry::file(Style::Ustar, name, b"content");
    let raw = |what: &str, archive: Vec<u8>| Case { what: what.into(), archive, beside: Beside::Both };
    let changed = |what: &str, change: &dyn Fn(&mut [u8])| {
        let mut bytes = archive_of(&[file("f"), file("g")]);
        change(&mut bytes);
        sum_up(&mut bytes);
        raw(what, bytes)
    };
    let gnu =
        |kind: u8, name: &str, content: &[u8]| Entry { content: content.into(), ..Entry::new(Style::Gnu, name, kind) };
    let plain = archive_of(&[file("f"), file("g")]);
    let end = plain.len() - 1024;
    let mut signed = archive_of(&[Entry { name: b"\xe4\xf6\xfc".to_vec(), ..file("") }]);
    let sum: i64 = signed[..512]
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { i64::from(*byte as i8) })
        .sum();
    signed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    vec![
        changed("blank owners", &|bytes| bytes[108..124].fill(b' ')).by(Beside::Bsdtar),
        changed("owners of zeros", &|bytes| bytes[108..124].fill(0)),
        changed("a blank time", &|bytes| bytes[136..148].fill(b' ')).by(Beside::Bsdtar),
        changed("a blank mode", &|bytes| bytes[100..108].fill(b' ')).by(Beside::Bsdtar),
        changed("numbers without leading zeros", &|bytes| bytes[100..108].copy_from_slice(b"   644 \0")),
        changed("numbers that fill their field", &|bytes| bytes[136..148].copy_from_slice(b"014524000000")),
        raw("sums of signed bytes", signed),
        raw("no zeros at the end", plain[..end].to_vec()),
        raw("one block of zeros at the end", plain[..end + 512].to_vec()),
        raw("something behind the end", [&plain[..], &archive_of(&[file("h")])].concat()),
        raw("much behind the end", [&plain[..], &[0; 9 << 10], &b"garbage".repeat(1000)].concat()),
        raw("cut within the data", archive_of(&[Entry { content: vec![1; 5000], ..file("f") }])[..3000].to_vec()),
        raw("cut within a header", plain[..1024 + 100].to_vec()).by(Beside::Bsdtar),
        raw("no archive", b"some text ".repeat(200)),
        case("a label", &[gnu(b'V', "label", b""), file("f")]),
        case("names that a directory had", &[gnu(b'D', "d/", b"Yf\0Ng\0\0"), file("d/f")]),
    ]
}

/// Returns the archives of one tree that GNU tar and bsdtar write, in all their formats.
fn written(dir: &Path) -> Vec<Case> {
    let tree = dir.join("tree");
    make_tree(&tree);
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    run("mknod", &[&words(&tree.join("device")), "b", "8", "1"]);
    run("mkfifo", &[&words(&tree.join("fifo"))]);
    run("chown", &["77:88", &words(&tree.join("small"))]);
    run("setfattr", &["-n", "user.note", "-v", "value", &words(&tree.join("small"))]);
    run("setfacl", &["-m", "u:77:rw", &words(&tree.join("sub/file"))]);
    let (xattrs, acls) = ("--xattrs", "--acls");
    let list = words(&dir.join("list"));
    let list = format!("--listed-incremental={list}");
    let forms: [(&str, &[&str]); 15] = [
        ("tar", &["--format=v7"]),
        ("tar", &["--format=oldgnu"]),
        ("tar", &["--format=oldgnu", "-S"]),
        ("tar", &["--format=gnu", "-V", "label"]),
        ("tar", &["--format=gnu", &list]),
        ("tar", &["--format=ustar"]),
        ("tar", &["--format=posix", xattrs, "--xattrs-include=*", acls]),
        ("tar", &["--format=posix", "-S", "--sparse-version=0.0", "-V", "label"]),
        ("tar", &["--format=posix", "-S", "--sparse-version=0.1"]),
        ("tar", &["--format=posix", "-S", "--sparse-version=1.0", "-b", "1"]),
        ("bsdtar", &["--format=v7"]),
        ("bsdtar", &["--format=ustar"]),
        ("bsdtar", &["--format=pax", xattrs, acls]),
        ("bsdtar", &["--format=gnutar"]),
        ("bsdtar", &["--format=pax", "--no-read-sparse", "--no-xattrs", "--no-acls"]),
    ];
    let archive = dir.join("x.tar");
    let made = forms.iter().map(|(program, form)| {
        let made = Command::new(program).args(*form).arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").output();
        let made = made.unwrap();
        // Old formats can't represent some names and types, which the programs report.
        assert!(archive.exists(), "{program} {form:?}: {}", String::from_utf8_lossy(&made.stderr));
        let what = format!("{program} {form:?}").replace(&words(dir), "");
        let case = Case { what, archive: fs::read(&archive).unwrap(), beside: Beside::Both };
        fs::remove_file(&archive).unwrap();
        case
    });
    made.collect()
}

#[test]
fn archives_of_every_form_are_read_as_tar_and_bsdtar_read_them() {
    require!(Need::Kernel, Need::Tool("tar"), Need::Tool("bsdtar"), Need::Tool("setfattr"), Need::Tool("setfacl"));
    let dir = scratch_dir();
    let mut cases: Vec<Case> = STYLES.into_iter().flat_map(forms_of).collect();
    cases.extend(records());
    cases.extend(odd_bytes());
    cases.extend(written(dir.path()));
    are_alike(&cases);
}

/// Returns an archive with few different names, so that its entries replace each other.
fn random(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let names = ["a", "b", "d/a", "d/b", "d/e/a", "./d", "d/e/", "/b", "e//f"];
    let entries: Vec<Entry> = (0..=rng.below(14))
        .map(|_| {
            let style = *rng.pick(&STYLES);
            let mut name = (*rng.pick(&names)).to_owned();
            if rng.one_in(6) && matches!(style, Style::Gnu | Style::Pax) {
                name = format!("{}/{name}", "long".repeat(40));
            }
            let mut entry = match rng.below(10) {
                0..=3 => {
                    let len = rng.below(3000) as usize;
                    let content = rng.bytes(len);
                    Entry::file(style, name.trim_end_matches('/'), &content)
                }
                4 | 5 => Entry::new(style, &name, b'5'),
                6 | 7 => Entry::link(style, name.trim_end_matches('/'), b'1', rng.pick(&names).trim_end_matches('/')),
                8 => Entry::link(style, name.trim_end_matches('/'), b'2', "no/where"),
                _ => Entry::new(style, name.trim_end_matches('/'), b'6'),
            };
            let plain = |name: &[u8]| String::from_utf8_lossy(name).trim_matches(['.', '/']).replace("//", "/");
            if entry.kind == b'1' && plain(&entry.name) == plain(&entry.target) {
                // The programs treat the targets of entries differently that are no files.
                entry.target = b"none".to_vec();
            }
            entry.mode = 0o400 + rng.below(0o7777 - 0o400) as u32;
            if entry.kind == b'5' {
                // bsdtar does not give directories without an entry the group of the directory
                // above.
                entry.mode &= !0o2000;
            }
            entry.owner = (rng.below(1 << 22), rng.below(3));
            entry.mtime = rng.below(1 << 33) as i64;
            entry.is_binary = rng.one_in(4) && style != Style::V7;
            if style == Style::Pax && rng.one_in(2) && entry.kind != b'2' && entry.kind != b'6' {
                entry = entry.with("SCHILY.xattr.user.note", &rng.noise(20));
            }
            entry
        })
        .collect();
    let what: Vec<String> = entries
        .iter()
        .map(|entry| {
            let [name, target] =
                [&entry.name, &entry.target].map(|text| String::from_utf8_lossy(text).replace("long", "l"));
            format!("{}{name}>{target}", char::from(entry.kind))
        })
        .collect();
    case(format!("seed {seed}: {}", what.join(" ")), &entries)
}

#[test]
fn random_archives_are_read_as_tar_and_bsdtar_read_them() {
    require!(Need::Kernel, Need::Tool("tar"), Need::Tool("bsdtar"));
    for seeds in many_seeds(30, 20).chunks(200) {
        let cases: Vec<Case> = seeds.iter().map(|seed| random(*seed)).collect();
        are_alike(&cases);
    }
}

/// The packages with which the archives of each registry are tested.
const NPM: [&str; 6] = ["lodash", "express", "react", "typescript", "left-pad", "prettier"];
const PYTHON: [&str; 6] = ["six", "requests", "PyYAML", "click", "docutils", "MarkupSafe"];
const DEBIAN: [&str; 12] = [
    "base-files",
    "bash",
    "coreutils",
    "dbus",
    "iputils-ping",
    "login",
    "man-db",
    "passwd",
    "perl-base",
    "sudo",
    "systemd",
    "tzdata",
];

/// Returns the files below a directory whose names end so.
fn files_with(ending: &str, below: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(below).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    let mut all: Vec<_> = listed.unwrap_or_default();
    all.sort();
    let (directories, files): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| path.is_dir());
    let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    files.into_iter().filter(is_it).chain(directories.iter().flat_map(|path| files_with(ending, path))).collect()
}

/// Runs the client of a registry, and reports if it fails, as it does without a network.
fn fetch(dir: &Path, program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).current_dir(dir).stdin(Stdio::null()).output();
    match done {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {program} {arguments:?}: {}", error.lines().last().unwrap_or_default());
        }
        Err(error) => eprintln!("skipped: {program}: {error}"),
    }
}

#[test]
#[ignore = "fetches packages; it belongs to the soak"]
fn packages_of_registries_are_read_as_tar_and_bsdtar_read_them() {
    require!(Need::Kernel, Need::Tool("tar"), Need::Tool("bsdtar"));
    let dir = scratch_dir();
    let into = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (npm, python, debian) = (into("npm"), into("python"), into("debian"));
    for package in NPM {
        fetch(&npm, "npm", &["pack", "--silent", package]);
    }
    for package in PYTHON {
        fetch(&python, "pip", &["download", "-q", "--no-deps", "--no-binary", package, package]);
    }
    for package in DEBIAN {
        // Each package is fetched separately, so that a missing one does not affect the others.
        fetch(&debian, "apt-get", &["-q", "download", package]);
    }
    // The packages that cargo has fetched to build these tests.
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let crates = home.map(|home| files_with(".crate", &home.join("registry/cache"))).unwrap_or_default();
    let mut archives = [files_with(".tgz", &npm), files_with(".tar.gz", &python), crates].concat();
    for package in files_with(".deb", &debian) {
        let data = package.with_extension("tar");
        let out = fs::File::create(&data).unwrap();
        let made = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package).stdout(out).status().unwrap();
        assert!(made.success(), "{}", package.display());
        archives.push(data);
    }
    eprintln!("{} archives", archives.len());
    assert!(!archives.is_empty(), "no registry is reachable, and cargo has no archives either");
    for part in archives.chunks(40) {
        let read = |path: &PathBuf| Case {
            what: path.file_name().unwrap().to_string_lossy().into_owned(),
            archive: fs::read(path).unwrap(),
            beside: Beside::Both,
        };
        are_alike(&part.iter().map(read).collect::<Vec<_>>());
    }
}
