//! Tests with trees of another user, who changes them while they are copied (invariant 47).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::{is_clean, quiet};
use crate::{new_volume, success, ubtrfs};

const SECRET: &[u8] = b"only for its owner";

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Whether the files of an image contain data that nobody else may read.
fn has_secrets(image: &str) -> bool {
    let exported = ubtrfs(&["export", image]);
    assert!(exported.status.success());
    exported.stdout.windows(SECRET.len()).any(|part| part == SECRET)
}

/// Signals a thread to end, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The owner of a directory repeatedly exchanges it with a link to another directory.
#[test]
fn a_directory_that_is_exchanged_for_a_link_gives_away_no_other_files() {
    let dir = scratch_dir();
    let (home, secret) = (dir.path().join("home"), dir.path().join("secret"));
    fs::create_dir(&home).unwrap();
    for (at, content) in [(&home.join("d"), &b"something of his own"[..]), (&secret, SECRET)] {
        fs::create_dir(at).unwrap();
        for number in 0..300 {
            fs::write(at.join(format!("f{number}")), content).unwrap();
        }
    }
    symlink(&secret, home.join("link")).unwrap();
    let image = new_volume(dir.path());
    let has_ended = AtomicBool::new(false);
    let copies = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                let (one, other) = (home.join("d"), home.join("link"));
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _end = End(&has_ended);
        let began = Instant::now();
        let mut copies = 0;
        while began.elapsed() < Duration::from_secs(5) {
            let copied = if copies % 2 == 0 {
                ubtrfs(&["cp", "-a", &text(&home), &format!("{image}:copy{copies}")])
            } else {
                ubtrfs(&["mkfs", "-f", "--size", "128M", "--rootdir", &text(&home), &image])
            };
            assert!(!has_secrets(&image), "after {copies} copies");
            success(&copied);
            copies += 1;
        }
        copies
    });
    assert!(copies >= 2, "{copies}");
    is_clean(&image);
}

#[test]
fn a_tree_deeper_than_a_path_goes_into_an_image_as_a_whole() {
    require!(Need::Tool("rm"));
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
    for level in 0..2500 {
        for name in ["before", "within"] {
            let file = openat(&at, name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).unwrap();
            rustix::io::write(&file, format!("{name} {level}").as_bytes()).unwrap();
        }
        mkdirat(&at, "deeper", Mode::RWXU).unwrap();
        at = openat(&at, "deeper", flags, Mode::empty()).unwrap();
    }
    drop(at);
    let (copied, made) = (new_volume(dir.path()), text(&dir.path().join("made")));
    quiet(&["cp", "-a", &text(&tree), &format!("{copied}:")]);
    success(&ubtrfs(&["mkfs", "--rootdir", &text(&tree), &made]));
    for (image, place) in [(&copied, "/tree"), (&made, "/")] {
        is_clean(image);
        let listed = success(&ubtrfs(&["ls", "-R", image, place]));
        for name in ["before", "within", "deeper"] {
            assert_eq!(listed.lines().filter(|line| *line == name).count(), 2500, "{name}");
        }
    }
    assert!(Command::new("rm").arg("-rf").arg(&tree).status().unwrap().success());
}
