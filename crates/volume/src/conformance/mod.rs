//! A suite that tests what the trait [`Device`](crate::Device) promises. A test of each implementor
//! runs it: [`assert_conforms`] with the device as a [`Subject`].
//!
//! Contents, addresses and threads follow from the subject's seed. The subject has functions for
//! what the trait alone can't show of a device: what a crash leaves, another size, failure. If a
//! function is missing, its promise isn't tested. `ubtrfs-lint devices` requires such a test of
//! each implementor.

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
    /// The promise.
    pub promise: Promise,
    /// How the breach shows.
    pub how: String,
}

/// Checks whether a promise is kept.
type Check = fn(&mut Trial) -> Verdict;

/// Runs the suite, and returns the promises that the device breaks.
///
/// # Panics
/// When the device is too small for the suite, which needs 1 MiB behind the start of its area.
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
        // This check is the last one, since nothing can be written afterwards.
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
/// When the device breaks a promise.
pub fn assert_conforms(subject: Subject) {
    let broken = broken_promises(subject);
    assert!(broken.is_empty(), "{broken:#?}");
}
