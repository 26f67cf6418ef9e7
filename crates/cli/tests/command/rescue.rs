//! Tests that `ubtrfs rescue` discards a log, or restores a superblock, after a confirmation.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, success, ubtrfs};

#[test]
fn a_log_is_given_up_only_when_that_is_confirmed() {
    let dir = scratch_dir();
    let fixture = Fixture::load("log-new-file");
    let path = fixture.unpack(dir.path()).remove(0);
    let image = path.to_str().unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(success(&ubtrfs(&["info", image])).contains("log                yes"));
    let listed = success(&ubtrfs(&["ls", image, "/"]));

    let asked = ubtrfs(&["rescue", "zero-log", image]);
    fails(&asked, 1, "nothing was changed");
    assert!(String::from_utf8_lossy(&asked.stdout).contains("is lost"), "{asked:?}");
    assert!(before == std::fs::read(&path).unwrap(), "an image was changed without a yes");

    let said = success(&ubtrfs(&["rescue", "zero-log", "--yes", image]));
    for entry in fixture.manifest.entries.iter().filter(|entry| entry.kind == "file") {
        assert!(said.contains(&entry.path), "{}: {said}", entry.path);
    }
    assert!(success(&ubtrfs(&["info", image])).contains("log                no"));
    assert_ne!(success(&ubtrfs(&["ls", image, "/"])), listed);
    assert!(success(&ubtrfs(&["check", image])).contains("no fault found"));
    let again = success(&ubtrfs(&["rescue", "zero-log", image]));
    assert!(again.contains("there is no log"), "{again}");
}

/// Makes a volume at an offset of its image, without its primary superblock.
fn without_primary(image: &Path, offset: u64, label: &str) {
    let (offset_option, path) = (offset.to_string(), image.to_str().unwrap());
    success(&ubtrfs(&["mkfs", "-f", "-L", label, "--offset", &offset_option, "--sizelimit", "200M", path]));
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&[0; 4096], offset + (64 << 10)).unwrap();
}

#[test]
fn every_command_says_what_to_do_about_a_lost_superblock() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    success(&ubtrfs(&["mkfs", "--size", "128M", "-L", "it", image]));
    File::options().write(true).open(&path).unwrap().write_all_at(&[0; 4096], 64 << 10).unwrap();
    let inside = format!("{image}:/x");
    let commands: [&[&str]; 5] = [
        &["label", image, "x"],
        &["mount", image, dir.path().to_str().unwrap()],
        &["mount", "-o", "ro", image, dir.path().to_str().unwrap()],
        &["rescue", "zero-log", image],
        &["subvolume", "create", &inside],
    ];
    let advice = "'ubtrfs rescue super-recover' puts it back";
    for command in commands {
        fails(&ubtrfs(command), 1, advice);
    }
    // These only read, so they use the copy.
    let top = format!("{image}:/");
    let readers: [(&[&str], i32); 6] = [
        (&["ls", image, "/"], 0),
        (&["cat", image, "/x"], 1),
        (&["tree", image], 0),
        (&["subvolume", "list", image], 0),
        (&["diff", "--since", "9", &top], 0),
        (&["export", &top], 0),
    ];
    for (command, status) in readers {
        let output = ubtrfs(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
        assert!(said.contains(advice) && said.contains("by the superblock at 67108864"), "{command:?}: {said}");
    }
    let checked = ubtrfs(&["check", image]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("'ubtrfs rescue super-recover' puts"), "{checked:?}");
    // These commands use the copy, and write nothing.
    assert_eq!(success(&ubtrfs(&["label", image])), "it\n");
    assert!(success(&ubtrfs(&["history", image])).contains("superblock"));
    success(&ubtrfs(&["rescue", "super-recover", "--yes", image]));
    success(&ubtrfs(&["check", image]));
}

/// The advised command must not affect another volume of the same image.
#[test]
fn advice_names_the_part_that_it_is_about() {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(600 << 20).unwrap();
    let path = image.to_str().unwrap();
    without_primary(&image, 300 << 20, "second");
    let window = ["--offset", "300M", "--sizelimit", "200M"];
    let info = ubtrfs(&[&["ls"], &window[..], &[path, "/"]].concat());
    let advice = "'ubtrfs rescue super-recover --offset 300M --sizelimit 200M' puts it back, and a mount with -o \
                  ro,rescue=usebackuproot,offset=300M,sizelimit=200M reads the volume as it is";
    assert!(info.status.success() && String::from_utf8_lossy(&info.stderr).contains(advice), "{info:?}");
    let mount = ["mount", "-o", "ro,offset=300M,sizelimit=200M", path, dir.path().to_str().unwrap()];
    fails(&ubtrfs(&mount), 1, advice);
    let asked = ubtrfs(&[&["rescue", "super-recover"], &window[..], &[path]].concat());
    let command = format!("'ubtrfs rescue super-recover --yes --offset 300M --sizelimit 200M {path}' does it");
    fails(&asked, 1, &command);
    // The command says what it would restore.
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(said.contains("of the volume 'second' with the id "), "{said}");
    success(&ubtrfs(&[&["rescue", "super-recover", "--yes"], &window[..], &[path]].concat()));
    success(&ubtrfs(&[&["check"], &window[..], &[path]].concat()));
}

/// A copy of another volume's superblock does not count.
#[test]
fn a_copy_that_an_older_volume_left_is_not_put_back() {
    require!(Need::Tool("mkfs.btrfs"));
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    success(&ubtrfs(&["mkfs", "--size", "300M", "-L", "old", path]));
    let made = Command::new("mkfs.btrfs").args(["-qfM", "-b", "60M", "-L", "new", path]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let file = File::options().write(true).open(&image).unwrap();
    // With the primary superblock the copy is known to be useless. Without it that is unknown, and
    // the message describes the copy.
    let commits = success(&ubtrfs(&["restore", "--list-commits", path]));
    assert!(!commits.contains("64 MiB") && !commits.contains("67108864"), "{commits}");
    assert!(success(&ubtrfs(&["rescue", "super-recover", path])).contains("nothing was changed"));
    file.write_all_at(&[0; 4096], 64 << 10).unwrap();
    let asked = ubtrfs(&["rescue", "super-recover", path]);
    fails(&asked, 1, "nothing was changed");
    assert!(String::from_utf8_lossy(&asked.stdout).contains("of the volume 'old'"), "{asked:?}");
}
