//! Tests with old commits of volumes that the kernel's btrfs has written: the commits are listed,
//! the versions of a file are found, and what was removed or changed is restored. Nothing is
//! written to the volume.

use std::fs;
use std::path::{Path, PathBuf};

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, success, ubtrfs};

const SECOND: &[u8] = b"the second file, of which more is written\n";

/// A volume with several commits: `gone` was removed with its directory, `changed` has three
/// versions of which the newest still exists, and `kept` never changed.
struct Case {
    dir: tempfile::TempDir,
    image: PathBuf,
    before: Vec<u8>,
}

fn content(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect()
}

impl Case {
    fn new(options: &[&str]) -> Self {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, 128 << 20, options);
        let kernel = KernelMount::new(&[&image], "noatime");
        let at = |name: &str| kernel.path().join(name);
        let sync = || {
            let mount = fs::File::open(kernel.path()).unwrap();
            rustix::fs::syncfs(&mount).unwrap();
        };
        fs::write(at("kept"), content(1, 100_000)).unwrap();
        fs::create_dir_all(at("dir/below")).unwrap();
        sync();
        fs::write(at("dir/below/gone"), content(2, 300_000)).unwrap();
        fs::write(at("changed"), content(3, 5000)).unwrap();
        std::os::unix::fs::symlink("below/gone", at("dir/link")).unwrap();
        sync();
        fs::write(at("changed"), content(4, 70_000)).unwrap();
        sync();
        fs::write(at("changed"), SECOND).unwrap();
        fs::rename(at("kept"), at("kept by another name")).unwrap();
        sync();
        fs::remove_dir_all(at("dir")).unwrap();
        sync();
        assert!(kernel.unmount().is_empty());
        let before = fs::read(&image).unwrap();
        Self { dir, image, before }
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn history(&self, path: &str) -> Vec<serde_json::Value> {
        let said = success(&ubtrfs(&["history", "--json", self.image(), path]));
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(fs::read(&self.image).unwrap() == self.before, "the volume was written to");
        }
    }
}

/// Returns all files below a directory, by their paths below the directory of their commit.
fn files(at: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for commit in fs::read_dir(at).unwrap() {
        let commit = commit.unwrap();
        assert!(commit.file_name().to_str().unwrap().starts_with("generation-"));
        let mut left = vec![commit.path()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(commit.path()).unwrap().to_str().unwrap().to_owned();
                if path.is_symlink() {
                    found.push((name, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()));
                } else if path.is_dir() {
                    left.push(path);
                } else {
                    found.push((name, fs::read(&path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

#[test]
fn files_that_the_kernel_removed_or_changed_come_back() {
    require!(Need::Kernel);
    let none: &[&str] = &[];
    for options in [none, &["-m", "single"], &["-n", "4k"], &["-M"], &["--csum", "blake2"]] {
        let case = Case::new(options);
        let listed = success(&ubtrfs(&["history", case.image()]));
        assert!(listed.lines().count() >= 5 && listed.contains("superblock"), "{listed}");

        let gone = case.history("/dir/below/gone");
        assert_eq!(gone[0]["state"], "absent", "{options:?}: {gone:?}");
        assert_eq!(
            (&gone[1]["state"], &gone[1]["size"]),
            (&"present".into(), &300_000.into()),
            "{options:?}: {gone:?}"
        );
        let sizes: Vec<_> = case.history("changed").iter().filter_map(|one| one["size"].as_u64()).collect();
        assert_eq!(sizes, [SECOND.len() as u64, 70_000, 5000], "{options:?}");
        fails(&ubtrfs(&["history", case.image(), "/never"]), 1, "no commit that can be read has it");

        let out = case.dir.path().join("out");
        let restored = success(&ubtrfs(&["restore", "--undelete", case.image(), out.to_str().unwrap()]));
        let expected = [
            ("changed".into(), content(4, 70_000)),
            ("changed".into(), content(3, 5000)),
            ("dir/below/gone".into(), content(2, 300_000)),
            ("dir/link".into(), b"below/gone".to_vec()),
        ];
        let found = files(&out);
        assert!(found.len() == 4 && expected.iter().all(|one| found.contains(one)), "{options:?}: {restored}");

        // All files of one commit, and those that were lost since.
        let generation = gone[1]["last_generation"].to_string();
        let whole = case.dir.path().join("whole");
        success_with_note(&ubtrfs(&["restore", "--generation", &generation, case.image(), whole.to_str().unwrap()]));
        assert!(fs::read(whole.join("dir/below/gone")).unwrap() == content(2, 300_000));
        let some = case.dir.path().join("some");
        let place = some.to_str().unwrap();
        success(&ubtrfs(&["restore", "--undelete", "--commit", &generation, "--path", "/dir", case.image(), place]));
        assert_eq!(files(&some).len(), 2);
        let missing = ubtrfs(&["restore", "--undelete", "--commit", "999", "-n", case.image()]);
        fails(&missing, 1, "no superblock refers to commit 999");
    }
}

/// Asserts success. Restore prints on the standard error stream what it copies.
fn success_with_note(output: &std::process::Output) {
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_volume_without_old_commits_has_no_history_to_speak_of() {
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    assert_eq!(success(&ubtrfs(&["history", &image])).lines().count(), 1);
    let said = success(&ubtrfs(&["restore", "--undelete", "-n", &image]));
    assert_eq!(said, "no commit that can be read has a file that was removed or changed since\n");
}
