//! Threads that must not wait.
//!
//! A thread that serves many at a time can do what memory answers, and has to leave the rest to
//! others. Which is which turns out only on the way. So such a thread says that it must not wait,
//! and whatever would wait for a device or for a commit fails with
//! [`Error::WouldWait`](crate::Error::WouldWait) instead, before it has changed anything.

use std::cell::Cell;

thread_local! {
    static PATIENT: Cell<bool> = const { Cell::new(true) };
}

/// Puts back what was, also when the work panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        PATIENT.set(self.0);
    }
}

/// Does `work`, which fails where it would have to wait.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(PATIENT.replace(false));
    work()
}

/// Does `work`, which may wait even in a thread that must not: for what can't be given up halfway.
pub fn waiting<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(PATIENT.replace(true));
    work()
}

/// Whether this thread may wait.
pub fn may_wait() -> bool {
    PATIENT.get()
}

/// An error if this thread must not wait.
pub fn about_to_wait() -> crate::Result<()> {
    if may_wait() { Ok(()) } else { Err(crate::Error::WouldWait) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_nests_and_outlives_panics() {
        assert!(may_wait());
        without_waiting(|| {
            assert!(!may_wait() && about_to_wait().is_err());
            assert!(waiting(may_wait));
            assert!(!may_wait());
        });
        assert!(std::panic::catch_unwind(|| without_waiting(|| panic!("on purpose"))).is_err());
        assert!(may_wait() && about_to_wait().is_ok());
    }
}
