//! Times of operations: percentiles are accurate to a hundredth, however many times there are.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Significant digits of a time.
const DIGITS: u8 = 2;

/// Times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", try_from = "Vec<(u64, u64)>")]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(hdrhistogram::Histogram::new(DIGITS).expect("so many digits can be kept"))
    }
}

impl From<Histogram> for Vec<(u64, u64)> {
    /// Returns the times, with the count of each.
    fn from(histogram: Histogram) -> Self {
        let recorded = histogram.0.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Histogram {
    type Error = String;

    /// Checks the counts, since a file may contain anything.
    fn try_from(times: Vec<(u64, u64)>) -> Result<Self, String> {
        let mut histogram = Self::default();
        let sum = times.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count));
        sum.ok_or("more times than can be counted")?;
        for (nanos, count) in times {
            histogram.0.record_n(nanos, count).map_err(|error| error.to_string())?;
        }
        Ok(histogram)
    }
}

impl Histogram {
    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(nanos).expect("it grows as it needs to");
    }

    /// Makes a call, and adds its time.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.add(start.elapsed());
        result
    }

    /// Adds the times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("it grows as it needs to");
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the longest time, in microseconds.
    pub fn max(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }

    /// Returns the time, in microseconds, that `share` (0 to 1) of all operations did not exceed.
    pub fn percentile(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_means_nothing_is_refused() {
        let mut histogram = Histogram::default();
        (1..100).for_each(|power| histogram.add(Duration::from_nanos(1.3_f64.powi(power) as u64)));
        let text = serde_json::to_string(&histogram).unwrap();
        let back: Histogram = serde_json::from_str(&text).unwrap();
        assert_eq!((back.count(), back.percentile(0.5)), (99, histogram.percentile(0.5)));
        let read = |text: &str| serde_json::from_str::<Histogram>(text);
        assert!(read("[[1,18446744073709551615],[2,1]]").is_err() && read("{}").is_err());
        assert_eq!(read("[[18446744073709551615,1]]").unwrap().count(), 1);
    }

    #[test]
    fn percentiles_are_near() {
        let mut histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        assert_eq!(histogram.count(), 1000);
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = histogram.percentile(share);
            assert!((found / micros - 1.0).abs() < 0.011, "{share}: {found}");
        }
        assert!((histogram.max() / 1000.0 - 1.0).abs() < 0.011);
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!((twice.count(), twice.percentile(0.5)), (2000, histogram.percentile(0.5)));
    }
}
