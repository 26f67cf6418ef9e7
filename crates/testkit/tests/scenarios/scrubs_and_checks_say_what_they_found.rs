//! One cause makes one line: for a device that is missing or has thousands of wrong sectors, logs
//! and checks say how many and where. The findings of a scrub can be requested later.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_random::Rng;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::blank_image;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

use crate::device_images::{command_of, ubtrfs};

const SIZE: u64 = 256 << 20;
const CONTENT: usize = 32 << 20;
const SECTOR: usize = 4096;
const LIMIT: Duration = Duration::from_secs(60);

/// A mirror of files with random bytes.
struct Mirror {
    dir: tempfile::TempDir,
    images: [PathBuf; 2],
    content: Vec<u8>,
}

impl Mirror {
    fn new() -> Self {
        let dir = scratch_dir();
        let images = [0, 1].map(|number| dir.path().join(format!("image{number}")));
        for image in &images {
            blank_image(image, SIZE);
        }
        let mirror = Self { dir, images, content: random(CONTENT) };
        ubtrfs(&["mkfs", "-d", "raid1", "-m", "raid1"], &mirror.paths()).ok();
        let mount = Subject::ubtrfs().mount(&mirror.paths(), "");
        // A scrub takes some hundred extents at a time.
        for (number, content) in mirror.content.chunks(4 * SECTOR).enumerate() {
            std::fs::write(mount.path().join(format!("file {number}")), content).unwrap();
        }
        mount.unmount();
        mirror
    }

    fn paths(&self) -> [&Path; 2] {
        self.images.each_ref().map(PathBuf::as_path)
    }

    /// Overwrites the files' data on the second device. Returns how many sectors that are.
    fn damage(&self) -> u64 {
        let image = std::fs::read(&self.images[1]).unwrap();
        let sectors: std::collections::HashSet<&[u8]> = self.content.chunks(SECTOR).collect();
        let file = OpenOptions::new().write(true).open(&self.images[1]).unwrap();
        let mut damaged = 0;
        for (number, _) in image.chunks(SECTOR).enumerate().filter(|(_, sector)| sectors.contains(sector)) {
            file.write_all_at(&[0x55; SECTOR], (number * SECTOR) as u64).unwrap();
            damaged += 1;
        }
        assert_eq!(damaged, (CONTENT / SECTOR) as u64);
        damaged
    }

    /// Runs a command that keeps its findings in this directory.
    fn ubtrfs(&self, words: &[&str], places: &[&Path]) -> Outcome {
        run(command_of(words, places).env("STATE_DIRECTORY", self.dir.path()))
    }

    fn status(&self, place: &Path) -> serde_json::Value {
        serde_json::from_str(&self.ubtrfs(&["scrub", "status", "--json"], &[place]).ok().stdout).unwrap()
    }
}

fn random(len: usize) -> Vec<u8> {
    Rng::new(1).noise(len / 8 * 8)
}

/// Starts a server in the foreground, with its log in a file.
fn serve(images: &[&Path], place: &Path, log: &Path) -> Child {
    let mut server = command_of(&["mount", "-f"], images);
    let mut server = server.arg(place).stderr(Stdio::from(File::create(log).unwrap())).spawn().unwrap();
    let begun = Instant::now();
    let is_mounted = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(place.to_str().unwrap());
    while !is_mounted() {
        let ended = server.try_wait().unwrap();
        assert!(begun.elapsed() < LIMIT && ended.is_none(), "{}", std::fs::read_to_string(log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn thousands_of_wrong_sectors_are_a_few_lines_and_all_are_counted() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mirror = Mirror::new();
    let damaged = mirror.damage();
    let check = ubtrfs(&["check"], &mirror.paths());
    assert_eq!(check.code(), Some(1), "{}", check.report());
    let lines = check.stdout.lines().filter(|line| line.starts_with("fault")).count();
    assert!(lines <= 12 && check.stdout.contains("bytes of data: checksums do not match"), "{}", check.report());
    let (place, log) = (mirror.dir.path().join("mount"), mirror.dir.path().join("log"));
    std::fs::create_dir(&place).unwrap();
    let mut server = serve(&mirror.paths(), &place, &log);
    let begun = Instant::now();
    let scrubbed = mirror.ubtrfs(&["scrub", "start"], &[&place]).ok().stdout;
    let windows = begun.elapsed().as_secs() / 5 + 1;
    assert!(scrubbed.contains(&format!("{damaged} rewritten")), "{scrubbed}");
    let stats = ubtrfs(&["stats", "--json"], &[&place]).ok().stdout;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["errors"], damaged, "{stats}");
    let last = stats["last_errors"].as_array().unwrap().last().unwrap();
    assert!(last["device"] == 2 && last["physical"].is_u64() && last["logical"].is_u64(), "{last}");
    let sums: u64 = stats["last_errors"].as_array().unwrap().iter().map(|error| error["count"].as_u64().unwrap()).sum();
    assert!(sums > damaged / 2, "neighbours are one: {stats}");
    let device_stats = ubtrfs(&["device", "stats"], &[&place]).ok().stdout;
    let line = format!("corruption_errs  {damaged}");
    assert!(device_stats.contains(&line), "{device_stats}");
    // The findings are requested later, and again after the volume was mounted again.
    ubtrfs(&["umount"], &[&place]).ok();
    assert!(server.wait().unwrap().success());
    let mount = Subject::ubtrfs().mount(&mirror.paths(), "");
    let status = mirror.status(mount.path());
    let of = |name: &str| status.as_array().unwrap().iter().map(|device| device[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((of("corrected"), &status[0]["state"]), (damaged, &"finished".into()), "{status}");
    assert!(
        status[1]["started"].is_string() && status[1]["ended"].is_string() && of("bytes_per_second") > 0,
        "{status}"
    );
    let text = mirror.ubtrfs(&["scrub", "status"], &[mount.path()]).ok().stdout;
    for words in ["the last one began", "was done after 0:0", "device 2: ", "/s"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    mount.unmount();
    let log = std::fs::read_to_string(log).unwrap();
    let about: Vec<&str> = log.lines().filter(|line| line.contains("rewritten")).collect();
    assert!(about.len() as u64 <= 2 + windows, "{log}");
    // A line is about one sector, about adjacent sectors, or about those since the last line.
    let count = |line: &&str| {
        let of = |words| line.split_once(words)?.0.rsplit(' ').next()?.parse::<u64>().ok();
        of(" more copies").or_else(|| of(" sectors of data")).unwrap_or(1)
    };
    assert_eq!(about.iter().map(count).sum::<u64>(), damaged, "{log}");
}

#[test]
fn a_missing_device_is_one_fault_of_a_check() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mirror = Mirror::new();
    let check = |words: &[&str]| ubtrfs(&[&["check"], words].concat(), &mirror.paths()[..1]);
    let text = check(&[]);
    assert_eq!(text.code(), Some(1), "{}", text.report());
    assert!(text.stdout.contains("device 2 is missing") && text.stdout.contains("1 fault found"), "{}", text.report());
    assert!(text.stdout.lines().count() < 6, "{}", text.report());
    let json: serde_json::Value = serde_json::from_str(&check(&["--json"]).stdout).unwrap();
    assert_eq!((&json["fault_count"], &json["faults"][0]["device"]), (&1.into(), &2.into()), "{json}");
    assert!(json["faults"][0]["bytes_not_compared"].as_u64().unwrap() > CONTENT as u64, "{json}");
    // Data that no other device has is lost, and one message reports all of it.
    let dir = scratch_dir();
    let images = [0, 1].map(|number| dir.path().join(format!("image{number}")));
    for image in &images {
        blank_image(image, SIZE);
    }
    let paths = images.each_ref().map(PathBuf::as_path);
    ubtrfs(&["mkfs", "-d", "single", "-m", "raid1"], &paths).ok();
    let mount = Subject::ubtrfs().mount(&paths, "");
    std::fs::write(mount.path().join("file"), &mirror.content).unwrap();
    mount.unmount();
    for image in paths {
        let text = ubtrfs(&["check"], &[image]);
        assert_eq!(text.code(), Some(1), "{}", text.report());
        assert!(text.stdout.contains("1 fault found"), "{}", text.report());
        assert!(text.stdout.lines().count() < 6, "{}", text.report());
    }
}

#[test]
fn a_scrub_says_how_long_it_takes_and_which_device_is_missing() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mirror = Mirror::new();
    let mount = Subject::ubtrfs().mount(&mirror.paths(), "");
    let none = mirror.ubtrfs(&["scrub", "status"], &[mount.path()]).ok().stdout;
    assert!(none.contains("no scrub is running, and none is known"), "{none}");
    assert_eq!(mirror.status(mount.path()), serde_json::json!([]));
    let mut slow: Command = command_of(&["scrub", "start", "--limit", "1M"], &[mount.path()]);
    let mut slow = slow.env("STATE_DIRECTORY", mirror.dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let running = loop {
        let status = mirror.status(mount.path());
        if status[1]["seconds_left"].is_u64() && status[1]["data_bytes"].as_u64().unwrap() > 0 {
            break status;
        }
        assert!(begun.elapsed() < LIMIT && slow.try_wait().unwrap().is_none(), "{status}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let device = &running[1];
    assert_eq!((&device["state"], &device["device"]), (&"running".into(), &2.into()), "{running}");
    let total = device["total_bytes"].as_u64().unwrap();
    assert!((CONTENT as u64..CONTENT as u64 + (8 << 20)).contains(&total), "{running}");
    assert!(device["seconds_left"].as_u64().unwrap() > 0 && device["started"].is_string(), "{running}");
    let text = mirror.ubtrfs(&["scrub", "status"], &[mount.path()]).ok().stdout;
    assert!(text.contains("of about") && text.contains(" left so far"), "{text}");
    ubtrfs(&["scrub", "cancel"], &[mount.path()]).ok();
    assert!(!slow.wait().unwrap().success());
    let text = mirror.ubtrfs(&["scrub", "status"], &[mount.path()]).ok().stdout;
    assert!(text.contains("was cancelled"), "{text}");
    // What it had found until then is known.
    let status = mirror.status(mount.path());
    let [one, other] = &status.as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&one["state"], &other["state"]), (&"cancelled".into(), &"cancelled".into()), "{status}");
    assert!(other["data_bytes"].as_u64().unwrap() > 0 && other["seconds_left"].is_null(), "{status}");
    mount.unmount();
    let mount = Subject::ubtrfs().mount(&mirror.paths()[..1], "degraded");
    let text = mirror.ubtrfs(&["scrub", "start"], &[mount.path()]);
    assert_eq!(text.code(), Some(4), "{}", text.report());
    assert!(
        text.stdout.contains("device 2: missing") && text.stderr.contains("device 2 is missing"),
        "{}",
        text.report()
    );
    let json = mirror.ubtrfs(&["scrub", "start", "--json"], &[mount.path()]);
    assert_eq!(json.code(), Some(4), "{}", json.report());
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&found[1]["device"], &found[1]["missing"]), (&2.into(), &true.into()), "{found}");
    assert_eq!(mirror.status(mount.path())[1]["missing"], true);
    mount.unmount();
}
