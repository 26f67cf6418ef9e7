//! Tests that the commands which read a volume read what is there when devices are missing, that
//! `ubtrfs restore` says what it saved, and that it goes on where it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{changed, fails, ubtrfs};

/// Files by their paths.
type Files = BTreeMap<String, Vec<u8>>;

/// A volume of several devices that the kernel has written.
struct Case {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    files: Files,
    written: Vec<SystemTime>,
}

impl Case {
    fn new(devices: usize, profiles: [&str; 2]) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..devices).map(|number| dir.path().join(format!("device{number}"))).collect();
        for image in &images {
            blank_image(image, 300 << 20);
        }
        mkfs_btrfs_on(&images, &["-d", profiles[0], "-m", profiles[1]]);
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let kernel = KernelMount::new(&paths, "");
        let mut rng = Rng::new(5);
        let mut files = Files::new();
        for number in 0..60 {
            let name = format!("dir{}/file{number}", number % 5);
            fs::create_dir_all(kernel.path().join(format!("dir{}", number % 5))).unwrap();
            let size = [100, 70_000, 1 << 20, 4 << 20][rng.index(4)];
            let content = rng.noise(size);
            fs::write(kernel.path().join(&name), &content).unwrap();
            files.insert(name, content);
            if number % 20 == 19 {
                run(command("sync", &["-f"]).arg(kernel.path())).ok();
            }
        }
        assert_eq!(kernel.unmount(), Vec::<String>::new());
        let written = images.iter().map(changed).collect();
        Self { dir, images, files, written }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// Returns the devices without one of them.
    fn without(&self, missing: usize) -> Vec<&Path> {
        let others = self.images.iter().enumerate().filter(|(number, _)| *number != missing);
        others.map(|(_, image)| image.as_path()).collect()
    }

    fn restore(&self, options: &[&str], devices: &[&Path]) -> Output {
        let mut line = vec!["restore".into()];
        line.extend(options.iter().map(Into::into));
        line.extend(devices.iter().map(|path| path.as_os_str().to_owned()));
        line.push(self.out().into_os_string());
        ubtrfs(&line)
    }

    /// Asserts that nothing was written to the devices.
    fn assert_untouched(&self) {
        assert!(self.images.iter().map(changed).eq(self.written.iter().copied()), "a device was written to");
    }

    /// Asserts that the copy has all files, with their content.
    fn assert_all_restored(&self) {
        let found = files(&self.out());
        assert_eq!(found.keys().collect::<Vec<_>>(), self.files.keys().collect::<Vec<_>>());
        assert!(found == self.files, "the content differs");
    }
}

/// Returns the files below a directory, without the report.
fn files(top: &Path) -> Files {
    let mut found = Files::new();
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if !name.starts_with("ubtrfs-restore-report") {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the last record of each file in the report of a restore.
fn records(out: &Path) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(out.join("ubtrfs-restore-report.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_files =
        lines.filter_map(|line| Some((line["path"].as_str()?.trim_start_matches('/').to_owned(), line.clone())));
    of_files.collect()
}

/// Returns the files that the kernel reads without a device.
fn by_the_kernel(devices: &[&Path], all: &Files) -> BTreeSet<String> {
    let kernel = KernelMount::new(devices, "degraded,ro");
    let is_read =
        |name: &&String| fs::read(kernel.path().join(name.as_str())).is_ok_and(|read| read == all[name.as_str()]);
    let read = all.keys().filter(is_read).cloned().collect();
    let _ = kernel.unmount();
    read
}

#[test]
fn all_is_read_when_a_device_is_missing_whose_data_others_have() {
    require!(Need::Kernel);
    for (devices, profiles) in
        [(2, ["raid1", "raid1"]), (4, ["raid10", "raid10"]), (3, ["raid5", "raid1"]), (4, ["raid6", "raid1c3"])]
    {
        let case = Case::new(devices, profiles);
        for missing in 0..devices {
            let what = format!("{profiles:?} without {missing}");
            let there = case.without(missing);
            let sentence = format!("device {} of the volume is missing; everything is on the others", missing + 1);
            let output = case.restore(&[], &there);
            assert_eq!(output.status.code(), Some(0), "{what}: {}", said(&output));
            assert!(said(&output).contains(&sentence), "{what}: {}", said(&output));
            case.assert_all_restored();
            assert!(!case.out().join("ubtrfs-restore-report.txt").exists(), "{what}: nothing is to be reported");
            fs::remove_dir_all(case.out()).unwrap();

            let (name, content) = case.files.iter().next_back().unwrap();
            let (first, others) = there.split_first().unwrap();
            let path = format!("{}:/{name}", first.display());
            let more = || others.iter().flat_map(|device| ["--device".into(), device.as_os_str().to_owned()]);
            let top = format!("{}:", first.display());
            let copy = case.dir.path().join("copy");
            let commands: [(&[&str], &str, &[&Path]); 8] = [
                (&["ls", "-R"], &top, &[]),
                (&["cat"], &path, &[]),
                (&["stat"], &path, &[]),
                (&["cp", "-a"], &path, &[&copy]),
                (&["export"], &top, &[]),
                (&["history"], &path, &[]),
                (&["diff", "--since", "1"], &top, &[]),
                (&["subvolume", "list"], &top, &[]),
            ];
            for (words, place, last) in commands {
                let mut line: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
                line.extend(more());
                line.push(place.into());
                line.extend(last.iter().map(|path| path.as_os_str().to_owned()));
                let output = ubtrfs(&line);
                let status = i32::from(words[0] == "diff");
                assert_eq!(output.status.code(), Some(status), "{what}: {line:?}: {}", said(&output));
                assert!(said(&output).contains(&sentence), "{what}: {line:?}: {}", said(&output));
                assert_eq!(said(&output).lines().count(), 1, "{what}: {line:?}: {}", said(&output));
                if words[0] == "cat" {
                    assert!(output.stdout == *content, "{what}: another content");
                }
            }
            assert!(fs::read(&copy).unwrap() == *content, "{what}: another content");
            fs::remove_file(&copy).unwrap();
            case.assert_untouched();
        }
    }
}

#[test]
fn files_are_saved_whole_or_in_part_and_completed_with_the_missing_device() {
    require!(Need::Kernel);
    for profiles in [["single", "raid1"], ["raid0", "raid1"]] {
        let case = Case::new(2, profiles);
        for missing in [0, 1] {
            let what = format!("{profiles:?} without {missing}");
            let there = case.without(missing);
            let whole = by_the_kernel(&there, &case.files);
            assert!(!whole.is_empty() && whole.len() < case.files.len(), "{what}: {}", whole.len());
            let output = case.restore(&["--json"], &there);
            assert_eq!(output.status.code(), Some(1), "{what}: {}", said(&output));
            assert!(said(&output).contains("name its device, too"), "{what}: {}", said(&output));
            let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
            let saved = files(&case.out());
            let records = records(&case.out());
            let (mut in_part, mut lost) = (0, 0);
            for (name, content) in &case.files {
                let record = records.get(name);
                if whole.contains(name) {
                    assert!(saved.get(name) == Some(content), "{what}: {name}");
                    assert!(record.is_none(), "{what}: a saved file is listed: {record:?}");
                    continue;
                }
                let record = record.unwrap_or_else(|| panic!("{what}: {name} is not listed"));
                if record["state"] == "lost" {
                    assert!(!saved.contains_key(name), "{what}: {name} is said to be lost");
                    lost += 1;
                    continue;
                }
                assert_eq!(record["state"], "in part", "{what}: {record}");
                assert_eq!(record["why"], format!("it is on device {}, which is missing", missing + 1), "{what}");
                in_part += 1;
                // Everything outside of the ranges is right, and nothing is in them.
                let mut expected = content.clone();
                for range in record["lost"].as_array().unwrap() {
                    let [start, end] = [0, 1].map(|at: usize| range[at].as_u64().unwrap() as usize);
                    assert!(expected[start..end].iter().any(|byte| *byte != 0), "{what}: {name} {range}");
                    expected[start..end].fill(0);
                }
                assert!(saved[name] == expected, "{what}: {name}");
            }
            assert_eq!(summary["files_whole"], whole.len(), "{what}: {summary}");
            assert_eq!((&summary["files_in_part"], &summary["files_lost"]), (&in_part.into(), &lost.into()), "{what}");
            let text = fs::read_to_string(case.out().join("ubtrfs-restore-report.txt")).unwrap();
            assert!(text.contains(&format!("saved whole: {} files", whole.len())), "{text}");
            assert!(records.keys().all(|name| text.contains(name.as_str())), "{text}");

            // The same again saves nothing twice, and loses nothing.
            let again = case.restore(&["-o", "--json"], &there);
            assert_eq!(again.status.code(), Some(1), "{what}: {}", said(&again));
            let summary: Value = serde_json::from_slice(&again.stdout).unwrap();
            assert_eq!(summary["files_there"], whole.len(), "{what}: {summary}");
            assert_eq!(summary["files_in_part"], in_part, "{what}: {summary}");
            assert!(files(&case.out()) == saved, "{what}: the second run has changed files");

            let all: Vec<&Path> = case.images.iter().map(PathBuf::as_path).collect();
            let completed = case.restore(&["-o", "--json"], &all);
            assert_eq!(completed.status.code(), Some(0), "{what}: {}", said(&completed));
            let summary: Value = serde_json::from_slice(&completed.stdout).unwrap();
            assert_eq!(summary["files_completed"], in_part, "{what}: {summary}");
            assert_eq!(summary["files_there"], whole.len(), "{what}: {summary}");
            case.assert_all_restored();
            fs::remove_dir_all(case.out()).unwrap();
            case.assert_untouched();

            // A plain copy goes on after a file that can't be read, too.
            let copy = case.dir.path().join("copy");
            fs::create_dir(&copy).unwrap();
            let top = format!("{}:/.", there[0].display());
            let copied = ubtrfs(&["cp".as_ref(), "-r".as_ref(), top.as_ref(), copy.as_os_str()]);
            assert_eq!(copied.status.code(), Some(1), "{what}: {}", said(&copied));
            let found = files(&copy);
            assert!(found.keys().eq(&whole), "{what}: {} of {}", found.len(), whole.len());
            assert!(found.iter().all(|(name, content)| case.files[name] == *content), "{what}: another content");
            assert_eq!(said(&copied).lines().count(), 1 + case.files.len() - whole.len(), "{what}: {}", said(&copied));
            fs::remove_dir_all(&copy).unwrap();

            // btrfs restore saves no more.
            let device = ubtrfs_testkit::kernel::LoopDevice::attach(there[0], true);
            fs::create_dir(case.out()).unwrap();
            run(command("btrfs", &["restore", "-i"]).arg(device.path()).arg(case.out()));
            let theirs = files(&case.out());
            let right = case.files.iter().filter(|(name, content)| theirs.get(*name) == Some(content)).count();
            assert!(right <= whole.len(), "{what}: btrfs restore saves {right} of {}", whole.len());
            fs::remove_dir_all(case.out()).unwrap();
        }
    }
}

#[test]
fn what_differs_in_the_directory_is_left_unless_it_is_to_be_replaced() {
    require!(Need::Root);
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    for (name, content) in [("one", "first"), ("two", "second"), ("three", "third")] {
        crate::success(&crate::editing::with_input(&["put", &format!("{image}:/{name}")], content.as_bytes()));
    }
    crate::success(&ubtrfs(&["mkdir", &format!("{image}:/dir")]));
    crate::success(&ubtrfs(&["ln", "-s", "one", &format!("{image}:/link")]));
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), "mine").unwrap();
    fs::write(out.join("two"), "of me").unwrap();
    fs::write(out.join("dir"), "no directory").unwrap();
    std::os::unix::fs::symlink("elsewhere", out.join("link")).unwrap();
    let restore = |options: &[&str]| ubtrfs(&[&["restore"], options, &[&image, out.to_str().unwrap()]].concat());
    fails(&restore(&[]), 1, "is not empty");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 4);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();

    let output = restore(&["-o"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for name in ["/two", "/dir", "/link"] {
        assert!(said(&output).contains(&format!("{name}: there is something else")), "{}", said(&output));
    }
    assert_eq!(["mine", "two", "dir", "one", "three"].map(read), ["mine", "of me", "no directory", "first", "third"]);
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("elsewhere"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("left as they are, since they differ: 3"), "{text}");

    let output = restore(&["-o", "--overwrite"]);
    assert_eq!(["mine", "two", "dir", "one", "three"].map(read), ["mine", "second", "no directory", "first", "third"]);
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("one"));
    // A directory does not take the place of a file.
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("/dir: ") && !said(&output).contains("/two: "), "{}", said(&output));
    assert_eq!(restore(&["--overwrite"]).status.code(), Some(2), "it is for -o");
}

/// The image that is read is not replaced by a file of the volume, whatever that is called.
#[test]
fn the_image_itself_is_not_replaced() {
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    crate::success(&crate::editing::with_input(&["put", &format!("{image}:/image")], b"content"));
    let before = fs::read(&image).unwrap();
    let output = ubtrfs(&["restore", "-o", "--overwrite", &image, dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("it is the image itself"), "{}", said(&output));
    assert!(fs::read(&image).unwrap() == before, "the image was replaced");
}

#[test]
fn a_killed_restore_leaves_no_half_files_and_goes_on() {
    require!(Need::Kernel);
    let case = Case::new(2, ["raid1", "raid1"]);
    for after in [3, 20, 45] {
        let mut line = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        line.arg("restore").args(&case.images).arg(case.out()).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = line.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let count = || if case.out().exists() { files(&case.out()).len() } else { 0 };
        while count() < after && child.try_wait().unwrap().is_none() && Instant::now() < deadline {}
        child.kill().unwrap();
        child.wait().unwrap();
        let there = files(&case.out());
        for (name, content) in &there {
            assert!(case.files.get(name) == Some(content), "{name} is not whole");
        }
        let all: Vec<&Path> = case.images.iter().map(PathBuf::as_path).collect();
        let output = case.restore(&["-o", "--json"], &all);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["files_there"], there.len(), "{summary}");
        assert_eq!(summary["files"], case.files.len() - there.len(), "{summary}");
        case.assert_all_restored();
        fs::remove_dir_all(case.out()).unwrap();
    }
    case.assert_untouched();
}

#[test]
fn only_paths_that_match_are_restored() {
    require!(Need::Root);
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    for name in ["home/me/letter.txt", "home/me/song.ogg", "home/you/letter.txt", "var/log", "letter.txt"] {
        let above = Path::new(name).parent().unwrap().to_str().unwrap();
        crate::success(&ubtrfs(&["mkdir", "-p", &format!("{image}:/{above}")]));
        crate::success(&crate::editing::with_input(&["put", &format!("{image}:/{name}")], name.as_bytes()));
    }
    let out = dir.path().join("out");
    let restored = |options: &[&str]| {
        let output = ubtrfs(&[&["restore"], options, &[&image, out.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let names: Vec<String> = files(&out).into_keys().collect();
        let directories = fs::read_dir(&out).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
        fs::remove_dir_all(&out).unwrap();
        (names.join(" "), directories)
    };
    let all_letters = "home/me/letter.txt home/you/letter.txt letter.txt";
    assert_eq!(restored(&["--path-regex", r"\.txt$"]), (all_letters.into(), 1));
    // In the form that btrfs restore needs.
    let nested = "^/(|home(|/me(|/.*)))$";
    assert_eq!(restored(&["--path-regex", nested]), ("home/me/letter.txt home/me/song.ogg".into(), 1));
    assert_eq!(restored(&["--path", "/home", "--path-regex", "^/home/me/"]), ("me/letter.txt me/song.ogg".into(), 1));
    assert_eq!(restored(&["--path-regex", "nothing"]), (String::new(), 0));
    let wrong = ubtrfs(&["restore", "--path-regex", "(", &image, out.to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
}

#[test]
fn a_volume_is_read_without_its_primary_superblock_and_with_a_device_missing() {
    require!(Need::Kernel);
    let case = Case::new(2, ["raid1", "raid1"]);
    let copy = case.dir.path().join("copy");
    fs::copy(&case.images[0], &copy).unwrap();
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(&copy).unwrap(),
        &[0; 4096],
        64 << 10,
    )
    .unwrap();
    let output = ubtrfs(&["ls", "-R", copy.to_str().unwrap(), "/"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("file").count(), case.files.len());
    for words in ["the copy at 64 MiB is good", "by the superblock at 67108864", "device 2 of the volume is missing"] {
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
    let output = case.restore(&[], &[&copy]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    case.assert_all_restored();
}

#[test]
fn devices_that_are_named_but_away_are_done_without() {
    require!(Need::Kernel);
    let case = Case::new(2, ["raid1", "raid1"]);
    let away = case.dir.path().join("away");
    let empty = case.dir.path().join("empty");
    blank_image(&empty, 300 << 20);
    for other in [&away, &empty] {
        let output = case.restore(&[], &[&case.images[0], other]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("is left out: "), "{}", said(&output));
        case.assert_all_restored();
        fs::remove_dir_all(case.out()).unwrap();
    }
    // A mistyped name alone is an error.
    fails(&case.restore(&[], &[&away]), 1, "No such file or directory");
}

/// Metadata without a copy: without one of the devices not even the chunk tree can be read.
#[test]
fn a_volume_whose_metadata_is_missing_is_said_to_lack_its_device() {
    require!(Need::Kernel);
    let case = Case::new(2, ["raid0", "raid0"]);
    let mut named = 0;
    for missing in [0, 1] {
        let there = case.without(missing);
        let output = ubtrfs(&["ls".as_ref(), there[0].as_os_str(), "/".as_ref()]);
        let lacking = format!("device {} of the volume is missing", missing + 1);
        named += u32::from(said(&output).contains(&lacking));
        assert!(
            said(&output).contains(&lacking) || said(&output).contains("1 given: name all of them"),
            "{}",
            said(&output)
        );
        assert!(!said(&output).contains("panicked"));
    }
    assert!(named > 0, "with the chunk tree the missing device is known");
}

#[test]
fn times_are_those_of_the_users_zone() {
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    let history = |zone: &str| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(["history", &image]).env("TZ", zone).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(history("UTC0").contains(" +0000, "), "{}", history("UTC0"));
    assert!(history("XYZ-3:30").contains(" +0330, "), "{}", history("XYZ-3:30"));
    assert!(history("ABC+5").contains(" -0500, "), "{}", history("ABC+5"));
    let hour = |text: String| text.split(' ').find(|word| word.contains(':')).unwrap()[..2].parse::<i32>().unwrap();
    assert_eq!((hour(history("UTC0")) + 4) % 24, hour(history("XYZ-4")));
}
