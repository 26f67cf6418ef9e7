//! A thing to measure, and the amount of work.

use std::time::Duration;

use crate::failure::Result;
use crate::peers::Mounted;
use crate::samples::{CaseFacts, Measured};

/// The amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    /// Takes seconds, to see that everything works.
    Tiny,
    /// Takes a quarter of an hour.
    Quick,
    /// Takes two or three hours.
    Usual,
    /// Measures everything.
    Full,
}

impl Scale {
    /// Returns its name in result files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Quick => "quick",
            Self::Usual => "usual",
            Self::Full => "full",
        }
    }

    /// Returns the bytes of a volume.
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

/// A thing to measure, on a fresh volume each time.
pub struct Case {
    /// Its description.
    pub facts: CaseFacts,
    /// Programs that it runs.
    pub programs: &'static [&'static str],
    /// Whether it can be measured on an engine in this process.
    pub in_process: bool,
    /// Whether it brings a volume of its own, so that only an engine in this process measures it.
    pub own_volume: bool,
    /// Whether it needs subvolumes.
    pub subvolumes: bool,
    /// Bytes of its volume, if they are not the usual ones.
    pub volume: Option<u64>,
    /// The delay of the server's answers, if the volume is on a server.
    pub delay: Option<Duration>,
    /// The function that measures.
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

    /// Puts the volume on a server with this delay. The table shows the steps, too.
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
