//! Injected errors in how superblocks of several devices are handled, to test the tests. The switch
//! exists with the feature `testing` only.

#[cfg(feature = "testing")]
mod switches {
    use std::cell::Cell;

    use super::SuperblockFault;

    ubtrfs_threads::thread_local! {
        static FAULT: Cell<Option<SuperblockFault>> = const { Cell::new(None) };
    }

    /// Restores the thread's earlier fault when it is dropped.
    struct Before(Option<SuperblockFault>);

    impl Drop for Before {
        fn drop(&mut self) {
            FAULT.with(|fault| fault.set(self.0));
        }
    }

    /// Runs something in this thread with this fault injected.
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

/// An error that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFault {
    /// Superblocks of one generation are taken for the same one, whatever logs they refer to.
    ForgetLogs,
    /// A superblock of our own that a later one should have replaced is taken for another writer's.
    MistakeLostForForeign,
}

pub(crate) use switches::has;
#[cfg(feature = "testing")]
pub use switches::with_fault;
