//! Two operations over a few names, in every combination, made durable in every way; then power is
//! cut.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ubtrfs_simulator::enumerate::{Start, operations, persistence};
use ubtrfs_simulator::{Failure, Model, Operation, Random, Stage};
use ubtrfs_testkit::seeds::{seeds, soaks};

/// The sequences that run, and their crash states.
struct Sample {
    seed: u64,
    /// One in so many sequences that end with a call that makes something durable.
    plain: u64,
    /// One in so many sequences with another operation after that.
    followed: u64,
    /// One in so many sequences that make something durable after each operation.
    twice: u64,
    /// Crash states of each sequence.
    budget: usize,
}

#[derive(Default)]
struct Tally {
    sequences: AtomicUsize,
    states: AtomicUsize,
}

impl Tally {
    fn run(&self, stage: &Stage, operations: &[Operation], sample: &Sample) -> Result<(), Failure> {
        let states = stage.run(operations, sample.seed, sample.budget)?;
        self.sequences.fetch_add(1, Ordering::Relaxed);
        self.states.fetch_add(states, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the state of the volume after some operations.
fn after(stage: &Stage, operations: &[Operation]) -> Model {
    let mut session = stage.mount().unwrap();
    for operation in operations {
        session.perform(operation).unwrap_or_else(|what| panic!("{operations:?}: {what}"));
    }
    session.worker.model
}

fn joined(parts: &[&[Operation]]) -> Vec<Operation> {
    parts.concat()
}

/// Runs all sequences with this first step.
fn explore(
    stage: &Stage,
    open: &[Operation],
    first: &[Operation],
    sample: &Sample,
    random: &mut Random,
    tally: &Tally,
) -> Result<(), Failure> {
    let one = joined(&[open, first]);
    let middle = after(stage, &one);
    for second in operations(&middle) {
        let two = joined(&[&one, &second]);
        let end = after(stage, &two);
        let steps = operations(&end);
        for last in persistence(&end) {
            let durable = joined(&[&two, std::slice::from_ref(&last)]);
            if random.one_in(sample.plain) {
                tally.run(stage, &durable, sample)?;
            }
            if random.one_in(sample.followed)
                && let Some(more) = random.pick(&steps)
            {
                tally.run(stage, &joined(&[&durable, more]), sample)?;
            }
            for between in persistence(&middle) {
                if random.one_in(sample.twice) {
                    let last = std::slice::from_ref(&last);
                    tally.run(stage, &joined(&[&one, &[between], &second, last]), sample)?;
                }
            }
        }
    }
    Ok(())
}

/// Failures that are shown.
const SHOWN: usize = 5;

/// Explores each first step of each start, on two threads.
fn explore_all(sample: &Sample) -> (Tally, Vec<String>) {
    let starts: Vec<(Stage, Start)> =
        Start::all().into_iter().map(|start| (Stage::new(&start.committed).unwrap(), start)).collect();
    let mut work: Vec<(&Stage, &Start, Vec<Operation>)> = Vec::new();
    for (stage, start) in &starts {
        let firsts = operations(&after(stage, &start.open));
        work.extend(firsts.into_iter().map(|first| (stage, start, first)));
    }
    let (tally, next, failures) = (Tally::default(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((stage, start, first)) = work.get(number) else { return };
                    let mut random = Random::new(sample.seed ^ (number as u64) << 32);
                    if let Err(failure) = explore(stage, &start.open, first, sample, &mut random, &tally) {
                        failures.lock().unwrap().push(failure.to_string());
                    }
                    if failures.lock().unwrap().len() >= SHOWN {
                        return;
                    }
                }
            });
        }
    });
    (tally, failures.into_inner().unwrap())
}

#[test]
fn every_two_operations_are_kept_once_durable() {
    let started = Instant::now();
    for seed in if soaks() { vec![1] } else { seeds(1) } {
        let sample = if soaks() {
            Sample { seed, plain: 1, followed: 5, twice: 20, budget: 5 }
        } else {
            Sample { seed, plain: 12, followed: 60, twice: 300, budget: 4 }
        };
        let (tally, failures) = explore_all(&sample);
        let (sequences, states) = (tally.sequences.into_inner(), tally.states.into_inner());
        let rate = states as u128 * 1000 / started.elapsed().as_millis().max(1);
        eprintln!("{sequences} sequences, {states} crash states in {:.1?}, {rate}/s", started.elapsed());
        assert!(failures.is_empty(), "{} sequences fail:\n\n{}", failures.len(), failures.join("\n\n"));
    }
}
