//! Any interleaving of writers and of what else happens on a volume keeps the promises.

use ubtrfs_interleavings::seeds::seeds;
use ubtrfs_interleavings::{Mixture, run_history};

#[test]
fn mixtures_of_work_end_as_promised() {
    let (mut runs, mut steps) = (0, 0);
    for seed in seeds(0, 15, 0.5) {
        let summary = Mixture::new(seed).run().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        runs += 1;
        steps += summary.steps;
    }
    println!("{runs} runs, {steps} steps");
}

#[test]
fn full_volumes_stay_writable() {
    let (mut runs, mut steps) = (0, 0);
    for seed in seeds(0, 2, 0.2) {
        let summary = Mixture::on_full_volume(seed).run().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        runs += 1;
        steps += summary.steps;
    }
    println!("{runs} runs, {steps} steps");
}

#[test]
fn histories_of_several_threads_end_as_promised() {
    let (mut runs, mut steps) = (0, 0);
    for seed in seeds(0, 15, 0.3) {
        let summary = run_history(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        runs += 1;
        steps += summary.steps;
    }
    println!("{runs} runs, {steps} steps");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 1000..1004 {
        assert_eq!(Mixture::new(seed).run(), Mixture::new(seed).run(), "seed {seed}");
    }
}
