//! Any interleaving of writers and jobs on a volume keeps what calls have promised.

use ubtrfs_interleavings::seeds::seeds;
use ubtrfs_interleavings::{Mixture, run_history};
use ubtrfs_threads::scheduler::Summary;

/// Runs seeds for `seconds`, or in a soak for this share of its time.
fn run_seeds(seconds: u64, share: f64, run: impl Fn(u64) -> Result<Summary, String>) {
    let (mut runs, mut steps) = (0, 0);
    for seed in seeds(0, seconds, share) {
        let summary = run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        runs += 1;
        steps += summary.steps;
    }
    println!("{runs} runs, {steps} steps");
}

#[test]
fn mixtures_of_work_end_as_promised() {
    run_seeds(15, 0.5, |seed| Mixture::new(seed).run());
}

#[test]
fn full_volumes_stay_writable() {
    run_seeds(2, 0.2, |seed| Mixture::on_full_volume(seed).run());
}

#[test]
fn devices_are_added_and_removed_beside_everything_else() {
    run_seeds(15, 0.3, |seed| Mixture::on_devices(seed).run());
}

#[test]
fn devices_that_fail_at_times_are_brought_up_whole() {
    run_seeds(15, 0.3, |seed| Mixture::on_mirrors(seed).run());
}

#[test]
fn histories_of_several_threads_end_as_promised() {
    run_seeds(15, 0.3, run_history);
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 1000..1004 {
        assert_eq!(Mixture::new(seed).run(), Mixture::new(seed).run(), "seed {seed}");
    }
}
