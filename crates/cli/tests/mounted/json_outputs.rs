//! Tests that the output of `--json` about a mount matches `docs/json.schema.json`, which has the
//! same formats as for an image.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use ubtrfs_testkit::json_schema::Schema;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::run;

use crate::harness::{FUSE, Volume, ubtrfs};

const SCHEMA: &str = include_str!("../../../../docs/json.schema.json");

/// The formats of which every field occurs here.
const WHOLE: [&str; 5] = ["replacement", "scrub status[]", "scrubbed", "stats", "usage"];

/// Content that can be found in an image.
const CONTENT: &[u8] = b"this is in no other place of the image than in a file";

struct Commands<'a> {
    schema: Schema,
    volume: &'a Volume,
}

impl Commands<'_> {
    fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.args(words).current_dir(&self.volume.point);
        // The directory for the records of scrubs.
        command.env("STATE_DIRECTORY", self.volume.dir.path());
        command
    }

    /// Returns the output of a command with `--json` in the mount's directory.
    #[track_caller]
    fn json(&self, name: &str, status: i32, arguments: &str) -> Value {
        let words = name.split(' ').chain(["--json"]).chain(arguments.split(' '));
        let outcome = run(&mut self.command(&words.collect::<Vec<_>>()));
        assert_eq!(outcome.code(), Some(status), "{}", outcome.report());
        let value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{}", outcome.report()));
        self.schema.check(name, &value).unwrap_or_else(|error| panic!("{name} {arguments}: {error}"));
        value
    }

    /// Scrubs slowly enough that the scrub is seen running, and cancels it.
    fn scrub(&self) {
        // The record of the scrub of the image.
        self.json("scrub status", 0, ".");
        run(&mut self.command(&["sync", "."])).ok();
        let mut slow = self.command(&["scrub", "start", "--limit", "1M", "."]).stderr(Stdio::null()).spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(120);
        while !self.json("scrub status", 0, ".")[0]["seconds_left"].is_u64() {
            assert!(Instant::now() < limit && slow.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(20));
        }
        run(&mut self.command(&["scrub", "cancel", "."])).ok();
        assert!(!slow.wait().unwrap().success());
        self.json("scrub status", 0, ".");
        // The first scrub has passed the damaged data already.
        self.json("scrub resume", 0, ".");
        self.json("scrub start", 3, ".");
        assert_eq!(self.json("scrub status", 0, ".")[0]["state"], "finished");
    }

    /// Examines and compares subvolumes.
    fn look(&self) {
        self.json("subvolume list", 0, ".");
        self.json("subvolume show", 0, "one");
        self.json("subvolume get-default", 0, ".");
        self.json("property get", 0, "one ro");
        self.json("filesystem du", 0, "one");
        self.json("diff", 1, "one two");
        self.json("merge", 0, "-n one two three");
    }

    /// Examines and changes devices.
    fn change_devices(&self) {
        let volume = self.volume;
        for (name, size) in [("second", 256 << 20), ("third", 512 << 20)] {
            File::create(volume.dir.path().join(name)).unwrap().set_len(size).unwrap();
        }
        run(&mut self.command(&["device", "add", "../second", "."])).ok();
        for name in ["device usage", "device stats", "filesystem df", "filesystem usage", "balance status"] {
            self.json(name, 0, ".");
        }
        self.json("filesystem resize", 0, "2:-16M .");
        self.json("balance start", 0, "-m .");
        self.json("device remove", 0, "2 .");
        self.json("replace status", 0, ".");
        self.json("replace start", 0, "1 ../third .");
        self.json("device replace status", 0, ".");
    }
}

/// Damages the content of a file in an image.
fn damage(image: &Path) {
    let bytes = fs::read(image).unwrap();
    let at = bytes.windows(CONTENT.len()).position(|window| window == CONTENT).unwrap();
    File::options().write(true).open(image).unwrap().write_all_at(b"that", at as u64).unwrap();
}

#[test]
fn json_of_mounts_has_the_form_that_the_schema_describes() {
    require!(FUSE);
    let volume = Volume::new();
    let file = volume.dir.path().join("file");
    fs::write(&file, CONTENT.repeat(2000)).unwrap();
    let inside = format!("{}:/file", volume.image.display());
    ubtrfs(&["cp".as_ref(), file.as_os_str(), inside.as_ref()]).ok();
    damage(&volume.image);
    let schema = Schema::parse(SCHEMA).unwrap_or_else(|error| panic!("{error}"));
    let commands = Commands { schema, volume: &volume };
    commands.json("scrub start", 3, "../image");
    volume.mount("");
    assert!(fs::read(volume.point.join("file")).is_err());
    run(&mut commands.command(&["subvolume", "create", "one"])).ok();
    for name in ["two", "three"] {
        run(&mut commands.command(&["subvolume", "snapshot", "one", name])).ok();
    }
    fs::write(volume.point.join("two/made"), "made").unwrap();
    fs::write(volume.point.join("large"), vec![1; 32 << 20]).unwrap();
    commands.json("stats", 0, ".");
    commands.look();
    commands.scrub();
    // The damaged data can't be moved.
    fs::remove_file(volume.point.join("file")).unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    commands.change_devices();
    let is_of = |field: &str, form: &&str| field.strip_prefix(*form).is_some_and(|rest| rest.starts_with('.'));
    let unseen = commands.schema.unseen();
    let unseen: Vec<_> = unseen.iter().filter(|field| WHOLE.iter().any(|form| is_of(field, form))).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
    volume.umount();
}
