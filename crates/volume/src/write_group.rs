//! The writes of one ticket, which end one by one on any thread.

use std::sync::Arc;

use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::device::{DeviceTicket, PendingWrites};
use crate::error::WriteError;

/// The writes of one ticket.
#[derive(Debug)]
pub(crate) struct WriteGroup {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Debug)]
struct State {
    left: usize,
    error: Option<WriteError>,
}

impl WriteGroup {
    /// A group of `writes` writes.
    pub(crate) fn new(writes: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Rank::WriteGroup, State { left: writes, error: None }),
            finished: Condvar::new(),
        })
    }

    /// Notes that one of the writes has ended.
    pub(crate) fn finish(&self, result: Result<(), WriteError>) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        if state.left == 0 {
            self.finished.notify_all();
        }
    }

    /// Returns the ticket of the group.
    pub(crate) fn ticket(self: Arc<Self>) -> DeviceTicket {
        DeviceTicket::new(GroupTicket(self))
    }
}

#[derive(Debug)]
struct GroupTicket(Arc<WriteGroup>);

impl PendingWrites for GroupTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        let mut state = self.0.state.lock();
        while state.left > 0 {
            self.0.finished.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn is_done(&self) -> bool {
        self.0.state.lock().left == 0
    }
}
