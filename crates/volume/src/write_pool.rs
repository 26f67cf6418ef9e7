//! Writes by a few threads, for kernels or sandboxes without `io_uring`.

use std::fs::File;
use std::io;
use std::sync::Arc;

use ubtrfs_threads::mpsc::{Receiver, Sender, channel};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::{Mutex, Rank};

use crate::device::DeviceTicket;
use crate::runs::Run;
use crate::write_group::WriteGroup;

const THREADS: usize = 4;

type Job = (Run, Arc<WriteGroup>);

/// Threads that write runs to a file.
#[derive(Debug)]
pub(crate) struct WritePool {
    /// `None` only while the pool is dropped.
    queue: Mutex<Option<Sender<Job>>>,
    threads: Vec<JoinHandle<()>>,
}

impl WritePool {
    pub(crate) fn start(file: &Arc<File>) -> io::Result<Self> {
        let (queue, jobs) = channel();
        let jobs = Arc::new(Mutex::new(Rank::WritePoolJobs, jobs));
        let spawn = |number| {
            let (file, jobs) = (Arc::clone(file), Arc::clone(&jobs));
            ubtrfs_threads::thread::Builder::new()
                .name(format!("ubtrfs-write-{number}"))
                .spawn(move || work(&file, &jobs))
        };
        let threads = (0..THREADS).map(spawn).collect::<io::Result<_>>()?;
        Ok(Self { queue: Mutex::new(Rank::WritePoolQueue, Some(queue)), threads })
    }

    pub(crate) fn submit(&self, runs: Vec<Run>) -> DeviceTicket {
        let group = WriteGroup::new(runs.len());
        let queue = self.queue.lock();
        for run in runs {
            let gone = run.failed(io::ErrorKind::BrokenPipe.into());
            let sent = queue.as_ref().is_some_and(|queue| queue.send((run, Arc::clone(&group))).is_ok());
            if !sent {
                group.finish(Err(gone));
            }
        }
        group.ticket()
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
