//! Counters, and their differences from a baseline.

use std::collections::BTreeMap;

/// Per cent by which a counter may grow without being reported.
const TOLERANCE: u64 = 2;
/// Counters by name, in turn by the names of histories.
pub type Figures = BTreeMap<String, BTreeMap<String, u64>>;

/// A counter that has changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// The history in which it was counted.
    pub history: String,
    /// Its name.
    pub counter: String,
    /// The baseline's value.
    pub before: u64,
    /// The present value.
    pub now: u64,
}

impl Change {
    /// Returns whether it has grown.
    pub fn is_worse(&self) -> bool {
        self.now > self.before
    }
}

/// Returns the counters that have changed by more than the tolerance and `slack`, or that only one
/// of the two has.
pub fn compare(before: &Figures, now: &Figures, slack: u64) -> Vec<Change> {
    let value = |figures: &Figures, history: &str, counter: &str| {
        figures.get(history).and_then(|counters| counters.get(counter)).copied().unwrap_or(0)
    };
    let mut changes = Vec::new();
    let names = |figures: &Figures| -> Vec<(String, String)> {
        let of = |(history, counters): (&String, &BTreeMap<String, u64>)| {
            counters.keys().map(|counter| (history.clone(), counter.clone())).collect::<Vec<_>>()
        };
        figures.iter().flat_map(of).collect()
    };
    let mut all = [names(before), names(now)].concat();
    all.sort();
    all.dedup();
    for (history, counter) in all {
        let (before, now) = (value(before, &history, &counter), value(now, &history, &counter));
        if before.abs_diff(now) > before * TOLERANCE / 100 + slack {
            changes.push(Change { history, counter, before, now });
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_noticed_and_noise_is_not() {
        let figures = |bytes: u64| -> Figures {
            BTreeMap::from([("one".to_owned(), BTreeMap::from([("bytes".to_owned(), bytes)]))])
        };
        assert!(compare(&figures(1000), &figures(1020), 0).is_empty());
        assert!(compare(&figures(1000), &figures(1022), 2).is_empty());
        let grown = compare(&figures(1000), &figures(1021), 0);
        assert!(grown.len() == 1 && grown[0].is_worse());
        assert!(!compare(&figures(1000), &figures(900), 0)[0].is_worse());
        assert!(compare(&Figures::new(), &figures(1), 0)[0].is_worse());
    }
}
