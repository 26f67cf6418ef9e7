//! Reports of device faults that lost nothing, since other devices had the same data. The
//! statistics keep the last ones, and the log gets a line for each cause.
//!
//! One cause, such as a device that was away, makes as many faults as the device has sectors. So
//! neighbouring faults are one record with their total length. Of rewritten copies, the log gets a
//! line at once for the first one of each device, and then, once in [`WINDOW`], a line about how
//! many more there were and where.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use ubtrfs_format::{DeviceId, Logical, Physical};
use ubtrfs_threads::time::{Instant, wall_clock};
use ubtrfs_threads::{Mutex, Rank};

use crate::error::DeviceFault;

/// How many records are kept.
const MAX: usize = 8;
/// The time between two lines of the log about one device and one kind.
const WINDOW: Duration = Duration::from_secs(5);

/// A fault of a device or of its content, or several faults of neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// When it occurred last.
    pub time: SystemTime,
    /// How often it occurred.
    pub count: u64,
    /// What happened.
    pub cause: String,
    /// Where it occurred. For neighbours, the address of the first one and the length of all.
    pub device: DeviceFault,
}

/// What was done about bad copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// They were rewritten from others.
    Rewritten,
    /// They could not be rewritten.
    NotRewritten,
    /// They are parity, which is not rewritten.
    BadParity,
}

/// The place of one copy or of several adjacent ones, with their length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) devid: DeviceId,
    pub(crate) physical: Physical,
    pub(crate) logical: Logical,
    pub(crate) len: u64,
    /// How many copies these are: one of a tree block, or as many as there are adjacent sectors.
    pub(crate) copies: u64,
}

impl Place {
    pub(crate) fn fault(&self) -> DeviceFault {
        let Self { devid, physical, logical, len, .. } = *self;
        DeviceFault { devid, physical: Some(physical), logical: Some(logical), len }
    }
}

/// The faults of a volume.
#[derive(Debug)]
pub(crate) struct FaultLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    total: u64,
    last: VecDeque<FaultRecord>,
    series: BTreeMap<(DeviceId, Outcome), Series>,
}

/// Copies of one device about which the log is to have a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Series {
    /// When the last line was written.
    since: Instant,
    count: u64,
    bytes: u64,
    first: u64,
    /// The end address of the last one.
    end: u64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    outcome: Outcome,
    text: String,
}

impl Default for FaultLog {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::FaultLog))
    }
}

impl FaultLog {
    /// Notes a fault. If it is already recorded, its record counts once more and becomes the
    /// newest. If it is the next neighbour of the newest record, it is added to that.
    pub(crate) fn note(&self, cause: String, device: DeviceFault) {
        let record = FaultRecord { time: wall_clock(), count: 1, cause, device };
        let mut state = self.0.lock();
        state.total += 1;
        if let Some(newest) = state.last.back_mut()
            && is_next(&newest.device, &device)
        {
            (newest.time, newest.count) = (record.time, newest.count + 1);
            newest.device.len += device.len;
            return;
        }
        let is_same = |old: &FaultRecord| (&old.cause, old.device) == (&record.cause, record.device);
        let before = state.last.iter().position(is_same).and_then(|index| state.last.remove(index));
        if before.is_none() && state.last.len() == MAX {
            state.last.pop_front();
        }
        let count = before.map_or(1, |before| before.count + 1);
        state.last.push_back(FaultRecord { count, ..record });
    }

    /// Returns how many faults there were, and the last of them, the newest at the end.
    pub(crate) fn get(&self) -> (u64, Vec<FaultRecord>) {
        let state = self.0.lock();
        (state.total, state.last.iter().cloned().collect())
    }

    /// Notes what was done about a bad copy. `what` is a tree block or a data sector, `why` is the
    /// reason that it was not rewritten.
    pub(crate) fn bad_copy(&self, copy: Place, outcome: Outcome, what: &str, why: &str) {
        if let Some(line) = self.take(copy, outcome, what, why, Instant::now()) {
            line.write();
        }
    }

    fn take(&self, copy: Place, outcome: Outcome, what: &str, why: &str, now: Instant) -> Option<Line> {
        let Place { devid, physical, logical, len, copies } = copy;
        let mut state = self.0.lock();
        if let Some(series) = state.series.get_mut(&(devid, outcome)) {
            series.first = if series.count == 0 { physical.0 } else { series.first.min(physical.0) };
            series.end = series.end.max(physical.0.saturating_add(len));
            (series.count, series.bytes) = (series.count + copies, series.bytes + len);
            return if series.is_over(now) { series.sum(devid, outcome, now) } else { None };
        }
        let series = Series { since: now, count: 0, bytes: 0, first: 0, end: 0 };
        state.series.insert((devid, outcome), series);
        let end = if why.is_empty() { String::new() } else { format!(": {why}") };
        let count = if copies == 1 { String::new() } else { format!("{copies} sectors of ") };
        let does = if copies == 1 { outcome.of_one() } else { outcome.of_run() };
        let text = format!("device {devid}: {count}{what} at {physical} (logical {logical}) {does}{end}");
        Some(Line { outcome, text })
    }

    /// Writes the lines that are due, or with `all` the rest of them.
    pub(crate) fn say_rest(&self, all: bool) {
        self.rest(all, Instant::now()).iter().for_each(Line::write);
    }

    fn rest(&self, all: bool, now: Instant) -> Vec<Line> {
        let mut state = self.0.lock();
        let due = |series: &Series| all || series.is_over(now);
        let some = state.series.iter_mut().filter(|(_, series)| due(series));
        let lines = some.filter_map(|((devid, outcome), series)| series.sum(*devid, *outcome, now)).collect();
        // The next copy of such a series gets a line at once again.
        state.series.retain(|_, series| !due(series) || series.since == now);
        lines
    }
}

/// Returns whether the second fault begins where the first one ends.
fn is_next(before: &DeviceFault, next: &DeviceFault) -> bool {
    let end = |fault: &DeviceFault| fault.physical.map(|at| at.0.saturating_add(fault.len));
    let logical_end = |fault: &DeviceFault| fault.logical.map(|at| at.0.saturating_add(fault.len));
    before.devid == next.devid
        && next.physical.is_some()
        && end(before) == next.physical.map(|at| at.0)
        && next.logical.is_some()
        && logical_end(before) == next.logical.map(|at| at.0)
}

impl Outcome {
    fn of_one(self) -> &'static str {
        match self {
            Self::Rewritten => "was bad, and was rewritten from another copy",
            Self::NotRewritten => "is bad, and was not rewritten",
            Self::BadParity => "does not match its row, or can't be read",
        }
    }

    fn of_run(self) -> &'static str {
        match self {
            Self::Rewritten => "were bad, and were rewritten from another copy",
            Self::NotRewritten => "are bad, and were not rewritten",
            Self::BadParity => "do not match their rows, or can't be read",
        }
    }

    fn of_many(self) -> &'static str {
        match self {
            Self::Rewritten => "more copies were bad, and were rewritten",
            Self::NotRewritten => "more copies are bad, and were not rewritten",
            Self::BadParity => "more sectors of parity do not match their rows, or can't be read",
        }
    }
}

impl Series {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }

    /// Returns a line about all copies since the last line.
    fn sum(&mut self, devid: DeviceId, outcome: Outcome, now: Instant) -> Option<Line> {
        if self.count == 0 {
            return None;
        }
        let Self { count, bytes, first, end, .. } = *self;
        *self = Self { since: now, count: 0, bytes: 0, first: 0, end: 0 };
        let text = format!("device {devid}: {count} {} ({bytes} bytes from {first} to {end})", outcome.of_many());
        Some(Line { outcome, text })
    }
}

impl Line {
    fn write(&self) {
        match self.outcome {
            Outcome::Rewritten => tracing::warn!("{}", self.text),
            Outcome::NotRewritten => tracing::error!("{}", self.text),
            Outcome::BadParity => tracing::warn!("{}", self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(number: u64) -> Place {
        let at = number * 4096;
        Place { devid: DeviceId(2), physical: Physical((1 << 20) + at), logical: Logical(at), len: 4096, copies: 1 }
    }

    #[test]
    fn sectors_of_one_cause_are_a_line_and_a_sum() {
        let (log, start) = (FaultLog::default(), Instant::now());
        let take = |number: u64, millis: u64| {
            let now = start + Duration::from_millis(millis);
            log.take(copy(number), Outcome::Rewritten, "a data sector", "", now).map(|line| line.text)
        };
        let first = "device 2: a data sector at 1048576 (logical 0) was bad, and was rewritten from another copy";
        assert_eq!(take(0, 0).as_deref(), Some(first));
        assert!((1..16384).all(|number| take(number, number / 4).is_none()));
        let sum = "device 2: 16384 more copies were bad, and were rewritten (67108864 bytes from 1052672 to 68161536)";
        assert_eq!(take(16384, 5000).as_deref(), Some(sum));
        assert_eq!(take(16385, 6000), None);
        let rest = log.rest(false, start + Duration::from_secs(7));
        assert_eq!(rest, [], "it is not due yet");
        let rest = log.rest(true, start + Duration::from_secs(7));
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert!(rest[0].text.contains("device 2: 1 more copies"), "{rest:?}");
        assert_eq!(log.rest(true, start + Duration::from_millis(7001)), []);
        assert_eq!(take(0, 20_000).as_deref(), Some(first), "a new cause");
    }

    #[test]
    fn sectors_that_were_rewritten_together_count_each() {
        let (log, start) = (FaultLog::default(), Instant::now());
        let take = |number: u64| {
            let run = Place { len: 4 * 4096, copies: 4, ..copy(number) };
            log.take(run, Outcome::Rewritten, "data", "", start).map(|line| line.text)
        };
        let first = "device 2: 4 sectors of data at 1048576 (logical 0) were bad, and were rewritten from another copy";
        assert_eq!((take(0).as_deref(), take(4)), (Some(first), None));
        let rest = log.rest(true, start);
        assert_eq!(
            rest[0].text,
            "device 2: 4 more copies were bad, and were rewritten (16384 bytes from 1064960 to 1081344)"
        );
    }

    #[test]
    fn neighbours_are_one_record_and_the_same_fault_counts_again() {
        let log = FaultLog::default();
        for number in [0, 1, 2, 10, 0] {
            log.note("bad".into(), copy(number).fault());
        }
        let (total, last) = log.get();
        let shown: Vec<_> =
            last.iter().map(|record| (record.device.physical, record.device.len, record.count)).collect();
        let at = |number: u64| Some(copy(number).physical);
        assert_eq!((total, shown), (5, vec![(at(0), 12288, 3), (at(10), 4096, 1), (at(0), 4096, 1)]));
        for number in (100..200).step_by(2) {
            log.note("bad".into(), copy(number).fault());
        }
        assert_eq!(log.get().1.len(), MAX);
    }
}
