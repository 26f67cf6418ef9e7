//! Any bytes give a volume or an error, in bounded time and memory (invariant 14).

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use ubtrfs_dump::{RestoreOptions, RestorePlan, Target};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::dump;

/// A target in memory, of which only what was written takes any.
#[derive(Default)]
struct Sparse {
    size: u64,
    sectors: BTreeMap<u64, Vec<u8>>,
}

impl Sparse {
    fn within(&self, at: u64, len: usize) -> io::Result<()> {
        let fits = at.checked_add(len as u64).is_some_and(|end| end <= self.size);
        if fits { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Target for Sparse {
    fn set_size(&mut self, size: u64) -> io::Result<()> {
        self.size = size;
        if size < 1 << 50 { Ok(()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.within(at, buf.len())?;
        for (index, byte) in buf.iter_mut().enumerate() {
            let at = at + index as u64;
            *byte = self.sectors.get(&(at / 4096)).map_or(0, |sector| sector[(at % 4096) as usize]);
        }
        Ok(())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.within(at, bytes.len())?;
        for (index, byte) in bytes.iter().enumerate() {
            let at = at + index as u64;
            self.sectors.entry(at / 4096).or_insert_with(|| vec![0; 4096])[(at % 4096) as usize] = *byte;
        }
        Ok(())
    }
}

/// Restores a dump, and returns whether that worked, and how many bytes were written.
fn attempt(bytes: &[u8]) -> (bool, usize) {
    let Ok(plan) = RestorePlan::read(&bytes) else { return (false, 0) };
    let mut targets: Vec<Sparse> = plan.devices().iter().map(|_| Sparse::default()).collect();
    let mut pointers: Vec<&mut dyn Target> = targets.iter_mut().map(|target| target as &mut dyn Target).collect();
    let options = RestoreOptions { threads: 1, progress: &|_, _| true };
    let done = ubtrfs_dump::restore(&bytes, &plan, &mut pointers, &options);
    (done.is_ok(), targets.iter().map(|target| target.sectors.len() * 4096).sum())
}

fn inputs() -> Vec<Vec<u8>> {
    let make = |(name, level)| {
        let dir = scratch_dir();
        let images = Fixture::load(name).unpack(dir.path());
        dump(&images, false, level).1
    };
    [("node-4k", 0), ("node-4k", 9), ("prof-raid1", 9), ("prof-raid6", 9)].into_iter().map(make).collect()
}

#[test]
fn dumps_that_are_cut_off_are_refused() {
    for bytes in inputs() {
        assert!(attempt(&bytes).0);
        for len in [0, 1, 20, 1023, 1024, 1025, 5000, bytes.len() / 2, bytes.len() - 1025] {
            assert!(!attempt(&bytes[..len]).0, "{len} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn mutated_dumps_give_a_volume_or_an_error() {
    let inputs = inputs();
    let change = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>());
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut refused = 0;
    let strategy = (0..inputs.len(), prop::collection::vec(change, 1..12), any::<bool>());
    for _ in 0..400 {
        let (which, changes, at_the_beginning) = strategy.new_tree(&mut runner).unwrap().current();
        let mut bytes = inputs[which].clone();
        let reach = if at_the_beginning { 2048.min(bytes.len()) } else { bytes.len() };
        for (place, how, byte) in changes {
            let at = place.index(reach);
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes[at] = 0xff,
                _ => bytes[at] = 0,
            }
        }
        let (done, written) = attempt(&bytes);
        refused += usize::from(!done);
        // Each byte of an item has at most four copies here, and an item unpacks to 1 MiB at most.
        assert!(written <= bytes.len() * 1200, "{written} bytes of {}", bytes.len());
    }
    assert!(refused > 20, "{refused} of the mutations were refused");
}
