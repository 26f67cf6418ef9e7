//! Work that a thread does again and again while there is a need for it. The thread ends before the
//! mount does.

use std::sync::Arc;

use ubtrfs_threads::thread::{Builder, JoinHandle};
use ubtrfs_threads::time::{Duration, Instant};
use ubtrfs_threads::{Condvar, Mutex, Rank};

#[derive(Default)]
struct State {
    /// How often the work was asked for.
    wishes: u64,
    is_ending: bool,
    thread: Option<JoinHandle<()>>,
}

struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

/// Work that is repeated.
pub(crate) struct Repeated(Arc<Turns>);

impl Repeated {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Turns { state: Mutex::with_default(Rank::Repeated), changed: Condvar::new() }))
    }

    /// Has `work` done after a pause, and again after each further pause as long as it returns
    /// true. The first call starts the thread, which always calls the `work` of that call.
    pub(crate) fn ask(
        &self,
        name: &str,
        pause: Duration,
        work: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<()> {
        let mut state = self.0.state.lock();
        state.wishes += 1;
        if state.thread.is_none() && !state.is_ending {
            let turns = Arc::clone(&self.0);
            state.thread = Some(Builder::new().name(name.into()).spawn(move || turns.repeat(pause, work))?);
        }
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Waits for the thread to end, which it does before its next turn. After this no thread is
    /// started any more.
    pub(crate) fn end(&self) {
        let thread = self.0.end();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread panicked");
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // The thread is not joined, since this may be the thread itself.
        drop(self.0.end());
    }
}

impl Turns {
    fn end(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.is_ending = true;
        let thread = state.thread.take();
        drop(state);
        self.changed.notify_all();
        thread
    }

    fn repeat(&self, pause: Duration, mut work: impl FnMut() -> bool) {
        let mut done = 0;
        while let Some(wishes) = self.wait(done, pause) {
            if !work() {
                done = wishes;
            }
        }
    }

    /// Waits until the work was asked for more often than it was done, and then for a pause.
    /// Returns how often it was asked for by then; `None` if the thread is to end.
    fn wait(&self, done: u64, pause: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        while state.wishes == done && !state.is_ending {
            self.changed.wait(&mut state);
        }
        let until = Instant::now() + pause;
        while !state.is_ending && !self.changed.wait_until(&mut state, until).timed_out() {}
        (!state.is_ending).then_some(state.wishes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn it_is_done_as_long_as_there_is_more_and_when_it_is_asked_for_again() {
        let repeated = Repeated::new();
        let (sender, turns) = channel();
        let mut left = 3;
        let work = move || {
            left -= 1;
            sender.send(left).unwrap();
            left > 0
        };
        repeated.ask("repeated", PAUSE, work).unwrap();
        let next = || turns.recv_timeout(LONG).unwrap();
        assert_eq!([next(), next(), next()], [2, 1, 0]);
        std::thread::sleep(20 * PAUSE);
        assert!(turns.try_recv().is_err(), "nobody has asked for more");
        repeated.ask("repeated", PAUSE, || true).unwrap();
        assert_eq!(next(), -1);
        repeated.end();
        assert!(turns.recv_timeout(LONG).is_err(), "the thread has ended");
        repeated.ask("repeated", PAUSE, || true).unwrap();
        assert!(repeated.0.state.lock().thread.is_none(), "none is started at the end");
    }

    #[test]
    fn the_end_waits_for_no_pause() {
        let repeated = Repeated::new();
        repeated.ask("repeated", Duration::from_secs(3600), || true).unwrap();
        repeated.end();
        assert_eq!(Arc::strong_count(&repeated.0), 1, "the thread has ended");
    }
}
