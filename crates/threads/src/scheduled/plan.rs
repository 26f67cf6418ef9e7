//! The parameters that determine a run.

use std::time::Duration;

/// How the next task is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// At each step any task that can continue.
    Uniform,
    /// The same task for this many steps on average.
    Preempting {
        /// The average number of steps; more than 0.
        steps: u64,
    },
    /// The task with the highest of random priorities. At some of the first steps the running task
    /// gets the lowest priority: most faults need only few such points.
    Priorities {
        /// How many such steps there are.
        changes: u64,
        /// The number of first steps from which they are chosen.
        within: u64,
    },
}

/// The parameters that determine a run.
#[derive(Clone, Copy, Debug)]
pub struct SchedulePlan {
    /// The seed from which all other choices follow.
    pub seed: u64,
    /// How the next task is chosen.
    pub strategy: Strategy,
    /// The average number of steps after which the time jumps to the waking of one of the next
    /// sleepers.
    pub steps_between_jumps: u64,
    /// A run that takes longer, in its own time, hangs: only threads wake that look whether there
    /// is something to do.
    pub longest: Duration,
    /// A run of more steps is taken not to end.
    pub most_steps: usize,
    /// Bytes of a thread's stack.
    pub stack: usize,
}

impl SchedulePlan {
    /// The plan of this seed.
    pub fn new(seed: u64) -> Self {
        let strategy = match seed % 4 {
            0 => Strategy::Uniform,
            1 => Strategy::Preempting { steps: 20 },
            2 => Strategy::Preempting { steps: 300 },
            _ => Strategy::Priorities { changes: 1 + seed / 4 % 6, within: 40_000 },
        };
        Self {
            seed,
            strategy,
            steps_between_jumps: 500,
            longest: Duration::from_secs(3600),
            most_steps: 20_000_000,
            stack: 1 << 20,
        }
    }
}
