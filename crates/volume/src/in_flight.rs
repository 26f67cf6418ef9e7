//! The operations in flight: writes, with their addresses, discards, and repairs. A range that is
//! being repaired is not written meanwhile.

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
    /// Notified when nothing is in flight any more.
    emptied: Condvar,
    /// Notified when a repair has ended.
    repaired: Condvar,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::VolumeInFlight), emptied: Condvar::new(), repaired: Condvar::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    ranges: HashMap<u64, Vec<Range<u64>>>,
    /// The data in flight by the addresses at which readers look it up, with the number of the
    /// registration.
    nodes: BTreeMap<u64, (u64, SharedBuffer)>,
    /// What is being repaired.
    repairs: Vec<Range<u64>>,
}

impl State {
    fn touches(&self, range: &Range<u64>) -> bool {
        self.ranges.values().flatten().any(|other| overlap(other, range))
    }

    fn repairs(&self, range: &Range<u64>) -> bool {
        self.repairs.iter().any(|other| overlap(other, range))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// While it lives, nothing is written to its range, and a release of the devices waits.
#[derive(Debug)]
pub(crate) struct Repairing {
    range: Range<u64>,
    under_way: Registration,
}

impl Drop for Repairing {
    fn drop(&mut self) {
        let in_flight = &self.under_way.in_flight;
        let mut state = in_flight.state.lock();
        if let Some(place) = state.repairs.iter().position(|range| *range == self.range) {
            state.repairs.swap_remove(place);
        }
        in_flight.repaired.notify_all();
    }
}

/// Keeps its ranges in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    in_flight: Arc<InFlight>,
    number: u64,
}

impl InFlight {
    /// Registers ranges as in flight. Waits while any part of them is being repaired.
    pub(crate) fn register(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Registration {
        let mut state = self.state.lock();
        while ranges.iter().any(|range| state.repairs(range)) {
            self.repaired.wait(&mut state);
        }
        let number = state.next;
        state.next += 1;
        state.ranges.insert(number, ranges);
        Registration { in_flight: Arc::clone(self), number }
    }

    /// As [`Self::register`], for nodes, which [`Self::node`] finds as long as they are registered.
    pub(crate) fn register_nodes(self: &Arc<Self>, nodes: Vec<(Range<u64>, SharedBuffer)>) -> Registration {
        let registration = self.register(nodes.iter().map(|(range, _)| range.clone()).collect());
        let numbered = nodes.into_iter().map(|(range, node)| (range.start, (registration.number, node)));
        self.state.lock().nodes.extend(numbered);
        registration
    }

    /// Registers an operation that needs the devices, but whose addresses nobody looks up.
    pub(crate) fn register_unaddressed(self: &Arc<Self>) -> Registration {
        self.register(Vec::new())
    }

    /// Begins a repair: until the result is dropped, nothing is written to these `len` bytes.
    /// Returns `None` if a write to them is in flight. Waits for other repairs of them.
    pub(crate) fn begin_repair(self: &Arc<Self>, at: Logical, len: u64) -> Option<Repairing> {
        let range = at.0..at.0.saturating_add(len);
        let under_way = self.register_unaddressed();
        let mut state = self.state.lock();
        while state.repairs(&range) {
            self.repaired.wait(&mut state);
        }
        if state.touches(&range) {
            // Dropping `under_way` takes the lock again.
            drop(state);
            return None;
        }
        state.repairs.push(range.clone());
        drop(state);
        Some(Repairing { range, under_way })
    }

    /// Waits until nothing is in flight, at most for this time. Returns whether that is so.
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

    /// Returns the node that is being written to this address.
    pub(crate) fn node(&self, at: Logical) -> Option<SharedBuffer> {
        self.state.lock().nodes.get(&at.0).map(|(_, node)| node.clone())
    }

    /// Returns whether any write in flight touches these `len` bytes.
    pub(crate) fn touches(&self, at: Logical, len: u64) -> bool {
        self.state.lock().touches(&(at.0..at.0.saturating_add(len)))
    }
}

impl Registration {
    /// Returns whether this registers writes of the volume that has `in_flight`.
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
    fn nothing_is_written_to_what_is_being_repaired() {
        let in_flight = Arc::new(InFlight::default());
        let write = in_flight.register(std::iter::once(10..20).collect());
        assert!(in_flight.begin_repair(Logical(19), 1).is_none());
        let repair = in_flight.begin_repair(Logical(20), 10).unwrap();
        drop(write);
        assert!(!in_flight.is_empty_within(Duration::ZERO), "a repair needs the devices");
        let beside = in_flight.register(vec![0..20, 30..40]);
        std::thread::scope(|scope| {
            let write = scope.spawn(|| in_flight.register(vec![100..110, 29..30]));
            let other = scope.spawn(|| in_flight.begin_repair(Logical(25), 1).is_some());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!write.is_finished() && !other.is_finished());
            drop(repair);
            drop((write.join().unwrap(), other.join().unwrap()));
        });
        drop(beside);
        assert!(in_flight.is_empty_within(Duration::ZERO));
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
