//! Times of operations, in classes that grow by an eighth: memory stays small, percentiles are
//! right within 6 %.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Classes between a power of two and the next.
const STEPS: u64 = 8;

/// Times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Class and how many fell into it.
    classes: BTreeMap<u32, u64>,
    /// The longest.
    max: u64,
}

/// The class of a time.
fn class(nanos: u64) -> u32 {
    if nanos < STEPS {
        return nanos as u32;
    }
    let power = nanos.ilog2();
    let step = (nanos >> (power - STEPS.ilog2())) & (STEPS - 1);
    (power - STEPS.ilog2() + 1) * STEPS as u32 + step as u32
}

/// The middle of a class.
fn middle(class: u32) -> u64 {
    let class = u64::from(class);
    if class < STEPS {
        return class;
    }
    let (power, step) = (class / STEPS - 1, class % STEPS);
    ((STEPS + step) << power) + ((1 << power) >> 1)
}

impl Histogram {
    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        *self.classes.entry(class(nanos)).or_default() += 1;
        self.max = self.max.max(nanos);
    }

    /// Makes a call and adds how long it took.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.add(start.elapsed());
        result
    }

    /// Adds another one's times.
    pub fn merge(&mut self, other: &Self) {
        for (class, count) in &other.classes {
            *self.classes.entry(*class).or_default() += count;
        }
        self.max = self.max.max(other.max);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.classes.values().sum()
    }

    /// Whether it can have come from [`add`](Self::add): a file that was read may hold anything.
    pub fn is_sound(&self) -> bool {
        let known = self.classes.last_key_value().is_none_or(|(last, _)| *last <= class(u64::MAX));
        known && self.classes.values().try_fold(0_u64, |sum, count| sum.checked_add(*count)).is_some()
    }

    /// The longest, in microseconds.
    pub fn max(&self) -> f64 {
        self.max as f64 / 1e3
    }

    /// The time, in microseconds, that `share` (0 to 1) of all operations took at the most.
    pub fn percentile(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, count) in &self.classes {
            seen += count;
            if seen >= wanted {
                return middle(*class).min(self.max) as f64 / 1e3;
            }
        }
        self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_stand_for() {
        for nanos in (0..100_000).chain([1 << 30, (1 << 40) + 12345, u64::MAX / 4]) {
            let back = middle(class(nanos));
            assert!(back.abs_diff(nanos) as f64 <= nanos as f64 * 0.0625 + 0.5, "{nanos} became {back}");
        }
    }

    #[test]
    fn invalid_histograms_are_refused() {
        let of = |classes: &[(u32, u64)]| Histogram { classes: classes.iter().copied().collect(), max: u64::MAX };
        assert!(of(&[]).is_sound() && of(&[(0, 1), (class(u64::MAX), 2)]).is_sound());
        assert!(of(&[(class(u64::MAX), 1)]).percentile(1.0) > 1e15);
        assert!(!of(&[(class(u64::MAX) + 1, 1)]).is_sound() && !of(&[(1, u64::MAX), (2, 1)]).is_sound());
    }

    #[test]
    fn percentiles_are_near() {
        let mut histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        assert_eq!((histogram.count(), histogram.max()), (1000, 1000.0));
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = histogram.percentile(share);
            assert!((found / micros - 1.0).abs() < 0.07, "{share}: {found}");
        }
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!((twice.count(), twice.percentile(0.5)), (2000, histogram.percentile(0.5)));
    }
}
