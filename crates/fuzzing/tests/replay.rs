//! Runs every target over its corpus and over seeded mutations of it: no input makes a target panic
//! or take long (invariant 14).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ubtrfs_fuzzing::{TARGETS, Target, use_image, use_log};
use ubtrfs_random::Rng;

/// The longest time that an input may take, on a busy machine too.
const MAX: Duration = Duration::from_secs(20);
const SEED: u64 = 0x5eed_0f5e_ed00_0001;

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let listed = std::fs::read_dir(&directory).expect("the corpus");
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry of the corpus").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("an input"))).collect()
}

/// Changes a few bytes, mostly near the beginning, where headers are, and mostly to boundary
/// values; truncates some inputs.
fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    const EDGES: [u8; 8] = [0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff];
    for _ in 0..=rng.below(8) {
        if input.is_empty() {
            return;
        }
        let len = input.len() as u64;
        let within = if rng.below(2) == 0 { len.min(600) } else { len };
        let at = rng.below(within) as usize;
        match rng.below(10) {
            0..4 => input[at] = EDGES[rng.below(EDGES.len() as u64) as usize],
            4..7 => input[at] ^= 1 << rng.below(8),
            7 | 8 => {
                let from = rng.below(len) as usize;
                let length = (rng.below(32) as usize).min(input.len() - at.max(from));
                input.copy_within(from..from + length, at);
            }
            _ if rng.below(8) == 0 => input.truncate(at),
            _ => input[at] = rng.below(256) as u8,
        }
    }
}

fn timed(run: fn(&[u8]), input: &[u8]) {
    let start = Instant::now();
    run(input);
    assert!(start.elapsed() < MAX, "an input took {:?}", start.elapsed());
}

fn replay(Target { name, run, mutations }: Target) {
    let corpus = corpus(name);
    assert!(corpus.len() >= 5, "the corpus of {name} has {} inputs", corpus.len());
    for (path, input) in &corpus {
        assert!(input.len() <= 16 << 10, "{} is too large for a corpus", path.display());
        eprintln!("{}", path.display());
        timed(run, input);
    }
    let mut rng = Rng::new(SEED);
    for number in 0..mutations {
        let (path, input) = &corpus[number % corpus.len()];
        let mut input = input.clone();
        mutate(&mut input, &mut rng);
        let outcome = std::panic::catch_unwind(|| timed(run, &input));
        if let Err(panic) = outcome {
            let kept = std::env::temp_dir().join(format!("ubtrfs-fuzz-{name}-{number}"));
            std::fs::write(&kept, &input).expect("keep the input");
            eprintln!("mutation {number} of {}: kept as {}", path.display(), kept.display());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn every_target_survives_its_corpus_and_mutations_of_it() {
    TARGETS.iter().copied().for_each(replay);
}

#[test]
fn an_intact_image_is_used_completely() {
    for base in 0..7 {
        let reached = use_image(&[base]);
        eprintln!("{base}: {reached:?}");
        assert!(reached.is_clean && reached.inodes > 2, "base {base}: {reached:?}");
        assert!(reached.opened && reached.committed, "base {base}: {reached:?}");
    }
}

#[test]
fn a_sound_log_is_replayed() {
    for base in 0..8 {
        assert_eq!(use_log(&[base]), (true, true), "base {base}");
    }
}
