//! Volumes on several devices that ubtrfs makes: ubtrfs and the kernel write to them in turn, also
//! without one of the devices, and when it has come back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{Mount, Subject};

/// A volume, and the expected contents of its files.
struct Volume {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Volume {
    /// Makes a volume by `ubtrfs mkfs`, of images of these sizes in MiB.
    fn make(options: &[&str], sizes: &[u64]) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (1..=sizes.len()).map(|number| dir.path().join(format!("image{number}"))).collect();
        for (image, mib) in images.iter().zip(sizes) {
            std::fs::File::create(image).unwrap().set_len(mib << 20).unwrap();
        }
        run(ubtrfs("mkfs").args(options).args(&images)).ok();
        Self { dir, images, files: BTreeMap::new() }
    }

    fn images(&self) -> Vec<&Path> {
        self.images.iter().map(PathBuf::as_path).collect()
    }

    /// Mounts some of its devices, verifies the files, and writes more.
    fn write(&mut self, subject: &Subject, images: &[&Path], options: &str, round: u8) -> Vec<String> {
        let what = format!("round {round}, {}", subject.name());
        let mount = subject.mount(images, options);
        self.verify(mount.path(), &what);
        for (number, len) in [(0, 3), (1, 100_000), (2, 9 << 20)] {
            let name = format!("file {round}.{number}");
            let content: Vec<u8> = (0..len).map(|at: u32| (at / 7) as u8 ^ (at >> 11) as u8 ^ round).collect();
            std::fs::write(mount.path().join(&name), &content).unwrap();
            self.files.insert(name, content);
        }
        // Rewrites a part of the files of the round before.
        for (name, content) in self.files.iter_mut().filter(|(_, content)| content.len() == 100_000) {
            content[50_000..60_000].fill(round);
            std::fs::write(mount.path().join(name), content).unwrap();
        }
        match mount {
            Mount::Kernel(mount) => mount.unmount(),
            ours @ Mount::Ubtrfs(_) => {
                ours.unmount();
                Vec::new()
            }
        }
    }

    fn verify(&self, top: &Path, what: &str) {
        for (name, content) in &self.files {
            let found = std::fs::read(top.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *content, "{what}: {name} differs");
        }
    }

    /// Asserts that both checkers find nothing.
    fn check(&self) {
        run(ubtrfs("check").args(&self.images)).ok();
        let devices: Vec<LoopDevice> = self.images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        assert_btrfs_check_clean(devices[0].path());
    }
}

fn ubtrfs(word: &str) -> Command {
    let mut line = Command::new(ubtrfs_binary().expect("the ubtrfs binary"));
    line.arg(word);
    line
}

/// Writes by ubtrfs and the kernel in turn. Neither complains about what the other wrote.
fn back_and_forth(options: &[&str], sizes: &[u64]) {
    let mut volume = Volume::make(options, sizes);
    volume.check();
    for round in 0..4 {
        let subject = if round % 2 == 0 { Subject::ubtrfs() } else { Subject::Kernel };
        let images: Vec<PathBuf> = volume.images.clone();
        let images: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let complaints = volume.write(&subject, &images, "", round);
        assert!(complaints.is_empty(), "{options:?}: {complaints:#?}");
        volume.check();
    }
}

#[test]
fn striped_volumes_go_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    back_and_forth(&["-d", "raid0", "-m", "raid0"], &[200, 200, 200]);
    back_and_forth(&["-d", "raid10", "-m", "raid10"], &[150, 300, 200, 250, 180]);
}

#[test]
fn mirrored_volumes_go_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    back_and_forth(&["-d", "raid1", "-m", "raid1"], &[200, 300]);
    back_and_forth(&["-d", "raid1c3", "-m", "raid1c3"], &[200, 300, 250, 400]);
    back_and_forth(&["-d", "raid1", "-m", "raid1c4", "-n", "64k"], &[200, 300, 250, 400]);
}

#[test]
fn chunks_on_one_device_of_several_go_back_and_forth() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    back_and_forth(&[], &[200, 300]);
    back_and_forth(&["-d", "dup", "-m", "raid1"], &[64, 500, 300]);
    back_and_forth(&["-M", "-d", "raid1"], &[100, 120]);
}

/// A device of a mirrored volume is lost, `writer` writes without it, and it comes back as it was:
/// `reader` reads the right data.
fn lost_and_returned(writer: &Subject, reader: &Subject) {
    let mut volume = Volume::make(&["-d", "raid1", "-m", "raid1"], &[300, 300]);
    let images = volume.images.clone();
    let both: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    volume.write(&Subject::ubtrfs(), &both, "", 0);
    volume.write(writer, &both[..1], "degraded", 1);
    volume.write(writer, &both[..1], "degraded", 2);
    let mount = reader.mount(&both, "");
    volume.verify(mount.path(), "the device is back");
    drop(mount);
    // The kernel's scrub brings it up, so that nothing is wrong on either device.
    let mount = KernelMount::new(&volume.images(), "");
    volume.verify(mount.path(), "before the scrub");
    run(command("btrfs", &["scrub", "start", "-B"]).arg(mount.path())).ok();
    drop(mount.unmount());
    volume.check();
    // The kernel writes nothing to mirrored chunks that lack a device, but makes single ones.
    let mirrored = if matches!(writer, Subject::Kernel) { &[] } else { &both[..] };
    for image in mirrored {
        let mount = Subject::ubtrfs().mount(&[*image], "ro,degraded");
        volume.verify(mount.path(), "each device has all of it");
        mount.unmount();
    }
    drop(volume.dir);
}

#[test]
fn a_device_that_ubtrfs_did_without_comes_back_stale() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    lost_and_returned(&Subject::ubtrfs(), &Subject::ubtrfs());
    lost_and_returned(&Subject::ubtrfs(), &Subject::Kernel);
}

#[test]
fn a_device_that_the_kernel_did_without_comes_back_stale() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    lost_and_returned(&Subject::Kernel, &Subject::ubtrfs());
}
