//! Tests of ioctls through mounts that are read-only or show other ids, and from user namespaces.
//! The answers are compared with those of the kernel's driver (invariant 40).

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, compile, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};

const PROBE: &str = include_str!("ioctl_probe.c");

/// The mount through which the directory of the tests is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Plain,
    ReadOnly,
    /// An idmapped mount.
    Mapped,
    MappedReadOnly,
}

/// The user who calls the ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    /// The owner of the directory, as the mount shows it.
    Owner,
    /// Root of a user namespace that contains the owner and another user.
    RootInside,
}

const VIEWS: [View; 4] = [View::Plain, View::ReadOnly, View::Mapped, View::MappedReadOnly];
const CALLERS: [Who; 3] = [Who::Root, Who::Owner, Who::RootInside];

/// The id that stands for user 0 on idmapped mounts.
const FIRST_SHOWN: u32 = 5000;
const OWNER: u32 = 1000;
const OTHER: u32 = 2000;

/// Intended differences: the beginning of a line of the probe, the kernel's answer, and ours.
const MEANT: [(&str, &str, &str); 4] = [
    // The argument is not a pointer to data of the size that the number encodes, so FUSE can't pass
    // it on.
    ("defragment:", "", "EFAULT"),
    ("balance's end:", "", "EFAULT"),
    ("removal:", "ENOENT", "ENODEV"),
    // The driver compares with the ids on disk, whatever ids the mount shows.
    ("defragment 2:", "", ""),
];

/// The mounts of the directory, which are unmounted at the end.
struct Views {
    dir: PathBuf,
    points: Vec<PathBuf>,
}

impl Views {
    /// Mounts the directory `d` of a mount in all ways. Its subvolumes belong to the owner, another
    /// user and root.
    fn new(dir: &Path, mount: &Path, probe: &Path, make: &dyn Fn(&Path)) -> Self {
        let shared = mount.join("d");
        fs::create_dir(&shared).unwrap();
        for (name, user) in [("own", OWNER), ("others", OTHER), ("roots", 0)] {
            let subvolume = shared.join(name);
            make(&subvolume);
            fs::write(subvolume.join("file"), "content").unwrap();
            for path in [&subvolume.join("file"), &subvolume] {
                chown(path, Some(user), Some(user)).unwrap();
            }
        }
        chown(&shared, Some(OWNER), Some(OWNER)).unwrap();
        let mut views = Self { dir: shared.clone(), points: Vec::new() };
        for view in &VIEWS[1..] {
            let point = dir.join(format!("{view:?}"));
            fs::create_dir_all(&point).unwrap();
            if matches!(view, View::ReadOnly) {
                run(command("mount", &["--bind"]).args([&shared, &point])).ok();
            } else {
                let shown = FIRST_SHOWN.to_string();
                run(Command::new(probe).arg("idmap").args([&shared, &point]).args(["0", &shown, "10000"])).ok();
            }
            views.points.push(point.clone());
            if !matches!(view, View::Mapped) {
                run(command("mount", &["-o", "remount,bind,ro"]).arg(&point)).ok();
            }
        }
        views
    }

    fn of(&self, view: View) -> &Path {
        match view {
            View::Plain => &self.dir,
            View::ReadOnly => &self.points[0],
            View::Mapped => &self.points[1],
            View::MappedReadOnly => &self.points[2],
        }
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        for point in &self.points {
            run(command("umount", &["-l"]).arg(point));
        }
    }
}

fn probe(program: &Path, views: &Views, view: View, who: Who) -> Vec<String> {
    let is_mapped = matches!(view, View::Mapped | View::MappedReadOnly);
    let mut line = Command::new(program);
    match who {
        Who::Root => line.args(["as", "0"]),
        Who::Owner => line.args(["as", &(OWNER + if is_mapped { FIRST_SHOWN } else { 0 }).to_string()]),
        Who::RootInside => line.arg("inside"),
    };
    run(line.arg(views.of(view))).ok().stdout.lines().map(Into::into).collect()
}

fn is_meant(theirs: &str, ours: &str) -> bool {
    let answer = |line: &str| line.split_once(": ").map(|(_, answer)| answer.to_owned()).unwrap_or_default();
    let fits = |wanted: &str, line: &str| wanted.is_empty() || answer(line) == wanted;
    MEANT.iter().any(|(what, kernels, us)| {
        theirs.starts_with(what) && ours.starts_with(what) && fits(kernels, theirs) && fits(us, ours)
    })
}

/// Returns the answers of kernels with fs-verity to the protection of the three files, which belong
/// to the owner, to another user and to root. The running kernel may lack fs-verity.
fn answers_about_verity(view: View, who: Who) -> [&'static str; 3] {
    let is_mapped = matches!(view, View::Mapped | View::MappedReadOnly);
    let may_write = match who {
        Who::Root => [true; 3],
        Who::Owner => [true, false, false],
        // The user namespace has none of the ids that the idmapped mounts show.
        Who::RootInside => [!is_mapped, !is_mapped, false],
    };
    let done = if matches!(view, View::ReadOnly | View::MappedReadOnly) { "EROFS" } else { "OK" };
    may_write.map(|may| if may { done } else { "EACCES" })
}

/// Replaces the answers of a kernel without fs-verity by these.
fn complete(theirs: &mut [String], view: View, who: Who) {
    let lines = theirs.iter_mut().filter(|line| line.starts_with("verity: "));
    for (line, known) in lines.zip(answers_about_verity(view, who)) {
        if line.ends_with("EOPNOTSUPP") {
            *line = format!("verity: {known}");
        }
    }
}

/// Invariant 40.
#[test]
fn ioctls_are_answered_as_by_the_kernel_through_every_view_of_a_mount() {
    require!(Need::Root, Need::Fuse, Need::Kernel, Need::Tool("cc"));
    let mut wrong = Vec::new();
    for view in VIEWS {
        for who in CALLERS {
            let volume = Volume::new();
            let program = compile(volume.dir.path(), "probe", PROBE);
            volume.mount("user_subvol_rm_allowed");
            let make = |path: &Path| {
                ubtrfs(&["subvolume".as_ref(), "create".as_ref(), path.as_os_str()]).ok();
            };
            let views = Views::new(volume.dir.path(), &volume.point, &program, &make);
            let ours = probe(&program, &views, view, who);
            drop(views);
            volume.umount();
            volume.check();
            let image = volume.dir.path().join("kernels");
            mkfs_btrfs(&image, 256 << 20, &[]);
            let kernel = KernelMount::new(&[&image], "user_subvol_rm_allowed");
            let make = |path: &Path| {
                run(command("btrfs", &["subvolume", "create"]).arg(path)).ok();
            };
            let views = Views::new(&volume.dir.path().join("kernels-views"), kernel.path(), &program, &make);
            let mut theirs = probe(&program, &views, view, who);
            complete(&mut theirs, view, who);
            drop(views);
            assert_eq!(ours.len(), theirs.len());
            let pairs = theirs.iter().zip(&ours).filter(|(theirs, ours)| theirs != ours);
            let differ = pairs.filter(|(theirs, ours)| !is_meant(theirs, ours));
            wrong.extend(differ.map(|(theirs, ours)| format!("{view:?} {who:?}: kernel {theirs}, ours {ours}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Opens a directory on two mounts, and makes subvolumes through each of them: the server finds out
/// exactly which of the mounts is meant.
const BOTH: &str = r#"
import errno, fcntl, os, struct, sys
writable, frozen = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:3])
def create(dir, name):
    try:
        fcntl.ioctl(dir, 0x5000940e, bytearray(struct.pack("<q4088s", 0, name.encode())))
        return "OK"
    except OSError as error:
        return errno.errorcode[error.errno]
print(create(frozen, "a"), create(writable, "b"), create(frozen, "c"))
"#;

/// Invariant 40.
#[test]
fn the_descriptor_counts_that_the_ioctl_is_asked_of() {
    require!(Need::Root, Need::Fuse, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let frozen = volume.dir.path().join("frozen");
    fs::create_dir(&frozen).unwrap();
    run(command("mount", &["--bind"]).args([&volume.point, &frozen])).ok();
    run(command("mount", &["-o", "remount,bind,ro"]).arg(&frozen)).ok();
    let said = run(command("python3", &["-c", BOTH]).args([&volume.point, &frozen])).ok();
    assert_eq!(said.stdout, "EROFS OK EROFS\n");
    run(command("umount", &["--"]).arg(&frozen)).ok();
    volume.umount();
}

/// Swaps the descriptor's number between two mounts during the ioctls: nothing is made through the
/// read-only mount that the other one would not have allowed, and no process hangs. The program
/// can't use the writable mount of another directory.
const RACE: &str = r#"
import errno, fcntl, os, struct, sys, threading, time
other, frozen = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:3])
used = os.dup(frozen)
ends = time.time() + 5
def swap():
    while time.time() < ends:
        os.dup2(other, used)
        os.dup2(frozen, used)
thread = threading.Thread(target=swap)
thread.start()
number = 0
while time.time() < ends:
    number += 1
    try:
        fcntl.ioctl(used, 0x5000940e, bytearray(struct.pack("<q4088s", 0, b"made-%d" % number)))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EBADF): raise
thread.join()
print(number, len(os.listdir(frozen)))
"#;

/// Invariant 40.
#[test]
fn a_descriptor_that_is_swapped_meanwhile_lends_no_write_access() {
    require!(Need::Root, Need::Fuse, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let (open, closed) = (volume.point.join("open"), volume.point.join("closed"));
    fs::create_dir(&open).unwrap();
    fs::create_dir(&closed).unwrap();
    let frozen = volume.dir.path().join("frozen");
    fs::create_dir(&frozen).unwrap();
    run(command("mount", &["--bind"]).args([&closed, &frozen])).ok();
    run(command("mount", &["-o", "remount,bind,ro"]).arg(&frozen)).ok();
    let said = run(command("python3", &["-c", RACE]).args([&open, &frozen])).ok();
    let (asked, made) = said.stdout.trim().split_once(' ').unwrap();
    assert!(asked.parse::<u64>().unwrap() > 20, "{}", said.report());
    assert_eq!(made, "0");
    run(command("umount", &["--"]).arg(&frozen)).ok();
    volume.umount();
}

/// A file of a mount holds no image, so a command on subvolumes says that it names none.
#[test]
fn a_file_of_a_mount_is_no_subvolume() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let file = volume.point.join("file");
    fs::write(&file, "content").unwrap();
    for command in [&["property", "get"][..], &["subvolume", "show"], &["subvolume", "list"]] {
        let words = command.iter().map(AsRef::<std::ffi::OsStr>::as_ref).chain([file.as_os_str()]);
        fails(&ubtrfs(&words.collect::<Vec<_>>()), "is a file on a mounted volume, and no image");
    }
    volume.umount();
}
