//! Engine, server, FUSE and NBD take locks from `crates/threads`, where each lock has a rank.
//! Engine and server take threads and clocks from there, too, so that one seed can decide them.
//!
//! The rule looks at the sources of these crates except for the tests at their ends.

use crate::repository::{Fault, Repository};

/// Paths of names that another crate has to provide, and the message for each.
const LOCKS: &[(&str, &str)] = &[
    ("parking_lot", "locks have ranks: ubtrfs_threads"),
    ("std::sync::Mutex", "locks have ranks: ubtrfs_threads"),
    ("std::sync::RwLock", "locks have ranks: ubtrfs_threads"),
    ("std::sync::Condvar", "locks have ranks: ubtrfs_threads"),
];
const THREADS: &[(&str, &str)] = &[
    ("std::thread", "a seed decides threads: ubtrfs_threads::thread"),
    ("std::sync::mpsc", "a seed decides threads: ubtrfs_threads::mpsc"),
    ("std::time::Instant", "a seed decides time: ubtrfs_threads::time"),
];

/// Crates whose locks have ranks.
const RANKED: [&str; 12] =
    ["ubtrfs", "merge", "changes", "paths", "fs", "file", "space", "tree", "volume", "server", "fuse", "nbd"];
/// Those of them that run under the scheduler.
const SCHEDULED: [&str; 10] =
    ["ubtrfs", "merge", "changes", "paths", "fs", "file", "space", "tree", "volume", "server"];
/// A path that is allowed, since the number of possible threads is no decision of the program.
const ALLOWED: &str = "std::thread::available_parallelism";

/// Uses of locks, threads and clocks that are not from `crates/threads`.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let of_crate = |file: &str, crates: &[&str]| {
        crates.iter().any(|name| file.strip_prefix("crates/").is_some_and(|f| f.starts_with(&format!("{name}/src/"))))
    };
    let mut faults = Vec::new();
    for (file, text) in repository.files(".rs") {
        if !of_crate(file, &RANKED) || file.ends_with("tests.rs") {
            continue;
        }
        let rules = if of_crate(file, &SCHEDULED) { [LOCKS, THREADS].concat() } else { LOCKS.to_vec() };
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        for (number, line) in code.enumerate() {
            let line = line.split("//").next().unwrap_or_default().replace(ALLOWED, "");
            let found = rules.iter().find(|(path, _)| paths(&line).iter().any(|p| p.starts_with(path)));
            faults.extend(found.map(|(path, what)| Fault::new(file, number + 1, format!("{path}: {what}"))));
        }
    }
    faults
}

/// Returns the paths in a line; each name in a pair of braces makes a path of its own.
fn paths(line: &str) -> Vec<String> {
    let mut paths: Vec<String> =
        line.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).map(str::to_owned).collect();
    if let Some((before, rest)) = line.split_once("::{") {
        let prefix = before.rsplit(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).next().unwrap_or_default();
        let names = rest.split(['{', '}', ',']).map(str::trim);
        paths.extend(names.map(|name| format!("{prefix}::{name}")));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<usize> {
        faults(&Repository::of(&[(file, text)])).iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn locks_threads_and_clocks_of_others_are_found() {
        for line in [
            "use parking_lot::Mutex;",
            "use std::sync::{Arc, Mutex};",
            "    state: std::sync::RwLock<u8>,",
            "use std::time::{Duration, Instant};",
            "    std::thread::spawn(|| ());",
            "use std::sync::mpsc::channel;",
        ] {
            assert_eq!(found("crates/fs/src/a.rs", &format!("\n{line}")), [2], "{line}");
        }
        assert_eq!(found("crates/fuse/src/a.rs", "use parking_lot::Mutex;\nuse std::thread;"), [1]);
    }

    #[test]
    fn counters_documents_tests_and_other_crates_are_let_alone() {
        for line in [
            "use std::sync::Arc;",
            "use std::time::Duration;",
            "use ubtrfs_threads::{Mutex, thread};",
            "/// As `std::thread::spawn`.",
            "let n = std::thread::available_parallelism();",
            "#[cfg(test)]\nmod tests { use std::thread; }",
        ] {
            assert!(found("crates/fs/src/a.rs", line).is_empty(), "{line}");
        }
        assert!(found("crates/cli/src/a.rs", "use std::thread;").is_empty());
        assert!(found("crates/fs/tests/a.rs", "use std::thread;").is_empty());
    }
}
