//! Runs of a test, each of which a seed decides.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use super::plan::{SchedulePlan, Strategy};
use super::strategy::{Chooser, PROGRESS};

/// What a run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How often a task was chosen.
    pub steps: u64,
    /// Of the tasks that were chosen, in their order: the same for two runs that went the same way.
    pub hash: u64,
    /// How much time passed in it.
    pub time: Duration,
}

/// Panics of runs, by the thread of the run.
static PANICS: Mutex<Vec<(std::thread::ThreadId, String)>> = Mutex::new(Vec::new());

fn note_panic(info: &PanicHookInfo<'_>) {
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    panics.push((std::thread::current().id(), info.to_string()));
}

/// Has panics of runs noted, and not printed: the caller of [`run`] reports them.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        // The library puts one of its own over it in its first run, which prints whole schedules.
        panic::set_hook(Box::new(|_| ()));
        shuttle::check_random(|| (), 1);
        panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(RUN) {
                note_panic(info);
            } else {
                others(info);
            }
        }));
    });
}

const RUN: &str = "scheduled run";

/// Runs `body` and the threads that it starts by a plan. Returns what the run was, or why it
/// failed: a panic of any thread, caught or not, threads that wait for each other, or that never
/// end.
///
/// A process does one at a time: a lock in a `static` is of all runs, and of one thread at a time.
pub fn run(plan: SchedulePlan, body: impl Fn() + Send + Sync + 'static) -> Result<Summary, String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    install_hook();
    let mut config = Config::new();
    config.stack_size = plan.stack;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(plan.most_steps);
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    // A thread of its own, since the clock and other state is its thread's.
    let work = move || {
        let result = panic::catch_unwind(panic::AssertUnwindSafe(|| Runner::new(Chooser::new(plan), config).run(body)));
        let progress = PROGRESS.get();
        let id = std::thread::current().id();
        let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<String> = panics.extract_if(.., |(of, _)| *of == id).map(|(_, what)| what).collect();
        drop(panics);
        let summary = Summary { steps: progress.steps, hash: progress.hash, time: super::clock::now() };
        let hangs = progress.has_stopped.then(|| format!("nothing has happened for {:?}", plan.longest));
        let what: Vec<String> = hangs.into_iter().chain(own).collect();
        match result {
            Ok(_) if what.is_empty() => Ok(summary),
            Ok(_) => Err(what.join("\n")),
            Err(payload) if what.is_empty() => Err(message(payload.as_ref())),
            Err(_) => Err(format!("{}\n(after {} steps, {:?})", what.join("\n"), summary.steps, summary.time)),
        }
    };
    match std::thread::Builder::new().name(RUN.into()).spawn(work).map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(payload)) => Err(message(payload.as_ref())),
        Err(error) => Err(error.to_string()),
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let string = payload.downcast_ref::<String>().cloned();
    string.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".into())
}
