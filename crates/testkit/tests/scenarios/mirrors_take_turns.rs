//! ubtrfs and the kernel use a mirrored volume in turn; ubtrfs also without a device, which comes
//! back, and until it is killed. What was fsynced stays, and the kernel has no complaint
//! (invariants 34 and 44).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::{Mount, Subject, settle};

use crate::device_images::ubtrfs;

const FILES: u64 = 12;
const MAX_BYTES: u64 = 3 << 20;
/// After so many turns, both checkers check the volume.
const CHECK_EVERY: u32 = 5;

struct Volume {
    _dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
    rng: Rng,
}

fn paths(images: &[PathBuf]) -> Vec<&Path> {
    images.iter().map(PathBuf::as_path).collect()
}

impl Volume {
    fn make(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (count, profile) = [(2, "raid1"), (3, "raid1"), (3, "raid1c3"), (4, "raid10")][rng.below(4) as usize];
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (1..=count).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(400 << 20).unwrap();
        }
        let volume = Self { _dir: dir, images, files: BTreeMap::new(), rng };
        ubtrfs(&["mkfs", "-d", profile, "-m", profile], &paths(&volume.images)).ok();
        volume
    }

    fn verify(&self, top: &Path, what: &str) {
        for (name, content) in &self.files {
            let found = std::fs::read(top.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *content, "{what}: {name} differs");
        }
    }

    /// Writes, overwrites and removes some files, and fsyncs each change.
    fn write(&mut self, top: &Path) {
        for _ in 0..=self.rng.below(4) {
            let name = format!("file {}", self.rng.below(FILES));
            if self.files.contains_key(&name) && self.rng.below(4) == 0 {
                std::fs::remove_file(top.join(&name)).unwrap();
                std::fs::File::open(top).unwrap().sync_all().unwrap();
                self.files.remove(&name);
                continue;
            }
            let (len, start) = (self.rng.below(MAX_BYTES), self.rng.below(1 << 20));
            let content: Vec<u8> = (start..start + len).map(|at| (at ^ at >> 9) as u8).collect();
            std::fs::write(top.join(&name), &content).unwrap();
            std::fs::File::open(top.join(&name)).unwrap().sync_all().unwrap();
            self.files.insert(name, content);
        }
    }

    /// Mounts the volume by `subject`, and works there.
    fn use_by(&mut self, subject: &Subject, images: &[PathBuf], options: &str, what: &str) {
        let mount = subject.mount(&paths(images), options);
        self.verify(mount.path(), what);
        self.write(mount.path());
        if let Mount::Ubtrfs(_) = &mount
            && options.is_empty()
        {
            // A scrub brings up devices that lag, before the kernel uses the volume.
            ubtrfs(&["scrub", "start"], &[mount.path()]).ok();
        }
        self.verify(mount.path(), what);
        if images.len() == self.images.len() {
            mount.unmount();
        } else {
            drop(mount);
        }
    }

    /// Kills ubtrfs while it works.
    fn crash(&mut self, what: &str) {
        let mount = Subject::ubtrfs().mount(&paths(&self.images), "");
        self.verify(mount.path(), what);
        self.write(mount.path());
        let Mount::Ubtrfs(ours) = &mount else { panic!("the kernel has it") };
        ours.kill_server();
        mount.unmount();
        for image in &self.images {
            settle(image);
        }
    }

    fn check(&self) {
        ubtrfs(&["check"], &paths(&self.images)).ok();
        let devices: Vec<LoopDevice> = self.images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        assert_btrfs_check_clean(devices[0].path());
    }

    fn round(&mut self, round: u32) {
        let all = self.images.clone();
        match self.rng.below(4) {
            0 => self.use_by(&Subject::ubtrfs(), &all, "", &format!("round {round}, ubtrfs")),
            1 => {
                let mut some = all.clone();
                let gone = self.rng.below(all.len() as u64) as usize;
                some.remove(gone);
                for mount in 0..=self.rng.below(2) {
                    let what = format!("round {round}, mount {mount} without device {}", gone + 1);
                    self.use_by(&Subject::ubtrfs(), &some, "degraded", &what);
                }
                self.use_by(&Subject::ubtrfs(), &all, "", &format!("round {round}, device {} is back", gone + 1));
            }
            2 => {
                self.crash(&format!("round {round}, a crash"));
                self.use_by(&Subject::ubtrfs(), &all, "", &format!("round {round}, after a crash"));
            }
            _ => {}
        }
        self.use_by(&Subject::Kernel, &all, "", &format!("round {round}, the kernel"));
        if round.is_multiple_of(CHECK_EVERY) {
            self.check();
        }
    }
}

#[test]
fn mirrors_pass_between_ubtrfs_and_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let rounds = if soaks() { 50 } else { 5 };
    for seed in if soaks() { (1..=4).collect() } else { seeds(1) } {
        let mut volume = Volume::make(seed);
        (1..=rounds).for_each(|round| volume.round(round));
        volume.check();
    }
}
