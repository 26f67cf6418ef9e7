//! The same system calls have the same results on ubtrfs and on the kernel's btrfs, and leave the
//! same state, after a remount too.
//!
//! `UBTRFS_CALLS` says how many calls the long run makes, `UBTRFS_SEEDS` where it begins.
//! `UBTRFS_SEQUENCE` is a sequence as a report prints it, which is run alone, with its answers
//! printed.

use std::path::Path;

use ubtrfs_testkit::differential::call::CallStep;
use ubtrfs_testkit::differential::campaign::{Campaign, run};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::Subject;

/// Options that allow device nodes and set-id programs, as the kernel's mounts do.
const OPTIONS: &str = "dev,suid";
/// The same options, with which the kernel also asks the server about each open(2).
const ASKED: &str = "dev,suid,check_open=always";

/// Calls of the short and of the long run.
const SHORT: u64 = 60_000;
const LONG: u64 = 10_000_000;

fn caller() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ubtrfs-caller"))
}

#[test]
fn the_same_calls_end_alike_on_both() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    if let Ok(text) = std::env::var("UBTRFS_SEQUENCE") {
        let steps: Vec<CallStep> = serde_json::from_str(&text).expect("a sequence as JSON");
        let mut campaign = Campaign::new(caller(), &Subject::ubtrfs(), OPTIONS);
        let shown = campaign.show(&steps);
        eprintln!("{shown}");
        let is_clean = campaign.is_clean();
        campaign.finish(true);
        assert!(is_clean, "they differ");
        return;
    }
    let usual = if soaks() { LONG } else { SHORT };
    let calls = std::env::var("UBTRFS_CALLS").ok().map_or(usual, |text| text.parse().expect("a number of calls"));
    let first = seeds(1).first().copied().unwrap_or(1);
    for (options, first, calls) in
        [(OPTIONS, first << 32, calls.div_ceil(2)), (ASKED, first << 32 | 1 << 31, calls / 2)]
    {
        let ours = (&Subject::ubtrfs(), options);
        let findings = run(caller(), ours, first, calls, |findings| eprint!("{}", findings.summary()));
        assert!(findings.differences.is_empty(), "with {options}: {}", findings.report());
        eprint!("{}", findings.summary());
    }
}

/// The sequences are differences that the campaign has found and that were fixed: one per line, as
/// reports print them.
#[test]
fn sequences_that_once_differed_end_alike_on_both() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mut campaign = Campaign::new(caller(), &Subject::ubtrfs(), OPTIONS);
    for line in include_str!("differed_once.jsonl").lines() {
        let steps: Vec<CallStep> = serde_json::from_str(line).expect("a sequence as JSON");
        let shown = campaign.show(&steps);
        assert!(campaign.is_clean(), "{shown}");
    }
    campaign.finish(true);
}

/// The kernel compared with itself has no difference. A difference that a mount option makes is
/// found, with a short sequence that shows it.
#[test]
fn a_difference_is_found_and_shrunk() {
    const FEW: u64 = 6000;
    require!(Need::Kernel);
    let same = run(caller(), (&Subject::Kernel, ""), 1, FEW, |_| ());
    assert!(same.differences.is_empty(), "{}", same.report());
    let other = run(caller(), (&Subject::Kernel, "noacl"), 1, FEW, |_| ());
    let report = other.report();
    let of_acls = other.differences.values().find(|(_, report)| report.contains("SetXattr: ours EOPNOTSUPP"));
    let (_, shrunk) = of_acls.unwrap_or_else(|| panic!("no difference of ACLs in {report}"));
    let calls = shrunk.lines().filter(|line| line.starts_with("    ")).count();
    assert!((1..=3).contains(&calls) && shrunk.contains("posix_acl"), "{shrunk}");
}
