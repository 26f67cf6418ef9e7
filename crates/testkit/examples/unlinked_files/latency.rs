//! How long calls take.

use std::time::{Duration, Instant};

/// Times of one kind of call.
#[derive(Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Makes a call and notes how long it took.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.0.push(start.elapsed());
        result
    }

    /// Median, percentiles and maximum.
    pub fn told(mut self) -> String {
        if self.0.is_empty() {
            return "none".into();
        }
        self.0.sort_unstable();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        format!(
            "{} calls: 50 % {:?}, 99 % {:?}, 99.9 % {:?}, at most {:?}",
            self.0.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        )
    }
}
