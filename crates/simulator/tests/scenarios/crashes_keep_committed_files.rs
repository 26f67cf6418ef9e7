//! Whenever power is cut, the last commit or the next one is there as a whole, data included
//! (invariant 2), since no block that it refers to was overwritten (invariant 3). The volume is
//! clean: what it says of space (invariant 9, invariant 10) and of references (invariant 20) is
//! true.

use ubtrfs_simulator::overlap::{self, Sharing};
use ubtrfs_simulator::{Failure, History, Operation, Recorded, Survey, shrink};
use ubtrfs_testkit::seeds::{seeds, soaks};

fn run_and_survey(history: &History, budget: usize) -> Result<(Recorded, Survey), Failure> {
    let recorded = history.run(history.length())?;
    let survey = recorded.survey(budget)?;
    Ok((recorded, survey))
}

/// Fails the test with the shortest history found that fails in the same way.
fn report(history: &History, failure: &Failure, budget: usize) -> ! {
    let operations: Vec<Operation> = failure.operations.iter().map(|(_, operation)| operation.clone()).collect();
    let mut shortest = None;
    shrink(&operations, 150, &mut |some| {
        let failed = history.replay(some, &|device| device).and_then(|recorded| recorded.survey(budget)).err();
        let fails = failed.is_some();
        shortest = failed.or(shortest.take());
        fails
    });
    match shortest {
        Some(shorter) => panic!("{failure}\n\nshorter:\n{shorter}"),
        None => panic!("{failure}"),
    }
}

#[test]
fn the_last_commit_survives_entire() {
    let seeds = seeds(if soaks() { 100 } else { 10 });
    // Some states occur twice, and are counted once.
    let (wanted, budget) = if soaks() { (50_000, 110_000 / seeds.len()) } else { (400, 80) };
    let mut sum = Survey::default();
    let mut full = 0;
    let start = std::time::Instant::now();
    for seed in &seeds {
        let history = History::new(*seed);
        match run_and_survey(&history, budget) {
            Ok((recorded, survey)) => {
                sum = sum.plus(survey);
                full += recorded.tolerated;
            }
            Err(failure) => report(&history, &failure, budget),
        }
    }
    eprintln!(
        "{} crash states of {} histories ({} with a log, {} with orphans, {} worked on after the crash; {full} operations \
         found the volume full) in {:.1?}",
        sum.states,
        seeds.len(),
        sum.with_log,
        sum.with_orphans,
        sum.recoveries,
        start.elapsed()
    );
    assert!(seeds.len() < 10 || sum.states >= wanted, "{sum:?}");
}

fn threads(sharing: Sharing) {
    let (usual, budget) = if soaks() { (60, 100) } else { (8, 40) };
    let mut sum = Survey::default();
    for seed in seeds(usual) {
        sum = sum.plus(overlap::run(seed, 3, sharing, 80, budget).unwrap_or_else(|failure| panic!("{failure}")));
    }
    eprintln!("{} crash states of threads at work, {} of them with a log", sum.states, sum.with_log);
}

#[test]
fn threads_at_work_during_commits_lose_nothing_that_they_synced() {
    threads(Sharing::Nothing);
}

#[test]
fn threads_at_work_on_the_same_files_lose_nothing_that_they_synced() {
    threads(Sharing::Files);
}
