//! Runs a table on both file systems, and compares the outcomes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::seeds::soaks;

use crate::harness::Volume;

/// The outcome of each case, by the case's name.
pub type Outcomes = BTreeMap<String, String>;

/// The cases in which the two may differ: a part of the name (or several parts with `*` between
/// them), and the reason.
pub type Exceptions = &'static [(&'static str, &'static str)];

/// Returns a path's attributes, without those that depend on time and mount. Each time is given as
/// equal to the one `before`, or as changed.
pub fn traces(path: &Path, before: Option<&fs::Metadata>) -> String {
    let Ok(now) = fs::symlink_metadata(path) else { return "nothing".into() };
    let mut reported = format!("{:o} n{} {}:{} s{}", now.mode(), now.nlink(), now.uid(), now.gid(), now.size());
    let Some(before) = before else { return reported };
    if before.ino() != now.ino() {
        reported.push_str(" another");
    }
    for (name, before, now) in [
        ("a", (before.atime(), before.atime_nsec()), (now.atime(), now.atime_nsec())),
        ("m", (before.mtime(), before.mtime_nsec()), (now.mtime(), now.mtime_nsec())),
        ("c", (before.ctime(), before.ctime_nsec()), (now.ctime(), now.ctime_nsec())),
    ] {
        if before != now {
            reported.push_str(" +");
            reported.push_str(name);
        }
    }
    reported
}

/// Returns the number of cases of a large table of which one is run: 1 in a soak test, which runs
/// all.
pub fn share() -> usize {
    if soaks() { 1 } else { 4 }
}

/// Returns a short form of an outcome, with errors as numbers.
pub fn short<T: std::fmt::Debug>(outcome: Result<T, Errno>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error {}", error.raw_os_error()),
    }
}

fn is_excepted(case: &str, exceptions: &[(&str, &str)]) -> bool {
    exceptions.iter().any(|(pattern, _)| {
        let mut rest = case;
        pattern.split('*').all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

/// Runs the table on a volume of ubtrfs and on one of the kernel's.
pub fn compare(options: (&str, &str), table: impl Fn(&Path) -> Outcomes, exceptions: Exceptions) {
    let volume = Volume::new();
    volume.mount(options.0);
    let ours = table(&volume.point);
    volume.umount();
    volume.check();

    let image = volume.dir.path().join("kernels");
    mkfs_btrfs(&image, 512 << 20, &[]);
    let kernel = KernelMount::new(&[&image], options.1);
    let theirs = table(kernel.path());
    drop(kernel);

    assert!(theirs.len() > 10);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    let differs = |case: &&String| ours[*case] != theirs[*case];
    let differences: Vec<String> = ours
        .keys()
        .filter(differs)
        .filter(|case| !is_excepted(case, exceptions))
        .map(|case| format!("{case}\n    ours   {}\n    theirs {}", ours[case], theirs[case]))
        .collect();
    let count = differences.len();
    let most = std::env::var("UBTRFS_TEST_DIFFERENCES").map_or(100, |most| most.parse().unwrap());
    let shown = differences.into_iter().take(most).collect::<Vec<_>>().join("\n");
    assert!(count == 0, "{count} of {} cases end in another way than with the kernel:\n{shown}", ours.len());
    // An exception that does not apply any more could hide new differences.
    for exception in exceptions {
        let used = ours.keys().filter(differs).any(|case| is_excepted(case, &[*exception]));
        assert!(used, "no case differs any more that '{}' excepts", exception.0);
    }
}
