//! What the trait [`Device`](crate::Device) promises, as a suite that each implementor runs in a
//! test: [`assert_conforms`] with the device as a [`Subject`].
//!
//! Contents, addresses and threads follow from the subject's seed. What a device can't show by the
//! trait alone, the subject has a way for: what a crash leaves, another size, failure. Without one
//! the promise isn't tested of it. `ubtrfs-lint devices` requires such a test of each implementor.

#[cfg(test)]
mod breach_tests;
mod lifecycle;
mod promise;
mod subject;
mod transfers;
mod trial;

pub use promise::Promise;
pub use subject::Subject;

use trial::{Trial, Verdict};

/// A promise that a device does not keep.
#[derive(Debug)]
pub struct Broken {
    /// Which.
    pub promise: Promise,
    /// How that shows.
    pub how: String,
}

/// Looks whether a promise is kept.
type Check = fn(&mut Trial) -> Verdict;

/// Runs the suite; the promises that the device breaks.
///
/// # Panics
/// When the device is too small for the suite: 1 MiB behind the start of its area will do.
pub fn broken_promises(subject: Subject) -> Vec<Broken> {
    let checks: [(Promise, Check); 19] = [
        (Promise::Size, lifecycle::size),
        (Promise::ReadOnly, lifecycle::read_only),
        (Promise::ReadBounds, transfers::read_bounds),
        (Promise::Reads, transfers::reads),
        (Promise::Writes, transfers::writes),
        (Promise::WriteRules, transfers::write_rules),
        (Promise::Overlaps, transfers::overlaps),
        (Promise::DroppedTickets, transfers::dropped_tickets),
        (Promise::Flush, transfers::flush),
        (Promise::Fua, transfers::fua),
        (Promise::Discards, transfers::discards),
        (Promise::DataRanges, transfers::data_ranges),
        (Promise::FileToRead, transfers::file_to_read),
        (Promise::Threads, transfers::threads),
        (Promise::Comparing, lifecycle::comparing),
        (Promise::Counters, lifecycle::counters),
        (Promise::Resizes, lifecycle::resizes),
        (Promise::Failures, lifecycle::failures),
        // The last one: nothing is written afterwards.
        (Promise::Release, lifecycle::release),
    ];
    let mut trial = Trial::new(subject);
    let mut broken = Vec::new();
    for (promise, check) in checks {
        if trial.can_show(promise)
            && let Err(how) = check(&mut trial)
        {
            broken.push(Broken { promise, how });
        }
    }
    broken
}

/// Runs the suite on a device that is there and keeps all promises.
///
/// # Panics
/// When it breaks one.
pub fn assert_conforms(subject: Subject) {
    let broken = broken_promises(subject);
    assert!(broken.is_empty(), "{broken:#?}");
}
