//! git, one commit after the other.
//!
//! git makes an object durable under a temporary name, and then links it to its own name; it
//! renames the file of a branch in the same way. It makes neither name durable. So after each
//! commit this syncs the directories and the branch, and only then counts the commit as promised.
//! Later objects may be missing, but none may be broken.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::programs::git_in;
use crate::run::{Outcome, run};
use ubtrfs_random::Rng;

const BRANCH: &str = ".git/refs/heads/main";

/// Parts of `git fsck`'s lines about missing objects, in contrast to broken ones.
const HARMLESS: [&str; 8] = [
    "missing ",
    "broken link from ",
    "              to ",
    "dangling ",
    "unreachable ",
    "notice: ",
    "invalid sha1 pointer",
    "does not point to a valid object",
];

/// A repository, and the last commit that is durable.
#[derive(Debug)]
pub struct Repository {
    durable: String,
    rng: Rng,
}

fn git(place: &Path, args: &[&str]) -> Outcome {
    let settings = ["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync", "-c", "core.logAllRefUpdates=false"];
    run(git_in(place).args(settings).args(args))
}

fn branch(place: &Path) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(place.join(BRANCH))?.trim().to_owned())
}

impl Repository {
    /// Makes a repository in the new directory `place`.
    #[track_caller]
    pub fn new(place: &Path, seed: u64) -> Self {
        std::fs::create_dir(place).expect("make a directory");
        git(place, &["init", "-q"]).ok();
        git(place, &["commit", "-q", "--allow-empty", "-m", "begin"]).ok();
        File::open(place).and_then(|dir| Ok(rustix::fs::syncfs(dir)?)).expect("sync");
        Self { durable: branch(place).expect("a branch"), rng: Rng::new(seed) }
    }

    /// Commits until the file system dies, which `dying` announces. Returns the number of durable
    /// commits, or an earlier error.
    pub fn run(&mut self, place: &Path, dying: &AtomicBool) -> Result<u64, String> {
        let mut commits = 0;
        loop {
            match self.commit(place) {
                Ok(()) => commits += 1,
                Err(_) if dying.load(Ordering::SeqCst) => return Ok(commits),
                Err(fault) => return Err(fault),
            }
        }
    }

    fn commit(&mut self, place: &Path) -> Result<(), String> {
        let message = |error: std::io::Error| error.to_string();
        let dir = place.join(format!("d{}", self.rng.below(4)));
        std::fs::create_dir_all(&dir).map_err(message)?;
        for _ in 0..=self.rng.below(4) {
            let length = if self.rng.one_in(10) { 60_000 } else { 20 + self.rng.below(3000) };
            let content = self.rng.bytes(length as usize);
            std::fs::write(dir.join(format!("f{}", self.rng.below(20))), content).map_err(message)?;
        }
        for args in [&["add", "-A"][..], &["commit", "-q", "--allow-empty", "-m", "more"]] {
            let outcome = git(place, args);
            if !outcome.success() {
                return Err(outcome.report());
            }
        }
        for dir in dirs_below(&place.join(".git")).map_err(message)? {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(message)?;
        }
        File::open(place.join(BRANCH)).and_then(|file| file.sync_all()).map_err(message)?;
        self.durable = branch(place).map_err(message)?;
        Ok(())
    }

    /// Returns what is wrong with the repository.
    pub fn faults(&self, place: &Path) -> Vec<String> {
        let mut faults = Vec::new();
        let head = branch(place).unwrap_or_else(|error| error.to_string());
        if head.len() != 40 {
            faults.push(format!("the branch holds {head:?}"));
        }
        // Everything that the durable commit needs is there.
        let reachable = git(place, &["rev-list", "--objects", &self.durable]);
        if !reachable.success() {
            faults.push(reachable.report());
        }
        // The branch is at the durable commit or further; a later commit may be missing.
        let reached = git(place, &["cat-file", "-e", &head]).success();
        if reached && !git(place, &["merge-base", "--is-ancestor", &self.durable, &head]).success() {
            faults.push(format!("the branch is at {head}, which doesn't follow the durable {}", self.durable));
        }
        // Nothing is broken.
        let fsck = git(place, &["fsck", "--full", "--no-dangling", "--no-progress"]);
        let lines = fsck.stdout.lines().chain(fsck.stderr.lines());
        let broken: Vec<&str> = lines.filter(|line| !HARMLESS.iter().any(|words| line.contains(words))).collect();
        if !broken.is_empty() {
            faults.push(fsck.report());
        }
        faults.iter().map(|fault| format!("git: {fault}")).collect()
    }

    /// Returns to the durable commit, as one does after a crash of a program with work in progress.
    #[track_caller]
    pub fn recover(&mut self, place: &Path) {
        let dirs = dirs_below(&place.join(".git")).expect("the directories of a repository");
        let entries = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).expect("list a directory"));
        let paths = entries.map(|entry| entry.expect("an entry").path());
        for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "lock")) {
            std::fs::remove_file(path).expect("remove a lock");
        }
        let _ = std::fs::remove_file(place.join(".git/index"));
        git(place, &["update-ref", "refs/heads/main", &self.durable]).ok();
        git(place, &["reset", "-q", "--hard"]).ok();
    }
}

/// Returns a directory and all directories below it.
fn dirs_below(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while next < found.len() {
        for entry in std::fs::read_dir(&found[next])? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        next += 1;
    }
    Ok(found)
}
