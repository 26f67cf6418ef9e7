//! What is in flight: writes, with their addresses, and discards.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::Logical;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::buffer::SharedBuffer;

/// The logical ranges of all writes that have been submitted and not yet waited for.
#[derive(Debug)]
pub(crate) struct InFlight {
    state: Mutex<State>,
    /// Nothing is in flight any more.
    emptied: Condvar,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::VolumeInFlight), emptied: Condvar::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    ranges: HashMap<u64, Vec<Range<u64>>>,
    /// The data in flight by the addresses at which readers look it up, with the number of the
    /// registration.
    nodes: BTreeMap<u64, (u64, SharedBuffer)>,
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

    /// The same for nodes, which are [found](Self::node) as long as they are registered.
    pub(crate) fn register_nodes(self: &Arc<Self>, nodes: Vec<(Range<u64>, SharedBuffer)>) -> Registration {
        let registration = self.register(nodes.iter().map(|(range, _)| range.clone()).collect());
        let numbered = nodes.into_iter().map(|(range, node)| (range.start, (registration.number, node)));
        self.state.lock().nodes.extend(numbered);
        registration
    }

    /// The same for what needs the devices, though nobody looks for the addresses.
    pub(crate) fn register_unaddressed(self: &Arc<Self>) -> Registration {
        self.register(Vec::new())
    }

    /// Waits until nothing is in flight, at most for this time; whether that is so.
    pub(crate) fn is_empty_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.ranges.is_empty() {
            if self.emptied.wait_until(&mut state, until).timed_out() {
                return state.ranges.is_empty();
            }
        }
        true
    }

    /// The node that is being written to this address.
    pub(crate) fn node(&self, at: Logical) -> Option<SharedBuffer> {
        self.state.lock().nodes.get(&at.0).map(|(_, node)| node.clone())
    }

    /// Whether any write in flight touches these `len` bytes.
    pub(crate) fn touches(&self, at: Logical, len: u64) -> bool {
        let end = at.0.saturating_add(len);
        let state = self.state.lock();
        state.ranges.values().flatten().any(|range| range.start < end && at.0 < range.end)
    }
}

impl Registration {
    /// Whether the writes are of this volume.
    pub(crate) fn is_of(&self, in_flight: &Arc<InFlight>) -> bool {
        Arc::ptr_eq(&self.in_flight, in_flight)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.in_flight.state.lock();
        let State { ranges, nodes, .. } = &mut *state;
        for range in ranges.remove(&self.number).unwrap_or_default() {
            if nodes.get(&range.start).is_some_and(|(number, _)| *number == self.number) {
                nodes.remove(&range.start);
            }
        }
        if state.ranges.is_empty() {
            self.in_flight.emptied.notify_all();
        }
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

    #[test]
    fn who_gives_up_devices_waits_for_what_is_in_flight() {
        let in_flight = Arc::new(InFlight::default());
        assert!(in_flight.is_empty_within(Duration::ZERO));
        let (write, discard) =
            (in_flight.register(std::iter::once(10..20).collect()), in_flight.register_unaddressed());
        assert!(!in_flight.is_empty_within(Duration::from_millis(1)));
        drop(write);
        assert!(!in_flight.is_empty_within(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| in_flight.is_empty_within(Duration::from_secs(600)));
            drop(discard);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn nodes_are_found_until_they_are_written_and_the_last_one_counts() {
        let in_flight = Arc::new(InFlight::default());
        let node = |byte: u8| SharedBuffer::from(vec![byte; 10]);
        let old = in_flight.register_nodes(vec![(10..20, node(1)), (20..30, node(2))]);
        let new = in_flight.register_nodes(vec![(10..20, node(3))]);
        let found = |at| in_flight.node(Logical(at)).map(|node| node[0]);
        assert_eq!((found(10), found(20), found(15)), (Some(3), Some(2), None));
        drop(old);
        assert_eq!((found(10), found(20)), (Some(3), None));
        drop(new);
        assert_eq!(found(10), None);
    }
}
