//! Runs many sequences on both sides, and reports each kind of difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::call::CallStep;
use super::compare::{Comparison, Difference, compare, of_trees};
use super::generate::sequence;
use super::shrink::shrink;
use super::side::{Record, Side};
use crate::diff::{Options, diff};
use crate::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use crate::scratch::scratch_dir;
use crate::subject::Subject;

/// Sequences on a volume before it is remounted, compared, and replaced by a new one.
const BATCH: usize = 300;

/// The size of a volume.
const SIZE: u64 = 4 << 30;

/// How many candidates for a shorter sequence are tried; fewer if each try needs a remount.
const TRIES: usize = 300;
const TRIES_WITH_REMOUNT: usize = 60;

/// The differences that were found, and the amount of work.
#[derive(Debug, Default)]
pub struct Findings {
    /// Calls made on each side.
    pub calls: u64,
    /// Sequences.
    pub sequences: u64,
    /// The time of the calls on the slower side, without mounts and comparisons.
    pub calling: Duration,
    /// Sequences that were cut at a known difference.
    pub cut: u64,
    /// How often each known difference was found, by its reason.
    pub known: BTreeMap<&'static str, u64>,
    /// Each kind of difference, with its count and a report of the first.
    pub differences: BTreeMap<String, (u64, String)>,
}

impl Findings {
    /// Returns the numbers as text.
    pub fn summary(&self) -> String {
        let speed = u128::from(self.calls) * 1000 / self.calling.as_millis().max(1);
        let mut text = format!(
            "{} calls in {} sequences on each side ({speed} a second), {} cut at a known \
             difference, {} kinds of other differences\n",
            self.calls,
            self.sequences,
            self.cut,
            self.differences.len()
        );
        for (reason, count) in &self.known {
            let _ = writeln!(text, "  known, {count} times: {reason}");
        }
        text
    }

    /// Returns the summary and all differences.
    pub fn report(&self) -> String {
        let mut text = self.summary();
        for (count, report) in self.differences.values() {
            let _ = writeln!(text, "\n{count} times: {report}");
        }
        text
    }
}

/// Both sides of the comparison.
#[derive(Debug)]
pub struct Campaign {
    ours: Side,
    theirs: Side,
    checks_opens: bool,
    _dir: TempDir,
    next: u64,
    is_clean: bool,
    findings: Findings,
}

/// Makes a directory for images, in memory if possible, since there are many syncs.
fn image_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let prefix = format!("ubtrfs-test-{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(memory);
    dir.unwrap_or_else(|_| scratch_dir())
}

impl Campaign {
    /// Makes new volumes, mounted by `subject` with these options and by the kernel. `program` is
    /// that of [`Process`](super::process::Process).
    pub fn new(program: &Path, subject: &Subject, options: &str) -> Self {
        let dir = image_dir();
        let side = |subject: &Subject, options: &str, name: &str| {
            let image = dir.path().join(name);
            mkfs_btrfs(&image, SIZE, &[]);
            Side::new(subject.clone(), options, image, program)
        };
        let (ours, theirs) = (side(subject, options, "ours"), side(&Subject::Kernel, "", "theirs"));
        let checks_opens = options.contains("check_open=always");
        Self { ours, theirs, checks_opens, _dir: dir, next: 0, is_clean: true, findings: Findings::default() }
    }

    fn new_name(&mut self) -> PathBuf {
        self.next += 1;
        PathBuf::from(format!("q{}", self.next))
    }

    /// Runs a sequence on both sides.
    fn run_both(&mut self, name: &Path, steps: &[CallStep]) -> (Record, Record) {
        let lost =
            |side: &str, lost: super::process::Lost| -> Record { panic!("{side}: {} in\n{}", lost.0, describe(steps)) };
        let ours = self.ours.run(name, steps).unwrap_or_else(|what| lost("ubtrfs", what));
        let theirs = self.theirs.run(name, steps).unwrap_or_else(|what| lost("the kernel", what));
        (ours, theirs)
    }

    fn compare_now(&mut self, steps: &[CallStep], remounts: bool) -> Comparison {
        let name = self.new_name();
        let (ours, theirs) = self.run_both(&name, steps);
        let mut comparison = compare(steps, &ours, &theirs, self.checks_opens);
        if remounts && comparison.difference.is_none() && !comparison.is_cut {
            self.ours.remount();
            self.theirs.remount();
            comparison.difference = self.after_remount(&name, steps, &ours, &theirs);
        }
        comparison
    }

    /// Returns what a remount has changed: differently on the two sides, or on ours alone.
    fn after_remount(&mut self, name: &Path, steps: &[CallStep], ours: &Record, theirs: &Record) -> Option<Difference> {
        let (our_tree, their_tree) = (self.ours.look(name), self.theirs.look(name));
        of_trees(steps, &our_tree, &their_tree, true).or_else(|| {
            let options = Options { data: false, ..Options::SAME_VOLUME };
            let changed = diff(&ours.tree, &our_tree, options);
            let first = changed.first()?;
            diff(&theirs.tree, &their_tree, options).is_empty().then(|| Difference {
                at: None,
                ours: format!("left before, right after: {first}"),
                theirs: "no change".into(),
                is_after_remount: true,
            })
        })
    }

    /// Runs the sequences of these seeds on the mounted volumes, and compares.
    pub fn batch(&mut self, seeds: &[u64]) {
        let work: Vec<(PathBuf, u64, Vec<CallStep>)> =
            seeds.iter().map(|seed| (self.new_name(), *seed, sequence(*seed))).collect();
        let (ours, theirs) = (&mut self.ours, &mut self.theirs);
        let run = |side: &mut Side, what: &str| -> (Vec<Record>, Duration) {
            let begin = Instant::now();
            let records = work.iter().map(|(name, seed, steps)| {
                side.run(name, steps)
                    .unwrap_or_else(|lost| panic!("{what}, seed {seed}: {}, in\n{}", lost.0, describe(steps)))
            });
            let records = records.collect();
            (records, begin.elapsed())
        };
        let ((our_records, our_time), (their_records, their_time)) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(theirs, "the kernel"));
            let ours = run(ours, "ubtrfs");
            (ours, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        self.findings.calling += our_time.max(their_time);
        let mut whole = Vec::new();
        let mut found = Vec::new();
        for ((name, seed, steps), (ours, theirs)) in work.iter().zip(our_records.iter().zip(&their_records)) {
            self.findings.sequences += 1;
            self.findings.calls += steps.len() as u64;
            let comparison = compare(steps, ours, theirs, self.checks_opens);
            for known in &comparison.known {
                *self.findings.known.entry(known.reason).or_default() += 1;
            }
            self.findings.cut += u64::from(comparison.is_cut);
            match comparison.difference {
                Some(difference) => found.push((*seed, steps, difference)),
                None if !comparison.is_cut => whole.push((name, *seed, steps, ours, theirs)),
                None => (),
            }
        }
        self.ours.remount();
        self.theirs.remount();
        for (name, seed, steps, ours, theirs) in whole {
            if let Some(difference) = self.after_remount(name, steps, ours, theirs) {
                found.push((seed, steps, difference));
            }
        }
        for (seed, steps, difference) in found {
            self.note(seed, steps, &difference);
        }
    }

    /// Counts a difference, and shrinks the sequence if it is the first of its kind.
    fn note(&mut self, seed: u64, steps: &[CallStep], difference: &Difference) {
        self.is_clean = false;
        let kind = difference.kind(steps);
        if let Some((count, _)) = self.findings.differences.get_mut(&kind) {
            *count += 1;
            return;
        }
        let remounts = difference.is_after_remount;
        let mut last = None;
        let mut shows = |campaign: &mut Self, candidate: &[CallStep]| {
            let found = campaign.compare_now(candidate, remounts).difference;
            let is_it = found.as_ref().is_some_and(|found| found.kind(candidate) == kind);
            if is_it {
                last = found;
            }
            is_it
        };
        let report = if shows(self, steps) {
            let tries = if remounts { TRIES_WITH_REMOUNT } else { TRIES };
            let shrunk = shrink(steps, tries, |candidate| shows(self, candidate));
            let json = serde_json::to_string(&shrunk).unwrap_or_default();
            format!("{kind}\nseed {seed}, shrunk to\n{}UBTRFS_SEQUENCE='{json}'", describe(&shrunk))
        } else {
            format!(
                "{kind}\nseed {seed}, not seen when run again alone, at call {:?} of\n{}",
                difference.at,
                describe(steps)
            )
        };
        eprintln!("difference: {report}");
        self.findings.differences.insert(kind, (1, report));
    }

    /// Runs one sequence on both sides. Returns what each call returned.
    pub fn show(&mut self, steps: &[CallStep]) -> String {
        let name = self.new_name();
        let (ours, theirs) = self.run_both(&name, steps);
        let mut text = String::new();
        for (step, (our, their)) in steps.iter().zip(ours.answers.iter().zip(&theirs.answers)) {
            let _ = writeln!(text, "{step:?}\n    {our}");
            if our != their {
                let _ = writeln!(text, "    but the kernel: {their}");
            }
        }
        let comparison = compare(steps, &ours, &theirs, self.checks_opens);
        if let Some(difference) = comparison.difference.or_else(|| {
            self.ours.remount();
            self.theirs.remount();
            self.after_remount(&name, steps, &ours, &theirs)
        }) {
            self.is_clean = false;
            let _ = writeln!(text, "{difference:?}");
        }
        text
    }

    /// Unmounts; both volumes must be sound.
    pub fn finish(mut self, checks: bool) -> Findings {
        self.ours.unmount();
        self.theirs.unmount();
        if checks {
            assert_ubtrfs_check_clean(self.ours.image());
            assert_btrfs_check_clean(self.ours.image());
        }
        std::mem::take(&mut self.findings)
    }

    /// Returns whether no difference was found.
    pub fn is_clean(&self) -> bool {
        self.is_clean
    }
}

/// Runs sequences of consecutive seeds on the kernel and `subject`, until so many calls have been
/// made on each side. Each few hundred sequences get a new volume, after which it calls `progress`.
pub fn run(
    program: &Path,
    (subject, options): (&Subject, &str),
    first_seed: u64,
    calls: u64,
    mut progress: impl FnMut(&Findings),
) -> Findings {
    let mut all = Findings::default();
    let mut seed = first_seed;
    while all.calls < calls {
        let mut campaign = Campaign::new(program, subject, options);
        campaign.findings = std::mem::take(&mut all);
        let mut seeds = Vec::new();
        let mut planned = 0;
        while seeds.len() < BATCH && campaign.findings.calls + planned < calls {
            planned += sequence(seed).len() as u64;
            seeds.push(seed);
            seed += 1;
        }
        campaign.batch(&seeds);
        all = campaign.finish(true);
        progress(&all);
    }
    all
}

/// Returns a sequence as text, a call per line.
fn describe(steps: &[CallStep]) -> String {
    steps.iter().fold(String::new(), |mut text, step| {
        let _ = writeln!(text, "    {step:?}");
        text
    })
}
