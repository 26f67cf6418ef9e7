//! What goes wrong on purpose with the superblocks of several devices, for tests of the tests. The
//! switch is there with the feature `testing` only.

#[cfg(feature = "testing")]
mod switches {
    use std::cell::Cell;

    use super::SuperblockFault;

    ubtrfs_threads::thread_local! {
        static FAULT: Cell<Option<SuperblockFault>> = const { Cell::new(None) };
    }

    /// The thread's fault before, which is back at the end.
    struct Before(Option<SuperblockFault>);

    impl Drop for Before {
        fn drop(&mut self) {
            FAULT.with(|fault| fault.set(self.0));
        }
    }

    /// Does something in this thread, and gets superblocks wrong meanwhile.
    pub fn with_fault<T>(fault: SuperblockFault, run: impl FnOnce() -> T) -> T {
        let _before = Before(FAULT.with(|before| before.replace(Some(fault))));
        run()
    }

    pub(crate) fn has(fault: SuperblockFault) -> bool {
        FAULT.with(Cell::get) == Some(fault)
    }
}

#[cfg(not(feature = "testing"))]
mod switches {
    pub(crate) const fn has(_: super::SuperblockFault) -> bool {
        false
    }
}

/// What is got wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFault {
    /// Superblocks of one generation are one, whatever logs they refer to.
    ForgetLogs,
    /// A superblock of our own that a later one should have replaced is another writer's.
    MistakeLostForForeign,
}

pub(crate) use switches::has;
#[cfg(feature = "testing")]
pub use switches::with_fault;
