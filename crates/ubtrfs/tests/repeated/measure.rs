//! Repeats a call on a new volume, and compares the last thousand calls with the first.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use ubtrfs::testing::Faults;
use ubtrfs::{Filesystem, InodeId, Options};
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::counting;

/// `memory=` of the volumes.
const MEMORY: usize = 32 << 20;
/// Bytes that may be live besides that: the work of a commit, and what does not depend on the
/// number of calls.
const BESIDES: u64 = 12 << 20;
/// Bytes of a volume, which is a sparse file.
const SIZE: u64 = 4 << 30;
/// The number of first calls, and of last ones, that are compared.
const COMPARED: usize = 1000;

/// The allocator counts for all threads, also when a panic is reported, so tests run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Lets no other test run until the result is dropped.
pub fn alone() -> impl Drop {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call, which gets its number.
pub type Call<'a> = Box<dyn FnMut(usize) -> ubtrfs::Result<()> + 'a>;

/// The cost of one call.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// How often it allocated memory.
    allocations: u64,
    /// How many bytes it allocated.
    bytes: u64,
    /// Time of the processor, in nanoseconds.
    time: u64,
    /// Whether there was a commit during the call.
    has_commit: bool,
}

/// The costs of all calls.
pub struct Measured {
    costs: Vec<Cost>,
    /// The maximum of live bytes, without those before the first call.
    peak: u64,
    commits: u64,
}

impl Measured {
    /// Returns what is wrong with the costs, if anything.
    pub fn complaint(&self) -> Option<String> {
        let most = MEMORY as u64 + BESIDES;
        if self.peak > most {
            return Some(format!("{} KiB were live, {} may be", self.peak >> 10, most >> 10));
        }
        let (first, last) = self.ends();
        let is_more = |of: fn(&Cost) -> u64, factor: u64, slack: u64| {
            let (first, last) = (median(&first, of), median(&last, of));
            (last > first * factor + slack).then(|| format!("{last} instead of {first}"))
        };
        is_more(|cost| cost.allocations, 2, 8)
            .map(|what| format!("allocations of a call: {what}"))
            .or_else(|| is_more(|cost| cost.bytes, 2, 4096).map(|what| format!("bytes of a call: {what}")))
            .or_else(|| is_more(|cost| cost.time, 4, 20_000).map(|what| format!("nanoseconds of a call: {what}")))
    }

    /// Returns the first and the last calls. Calls during which there was a commit are left out,
    /// unless they are the majority.
    fn ends(&self) -> (Vec<Cost>, Vec<Cost>) {
        let (usual, other): (Vec<Cost>, Vec<Cost>) = self.costs.iter().partition(|cost| !cost.has_commit);
        let costs = if usual.len() > other.len() { usual } else { self.costs.clone() };
        let count = COMPARED.min(costs.len() / 3);
        (costs[..count].to_vec(), costs[costs.len() - count..].to_vec())
    }

    /// Returns a line about the costs.
    pub fn summary(&self) -> String {
        let (first, last) = self.ends();
        let of = |costs: &[Cost]| {
            format!(
                "{:4} allocations {:7} bytes {:7} ns",
                median(costs, |cost| cost.allocations),
                median(costs, |cost| cost.bytes),
                median(costs, |cost| cost.time)
            )
        };
        let total: u64 = self.costs.iter().map(|cost| cost.time).sum();
        format!(
            "{} → {}, {:6} KiB, {} commits, {} ms",
            of(&first),
            of(&last),
            self.peak >> 10,
            self.commits,
            total / 1_000_000
        )
    }
}

fn median(costs: &[Cost], of: fn(&Cost) -> u64) -> u64 {
    let mut values: Vec<u64> = costs.iter().map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Returns the processor's time of this thread, in nanoseconds.
fn time_of_thread() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the root directory.
pub fn root() -> InodeId {
    InodeId::new(TreeId::FS, Ino::ROOT_DIR)
}

/// Makes a volume that nobody commits in the background.
fn open(faults: Faults) -> Arc<Filesystem> {
    // The image is in memory where possible, since the device's time is not measured.
    let image = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap();
    image.set_len(SIZE).unwrap();
    ubtrfs_mkfs::layout(&ubtrfs_mkfs::MkfsOptions::new(SIZE))
        .unwrap()
        .write(&mut [&mut image.try_clone().unwrap()])
        .unwrap();
    let path = format!("/proc/self/fd/{}", image.as_raw_fd());
    let device = FileDevice::open(std::path::Path::new(&path), OpenMode::ReadWrite, Exclusive::No).unwrap();
    let volume = Volume::open(vec![Arc::new(device)], OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, memory: MEMORY, faults, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

/// Repeats a call `times` times on a new volume.
pub fn repeat(times: usize, faults: Faults, prepare: impl FnOnce(&Filesystem) -> Call<'_>) -> Measured {
    let fs = open(faults);
    let commits = || fs.stats().commits;
    let mut call = prepare(&fs);
    let mut costs = Vec::with_capacity(times);
    let before = (counting::live(), commits());
    counting::reset_peak();
    for number in 0..times {
        let generation = fs.generation();
        let (asked, began) = (counting::asked(), time_of_thread());
        call(number).unwrap_or_else(|error| panic!("call {number}: {error:?}"));
        let (time, now) = (time_of_thread() - began, counting::asked());
        costs.push(Cost {
            allocations: now.0 - asked.0,
            bytes: now.1 - asked.1,
            time,
            has_commit: generation != fs.generation(),
        });
    }
    let measured = Measured {
        costs, // Threads in the background may have freed some memory before the peak was counted.
        peak: counting::peak().saturating_sub(before.0),
        commits: commits() - before.1,
    };
    drop(call);
    measured
}
