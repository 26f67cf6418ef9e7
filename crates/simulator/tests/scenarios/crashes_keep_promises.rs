//! Longer random sequences over few names, and crashes while a crashed volume is mounted. No
//! operation takes effect in part (invariant 5), and no log is there without the commit that it
//! follows (invariant 16).

use std::sync::LazyLock;

use ubtrfs_simulator::enumerate::Start;
use ubtrfs_simulator::{Failure, Operation, Random, Stage, crash_in_replay, shrink};
use ubtrfs_testkit::seeds::many_seeds;

/// The beginnings of sequences.
static STAGES: LazyLock<Vec<(Stage, Start)>> = LazyLock::new(|| {
    let stage = |start: &Start| Stage::new(&start.committed).unwrap_or_else(|what| panic!("{start:?}: {what}"));
    Start::all().into_iter().map(|start| (stage(&start), start)).collect()
});

/// Returns a stage, and a random sequence on it.
fn sequence(seed: u64) -> (&'static Stage, Vec<Operation>) {
    let mut random = Random::new(seed);
    let (stage, start) = &STAGES[random.below(STAGES.len() as u64) as usize];
    let steps = 3 + random.below(8) as usize;
    let operations = stage.wander(&start.open, &mut random, steps);
    (stage, operations.unwrap_or_else(|what| panic!("seed {seed}: {what}")))
}

/// Failures that are shown.
const SHOWN: usize = 5;

type Run<'a> = &'a mut dyn FnMut(&Stage, &[Operation], u64) -> Result<(), Failure>;

/// Runs the sequences of these seeds. Fails the test with the shortest sequences found that fail.
fn run_all(seeds: Vec<u64>, run: Run<'_>) {
    let mut failures = Vec::new();
    for seed in seeds {
        let (stage, operations) = sequence(seed);
        if let Err(failure) = run(stage, &operations, seed) {
            let shorter = shrink(&operations, 200, &mut |some| run(stage, some, seed).is_err());
            failures.push(run(stage, &shorter, seed).err().unwrap_or(failure).to_string());
        }
        if failures.len() == SHOWN {
            break;
        }
    }
    assert!(failures.is_empty(), "{} sequences fail:\n\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn random_sequences_over_few_names() {
    let (mut states, started) = (0, std::time::Instant::now());
    run_all(many_seeds(700, 200), &mut |stage, operations, seed| {
        stage.run(operations, seed, 12).map(|more| states += more)
    });
    eprintln!("{states} crash states of random sequences in {:.1?}", started.elapsed());
}

#[test]
fn power_is_cut_again_during_replay() {
    let mut states = 0;
    run_all(many_seeds(120, 40), &mut |stage, operations, seed| {
        stage.run_with(operations, seed, 4, &mut |state| {
            states += crash_in_replay(state.judge, state.device, &state.found.model, seed, 12)?;
            Ok(())
        })
    });
    eprintln!("{states} crash states during replay");
}
