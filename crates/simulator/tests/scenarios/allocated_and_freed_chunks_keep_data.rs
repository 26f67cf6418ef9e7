//! Empty chunks are removed and allocated again (invariant 18), and free space is discarded
//! (invariant 19): whenever power is cut, nothing is lost.

use ubtrfs::WriteAt;
use ubtrfs_simulator::{Operation, Path, Random, Stage, What};
use ubtrfs_testkit::seeds::{seeds, soaks};

fn path(name: &str) -> Path {
    Path(name.as_bytes().to_vec())
}

fn create(name: &str) -> Operation {
    let (mode, owner) = (0o100_644, (0, 0));
    Operation::Create { path: path(name), mode, owner, rdev: 0, target: Path::default(), xattr: false, open: false }
}

fn write(name: &str, len: usize, fill: u64) -> Operation {
    Operation::Write { what: What::At(path(name)), at: WriteAt::End, len, fill, kill_privileges: false }
}

fn fsync(name: &str) -> Operation {
    Operation::Fsync { what: What::At(path(name)), data_only: false }
}

/// Returns operations that fill several chunks, empty them, wait for their removal, and fill others
/// in their place, with fsyncs in between.
fn script(random: &mut Random) -> Vec<Operation> {
    const PART: usize = 1 << 20;
    let mut operations = vec![create("small"), write("small", 9000, 1), Operation::Sync];
    for round in 0..3 {
        let files: Vec<String> = (0..4 + random.below(2)).map(|number| format!("{round}-{number}")).collect();
        for (number, file) in files.iter().enumerate() {
            operations.push(create(file));
            for part in 0..4 {
                operations.push(write(file, PART, round << 16 | (number as u64) << 8 | part));
            }
            match random.below(4) {
                0 => operations.push(Operation::Sync),
                1 => operations.push(fsync(file)),
                _ => {}
            }
        }
        for file in files.iter().skip(random.below(2) as usize) {
            operations.push(Operation::Unlink { path: path(file) });
        }
        for step in 0..5 {
            if random.one_in(2) {
                operations.extend([write("small", 5000, 77 + step), fsync("small")]);
            }
            operations.extend([write("small", 300, 99 + step), Operation::Sync]);
        }
        if round > 0 {
            operations.push(Operation::Unlink { path: path(&format!("{}-0", round - 1)) });
        }
    }
    operations
}

#[test]
fn chunks_given_back_take_nothing_along() {
    let (usual, budget) = if soaks() { (40, 400) } else { (4, 60) };
    for seed in seeds(usual) {
        let mut random = Random::new(seed ^ 0xc4);
        let discard = random.one_in(2);
        let stage = Stage::new(&[]).unwrap().with_options(|options| options.discard = discard);
        let operations = script(&mut random);
        let mut session = stage.mount().unwrap();
        for operation in &operations {
            session.perform(operation).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
        let stats = session.worker.fs.stats();
        assert!(stats.chunks_given_back > 0 && stats.chunks_made > 2, "seed {seed}: {stats:?}");
        assert_eq!(stats.bytes_discarded > 0, discard, "seed {seed}: {stats:?}");
        drop(session);
        let states = stage.run(&operations, seed, budget).unwrap_or_else(|failure| panic!("{failure}"));
        eprintln!("seed {seed}: {states} states, {} chunks removed", stats.chunks_given_back);
    }
}
