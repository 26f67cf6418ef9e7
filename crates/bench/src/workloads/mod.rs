//! What is measured.

mod dbench;
mod fio;
mod storm;
pub mod unlinked;

use crate::failure::Result;
use crate::peers::Mounted;
use crate::samples::{CaseFacts, Measured};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    /// Seconds: to see that everything works.
    Tiny,
    /// A quarter of an hour.
    Quick,
    /// An hour or two.
    Usual,
    /// All of it.
    Full,
}

impl Scale {
    /// Its name in result files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Quick => "quick",
            Self::Usual => "usual",
            Self::Full => "full",
        }
    }

    /// What of four goes with it.
    fn pick<T>(self, tiny: T, quick: T, usual: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Quick => quick,
            Self::Usual => usual,
            Self::Full => full,
        }
    }
}

/// Bytes of a volume; its image is sparse.
const SIZE: u64 = 8 << 30;

type Run = Box<dyn Fn(&mut Mounted, &mut Measured) -> Result<()>>;

/// One thing to measure, on a fresh volume each time.
pub struct Case {
    /// What it is.
    pub facts: CaseFacts,
    /// Bytes of the volume.
    pub size: u64,
    /// Programs that it runs.
    pub programs: &'static [&'static str],
    /// Whether it can do with an engine in this process.
    pub in_process: bool,
    /// Measures.
    pub run: Run,
}

impl Case {
    fn new(
        workload: &str,
        name: String,
        title: String,
        headline: &str,
        run: impl Fn(&mut Mounted, &mut Measured) -> Result<()> + 'static,
    ) -> Self {
        let facts = CaseFacts { name, workload: workload.into(), title, headline: headline.into() };
        Self { facts, size: SIZE, programs: &[], in_process: false, run: Box::new(run) }
    }

    fn programs(mut self, programs: &'static [&'static str]) -> Self {
        self.programs = programs;
        self
    }

    fn in_process(mut self) -> Self {
        self.in_process = true;
        self
    }
}

/// A workload: its name, what it is, the least scale at which it runs without being asked for by name, and its cases.
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// In words.
    pub about: &'static str,
    /// From which scale on it runs unasked.
    pub from: Scale,
    /// Its cases at a scale.
    pub cases: fn(Scale) -> Vec<Case>,
}

/// All workloads; those that make the headlines first.
pub const ALL: [Workload; 6] = [
    Workload { name: "dbench", about: "a file server's clients", from: Scale::Quick, cases: dbench::cases },
    Workload {
        name: "fio-seq",
        about: "64 KiB sequential writes, fsync after each",
        from: Scale::Quick,
        cases: fio::sequential,
    },
    Workload { name: "fio-rand", about: "4 KiB random writes, fsync after 16", from: Scale::Quick, cases: fio::random },
    Workload { name: "storm", about: "renames in one process", from: Scale::Tiny, cases: storm::cases },
    Workload { name: "storm-mv", about: "renames by one mv each", from: Scale::Quick, cases: storm::cases_mv },
    Workload {
        name: "unlinked",
        about: "O_TMPFILE files opened, and closed oldest first",
        from: Scale::Tiny,
        cases: unlinked::cases,
    },
];
