//! The contents of the writers' files, and the versions of them that calls have made durable.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ubtrfs_simulator::Random;

/// A file of a writer. One write makes each of its versions, over the version before.
#[derive(Debug)]
pub(crate) struct File {
    /// The number of its writer.
    pub(crate) writer: usize,
    /// Its number among the files of its writer.
    pub(crate) number: usize,
    /// Bytes of each version.
    pub(crate) length: usize,
    /// No thread waits for this lock, since no step of the scheduler takes place while it is held.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of events of the device before each version; the first version is the empty file.
    began: Vec<usize>,
    /// The newest version whose write has returned.
    done: usize,
    /// The number of events of the device before each promise, and the version that the promise is
    /// for.
    promises: Vec<(usize, usize)>,
}

/// The versions that may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The oldest.
    pub(crate) least: usize,
    /// The newest.
    pub(crate) most: usize,
}

impl File {
    pub(crate) fn new(writer: usize, number: usize, length: usize, events: usize) -> Self {
        let state = State { began: vec![events], ..State::default() };
        Self { writer, number, length, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        format!("file {} of {}", self.number, self.writer).into_bytes()
    }

    /// Returns the content of a version: the first is empty, those made by punching a hole are
    /// zeros.
    pub(crate) fn content(&self, version: usize) -> Vec<u8> {
        let seed = (self.writer as u64) << 40 | (self.number as u64) << 32 | version as u64;
        match version {
            0 => Vec::new(),
            _ if Self::is_punched(version) => vec![0; self.length],
            _ => Random::data(seed, self.length),
        }
    }

    /// Returns whether a version is made by punching a hole over all of the version before.
    pub(crate) fn is_punched(version: usize) -> bool {
        version > 0 && version.is_multiple_of(3)
    }

    /// Notes that the write of the next version begins after so many events, and returns its
    /// number.
    pub(crate) fn begin(&self, events: usize) -> usize {
        let mut state = self.state();
        state.began.push(events);
        state.began.len() - 1
    }

    /// Notes that the write of a version has returned.
    pub(crate) fn end(&self, version: usize) {
        self.state().done = version;
    }

    /// Returns the newest version whose write has returned.
    pub(crate) fn done(&self) -> usize {
        self.state().done
    }

    /// Notes that a call which had returned after so many events has made a version durable.
    pub(crate) fn promise(&self, events: usize, version: usize) {
        self.state().promises.push((events, version));
    }

    /// Returns the versions that a read may find now.
    pub(crate) fn now(&self) -> Versions {
        let state = self.state();
        Versions { least: state.done, most: state.began.len() - 1 }
    }

    /// Returns the versions that a crash after so many events may leave.
    pub(crate) fn after_crash(&self, events: usize) -> Versions {
        let state = self.state();
        let promised = state.promises.iter().filter(|(returned, _)| *returned <= events);
        let began = state.began.iter().filter(|began| **began <= events).count();
        Versions { least: promised.map(|(_, version)| *version).max().unwrap_or(0), most: began.saturating_sub(1) }
    }

    /// Returns which of these versions some bytes are, or a message if they are none of them.
    pub(crate) fn judge(&self, found: &[u8], versions: Versions) -> Result<usize, String> {
        let is_found = |version: &usize| self.content(*version) == found;
        if let Some(version) = (versions.least..=versions.most).rev().find(is_found) {
            return Ok(version);
        }
        let other = (0..=self.now().most).rev().find(is_found);
        let what = other.map_or_else(|| format!("{} other bytes", found.len()), |version| format!("version {version}"));
        let name = String::from_utf8_lossy(&self.name()).into_owned();
        Err(format!("{name:?} holds {what}, not one of {} to {}", versions.least, versions.most))
    }
}
