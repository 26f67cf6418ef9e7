//! Volumes on images of devices, which ubtrfs and the kernel use in turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::ubtrfs_binary;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image};
use ubtrfs_testkit::run::{Outcome, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

/// Bytes of each image.
pub const SIZE: u64 = 512 << 20;

/// Returns the command of ubtrfs with these words, followed by places.
pub fn command_of(words: &[&str], places: &[&Path]) -> Command {
    let mut line = Command::new(ubtrfs_binary().expect("the ubtrfs binary"));
    line.args(words).args(places);
    line
}

/// Runs the command of ubtrfs with these words, followed by places.
pub fn ubtrfs(words: &[&str], places: &[&Path]) -> Outcome {
    run(&mut command_of(words, places))
}

/// Blank images, and the expected contents of the files of a volume on some of them.
pub struct Images {
    _dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Images {
    /// Makes so many blank images.
    pub fn new(count: usize) -> Self {
        let dir = scratch_dir();
        let paths: Vec<PathBuf> = (0..count).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &paths {
            blank_image(image, SIZE);
        }
        Self { _dir: dir, paths, files: BTreeMap::new() }
    }

    /// Returns one of the images.
    pub fn image(&self, number: usize) -> &Path {
        &self.paths[number]
    }

    /// Returns some of the images.
    pub fn images(&self, numbers: &[usize]) -> Vec<&Path> {
        numbers.iter().map(|number| self.image(*number)).collect()
    }

    /// Makes a volume on some of the images.
    pub fn mkfs(&self, words: &[&str], numbers: &[usize]) {
        ubtrfs(&[&["mkfs"], words].concat(), &self.images(numbers)).ok();
    }

    /// Writes the file of a number.
    pub fn write(&mut self, top: &Path, seed: u8, mib: usize) {
        let content: Vec<u8> = (0..mib << 20).map(|at| (at >> 9) as u8 ^ (at >> 17) as u8 ^ seed).collect();
        std::fs::write(top.join(format!("file {seed}")), &content).unwrap();
        self.files.insert(format!("file {seed}"), content);
    }

    /// Removes the file of a number.
    pub fn remove(&mut self, top: &Path, seed: u8) {
        let name = format!("file {seed}");
        std::fs::remove_file(top.join(&name)).unwrap();
        self.files.remove(&name);
    }

    /// Fails unless all files have their content.
    pub fn verify(&self, top: &Path, what: &str) {
        for (name, content) in &self.files {
            let found = std::fs::read(top.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *content, "{what}: {name} differs");
        }
    }

    /// Asserts that both checkers find nothing, that both mounts show all files, and that the
    /// kernel does not complain.
    pub fn assert_good(&self, numbers: &[usize], what: &str) {
        let images = self.images(numbers);
        ubtrfs(&["check"], &images).ok();
        {
            let devices: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
            assert_btrfs_check_clean(devices[0].path());
        }
        for subject in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = subject.mount(&images, "");
            self.verify(mount.path(), &format!("{what}, {}", subject.name()));
            mount.unmount();
        }
    }
}
