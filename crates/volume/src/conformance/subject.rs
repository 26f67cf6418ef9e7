//! A device under test, and what a test can do to it beside the trait.

use std::sync::Arc;
use std::time::Duration;

use crate::Device;

/// What a crash leaves of a device, if all is lost that need not be durable.
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

    /// With other contents, addresses and order of threads.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Written to from this address on only, a multiple of 4096: before it the device has something
    /// of its own.
    #[must_use]
    pub fn from(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// What a crash at this time would leave, if all is lost that need not be durable.
    #[must_use]
    pub fn after_crash(mut self, left: impl Fn() -> Arc<dyn Device> + 'static) -> Self {
        self.after_crash = Some(Box::new(left));
        self
    }

    /// How the device gets another size, which [`Device::find_size`] finds.
    #[must_use]
    pub fn set_size(mut self, set: impl Fn(u64) + 'static) -> Self {
        self.set_size = Some(Box::new(set));
        self
    }

    /// How the device comes to fail all writes and barriers, at least.
    #[must_use]
    pub fn fail(mut self, fail: impl Fn() + 'static) -> Self {
        self.fail = Some(Box::new(fail));
        self
    }

    /// How it comes to do what it is asked to again.
    #[must_use]
    pub fn heal(mut self, heal: impl Fn() + 'static) -> Self {
        self.heal = Some(Box::new(heal));
        self
    }

    /// The device that this one keeps its bytes on, at the same addresses.
    #[must_use]
    pub fn behind(mut self, behind: Arc<dyn Device>) -> Self {
        self.behind = Some(behind);
        self
    }

    /// It is away from the beginning, and fails all requests.
    #[must_use]
    pub fn away(mut self) -> Self {
        self.is_away = true;
        self
    }

    /// How long writes may take that nobody waits for (30 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
