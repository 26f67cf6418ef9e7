//! One thing to measure, and how much of it.

use std::time::Duration;

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
    /// Two or three hours.
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

    /// Bytes of a volume.
    pub fn volume(self) -> u64 {
        self.pick(1, 8, 8, 8) << 30
    }

    /// Chooses the value for this scale.
    pub(super) fn pick<T>(self, tiny: T, quick: T, usual: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Quick => quick,
            Self::Usual => usual,
            Self::Full => full,
        }
    }
}

type Run = Box<dyn Fn(&mut Mounted, &mut Measured) -> Result<()>>;

/// One thing to measure, on a fresh volume each time.
pub struct Case {
    /// What it is.
    pub facts: CaseFacts,
    /// Programs that it runs.
    pub programs: &'static [&'static str],
    /// Whether it can do with an engine in this process.
    pub in_process: bool,
    /// Whether it brings a volume of its own: only an engine in this process measures it.
    pub own_volume: bool,
    /// Whether it needs subvolumes.
    pub subvolumes: bool,
    /// Bytes of its volume, if it needs another one than most.
    pub volume: Option<u64>,
    /// How late the answers of the server come that the volume is on, if it is on one.
    pub delay: Option<Duration>,
    /// Measures.
    pub run: Run,
}

impl Case {
    pub(super) fn new(
        workload: &str,
        name: String,
        title: String,
        headline: &str,
        run: impl Fn(&mut Mounted, &mut Measured) -> Result<()> + 'static,
    ) -> Self {
        let facts = CaseFacts { name, workload: workload.into(), title, headline: headline.into(), steps: Vec::new() };
        let run = Box::new(run);
        Self {
            facts,
            programs: &[],
            in_process: false,
            own_volume: false,
            subvolumes: false,
            volume: None,
            delay: None,
            run,
        }
    }

    pub(super) fn programs(mut self, programs: &'static [&'static str]) -> Self {
        self.programs = programs;
        self
    }

    pub(super) fn with_subvolumes(mut self) -> Self {
        self.subvolumes = true;
        self
    }

    pub(super) fn with_volume(mut self, bytes: u64) -> Self {
        self.volume = Some(bytes);
        self
    }

    pub(super) fn on_own_volume(mut self) -> Self {
        (self.in_process, self.own_volume) = (true, true);
        self
    }

    /// On a server whose answers come so late; the table shows the steps, too.
    pub(super) fn on_server(mut self, delay: Duration, steps: &[&str]) -> Self {
        self.delay = Some(delay);
        self.facts.steps = steps.iter().copied().map(Into::into).collect();
        self
    }

    pub(super) fn in_process(mut self) -> Self {
        self.in_process = true;
        self
    }
}
