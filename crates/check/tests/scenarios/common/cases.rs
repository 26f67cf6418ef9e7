//! Damages, and the faults that a check must find in each of them.

use std::collections::BTreeSet;
use std::process::Command;

use ubtrfs_damage::Image;
use ubtrfs_format::{ItemType, Key};

use super::{checked, shown, unpack};

/// The verdict of `btrfs check` about the same damage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progs {
    /// It reports a fault.
    Objects,
    /// It does not check this, or tolerates it.
    Silent,
}

/// A damage and its verdicts.
pub struct Case {
    /// What is done.
    pub name: &'static str,
    /// The volume that is damaged.
    pub fixture: &'static str,
    /// Damages it.
    pub damage: fn(&Image),
    /// The kinds of faults and warnings that must be found, no more and no less.
    pub kinds: &'static [&'static str],
    /// What `btrfs check` says about it.
    pub progs: Progs,
}

/// The kinds of all faults and warnings.
pub fn kinds(report: &ubtrfs_check::Report) -> BTreeSet<String> {
    let kind = |fault| serde_json::to_value(fault).unwrap()["kind"].as_str().unwrap().to_owned();
    report.faults.iter().chain(&report.warnings).map(kind).collect()
}

/// Picks the items of a type.
pub fn of_type(item_type: ItemType) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.item_type == item_type
}

/// Picks the items of an object with a type.
pub fn is(objectid: u64, item_type: ItemType) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.objectid == objectid && key.item_type == item_type
}

/// Checks each damage: the faults must be those of the case, and `btrfs check` must say what the
/// case says of it.
pub fn judge(cases: &[Case]) {
    let only = std::env::var("CASE").unwrap_or_default();
    // The verdicts of the cases are those of this version. Others check more or less.
    let version = Command::new("btrfs").arg("--version").output();
    let progs = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v6.2"));
    let mut wrong = Vec::new();
    for case in cases.iter().filter(|case| case.name.contains(&only)) {
        let dir = tempfile::tempdir().unwrap();
        let images = unpack(case.fixture, dir.path());
        (case.damage)(&Image::open(&images[0]));
        let report = checked(&images);
        let expected: BTreeSet<String> = case.kinds.iter().map(ToString::to_string).collect();
        if kinds(&report) != expected {
            wrong.push(format!("{}: {:?}\n{}\n{:?}", case.name, kinds(&report), shown(&report), report.not_compared));
        }
        if progs {
            let output =
                Command::new("btrfs").args(["check", "--force", "--check-data-csum"]).args(&images).output().unwrap();
            let verdict = if output.status.success() { Progs::Silent } else { Progs::Objects };
            if verdict != case.progs {
                wrong.push(format!("{}: btrfs check: {verdict:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
