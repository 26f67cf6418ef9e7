//! Runs of a test, each determined by a seed.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use super::plan::{SchedulePlan, Strategy};
use super::strategy::{Chooser, PROGRESS};

/// The summary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How often a task was chosen.
    pub steps: u64,
    /// A hash of the chosen tasks in their order. Two runs that went the same way have the same
    /// hash.
    pub hash: u64,
    /// How much of its own time passed.
    pub time: Duration,
}

/// Panics of runs, by the thread of the run.
static PANICS: Mutex<Vec<(std::thread::ThreadId, String)>> = Mutex::new(Vec::new());

fn note_panic(info: &PanicHookInfo<'_>) {
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    panics.push((std::thread::current().id(), info.to_string()));
}

/// Has panics of runs recorded instead of printed: the caller of [`run`] reports them.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        // In its first run the library installs a hook of its own, which prints whole schedules.
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

/// Runs `body` and the threads that it starts by a plan. Returns the summary of the run, or why it
/// failed: a panic of any thread, caught or not, or threads that wait for each other or never end.
///
/// A process does one run at a time, since a lock in a `static` is shared by all runs and may be
/// used by one thread at a time.
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
    // The run gets its own thread, since the clock and other state are thread-local.
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
