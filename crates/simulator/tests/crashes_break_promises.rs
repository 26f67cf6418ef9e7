//! Longer random sequences over few names, and crashes while a crashed volume is mounted.

use std::sync::LazyLock;

use ubtrfs_simulator::enumerate::{Stage, Start};
use ubtrfs_simulator::{Failure, Operation, Random, crash_in_replay, shrink};
use ubtrfs_testkit::seeds::seeds;

fn soaks() -> bool {
    std::env::var_os("UBTRFS_SOAK").is_some()
}

/// What sequences begin with.
static STAGES: LazyLock<Vec<(Stage, Start)>> = LazyLock::new(|| {
    let stage = |start: &Start| Stage::new(&start.committed).unwrap_or_else(|what| panic!("{start:?}: {what}"));
    Start::all().into_iter().map(|start| (stage(&start), start)).collect()
});

/// A stage, and a random sequence on it.
fn sequence(seed: u64) -> (&'static Stage, Vec<Operation>) {
    let mut random = Random::new(seed);
    let (stage, start) = &STAGES[random.below(STAGES.len() as u64) as usize];
    let steps = 3 + random.below(8) as usize;
    let operations = stage.wander(&start.open, &mut random, steps);
    (stage, operations.unwrap_or_else(|what| panic!("seed {seed}: {what}")))
}

/// Fails the test with the shortest sequence that was found to fail too.
fn report(failure: &Failure, operations: &[Operation], run: &mut dyn FnMut(&[Operation]) -> Result<(), Failure>) -> ! {
    let shorter = shrink(operations, 200, &mut |some| run(some).is_err());
    match run(&shorter) {
        Err(shorter) => panic!("{failure}\n\nshorter:\n{shorter}"),
        Ok(()) => panic!("{failure}"),
    }
}

#[test]
fn random_sequences_over_few_names() {
    let (mut states, started) = (0, std::time::Instant::now());
    for seed in seeds(if soaks() { 3000 } else { 300 }) {
        let (stage, operations) = sequence(seed);
        let mut run = |operations: &[Operation]| stage.run(operations, seed, 12).map(|more| states += more);
        if let Err(failure) = run(&operations) {
            report(&failure, &operations, &mut run);
        }
    }
    eprintln!("{states} crash states of random sequences in {:.1?}", started.elapsed());
}

#[test]
fn power_is_cut_again_during_replay() {
    let mut states = 0;
    for seed in seeds(if soaks() { 1000 } else { 60 }) {
        let (stage, operations) = sequence(seed);
        let mut run = |operations: &[Operation]| {
            stage.run_with(operations, seed, 4, &mut |state| {
                states += crash_in_replay(state.judge, state.device, &state.found.model, seed, 12)?;
                Ok(())
            })
        };
        if let Err(failure) = run(&operations) {
            report(&failure, &operations, &mut run);
        }
    }
    eprintln!("{states} crash states during replay");
}
