//! A device under test, with what a test can do to it besides calling the trait.

use std::sync::Arc;
use std::time::Duration;

use crate::Device;

/// Returns what a crash leaves of a device, if it loses all that need not be durable.
type AfterCrash = Box<dyn Fn() -> Arc<dyn Device>>;

/// A device, with what a test can do to it.
pub struct Subject {
    pub(super) device: Arc<dyn Device>,
    pub(super) seed: u64,
    pub(super) start: u64,
    pub(super) after_crash: Option<AfterCrash>,
    pub(super) set_size: Option<Box<dyn Fn(u64)>>,
    pub(super) fail: Option<Box<dyn Fn()>>,
    pub(super) heal: Option<Box<dyn Fn()>>,
    pub(super) behind: Option<Arc<dyn Device>>,
    pub(super) is_away: bool,
    pub(super) timeout: Duration,
}

impl Subject {
    /// A device that the test may do anything to.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            seed: 1,
            start: 0,
            after_crash: None,
            set_size: None,
            fail: None,
            heal: None,
            behind: None,
            is_away: false,
            timeout: Duration::from_secs(30),
        }
    }

    /// Sets the seed, from which contents, addresses and the order of threads follow.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Has the suite write only from this address on, a multiple of 4096 bytes: before it the
    /// device keeps data of its own.
    #[must_use]
    pub fn from(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// Sets the function that returns what a crash at this time would leave, if it loses all that
    /// need not be durable.
    #[must_use]
    pub fn after_crash(mut self, left: impl Fn() -> Arc<dyn Device> + 'static) -> Self {
        self.after_crash = Some(Box::new(left));
        self
    }

    /// Sets the function that gives the device another size, which [`Device::find_size`] finds.
    #[must_use]
    pub fn set_size(mut self, set: impl Fn(u64) + 'static) -> Self {
        self.set_size = Some(Box::new(set));
        self
    }

    /// Sets the function that makes the device fail, at least all writes and barriers.
    #[must_use]
    pub fn fail(mut self, fail: impl Fn() + 'static) -> Self {
        self.fail = Some(Box::new(fail));
        self
    }

    /// Sets the function that ends the failures.
    #[must_use]
    pub fn heal(mut self, heal: impl Fn() + 'static) -> Self {
        self.heal = Some(Box::new(heal));
        self
    }

    /// Sets the device on which this one keeps its bytes, at the same addresses.
    #[must_use]
    pub fn behind(mut self, behind: Arc<dyn Device>) -> Self {
        self.behind = Some(behind);
        self
    }

    /// Marks the device as away from the beginning: all requests fail.
    #[must_use]
    pub fn away(mut self) -> Self {
        self.is_away = true;
        self
    }

    /// Sets how long writes may take whose ticket was dropped (30 s by default).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
