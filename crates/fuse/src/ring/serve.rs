//! The threads of a mount with rings.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use ubtrfs_threads::{Mutex, Rank, assert_none_held};

use super::Rings;
use super::entry::Tried;
use super::mailbox::Mailbox;
use super::queue::Work;
use super::workers::Backlog;
use crate::abi::opcode;
use crate::device::{self, Device};
use crate::dispatch;
use crate::filesystem::Filesystem;
use crate::reply::{Reply, Responder};
use crate::request::{Form, Operation, Request};

/// Requests up to this length in bytes are copied before they are served, so that their entry can
/// take the answer at any time.
const COPIED: usize = 4096;
/// How long to let FORGETs accumulate, so that the kernel sends many at once.
const FORGETS_GATHER: Duration = Duration::from_millis(2);

/// The filesystem that serves requests, and the form of these.
pub(crate) struct Handler<'a, F> {
    pub filesystem: &'a F,
    pub destroy: &'a (dyn Fn() + Sync),
    pub form: Form,
}

impl<F: Filesystem> Handler<'_, F> {
    fn dispatch(&self, request: &Request<'_>, responder: &Arc<dyn Responder>) {
        // A FORGET has no reply. But the FORGET that the kernel sends for a listing's entry that it
        // can't use comes over a ring, and its ring entry has to go back to the kernel, for which
        // the caller waits.
        let forgotten = matches!(request.op, Operation::Forget(_));
        let reply = forgotten.then(|| Reply::new(request.unique, Arc::clone(responder)));
        dispatch::request(self.filesystem, self.destroy, request, responder);
        if let Some(reply) = reply {
            reply.send(&[]);
        }
    }

    /// Serves a request in a ring's thread if that is possible without waiting.
    fn try_at_once(&self, work: Work, copy: &mut [u8; COPIED]) -> Tried {
        let entry = Arc::clone(&work.entry);
        let mut begun = false;
        let panicked = self.read(work, true, copy, &mut |request, responder| {
            self.filesystem.try_nonblocking(request, &mut || {
                if !std::mem::replace(&mut begun, true) {
                    self.dispatch(request, responder);
                }
                !entry.is_postponed()
            });
        });
        match (entry.end_trial(begun), panicked) {
            (Tried::Postponed(held), Some(unique)) => {
                // The panic came before there was a reply object.
                entry.fail(held, unique, Errno::IO);
                Tried::Answered
            }
            (tried, _) => tried,
        }
    }

    /// Serves a request in a thread that may wait.
    fn serve(&self, work: Work, copy: &mut [u8; COPIED]) {
        self.read(work, false, copy, &mut |request, responder| self.dispatch(request, responder));
    }

    /// Passes a request to `serve`, copied into `copy` if it fits. Returns the request's number if
    /// `serve` panicked.
    fn read(
        &self,
        Work { entry, held }: Work,
        trying: bool,
        copy: &mut [u8; COPIED],
        serve: &mut dyn FnMut(&Request<'_>, &Arc<dyn Responder>),
    ) -> Option<u64> {
        let (header, fixed, length) = held.request();
        let responder = Arc::clone(&entry) as Arc<dyn Responder>;
        let mut run = |rest: &[u8]| {
            let serve = || {
                match Request::assemble(&header, &fixed, rest, self.form) {
                    Ok(request) => serve(&request, &responder),
                    Err(error) => {
                        tracing::error!(%error, "not understood");
                        responder.send(header.unique, -Errno::INVAL.raw_os_error(), &[]);
                    }
                }
                assert_none_held("after a request");
            };
            let panicked = catch_unwind(AssertUnwindSafe(serve)).is_err();
            if panicked {
                tracing::error!(request = opcode::name(header.opcode), "the filesystem panicked");
            }
            panicked.then_some(header.unique)
        };
        if let Some(copy) = copy.get_mut(..length) {
            copy.copy_from_slice(held.payload(length));
            entry.begin(held, trying);
            run(copy)
        } else {
            entry.begin_in_place(trying);
            let panicked = run(held.payload(length));
            entry.end_in_place(held);
            panicked
        }
    }
}

/// Stops all threads that don't notice by themselves that the connection has ended.
struct Stop {
    mailboxes: Vec<Arc<Mailbox>>,
    /// Becomes readable for the thread that reads the device.
    reported: rustix::fd::OwnedFd,
    error: Mutex<Option<io::Error>>,
}

impl Stop {
    fn stop(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.error.lock().get_or_insert(error);
        }
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        let _ = rustix::io::write(&self.reported, &1_u64.to_ne_bytes());
    }
}

/// Serves until the connection has ended, or a ring fails; in that case the connection ends with
/// the last descriptor of the device. `workers` threads serve requests that may block; a message
/// takes at most `buffer` bytes. Calls `begun` when all threads have started.
pub(crate) fn serve<F: Filesystem>(
    rings: Rings,
    device: &Arc<Device>,
    (workers, buffer): (usize, usize),
    handler: &Handler<'_, F>,
    begun: impl FnOnce(),
) -> io::Result<()> {
    let stop = Stop {
        mailboxes: rings.queues.iter().map(|queue| Arc::clone(queue.mailbox())).collect(),
        reported: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
        error: Mutex::new(Rank::RingError, None),
    };
    let (stop, backlog) = (&stop, &Backlog::new(workers.max(1)));
    thread::scope(|scope| {
        let mut started = Ok(());
        for number in 0..workers.max(1) {
            let work = move || {
                let mut copy = [0; COPIED];
                backlog.serve(|work| handler.serve(work, &mut copy));
            };
            match thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if number == 0 => started = Err(error),
                Err(error) => tracing::warn!(%error, "fewer threads than wanted"),
            }
        }
        let mut threads = Vec::new();
        for (number, queue) in rings.queues.into_iter().enumerate() {
            let run = move || {
                let mut copy = [0; COPIED];
                let mut attempt = |work| handler.try_at_once(work, &mut copy);
                let postpone = |work| backlog.push(work);
                let ran = catch_unwind(AssertUnwindSafe(|| queue.run(&mut attempt, &postpone)));
                stop.stop(ran.unwrap_or_else(|_| Err(io::Error::other("a ring's thread panicked"))));
            };
            match thread::Builder::new().name(format!("ring-{number}")).spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                // Without this thread the kernel would wait for the registration of its ring.
                Err(error) => started = Err(error),
            }
        }
        match started {
            Ok(()) => begun(),
            failed => stop.stop(failed),
        }
        let read = read_device(device, buffer, stop, handler);
        stop.stop(read);
        handler.filesystem.disconnected(backlog.is_busy());
        for thread in threads {
            let _ = thread.join();
        }
        backlog.close();
    });
    stop.error.lock().take().map_or(Ok(()), Err)
}

/// Serves requests that do not come over rings. The kernel requires a `buffer` that could take a
/// WRITE.
fn read_device<F: Filesystem>(
    device: &Arc<Device>,
    buffer: usize,
    stop: &Stop,
    handler: &Handler<'_, F>,
) -> io::Result<()> {
    let responder = device::responder(device);
    let mut buffer = vec![0; buffer];
    loop {
        let mut polled = [PollFd::new(device, PollFlags::IN), PollFd::new(&stop.reported, PollFlags::IN)];
        match rustix::event::poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        if polled[1].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        let Some(length) = device.receive(&mut buffer)? else { return Ok(()) };
        let message = buffer.get(..length).unwrap_or_default();
        let header = crate::request::header(message);
        let serve = || dispatch::message(handler.filesystem, handler.destroy, message, handler.form, &responder);
        if catch_unwind(AssertUnwindSafe(serve)).is_err() {
            let opcode = header.map_or(0, |header| header.opcode);
            tracing::error!(request = opcode::name(opcode), "the filesystem panicked");
        }
        if header.is_some_and(|header| matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET)) {
            thread::sleep(FORGETS_GATHER);
        }
    }
}
