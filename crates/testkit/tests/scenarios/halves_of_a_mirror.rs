//! Each device of a mirrored volume was written without the other one, by ubtrfs or by the kernel.
//! ubtrfs does not join them until the user says which one counts (invariant 44).

use std::path::{Path, PathBuf};

use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{Mount, Subject};

use crate::device_images::ubtrfs;

const FILE: usize = 300_000;

struct Halves {
    dir: tempfile::TempDir,
    images: [PathBuf; 2],
}

fn content(of: &str) -> Vec<u8> {
    of.bytes().cycle().take(FILE).collect()
}

fn assert_has(top: &Path, files: &[String]) {
    for name in files {
        assert!(std::fs::read(top.join(name)).unwrap() == content(name), "{name}");
    }
}

fn write(subject: &Subject, images: &[&Path], options: &str, files: &[String]) {
    let mount = subject.mount(images, options);
    for name in files {
        std::fs::write(mount.path().join(name), content(name)).unwrap();
        run(command("sync", &["-f"]).arg(mount.path())).ok();
    }
    match mount {
        // The kernel complains that a device is missing.
        Mount::Kernel(mount) => drop(mount.unmount()),
        ours @ Mount::Ubtrfs(_) => ours.unmount(),
    }
}

/// A mount point, which is unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let outcome = ubtrfs(&["umount"], &[self.0.path()]);
        assert!(std::thread::panicking() || outcome.success(), "{}", outcome.report());
    }
}

impl Halves {
    fn make() -> Self {
        let dir = scratch_dir();
        let images = ["one", "two"].map(|name| dir.path().join(name));
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
        }
        let halves = Self { dir, images };
        let both = halves.paths();
        ubtrfs(&["mkfs", "-d", "raid1", "-m", "raid1"], &both).ok();
        write(&Subject::ubtrfs(), &both, "", &["both".into()]);
        halves
    }

    fn paths(&self) -> [&Path; 2] {
        self.images.each_ref().map(PathBuf::as_path)
    }

    fn mount(&self, arguments: &[&str]) -> Result<Mounted, Outcome> {
        let top = scratch_dir();
        let outcome = ubtrfs(&[&["mount"], arguments].concat(), &[&self.paths()[..], &[top.path()]].concat());
        if outcome.success() { Ok(Mounted(top)) } else { Err(outcome) }
    }

    fn bytes(&self) -> [Vec<u8>; 2] {
        self.images.each_ref().map(|image| std::fs::read(image).unwrap())
    }
}

/// Lets `writers` write so many files to each device without the other one, asserts that the
/// devices are not joined, and gives up the changes of the device with this number.
fn are_not_joined(writers: [(&Subject, usize); 2], given_up: usize) {
    let halves = Halves::make();
    let mut files = [vec!["both".to_owned()], vec!["both".to_owned()]];
    for (number, (writer, count)) in writers.into_iter().enumerate() {
        let own: Vec<String> = (0..count).map(|file| format!("{number} {file}")).collect();
        write(writer, &[&halves.images[number]], "degraded", &own);
        files[number].extend(own);
    }
    let before = halves.bytes();
    for options in [&[][..], &["-o", "degraded"]] {
        let refused = halves.mount(options).err().expect("joined").report();
        for word in ["written without the other one", "--discard-device 1", "--discard-device 2", "image", "UTC"] {
            let word = if word == "image" { halves.images[1].to_str().unwrap() } else { word };
            assert!(refused.contains(word), "{word}: {refused}");
        }
    }
    let read_only = halves.mount(&["-o", "ro"]).unwrap_or_else(|outcome| panic!("{}", outcome.report()));
    assert_has(read_only.0.path(), &files[0][..1]);
    drop(read_only);
    assert!(halves.bytes() == before, "nothing was written");

    let (given_up_name, kept) = ((given_up + 1).to_string(), 1 - given_up);
    let refused = halves.mount(&["-o", "ro", "--discard-device", &given_up_name]);
    assert!(refused.is_err());
    let path = halves.images[given_up].to_str().unwrap();
    let mounted = halves.mount(&["--discard-device", path]).unwrap_or_else(|outcome| panic!("{}", outcome.report()));
    assert_has(mounted.0.path(), &files[kept]);
    std::fs::write(mounted.0.path().join("after"), content("after")).unwrap();
    files[kept].push("after".into());
    ubtrfs(&["scrub", "start"], &[mounted.0.path()]).ok();
    drop(mounted);
    ubtrfs(&["check"], &halves.paths()).ok();
    let mounted = halves.mount(&[]).unwrap_or_else(|outcome| panic!("{}", outcome.report()));
    assert_has(mounted.0.path(), &files[kept]);
    drop(mounted);
    let devices = halves.images.each_ref().map(|image| LoopDevice::attach(image, false));
    assert_btrfs_check_clean(devices[0].path());
    drop(devices);
    let mount = KernelMount::new(&halves.paths(), "");
    assert_has(mount.path(), &files[kept]);
    let complaints = mount.unmount();
    assert!(complaints.is_empty(), "{complaints:#?}");
    drop(halves.dir);
}

#[test]
fn halves_that_ubtrfs_wrote_are_not_joined() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let ours = Subject::ubtrfs();
    are_not_joined([(&ours, 3), (&ours, 3)], 1);
    are_not_joined([(&ours, 1), (&ours, 4)], 1);
    are_not_joined([(&ours, 1), (&ours, 4)], 0);
}

/// The kernel writes no notes, but keeps those of ubtrfs.
#[test]
fn halves_of_which_the_kernel_wrote_one_are_not_joined() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let ours = Subject::ubtrfs();
    are_not_joined([(&ours, 4), (&Subject::Kernel, 1)], 1);
    are_not_joined([(&Subject::Kernel, 4), (&ours, 1)], 0);
}

/// The kernel keeps the epochs in all that it does.
#[test]
fn a_device_that_ubtrfs_and_then_the_kernel_did_without_is_brought_up() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let halves = Halves::make();
    let mut files = vec!["both".to_owned()];
    for (round, writer) in [Subject::ubtrfs(), Subject::Kernel, Subject::ubtrfs()].iter().enumerate() {
        let own: Vec<String> = (0..2).map(|file| format!("{round} {file}")).collect();
        write(writer, &[&halves.images[0]], "degraded", &own);
        files.extend(own);
    }
    let mounted = halves.mount(&[]).unwrap_or_else(|outcome| panic!("{}", outcome.report()));
    ubtrfs(&["scrub", "start"], &[mounted.0.path()]).ok();
    assert_has(mounted.0.path(), &files);
    drop(mounted);
    ubtrfs(&["check"], &halves.paths()).ok();
}
