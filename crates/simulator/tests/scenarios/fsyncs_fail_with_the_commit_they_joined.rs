//! Several threads work while commits run in the background and the device fails: data of an fsync
//! or a sync that succeeded is there after every crash (invariant 22).

use ubtrfs::testing::CommitFault;
use ubtrfs_simulator::Survey;
use ubtrfs_simulator::interrupted::run;
use ubtrfs_simulator::overlap::Sharing;
use ubtrfs_testkit::seeds::{seeds, soaks};

/// The number of usual seeds.
const USUAL: u64 = 32;

fn sharing_of(seed: u64) -> Sharing {
    if seed.is_multiple_of(3) { Sharing::Files } else { Sharing::Nothing }
}

#[test]
fn fsyncs_fail_with_the_commit_they_joined() {
    let (usual, budget) = if soaks() { (300, 60) } else { (USUAL, 20) };
    let (mut sum, mut failed) = (Survey::default(), 0);
    for seed in seeds(usual) {
        let interrupted = run(seed, sharing_of(seed), budget, None).unwrap_or_else(|failure| panic!("{failure}"));
        sum = sum.plus(interrupted.survey);
        failed += usize::from(interrupted.failed);
    }
    eprintln!("{} crash states, {} of them with a log; {failed} devices failed", sum.states, sum.with_log);
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || failed > 5, "{failed}");
}

/// The usual seeds detect a commit that answers the fsyncs that joined it before its superblock is
/// written.
#[test]
fn fsyncs_that_are_answered_too_early_are_noticed() {
    let noticed = (1..=USUAL).find_map(|seed| run(seed, sharing_of(seed), 20, Some(CommitFault::AnswerEarly)).err());
    eprintln!("{}", noticed.unwrap().what);
}
