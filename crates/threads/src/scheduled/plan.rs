//! What decides a run.

use std::time::Duration;

/// How the next task is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Any that can go on, at each step.
    Uniform,
    /// The same task, on average for so many steps.
    Preempting {
        /// More than 0.
        steps: u64,
    },
    /// The one with the highest of random priorities. The task that runs gets the lowest at so many
    /// of the first steps: most faults need few such points.
    Priorities {
        /// How many.
        changes: u64,
        /// Of so many steps.
        within: u64,
    },
}

/// What decides a run.
#[derive(Clone, Copy, Debug)]
pub struct SchedulePlan {
    /// Everything else that is chosen follows from it.
    pub seed: u64,
    /// How the next task is chosen.
    pub strategy: Strategy,
    /// On average so many steps pass until time goes on to where one of the next sleepers wakes.
    pub steps_between_jumps: u64,
    /// A run that goes on after so much of its time hangs: nothing happens but that threads wake
    /// which look whether there is something to do.
    pub longest: Duration,
    /// A run of more steps does not end.
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
