//! Programs that test file systems under load: fio, dbench, stress-ng.

use std::path::Path;
use std::time::Duration;

use super::workplace;
use crate::run::{command, run_within};

/// fio writes with checksums in several ways and reads everything back: random and sequential, with
/// and without fsync, by system call, mapped, and direct.
#[track_caller]
pub fn fio(dir: &Path) {
    let place = workplace(dir, "fio");
    let jobs: [(&str, &[&str]); 5] = [
        ("sequential", &["--rw=write", "--bs=64k", "--ioengine=psync", "--fsync=16"]),
        ("random", &["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--fsync=256", "--numjobs=2"]),
        ("uneven", &["--rw=randwrite", "--bsrange=512-40k", "--bs_unaligned=1", "--ioengine=psync"]),
        ("mapped", &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]),
        ("direct", &["--rw=randwrite", "--bs=16k", "--ioengine=psync", "--direct=1"]),
    ];
    for (name, words) in jobs {
        let mut line =
            command("fio", &["--size=8m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--group_reporting"]);
        line.arg(format!("--name={name}")).args(words);
        line.arg(format!("--directory={}", place.display()));
        let outcome = run_within(line.current_dir(&place), Duration::from_secs(180)).ok();
        assert!(
            !outcome.stderr.contains("verify") && !outcome.stdout.contains("verify failed"),
            "{}",
            outcome.report()
        );
    }
}

/// dbench with `clients` clients for `seconds` seconds. Returns its throughput in MB/s.
#[track_caller]
pub fn dbench(dir: &Path, clients: u32, seconds: u32) -> f64 {
    let place = workplace(dir, &format!("dbench-{clients}"));
    let words = ["-c", "/usr/share/dbench/client.txt", "-t", &seconds.to_string()];
    let mut line = command("dbench", &words);
    line.arg("-D").arg(&place).arg(clients.to_string());
    let limit = Duration::from_secs(u64::from(seconds) + 180);
    let outcome = run_within(&mut line, limit).ok();
    // It reports that it continues without a barrier between its clients if the machine has no
    // System V semaphores.
    let mut lines = outcome.stdout.lines().filter(|line| !line.contains("barrier semaphore"));
    let failure = lines.find(|line| line.contains("failed") || line.contains("ERROR"));
    assert!(failure.is_none(), "{}", outcome.report());
    outcome
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("Throughput ")?.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no throughput: {}", outcome.report()))
}

/// The stressors of stress-ng that work on files in a directory and check what they did.
pub const STRESSORS: [&str; 30] = [
    "access",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "fallocate",
    "filename",
    "flock",
    "fpunch",
    "fstat",
    "getdent",
    "hdd",
    "iomix",
    "lease",
    "link",
    "locka",
    "metamix",
    "mmap",
    "open",
    "readahead",
    "rename",
    "seek",
    "symlink",
    "sync-file",
    "unlink",
    "utime",
    "xattr",
];

/// Runs each of [`STRESSORS`] that this stress-ng knows for `seconds` seconds, two instances of
/// each.
#[track_caller]
pub fn stress_ng(dir: &Path, seconds: u32) {
    let place = workplace(dir, "stress");
    let known = crate::run::run(&mut command("stress-ng", &["--stressors"])).ok().stdout;
    let known: Vec<&str> = known.split_whitespace().collect();
    for stressor in STRESSORS.into_iter().filter(|name| known.contains(name)) {
        let mut line = command("stress-ng", &["--verify", "--oomable"]);
        line.arg(format!("--{stressor}")).arg("2");
        line.arg("--timeout").arg(seconds.to_string());
        line.arg("--temp-path").arg(&place).current_dir(&place);
        let outcome = run_within(&mut line, Duration::from_secs(u64::from(seconds) + 180));
        // Status 3 means that a resource is missing, and 4 that the stressor is not implemented
        // here.
        assert!(matches!(outcome.code(), Some(0 | 3 | 4)), "stressor {stressor}: {}", outcome.report());
    }
}
