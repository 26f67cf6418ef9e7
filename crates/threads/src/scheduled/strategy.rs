//! The choice of the task that continues, as a seed determines it.

use std::collections::HashMap;
use std::time::Duration;

use shuttle::current::TaskId;
use shuttle::scheduler::{Schedule, Scheduler, Task};

use super::clock;
use super::plan::{SchedulePlan, Strategy};
use ubtrfs_random::Rng;

/// Returns a number below a limit, by the seed. It is the remainder of the division by the limit,
/// so that known seeds keep their meaning.
fn below(random: &mut Rng, limit: u64) -> u64 {
    random.next_u64() % limit.max(1)
}

/// The longest time that a step takes.
const MAX_STEP: u64 = 20_000;

/// The progress of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) steps: u64,
    /// A hash of the chosen tasks in their order.
    pub(super) hash: u64,
    /// No task could do anything within [`SchedulePlan::longest`].
    pub(super) has_stopped: bool,
}

std::thread_local! {
    /// The progress of this thread's run.
    pub(super) static PROGRESS: std::cell::Cell<Progress> = const {
        std::cell::Cell::new(Progress { steps: 0, hash: 0, has_stopped: false })
    };
}

/// Chooses the tasks of one run by a plan.
pub(super) struct Chooser {
    plan: SchedulePlan,
    random: Rng,
    has_begun: bool,
    progress: Progress,
    /// The priorities of tasks, for [`Strategy::Priorities`]. The highest goes first.
    priorities: HashMap<TaskId, u64>,
    /// The steps at which the running task gets the lowest priority.
    changes: Vec<u64>,
    lowest: u64,
}

impl Chooser {
    pub(super) fn new(plan: SchedulePlan) -> Self {
        let mut random = Rng::new(plan.seed);
        let changes = match plan.strategy {
            Strategy::Priorities { changes, within } => (0..changes).map(|_| below(&mut random, within)).collect(),
            _ => Vec::new(),
        };
        let (progress, priorities) = (Progress::default(), HashMap::new());
        Self { plan, random, has_begun: false, progress, priorities, changes, lowest: u64::MAX / 2 }
    }

    /// Advances the time a little, or sometimes until a sleeper wakes.
    fn tick(&mut self) {
        let step = Duration::from_nanos(below(&mut self.random, MAX_STEP));
        clock::advance(clock::now() + step);
        if below(&mut self.random, self.plan.steps_between_jumps) == 0 {
            let number = below(&mut self.random, 3) as usize;
            if let Some(until) = clock::waking(number) {
                clock::advance(until);
            }
        }
    }

    fn choose(&mut self, awake: &[TaskId], current: Option<TaskId>) -> TaskId {
        let any = awake[below(&mut self.random, awake.len() as u64) as usize];
        let current = current.filter(|task| awake.contains(task));
        match self.plan.strategy {
            Strategy::Uniform => any,
            Strategy::Preempting { steps } => match current {
                Some(current) if below(&mut self.random, steps) != 0 => current,
                _ => any,
            },
            Strategy::Priorities { .. } => {
                if let Some(current) = current
                    && self.changes.contains(&self.progress.steps)
                {
                    self.lowest += 1;
                    self.priorities.insert(current, self.lowest);
                }
                for task in awake {
                    let priority = self.random.next_u64() >> 2;
                    self.priorities.entry(*task).or_insert(priority);
                }
                awake.iter().copied().min_by_key(|task| self.priorities[task]).unwrap_or(any)
            }
        }
    }
}

impl Scheduler for Chooser {
    fn new_execution(&mut self) -> Option<Schedule> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        is_first.then(|| Schedule::new(self.plan.seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        self.tick();
        let mut awake: Vec<TaskId>;
        loop {
            awake = runnable.iter().map(|task| task.id()).filter(|task| !clock::is_asleep(*task)).collect();
            if !awake.is_empty() {
                break;
            }
            // All tasks sleep.
            clock::advance(clock::waking(0)?);
            if clock::now() > self.plan.longest {
                self.progress.has_stopped = true;
                clock::stop();
            }
        }
        if let Some(current) = current.filter(|_| is_yielding && awake.len() > 1) {
            awake.retain(|task| *task != current);
        }
        let chosen = self.choose(&awake, current);
        self.progress.steps += 1;
        self.progress.hash = (self.progress.hash ^ usize::from(chosen) as u64).wrapping_mul(0x0100_0000_01b3);
        PROGRESS.set(self.progress);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}
