//! What the writers' files hold, and what was promised of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ubtrfs_simulator::Random;

/// A file of a writer: each of its versions is written at once, over the one before.
#[derive(Debug)]
pub(crate) struct File {
    /// Which writer's it is.
    pub(crate) writer: usize,
    /// Which of the writer's it is.
    pub(crate) number: usize,
    /// Bytes of each version.
    pub(crate) length: usize,
    /// Never waited for: no step of the scheduler is done with it.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Events of the device before each version, of which the first is the empty file.
    began: Vec<usize>,
    /// The newest version whose write has returned.
    done: usize,
    /// Events of the device before a promise was made, and the version that it was made of.
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

    /// What a version holds: the first nothing, punched ones zeroes.
    pub(crate) fn content(&self, version: usize) -> Vec<u8> {
        let seed = (self.writer as u64) << 40 | (self.number as u64) << 32 | version as u64;
        match version {
            0 => Vec::new(),
            _ if Self::is_punched(version) => vec![0; self.length],
            _ => Random::data(seed, self.length),
        }
    }

    /// Whether a version is made by punching a hole of all that the one before holds.
    pub(crate) fn is_punched(version: usize) -> bool {
        version > 0 && version.is_multiple_of(3)
    }

    /// Begins to write the next version, after so many events.
    pub(crate) fn begin(&self, events: usize) -> usize {
        let mut state = self.state();
        state.began.push(events);
        state.began.len() - 1
    }

    /// The version is written.
    pub(crate) fn end(&self, version: usize) {
        self.state().done = version;
    }

    /// The newest version whose write has returned.
    pub(crate) fn done(&self) -> usize {
        self.state().done
    }

    /// A call that had returned after so many events has made a version durable.
    pub(crate) fn promise(&self, events: usize, version: usize) {
        self.state().promises.push((events, version));
    }

    /// What may be found now.
    pub(crate) fn now(&self) -> Versions {
        let state = self.state();
        Versions { least: state.done, most: state.began.len() - 1 }
    }

    /// What a crash may leave after so many events.
    pub(crate) fn after_crash(&self, events: usize) -> Versions {
        let state = self.state();
        let promised = state.promises.iter().filter(|(returned, _)| *returned <= events);
        let began = state.began.iter().filter(|began| **began <= events).count();
        Versions { least: promised.map(|(_, version)| *version).max().unwrap_or(0), most: began.saturating_sub(1) }
    }

    /// Whether some bytes are one of these versions; a sentence if they are not.
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
