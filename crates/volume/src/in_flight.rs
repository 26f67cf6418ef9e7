//! Which addresses have writes under way.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use ubtrfs_format::Logical;

/// The logical ranges of all writes that have been submitted and not yet waited for.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    ranges: HashMap<u64, Vec<Range<u64>>>,
}

/// Keeps its ranges in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    in_flight: Arc<InFlight>,
    number: u64,
}

impl InFlight {
    pub(crate) fn register(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Registration {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.ranges.insert(number, ranges);
        Registration { in_flight: Arc::clone(self), number }
    }

    /// Whether any write under way touches these `len` bytes.
    pub(crate) fn touches(&self, at: Logical, len: u64) -> bool {
        let end = at.0.saturating_add(len);
        let state = self.state.lock();
        state.ranges.values().flatten().any(|range| range.start < end && at.0 < range.end)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.in_flight.state.lock().ranges.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_flight_as_long_as_their_registration() {
        let in_flight = Arc::new(InFlight::default());
        let one = in_flight.register(vec![10..20, 40..50]);
        let two = in_flight.register(std::iter::once(15..30).collect());
        assert!(in_flight.touches(Logical(49), 10) && !in_flight.touches(Logical(30), 10));
        drop(one);
        assert!(in_flight.touches(Logical(10), 6) && !in_flight.touches(Logical(10), 5));
        drop(two);
        assert!(!in_flight.touches(Logical(0), u64::MAX));
    }
}
