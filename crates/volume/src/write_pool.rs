//! Writes by a few threads: for kernels or sandboxes without `io_uring`.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::device::{DeviceTicket, PendingWrites};
use crate::error::WriteError;
use crate::runs::Run;

const THREADS: usize = 4;

type Job = (Run, Arc<Group>);

/// Threads that write runs to a file.
#[derive(Debug)]
pub(crate) struct WritePool {
    /// `None` only while the pool is dropped.
    queue: Mutex<Option<Sender<Job>>>,
    threads: Vec<JoinHandle<()>>,
}

/// The runs of one ticket.
#[derive(Debug)]
struct Group {
    state: Mutex<GroupState>,
    finished: Condvar,
}

#[derive(Debug)]
struct GroupState {
    left: usize,
    error: Option<WriteError>,
}

impl WritePool {
    pub(crate) fn start(file: &Arc<File>) -> io::Result<Self> {
        let (queue, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        let spawn = |number| {
            let (file, jobs) = (Arc::clone(file), Arc::clone(&jobs));
            std::thread::Builder::new().name(format!("ubtrfs-write-{number}")).spawn(move || work(&file, &jobs))
        };
        let threads = (0..THREADS).map(spawn).collect::<io::Result<_>>()?;
        Ok(Self { queue: Mutex::new(Some(queue)), threads })
    }

    pub(crate) fn submit(&self, runs: Vec<Run>) -> DeviceTicket {
        let state = Mutex::new(GroupState { left: runs.len(), error: None });
        let group = Arc::new(Group { state, finished: Condvar::new() });
        let queue = self.queue.lock();
        for run in runs {
            let gone = run.failed(io::ErrorKind::BrokenPipe.into());
            let sent = queue.as_ref().is_some_and(|queue| queue.send((run, Arc::clone(&group))).is_ok());
            if !sent {
                group.finish(Err(gone));
            }
        }
        DeviceTicket::new(PoolTicket(group))
    }
}

fn work(file: &File, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().recv();
        let Ok((run, group)) = job else { return };
        group.finish(run.write_from(file, 0).map_err(|error| run.failed(error)));
    }
}

impl Drop for WritePool {
    fn drop(&mut self) {
        self.queue.lock().take();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a write thread panicked");
            }
        }
    }
}

impl Group {
    fn finish(&self, result: Result<(), WriteError>) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        if state.left == 0 {
            self.finished.notify_all();
        }
    }
}

#[derive(Debug)]
struct PoolTicket(Arc<Group>);

impl PendingWrites for PoolTicket {
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
