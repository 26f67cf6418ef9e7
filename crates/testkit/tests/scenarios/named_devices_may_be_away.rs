//! With `degraded`, a volume can miss devices that are named, as in an fstab, but are away or have
//! nothing of it: ubtrfs names each of them once, and writes nothing to it. Without `degraded` the
//! mount fails and names each of them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::blank_image;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

use crate::device_images::ubtrfs;

const SIZE: u64 = 256 << 20;
/// The addresses of the superblock and of its copy.
const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
/// Far more than the time for which a server is waited for.
const LONG: Duration = Duration::from_secs(60);

/// The state of a spoiled device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spoiled {
    Gone,
    Zeroed,
    /// Only the magic of its superblock is left.
    Garbage,
    /// It belongs to another volume of two devices.
    OfAnother,
}

const ALL: [Spoiled; 4] = [Spoiled::Gone, Spoiled::Zeroed, Spoiled::Garbage, Spoiled::OfAnother];

impl Spoiled {
    fn spoil(self, image: &Path) {
        match self {
            Self::Gone => std::fs::rename(image, image.with_extension("gone")).unwrap(),
            Self::OfAnother => {
                let other = image.with_extension("other");
                for image in [image, &other] {
                    blank_image(image, SIZE);
                }
                ubtrfs(&["mkfs", "-f", "-d", "raid1", "-m", "raid1"], &[image, &other]).ok();
            }
            Self::Zeroed | Self::Garbage => {
                let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
                for at in SUPERBLOCKS {
                    let byte = if self == Self::Zeroed { 0 } else { 0x5a };
                    let mut block = vec![byte; 4096];
                    if self == Self::Garbage {
                        file.read_exact_at(&mut block[64..72], at + 64).unwrap();
                    }
                    file.write_all_at(&block, at).unwrap();
                }
            }
        }
    }

    /// Returns the words by which ubtrfs describes it.
    fn said(self) -> &'static str {
        match self {
            Self::Gone => "No such file",
            Self::Zeroed => "no btrfs found",
            Self::Garbage => "superblock is damaged",
            Self::OfAnother => "another volume",
        }
    }
}

/// Images of a mirrored volume, and their names in a mount.
struct Mirror {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
}

impl Mirror {
    fn new(profile: &str, count: usize) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..count).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, SIZE);
        }
        ubtrfs(&["mkfs", "-d", profile, "-m", profile], &paths(&images)).ok();
        Self { dir, images }
    }

    /// Copies an image, to compare it with the copy later.
    fn copy(&self, image: &Path) -> PathBuf {
        let copy = self.dir.path().join("copy");
        if image.exists() {
            run(command("cp", &["--sparse=always"]).arg(image).arg(&copy)).ok();
        }
        copy
    }
}

fn paths(images: &[PathBuf]) -> Vec<&Path> {
    images.iter().map(PathBuf::as_path).collect()
}

fn assert_same(image: &Path, copy: &Path, what: &str) {
    if copy.exists() {
        let same = run(command::<&str>("cmp", &[]).arg(image).arg(copy));
        assert!(same.success(), "{what}: something was written: {}", same.report());
    } else {
        assert!(!image.exists(), "{what}: it was made");
    }
}

/// Returns the data of an image outside of its holes, with its offsets.
fn data_of(image: &Path) -> std::io::Result<Vec<(u64, Vec<u8>)>> {
    let file = std::fs::File::open(image)?;
    let (mut data, mut at) = (Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        let mut bytes = vec![0; (at - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        data.push((start, bytes));
    }
    Ok(data)
}

/// Asserts that one line says that this device is left out, and why.
fn assert_left_out(said: &str, device: &Path, why: &str) {
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("left out")).collect();
    let is_it = |line: &&str| line.contains(&device.display().to_string()) && line.contains(why);
    assert!(matches!(&lines[..], [line] if is_it(line)), "{why:?} of {}: {said:?}", device.display());
}

fn assert_refused(outcome: &Outcome, words: &[&str]) {
    assert!(!outcome.success(), "{}", outcome.report());
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?} is not said: {}", outcome.report());
    }
}

/// Mounts with these options, uses the volume, and unmounts. Returns the messages of the mount.
fn use_it(devices: &[&Path], options: &str, file: &str) -> String {
    let mount = Subject::ubtrfs().mount(devices, options);
    let said = mount.said().to_owned();
    if options.contains("ro,") {
        std::fs::read_dir(mount.path()).unwrap().for_each(drop);
    } else {
        std::fs::write(mount.path().join(file), file).unwrap();
        File::open(mount.path().join(file)).unwrap().sync_all().unwrap();
    }
    mount.unmount();
    said
}

#[test]
fn a_mirror_is_mounted_without_a_named_image_that_is_away_or_spoiled() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for spoiled in ALL {
        for gone in [0, 1] {
            let what = format!("{spoiled:?} {gone}");
            let mirror = Mirror::new("raid1", 2);
            let [one, other] = [0, 1].map(|number: usize| mirror.images[number].as_path());
            let (bad, good) = if gone == 0 { (one, other) } else { (other, one) };
            use_it(&[one, other], "", "before");
            spoiled.spoil(bad);
            let copy = mirror.copy(bad);
            let why = if spoiled == Spoiled::OfAnother { "different volumes" } else { spoiled.said() };
            let refused = Subject::ubtrfs().try_mount(&[one, other], "").expect_err(&what);
            assert_refused(&refused, &[why, bad.to_str().unwrap()]);
            if spoiled == Spoiled::OfAnother && gone == 0 {
                // The first device determines the volume, as for the kernel.
                let said = use_it(&[one, other], "ro,degraded", "");
                assert_left_out(&said, other, "another volume");
                assert_same(bad, &copy, &what);
                continue;
            }
            for options in ["ro,degraded", "degraded"] {
                let said = use_it(&[one, other], options, "during");
                assert_left_out(&said, bad, spoiled.said());
            }
            let said = use_it(&[good], &format!("degraded,device={}", bad.display()), "by the option");
            assert_left_out(&said, bad, spoiled.said());
            assert_same(bad, &copy, &what);
            let listed = ubtrfs(&["device", "usage"], &[one, other]).ok();
            assert!(listed.stdout.contains("missing"), "{what}: {}", listed.report());
            assert_left_out(&listed.stderr, bad, spoiled.said());
            // A new device replaces it, though the old one is named.
            let new = mirror.dir.path().join("new");
            blank_image(&new, SIZE);
            let number = (gone + 1).to_string();
            let replaced = ubtrfs(&["replace", "start", &number, new.to_str().unwrap()], &[one, other]).ok();
            assert_left_out(&replaced.stderr, bad, spoiled.said());
            assert_same(bad, &copy, &what);
            ubtrfs(&["check"], &[good, &new]).ok();
            let mount = Subject::ubtrfs().mount(&[good, &new], "ro");
            for file in ["before", "during", "by the option"] {
                assert_eq!(std::fs::read_to_string(mount.path().join(file)).unwrap(), file, "{what}");
            }
            mount.unmount();
        }
    }
}

#[test]
fn which_volume_is_meant_is_never_guessed() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let (one, other) = (Mirror::new("raid1", 2), Mirror::new("raid1", 2));
    let whole = Mirror::new("single", 1);
    let refused = |devices: &[&Path], words: &[&str]| {
        // A device that is gone has no content.
        let contents = || devices.iter().map(|device| data_of(device).ok()).collect::<Vec<_>>();
        let before = contents();
        for options in ["degraded", "ro,degraded"] {
            assert_refused(&Subject::ubtrfs().try_mount(devices, options).expect_err("refused"), words);
        }
        assert!(contents() == before, "{devices:?}");
    };
    let [a, b] = [0, 1].map(|number: usize| one.images[number].as_path());
    let (c, d) = (other.images[0].as_path(), whole.images[0].as_path());
    // The first device's volume lacks no device, so the other volume may be the wanted one.
    refused(&[d, a], &["different volumes", d.to_str().unwrap(), a.to_str().unwrap()]);
    refused(&[a, b, c], &["different volumes", c.to_str().unwrap()]);
    // The device that would determine the volume is away.
    Spoiled::Gone.spoil(a);
    refused(&[a, b, c], &["different volumes", b.to_str().unwrap(), c.to_str().unwrap()]);
    // No device is left.
    Spoiled::Zeroed.spoil(b);
    refused(&[a, b], &["No such file", "no btrfs found", a.to_str().unwrap(), b.to_str().unwrap()]);
}

#[test]
fn a_device_that_others_use_or_that_no_other_can_stand_in_for_is_not_done_without() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mirror = Mirror::new("raid1", 2);
    let [one, other] = [0, 1].map(|number: usize| mirror.images[number].as_path());
    let mount = Subject::ubtrfs().mount(&[one, other], "single_user");
    let again = Subject::ubtrfs().try_mount(&[one, other], "degraded,single_user").expect_err("it is in use");
    assert_refused(&again, &["in use"]);
    mount.unmount();
    let striped = Mirror::new("raid0", 2);
    let [one, other] = [0, 1].map(|number: usize| striped.images[number].as_path());
    Spoiled::Gone.spoil(other);
    let refused = Subject::ubtrfs().try_mount(&[one, other], "degraded").expect_err("half of a volume");
    assert_refused(&refused, &["left out", other.to_str().unwrap(), "can only be read"]);
}

#[test]
fn all_devices_that_are_away_are_named() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mirror = Mirror::new("raid1c3", 4);
    let names: Vec<&str> = mirror.images.iter().map(|image| image.to_str().unwrap()).collect();
    for number in [0, 2] {
        Spoiled::Gone.spoil(&mirror.images[number]);
    }
    let all = paths(&mirror.images);
    let refused = Subject::ubtrfs().try_mount(&all, "").expect_err("two of four");
    assert_refused(&refused, &[names[0], names[2], "-o degraded"]);
    assert_refused(&ubtrfs(&["check"], &all), &[names[0], names[2]]);
    let info = ubtrfs(&["info"], &all);
    assert_refused(&info, &[names[0], names[2]]);
    assert!(info.stdout.contains("missing"), "{}", info.report());
    let mount = Subject::ubtrfs().mount(&all, "degraded");
    assert_eq!(mount.said().matches("is left out").count(), 2, "{}", mount.said());
    mount.unmount();
    Spoiled::Zeroed.spoil(&mirror.images[1]);
    let there = [all[1], all[3]];
    Spoiled::Zeroed.spoil(&mirror.images[3]);
    let refused = Subject::ubtrfs().try_mount(&there, "").expect_err("no superblock");
    assert_refused(&refused, &[names[1], names[3]]);
}

#[test]
fn a_mirror_over_two_servers_is_mounted_without_one_of_them() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let images = [0, 1].map(|number| dir.path().join(format!("image{number}")));
    let mut servers = [0, 1].map(|number: usize| {
        blank_image(&images[number], SIZE);
        let socket = dir.path().join(format!("socket{number}"));
        NbdServer::nbdkit(&socket, &["file", &images[number].display().to_string()])
    });
    let uris = servers.each_ref().map(|server| PathBuf::from(server.uri("")));
    ubtrfs(&["mkfs", "-d", "raid1", "-m", "raid1"], &[&uris[0], &uris[1]]).ok();
    use_it(&[&uris[0], &uris[1]], "timeout=3", "before");
    // The mount waits for a server that does not answer, but not forever.
    servers[0].pause();
    let begun = Instant::now();
    let said = use_it(&[&uris[0], &uris[1]], "degraded,timeout=3", "silent");
    assert_left_out(&said, &uris[0], "the server does not answer");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    servers[0].resume();
    servers[0].kill();
    let refused = Subject::ubtrfs().try_mount(&[&uris[0], &uris[1]], "timeout=3").expect_err("one is away");
    assert_refused(&refused, &[uris[0].to_str().unwrap(), "no server listens", "-o degraded"]);
    let said = use_it(&[&uris[0], &uris[1]], "degraded,timeout=3", "killed");
    assert_left_out(&said, &uris[0], "no server listens");
    // The device is brought up when its server is there again.
    servers[0].restart();
    use_it(&[&uris[0], &uris[1]], "degraded,timeout=3", "again");
    ubtrfs(&["scrub", "start"], &[&uris[0], &uris[1]]).ok();
    ubtrfs(&["check"], &[&uris[0], &uris[1]]).ok();
    for spoiled in [Spoiled::Garbage, Spoiled::OfAnother] {
        spoiled.spoil(&images[1]);
        servers[1].kill();
        servers[1].restart();
        let copy = dir.path().join("copy");
        run(command("cp", &["--sparse=always"]).arg(&images[1]).arg(&copy)).ok();
        let said = use_it(&[&uris[0], &uris[1]], "degraded,timeout=3", "spoiled");
        assert_left_out(&said, &uris[1], spoiled.said());
        assert_same(&images[1], &copy, &format!("{spoiled:?}: also no mark of who writes"));
    }
    let mount = Subject::ubtrfs().mount(&[&uris[0], &uris[1]], "ro,degraded,timeout=3");
    for file in ["before", "silent", "killed", "again", "spoiled"] {
        assert_eq!(std::fs::read_to_string(mount.path().join(file)).unwrap(), file);
    }
    mount.unmount();
}
