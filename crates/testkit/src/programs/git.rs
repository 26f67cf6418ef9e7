//! git clones, commits, collects garbage, and verifies everything.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::workplace;
use crate::run::{Outcome, command, run};
use crate::scratch::scratch_dir;
use ubtrfs_random::Rng;

/// Returns a git command in `dir`, without any user's configuration.
pub(crate) fn git_in(dir: &Path) -> Command {
    let mut line = Command::new("git");
    line.current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("HOME", dir)
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
        .args(["-c", "init.defaultBranch=main", "-c", "gc.auto=0"]);
    line
}

#[track_caller]
fn run_git(dir: &Path, args: &[&str]) -> Outcome {
    run(git_in(dir).args(args)).ok()
}

/// Makes a bare repository of about 3,000 objects (files, directories and commits) at `path`, the
/// same every time.
pub fn source_repository(path: &Path) {
    let parent = path.parent().expect("a directory for the repository");
    run(git_in(parent).args(["init", "-q", "--bare"]).arg(path)).ok();
    let stream = scratch_dir();
    let file = stream.path().join("stream");
    std::fs::write(&file, fast_import_stream()).expect("write a file");
    let script = "git fast-import --quiet < \"$1\"";
    run(command("sh", &["-c", script, "sh"]).arg(&file).current_dir(path)).ok();
}

/// Returns 80 commits of 25 changed files each, in the format that `git fast-import` reads.
fn fast_import_stream() -> Vec<u8> {
    let mut rng = Rng::new(2024);
    let mut out = Vec::new();
    for commit in 0..80 {
        let message = format!("change number {commit}");
        let mut head = String::from("commit refs/heads/main\n");
        let _ = writeln!(head, "committer Test <test@example.org> {} +0000", 1_700_000_000 + commit);
        let _ = writeln!(head, "data {}\n{message}", message.len());
        out.extend_from_slice(head.as_bytes());
        for _ in 0..25 {
            let (top, sub, name) = (rng.below(12), rng.below(4), rng.below(20));
            let length = if rng.one_in(30) { 60_000 } else { 20 + rng.below(5000) };
            let content = rng.bytes(length as usize);
            let path = format!("dir-{top}/sub-{sub}/file-{name}");
            let line = format!("M 100644 inline {path}\ndata {}\n", content.len());
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(&content);
            out.push(b'\n');
        }
    }
    out
}

/// Clones a generated repository into `dir`, commits new files as loose objects, repacks, and lets
/// git verify all of it.
#[track_caller]
pub fn git(dir: &Path) {
    let outside = scratch_dir();
    let source = outside.path().join("source.git");
    source_repository(&source);
    let place = workplace(dir, "git");
    let clone = place.join("clone");
    run(git_in(&place).args(["clone", "-q", "--no-local"]).arg(&source).arg(&clone)).ok();
    let counted = run_git(&clone, &["rev-list", "--objects", "--all"]).stdout;
    let objects = counted.lines().count();
    assert!(objects > 2500, "only {objects} objects were cloned");
    let tree_of = |dir: &Path| run_git(dir, &["rev-parse", "HEAD^{tree}"]).stdout;
    assert_eq!(tree_of(&clone), tree_of(&source));

    let mut rng = Rng::new(99);
    for round in 0..4 {
        for number in 0..60 {
            let length = 10 + rng.below(3000) as usize;
            let sub = clone.join(format!("new-{round}"));
            std::fs::create_dir_all(&sub).expect("make a directory");
            std::fs::write(sub.join(format!("f{number}")), rng.bytes(length)).expect("write");
        }
        run_git(&clone, &["add", "-A"]);
        run_git(&clone, &["commit", "-q", "-m", "more files"]);
    }
    run_git(&clone, &["mv", "dir-1", "moved"]);
    run_git(&clone, &["commit", "-q", "-m", "move a directory"]);
    let verify = |what: &str| {
        let outcome = run_git(&clone, &["fsck", "--full", "--strict"]);
        assert!(!outcome.stderr.contains("error"), "{what}: {}", outcome.report());
        let status = run_git(&clone, &["status", "--porcelain"]).stdout;
        assert_eq!(status, "", "{what}: the working tree differs from the commit");
    };
    verify("with loose objects");
    run_git(&clone, &["gc", "-q", "--prune=now"]);
    verify("repacked");
    run_git(&clone, &["checkout", "-q", "HEAD~3"]);
    run_git(&clone, &["checkout", "-q", "main"]);
    verify("after going back and forth in time");
}
