//! Tests that the output of `--json` matches `docs/json.schema.json`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use ubtrfs::{Filesystem, Options, ReplaceOptions};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{BalanceFlags, BalanceItem, FreeSpaceInfo};
use ubtrfs_format::{DeviceId, ItemType, Key, TreeId};
use ubtrfs_testkit::json_schema::Schema;
use ubtrfs_testkit::partitions::gpt;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode};

use crate::path_syntax::leaves;
use crate::repair::{change_inode, is_file};
use crate::success;

const SCHEMA: &str = include_str!("../../../../docs/json.schema.json");

/// Commands that take `--json` and work on mounts only; the tests in `mounted` run them.
const ON_MOUNTS: [&str; 5] = ["device replace status", "replace status", "scrub resume", "scrub status", "stats"];

/// Fields that other commands print on mounts only.
const ONLY_ON_MOUNTS: [&str; 1] = ["scrubbed.device"];

const SIZE: u64 = 128 << 20;
/// Content that can be found in an image.
const CONTENT: &[u8] = b"this is in no other place of the image than in a file";

/// Commands that run in a directory, and the schema that their output is compared with.
struct Commands {
    dir: tempfile::TempDir,
    schema: Schema,
    called: RefCell<BTreeSet<String>>,
}

impl Commands {
    fn new() -> Self {
        let schema = Schema::parse(SCHEMA).unwrap_or_else(|error| panic!("{error}"));
        Self { dir: scratch_dir(), schema, called: RefCell::default() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> std::process::Output {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.args(arguments).stdin(Stdio::null()).current_dir(self.dir.path()).output().unwrap()
    }

    #[track_caller]
    fn quiet(&self, line: &str) {
        let _ = success(&self.run(&line.split(' ').collect::<Vec<_>>()));
    }

    /// Returns the output of a command with `--json`, and checks it against an entry of the schema.
    /// The entry is the name of the command, and possibly a word for one of its forms.
    #[track_caller]
    fn json(&self, entry: &str, status: i32, arguments: &str) -> Value {
        let is_of_name = |word: &&str| word.chars().any(char::is_lowercase);
        let name: Vec<&str> = entry.split(' ').filter(is_of_name).collect();
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = self.run(&[&*name, &["--json"], &arguments].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{entry} {arguments:?}: {error}");
        // The standard output of this command is an archive.
        let printed = if entry == "export" { &output.stderr } else { &output.stdout };
        let value = serde_json::from_slice(printed);
        let value = value.unwrap_or_else(|error| panic!("{entry}: {error}: {}", String::from_utf8_lossy(printed)));
        self.schema.check(entry, &value).unwrap_or_else(|error| panic!("{entry} {arguments:?}: {error}"));
        self.called.borrow_mut().insert(name.join(" "));
        value
    }

    fn open(&self, image: &str) -> Arc<Filesystem> {
        let options = Options { background_commits: false, ..Options::default() };
        Filesystem::open_path(self.at(image), options).unwrap()
    }

    fn make_blank(&self, name: &str) -> File {
        let file = File::create(self.at(name)).unwrap();
        file.set_len(SIZE).unwrap();
        file
    }

    /// Makes and fills volumes.
    fn make(&self) {
        fs::create_dir(self.at("tree")).unwrap();
        fs::write(self.at("tree/file"), CONTENT.repeat(2000)).unwrap();
        fs::write(self.at("tree").join(OsStr::from_bytes(b"no \xff text")), b"").unwrap();
        symlink("file", self.at("tree/link")).unwrap();
        self.json("mkfs", 0, "--size 128M --rootdir tree image");
        self.json("cp", 0, "-r tree image:/copy");
        let archive = self.run(&["export", "--json", "image:/copy"]);
        fs::write(self.at("archive.tar"), archive.stdout).unwrap();
        self.json("export", 0, "image:/copy");
        self.json("import", 0, "image:/ archive.tar");
        fs::write(self.at("script"), "mknod :/null c 1 3\nsetfattr -n trusted.a -v b :/null\n").unwrap();
        self.json("apply", 0, "image script");
    }

    /// Examines files and subvolumes.
    fn look(&self) {
        self.json("ls", 0, "-a -R image /");
        self.json("stat", 0, "image /null");
        self.json("filesystem du", 0, "image:/copy image:/file");
        self.json("filesystem du", 0, "-s image:/copy");
        self.quiet("subvolume create image:/one image:/one/inner");
        self.quiet("cp tree/file image:/one/file");
        self.quiet("cp tree/file image:/one/gone");
        for name in ["base", "two", "three"] {
            self.quiet(&format!("subvolume snapshot image:/one image:/{name}"));
        }
        self.quiet("property set image:/base ro true");
        let generation = self.open("image").generation().0;
        let script = [
            "mv :/two/file :/two/moved",
            "rm :/two/gone",
            "mkdir :/two/made",
            "chmod 0600 :/two/moved",
            "setfattr -n user.a -v b :/two/moved",
            "truncate -s 5k :/two/moved",
            "truncate -s 6k :/three/gone",
        ];
        fs::write(self.at("script"), script.join("\n")).unwrap();
        self.quiet("apply image script");
        self.quiet("subvolume create image:/two/below");
        self.json("diff", 1, "image:/base image:/two");
        self.json("diff", 1, &format!("--since {generation} image:/two"));
        self.json("diff", 0, "image:/base image:/base");
        self.json("merge", 0, "-n image:/base image:/two image:/one");
        self.json("merge", 1, "-n image:/base image:/two image:/three");
        self.json("subvolume list", 0, "image");
        self.json("subvolume show", 0, "image:/one");
        self.json("subvolume get-default", 0, "image");
        self.json("property get", 0, "image:/base ro");
        self.json("history", 0, "image");
        self.json("history PATH", 0, "image /one/file");
    }

    /// Describes volumes, sound ones and others.
    fn describe(&self) {
        self.json("info", 0, "image");
        self.json("restore", 0, "-n image");
        self.json("check", 0, "image");
        self.json("image dump", 0, "-s image dump-of-metadata");
        self.json("image restore", 0, "dump-of-metadata image-of-metadata");
        let damaged = self.at("damaged");
        fs::copy(self.at("image"), &damaged).unwrap();
        let bytes = fs::read(&damaged).unwrap();
        let at = bytes.windows(CONTENT.len()).position(|window| window == CONTENT).unwrap();
        File::options().write(true).open(&damaged).unwrap().write_all_at(b"that", at as u64).unwrap();
        let image = Image::open(&damaged);
        change_inode(&image, is_file, |item| item.nlink += 5);
        let stale = Key::new(1 << 40, ItemType::FREE_SPACE_INFO, 1 << 20);
        image.add(TreeId::FREE_SPACE, stale, &FreeSpaceInfo { extent_count: 0, flags: 0 }.to_bytes());
        self.json("check", 1, "damaged");
        self.json("check REPAIR", 1, "--repair --dry-run damaged");
        self.json("restore", 1, "damaged restored");
        // Quota groups, and a block that two subvolumes share and that can't be read.
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/tests/data/quota.img.zst");
        let quota = self.at("quota");
        let status = Command::new("zstd").args(["-q", "-d"]).arg(packed).arg("-o").arg(&quota).status().unwrap();
        assert!(status.success());
        self.json("check", 0, "-Q -E 260 quota");
        let image = Image::open(&quota);
        let shared = image.leaves(TreeId(259));
        image.flip_all(image.leaves(TreeId(257)).into_iter().rfind(|leaf| shared.contains(leaf)).unwrap().plus(300));
        self.json("check", 1, "quota");
        let disk = self.make_blank("disk");
        for (at, piece) in gpt(SIZE, 512, &[(2048, 4095)]) {
            disk.write_all_at(&piece, at).unwrap();
        }
        self.json("info PARTITIONS", 0, "disk");
    }

    /// Examines and changes devices.
    fn change_devices(&self) {
        self.json("mkfs", 0, "--size 128M -d single -m single a b");
        for entry in ["device usage", "device stats", "filesystem df", "filesystem usage"] {
            self.json(entry, 0, "a b");
        }
        self.json("scrub start", 0, "a b");
        self.json("balance start", 0, "a --device b");
        self.json("balance status", 0, "a --device b");
        self.json("filesystem resize", 0, "2:-16M a --device b");
        self.json("device remove", 0, "2 a --device b");
        self.make_blank("b");
        self.json("replace start", 0, "1 b a");
        self.json("device replace start", 0, "-f 1 a b");
        for (entry, from, to) in [("replace resume", "a", "b"), ("device replace resume", "b", "a")] {
            let fs = self.open(from);
            self.make_blank(to);
            let target = FileDevice::open(self.at(to), OpenMode::ReadWrite, Exclusive::Yes).unwrap();
            fs.replacer().begin(DeviceId(1), Arc::new(target), ReplaceOptions::default()).unwrap();
            fs.close().unwrap();
            drop(fs);
            self.json(entry, 0, &format!("{from} {to}"));
        }
        // The state that a crash during a balance leaves.
        let fs = self.open("a");
        let all = BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM;
        let copy = |_: &ubtrfs::BalanceProgress| fs::copy(self.at("a"), self.at("crashed")).is_ok();
        fs.balancer().start(&BalanceItem { flags: all, ..BalanceItem::default() }, &copy).unwrap();
        fs.close().unwrap();
        let status = self.json("balance status", 0, "crashed");
        assert_eq!(status["state"], "paused");
        self.json("balance resume", 0, "crashed");
        let odd = OsStr::from_bytes(b"odd \xff");
        fs::rename(self.at("crashed"), self.dir.path().join(odd)).unwrap();
        for (name, path) in [("usage", "/devices/0/path"), ("stats", "/0/path")] {
            let output = self.run(&["device".as_ref(), name.as_ref(), "--json".as_ref(), odd]);
            let value: Value = serde_json::from_slice(&output.stdout).unwrap();
            self.schema.check(&format!("device {name}"), &value).unwrap();
            assert_eq!(value.pointer(path).unwrap()["hex"], "6f646420ff", "{value}");
        }
    }
}

#[test]
fn printed_json_has_the_form_that_the_schema_describes() {
    let commands = Commands::new();
    commands.make();
    commands.look();
    commands.describe();
    commands.change_devices();

    let is_of_mounts = |name: &str| ON_MOUNTS.contains(&name);
    let takes_json: BTreeSet<String> =
        leaves().into_iter().filter(|leaf| leaf.takes_json).map(|leaf| leaf.name).collect();
    let mut called = commands.called.take();
    called.extend(ON_MOUNTS.map(Into::into));
    assert_eq!(called, takes_json, "commands that were called, and those that take --json");
    let known: BTreeSet<&str> = commands.schema.definitions().collect();
    assert!(takes_json.iter().all(|name| known.contains(name.as_str())), "{known:?}");
    let unseen = commands.schema.unseen();
    let unseen: Vec<_> =
        unseen.iter().filter(|field| !field.split(['.', '[']).next().is_some_and(is_of_mounts)).collect();
    assert_eq!(unseen, ONLY_ON_MOUNTS);
}
