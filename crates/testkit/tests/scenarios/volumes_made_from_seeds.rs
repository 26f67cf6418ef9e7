//! ubtrfs and the kernel write in turn to a volume that the kernel made from a seed device. The
//! seed stays as it was, byte for byte.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{Mount, Subject};

const LEN: usize = 3 << 20;

/// A seed, a volume made from it, and the expected contents of its files.
struct Sprout {
    dir: tempfile::TempDir,
    /// The seed's devices, followed by the new one.
    images: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
    /// The contents of the seed's devices before.
    before: Vec<Vec<u8>>,
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5) as u8 ^ (at >> 12) as u8 ^ seed).collect()
}

fn ubtrfs(arguments: &[&str], places: &[&Path]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments).args(places))
}

impl Sprout {
    /// Makes a seed with files with and without copy-on-write and with preallocated space, and a
    /// volume from it. `profile` is that of the seed's data and metadata, on `seeds` devices.
    fn make(profile: &[&str], seeds: usize) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..=seeds).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, 400 << 20);
        }
        mkfs_btrfs_on(&images[..seeds], profile);
        let mut sprout = Self { dir, images, files: BTreeMap::new(), before: Vec::new() };
        let mount = KernelMount::new(&sprout.paths()[..seeds], "");
        let top = mount.path();
        run(command("sh", &["-c", "touch \"$1/in place\"; chattr +C \"$1/in place\"", "sh"]).arg(top)).ok();
        for (number, name) in ["in place", "plain", "small"].into_iter().enumerate() {
            let content = content(number as u8, if name == "small" { 700 } else { LEN });
            std::fs::write(top.join(name), &content).unwrap();
            sprout.files.insert(name.into(), content);
        }
        run(command("fallocate", &["-l", "2M"]).arg(top.join("reserved"))).ok();
        sprout.files.insert("reserved".into(), vec![0; 2 << 20]);
        for number in 0..400 {
            let name = format!("file {number}");
            std::fs::write(top.join(&name), &name).unwrap();
            sprout.files.insert(name.clone(), name.into_bytes());
        }
        assert_eq!(mount.unmount(), [] as [String; 0]);
        let attached = sprout.attach();
        run(command("btrfstune", &["-f", "-S", "1"]).arg(attached[0].path())).ok();
        let point = scratch_dir();
        let scan: Vec<&Path> = attached[..seeds].iter().map(LoopDevice::path).collect();
        run(command("btrfs", &["device", "scan"]).args(scan)).ok();
        run(command("mount", &["-t", "btrfs"]).arg(attached[0].path()).arg(point.path())).ok();
        let added = run(command("btrfs", &["device", "add", "-f"]).arg(attached[seeds].path()).arg(point.path()));
        run(command("umount", &[] as &[&str]).arg(point.path())).ok();
        added.ok();
        drop(attached);
        sprout.before = sprout.images[..seeds].iter().map(|image| std::fs::read(image).unwrap()).collect();
        sprout
    }

    fn paths(&self) -> Vec<&Path> {
        self.images.iter().map(PathBuf::as_path).collect()
    }

    fn attach(&self) -> Vec<LoopDevice> {
        self.images.iter().map(|image| LoopDevice::attach(image, false)).collect()
    }

    /// Mounts, verifies, and changes files from the seed and others.
    fn write(&mut self, subject: &Subject, round: u8) {
        // The kernel takes the volume of the first device.
        let mut images = self.images.clone();
        images.reverse();
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mount = subject.mount(&paths, "");
        let top = mount.path().to_owned();
        self.verify(&top, &format!("round {round}, {}", subject.name()));
        for name in ["in place", "plain", "reserved"] {
            let (at, part) = (4096 * (3 + usize::from(round) * 7), content(90 + round, 9000));
            let file = std::fs::OpenOptions::new().write(true).open(top.join(name)).unwrap();
            file.write_all_at(&part, at as u64).unwrap();
            file.sync_all().unwrap();
            self.files.get_mut(name).unwrap()[at..at + part.len()].copy_from_slice(&part);
        }
        for number in (usize::from(round)..400).step_by(9) {
            let name = format!("file {number}");
            if self.files.remove(&name).is_some() {
                std::fs::remove_file(top.join(name)).unwrap();
            }
        }
        for (name, len) in [("in leaves", 900), ("large", 5 << 20)] {
            let name = format!("{name} {round}");
            let content = content(round, len);
            std::fs::write(top.join(&name), &content).unwrap();
            self.files.insert(name, content);
        }
        match mount {
            Mount::Kernel(mount) => {
                let mut complaints = mount.unmount();
                // The kernel remembers earlier seeds under the number of a loop device that no
                // longer exists.
                complaints.retain(|complaint| !complaint.contains("maj:min changed from"));
                assert!(complaints.is_empty(), "round {round}: {complaints:#?}");
            }
            ours @ Mount::Ubtrfs(_) => ours.unmount(),
        }
        self.check(round);
    }

    fn verify(&self, top: &Path, what: &str) {
        for (name, content) in &self.files {
            let found = std::fs::read(top.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *content, "{what}: {name} differs");
        }
        assert_eq!(std::fs::read_dir(top).unwrap().count(), self.files.len(), "{what}");
    }

    /// Asserts that both checkers find nothing, and that the seed is as it was.
    fn check(&self, round: u8) {
        ubtrfs(&["check"], &self.paths()).ok();
        let attached = self.attach();
        run(command("btrfs", &["device", "scan"]).args(attached.iter().map(LoopDevice::path))).ok();
        assert_btrfs_check_clean(attached.last().expect("a device").path());
        drop(attached);
        for (image, before) in self.images.iter().zip(&self.before) {
            assert!(std::fs::read(image).unwrap() == *before, "round {round}: the seed was written to");
        }
    }
}

fn back_and_forth(profile: &[&str], seeds: usize) {
    let mut sprout = Sprout::make(profile, seeds);
    sprout.check(0);
    for round in 0..4 {
        let subject = if round % 2 == 0 { Subject::ubtrfs() } else { Subject::Kernel };
        sprout.write(&subject, round);
    }
    // The seed alone shows what it showed before.
    let seed = sprout.paths()[..seeds].to_vec();
    // As with the kernel, the mount is read-only even without `ro`.
    let mount = Subject::ubtrfs().mount(&seed, "");
    let refused = std::fs::write(mount.path().join("new"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(std::fs::read(mount.path().join("plain")).unwrap() == content(1, LEN));
    assert_eq!(std::fs::read(mount.path().join("file 0")).unwrap(), b"file 0");
    mount.unmount();
    ubtrfs(&["check"], &seed).ok();
    drop(sprout.dir);
}

#[test]
fn what_is_made_from_a_seed_goes_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"), Need::Tool("btrfstune"));
    back_and_forth(&["-d", "single", "-m", "dup"], 1);
    back_and_forth(&["-d", "single", "-m", "single", "-n", "4k"], 2);
    // The one new device can't have the seed's profile, so new chunks are single ones.
    back_and_forth(&["-d", "raid1", "-m", "raid1"], 2);
}

#[test]
fn the_seed_of_a_volume_is_found_and_described() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"), Need::Tool("btrfstune"));
    let sprout = Sprout::make(&["-d", "single", "-m", "dup"], 1);
    let alone = [sprout.images[1].as_path()];
    let refused = Subject::ubtrfs().try_mount(&alone, "").expect_err("without the seed");
    assert!(refused.stderr.contains("missing: device 1"), "{}", refused.report());
    let attached = sprout.attach();
    let mount = Subject::ubtrfs().mount(&[attached[1].path()], "");
    sprout.verify(mount.path(), "the seed is found");
    std::fs::write(mount.path().join("new"), b"new").unwrap();
    // A scrub checks the devices of the seed and the volume's own, and writes only to the latter.
    let found = ubtrfs(&["scrub", "start", "--json"], &[mount.path()]).ok().stdout;
    assert!(found.contains("\"uncorrectable\": 0") || found.contains("\"uncorrectable\":0"), "{found}");
    mount.unmount();
    drop(attached);
    sprout.check(0);
}
