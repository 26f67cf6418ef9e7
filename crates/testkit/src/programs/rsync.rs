//! rsync copies everything that it can preserve, into a volume and back.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::workplace;
use crate::diff::{Options, assert_same};
use crate::names::COLLIDING;
use crate::run::{command, run};
use crate::scratch::scratch_dir;
use crate::walk::walk;
use ubtrfs_random::Rng;

/// Copies a tree with links, extended attributes, access control lists, holes and special files
/// into `dir` and back out, and asserts that rsync, which compares contents, finds no difference;
/// then the harness compares the trees itself.
#[track_caller]
pub fn rsync_there_and_back(dir: &Path) {
    let outside = scratch_dir();
    let source = workplace(outside.path(), "source");
    let back = workplace(outside.path(), "back");
    make_source(&source);
    let there = workplace(dir, "rsync");
    copy(&source, &there);
    copy(&there, &back);
    compare("-aHAX", &source, &there);
    compare("-aHAX", &source, &back);
    let wanted = walk(&source);
    assert_same("rsync into the volume", &wanted, &walk(&there), Options::COPY);
    assert_same("rsync out of the volume", &wanted, &walk(&back), Options::COPY);
}

/// Keeps two copies of a changing tree in `dir` until `deadline`: one by new files, and one written
/// in place. After each round rsync, which compares contents, must find no difference.
#[track_caller]
pub fn rsync_keeps_up(dir: &Path, deadline: Instant) {
    let outside = scratch_dir();
    let source = workplace(outside.path(), "source");
    make_source(&source);
    let (copied, updated) = (workplace(dir, "rsync-copied"), workplace(dir, "rsync-in-place"));
    let mut rng = Rng::new(32);
    while Instant::now() < deadline {
        // Links and writing in place don't go together: a file of two names that becomes two files
        // would be written twice.
        for (copy, way) in [(&copied, &["-aHAXS"][..]), (&updated, &["-aAX", "--inplace"])] {
            // Does not compare times, which rsync takes for equal within one second.
            run(command("rsync", way).args(["--delete", "--checksum"]).args([inside(&source), inside(copy)])).ok();
            compare(way[0], &source, copy);
        }
        for _ in 0..40 {
            change_something(&source, &mut rng);
        }
    }
}

/// Writes, truncates, removes or renames a file.
fn change_something(source: &Path, rng: &mut Rng) {
    let place = |rng: &mut Rng| source.join(format!("sub-{}/file-{}", rng.below(6), rng.below(60)));
    let path = place(rng);
    match rng.below(6) {
        0 => drop(fs::remove_file(path)),
        // The target is another file about every other time.
        1 => drop(fs::rename(path, place(rng))),
        2 => {
            let Ok(file) = File::options().write(true).open(path) else { return };
            let size = file.metadata().expect("stat").len();
            file.set_len(rng.below(size + 2)).expect("truncate");
        }
        3 => {
            let Ok(file) = File::options().write(true).open(path) else { return };
            let length = 1 + rng.below(20_000) as usize;
            file.write_all_at(&rng.bytes(length), rng.below(200_000)).expect("write");
        }
        _ => {
            let length = rng.below(60_000) as usize;
            fs::write(path, rng.bytes(length)).expect("write");
        }
    }
}

/// Returns `path/`, by which rsync means the contents of the directory.
fn inside(path: &Path) -> String {
    format!("{}/", path.display())
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    run(&mut command("rsync", &["-aHAXS", &inside(from), &inside(to)])).ok();
}

#[track_caller]
fn compare(what: &str, one: &Path, two: &Path) {
    let words = [what, "--checksum", "--itemize-changes", "--dry-run", "--delete"];
    let outcome = run(command("rsync", &words).args([inside(one), inside(two)])).ok();
    assert_eq!(outcome.stdout, "", "rsync finds differences");
}

fn make_source(dir: &Path) {
    let mut rng = Rng::new(31);
    let root = rustix::process::geteuid().is_root();
    for sub in 0..6 {
        let sub = dir.join(format!("sub-{sub}"));
        fs::create_dir(&sub).expect("mkdir");
        for number in 0..40 {
            let path = sub.join(format!("file-{number}"));
            let length = rng.below(if number % 10 == 0 { 300_000 } else { 6000 });
            fs::write(&path, rng.bytes(length as usize)).expect("write");
            let mode = *rng.pick(&[0o644, 0o600, 0o755, 0o444]);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
            if number % 3 == 0 {
                let value = rng.noise(1 + rng.clone().below(900) as usize);
                rustix::fs::setxattr(&path, "user.note", &value, XattrFlags::empty()).expect("setxattr");
            }
            if number % 7 == 0 {
                fs::hard_link(&path, dir.join(format!("{}-{number}", sub.file_name().expect("a name").display())))
                    .expect("link");
            }
            if root && number % 5 == 0 {
                std::os::unix::fs::chown(&path, Some(rng.below(3000) as u32), Some(100)).expect("chown");
            }
        }
        std::os::unix::fs::symlink("file-1", sub.join("symlink")).expect("symlink");
    }
    for (one, two) in COLLIDING {
        fs::write(dir.join(one), one).expect("write");
        fs::write(dir.join(two), two).expect("write");
    }
    let long = "n".repeat(255);
    fs::write(dir.join(&long), "a long name").expect("write");
    std::os::unix::fs::symlink("t".repeat(4000), dir.join("long symlink")).expect("symlink");
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("mkfifo");

    let sparse = File::create(dir.join("sparse")).expect("create");
    sparse.set_len(40 << 20).expect("truncate");
    for place in [0, 5 << 20, (40 << 20) - 4096] {
        sparse.write_all_at(&rng.noise(4096), place).expect("write");
    }
    if crate::need::find_tool("setfacl").is_some() {
        let acl = |words: &[&str], path: &Path| run(command("setfacl", words).arg(path)).ok();
        acl(&["-m", "u:1000:rw,g:100:r"], &dir.join("sub-0/file-1"));
        acl(&["-d", "-m", "u:1000:rwx"], &dir.join("sub-1"));
    }
    set_times(dir, &mut rng);
}

/// Gives everything below `dir`, and `dir` itself, a time in the past: rsync treats times within
/// one second as equal, so new times would prove nothing.
fn set_times(dir: &Path, rng: &mut Rng) {
    let mut set = |path: &Path| {
        let time = Timespec { tv_sec: rng.below(1_500_000_000) as i64, tv_nsec: rng.below(1_000_000_000) as i64 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
    };
    // Hard links get their time more than once, which does no harm.
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() && !path.is_symlink() {
            let listed = fs::read_dir(&path).expect("list");
            pending.extend(listed.map(|item| item.expect("list").path()));
        }
        set(&path);
    }
}
