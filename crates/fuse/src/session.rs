//! A mount being served.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::messages::InitOut;
use crate::abi::opcode;
use crate::device::{self, Device};
use crate::dispatch;
use crate::filesystem::Filesystem;
use crate::negotiate::{Answer, Config, Granted, NegotiationError, negotiate};
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{Form, Operation, Request};

/// Room in a buffer for everything but a WRITE's data.
const HEADERS: usize = 4096;
/// The least that the kernel wants to have room for.
const LEAST_BUFFER: usize = 8192;

/// Why a mount can't be served (any more).
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no common protocol.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// It was unmounted before it began.
    #[error("unmounted before it began")]
    Unmounted,
    /// The kernel's first message isn't INIT.
    #[error("the kernel began with {0} instead of INIT")]
    NotInit(&'static str),
    /// The device fails.
    #[error("/dev/fuse failed")]
    Device(#[source] io::Error),
    /// A thread can't be started.
    #[error("no thread to serve requests")]
    Thread(#[source] io::Error),
}

/// A filesystem and the mount that it serves, the protocol agreed.
#[derive(Debug)]
pub struct Session<F> {
    filesystem: F,
    device: Arc<Device>,
    granted: Granted,
    threads: usize,
    destroyed: AtomicBool,
}

impl<F: Filesystem> Session<F> {
    /// Waits for the kernel's INIT on `device`, tells `filesystem` what is granted, and answers.
    pub fn establish(device: Device, filesystem: F, config: &Config) -> Result<Self, SessionError> {
        let device = Arc::new(device);
        let page = rustix::param::page_size();
        let mut buffer = vec![0; buffer_size(config.max_write as usize, page)];
        loop {
            let length = device.receive(&mut buffer).map_err(SessionError::Device)?.ok_or(SessionError::Unmounted)?;
            let message = buffer.get(..length).unwrap_or_default();
            let Ok(Request { unique, op: Operation::Init(init), .. }) = Request::parse(message, Form::default()) else {
                let opcode = crate::request::header(message).map_or(0, |header| header.opcode);
                return Err(SessionError::NotInit(opcode::name(opcode)));
            };
            let reply = Reply::new(unique, device::responder(&device));
            let refuse = |reply: Reply, errno, error: NegotiationError| {
                reply.error(errno);
                Err(SessionError::Negotiation(error))
            };
            match negotiate(&init, config, page) {
                Ok(Answer::Again(out)) => send_init(reply, &out),
                Err(error) => return refuse(reply, Errno::PROTO, error),
                Ok(Answer::Settled(out, granted)) => {
                    if let Err(errno) = filesystem.init(&granted) {
                        return refuse(reply, errno, NegotiationError::Refused(errno));
                    }
                    send_init(reply, &out);
                    tracing::debug!(?granted, "mount begins");
                    let threads = config.threads.max(1);
                    return Ok(Self { filesystem, device, granted, threads, destroyed: AtomicBool::new(false) });
                }
            }
        }
    }

    /// What was agreed.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The filesystem.
    pub fn filesystem(&self) -> &F {
        &self.filesystem
    }

    /// A way to tell the kernel that what it cached is stale.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.device))
    }

    /// Serves until the filesystem is unmounted (by whomever) or the connection aborted, and all threads have ended.
    ///
    /// A method of the filesystem that panics has its caller answered EIO; the thread goes on.
    pub fn run(&self) -> Result<(), SessionError> {
        let served = thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 1..self.threads {
                let device = match self.device.another() {
                    Ok(device) => Arc::new(device),
                    Err(error) => {
                        tracing::warn!(%error, "no queue of its own for a thread; it shares the first one");
                        Arc::clone(&self.device)
                    }
                };
                let thread = thread::Builder::new()
                    .name(format!("fuse-{number}"))
                    .spawn_scoped(scope, move || self.serve(&device));
                match thread {
                    Ok(thread) => threads.push(thread),
                    // Fewer threads serve as well.
                    Err(error) => tracing::warn!(%error, "fewer threads than wanted"),
                }
            }
            let first = self.serve(&self.device);
            threads.into_iter().fold(first, |result, thread| {
                result.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            })
        });
        self.destroy();
        served.map_err(SessionError::Device)
    }

    /// Serves what comes on one queue.
    fn serve(&self, device: &Arc<Device>) -> io::Result<()> {
        let responder = device::responder(device);
        let form = self.granted.form();
        let size = buffer_size(self.granted.max_write as usize, rustix::param::page_size());
        let mut buffer = vec![0; size];
        while let Some(length) = device.receive(&mut buffer)? {
            let message = buffer.get(..length).unwrap_or_default();
            let serve = || dispatch::message(&self.filesystem, || self.destroy(), message, form, &responder);
            // A reply lost in the panic has been answered by its drop.
            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                let opcode = crate::request::header(message).map_or(0, |header| header.opcode);
                tracing::error!(request = opcode::name(opcode), "the filesystem panicked");
            }
        }
        Ok(())
    }

    /// Tells the filesystem, the first time only, that the mount has ended.
    fn destroy(&self) {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.filesystem.destroy();
        }
    }
}

fn buffer_size(max_write: usize, page: usize) -> usize {
    (max_write.max(page) + HEADERS.max(page)).max(LEAST_BUFFER)
}

fn send_init(reply: Reply, out: &InitOut) {
    reply.send(&[out.as_bytes()]);
}
