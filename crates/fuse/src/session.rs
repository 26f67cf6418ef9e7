//! The session in which a mount is served.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use ubtrfs_threads::{Mutex, Rank};
use zerocopy::IntoBytes;

use crate::Capabilities;
use crate::abi::messages::InitOut;
use crate::abi::opcode;
use crate::arrivals::Arrivals;
use crate::device::{self, Device};
use crate::dispatch;
use crate::filesystem::Filesystem;
use crate::negotiate::{Answer, Config, Granted, NegotiationError, Transport, longest_write, negotiate};
use crate::notify::Notifier;
use crate::reply::{Reply, Responder};
use crate::request::{Form, Init, Operation, Request};
use crate::ring::{self, HopCounters, NoRing, Rings};
use crate::writes::Waiting;

/// The bytes in a buffer for a message without a WRITE's data.
const HEADERS: usize = 4096;
/// The smallest buffer that the kernel accepts, in bytes.
const MIN_BUFFER: usize = 8192;

/// Why a mount can't be served (any more).
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The negotiation of the protocol failed.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The filesystem was unmounted before the session began.
    #[error("unmounted before it began")]
    Unmounted,
    /// The kernel's first message isn't INIT.
    #[error("the kernel began with {0} instead of INIT")]
    NotInit(&'static str),
    /// The device, or a ring, fails.
    #[error("the kernel's connection failed")]
    Device(#[source] io::Error),
    /// Rings were required, but there can be none.
    #[error("FUSE over io_uring is not to be had")]
    NoRing(#[source] NoRing),
    /// A thread can't be started.
    #[error("no thread to serve requests")]
    Thread(#[source] io::Error),
}

/// How requests arrive.
#[derive(Debug)]
pub enum Way {
    /// Over rings.
    Rings {
        /// How many there are.
        count: usize,
        /// Counts how requests go from thread to thread.
        hops: HopCounters,
    },
    /// Over `/dev/fuse`.
    Device {
        /// Why not over rings, if these were wanted.
        why: Option<NoRing>,
    },
}

/// A filesystem and the mount that it serves, after the protocol was negotiated.
pub struct Session<F> {
    filesystem: F,
    /// The device, until the session has run: the connection ends with it.
    device: Mutex<Option<Arc<Device>>>,
    notifier: Notifier,
    granted: Granted,
    way: Way,
    /// The rings, until the session runs.
    rings: Mutex<Option<Rings>>,
    threads: usize,
    /// Keeps track of the requests that arrive over `/dev/fuse`.
    arrivals: Arc<Arrivals>,
    /// The number of threads that serve a request of `/dev/fuse`, where there are no rings.
    serving: AtomicUsize,
    destroyed: AtomicBool,
}

impl<F: Filesystem> Session<F> {
    /// Waits for the kernel's INIT on `device`, passes the granted capabilities to `filesystem`,
    /// and answers.
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
            let (rings, way) = match rings(&init, config, page, &device) {
                Ok(found) => found,
                Err(why) => {
                    reply.error(Errno::OPNOTSUPP);
                    return Err(SessionError::NoRing(why));
                }
            };
            match negotiate(&init, config, page, rings.is_some()) {
                Ok(Answer::Again(out)) => send_init(reply, &out),
                Err(error) => return refuse(reply, Errno::PROTO, error),
                Ok(Answer::Settled(out, granted)) => {
                    if let Err(errno) = filesystem.init(&granted) {
                        return refuse(reply, errno, NegotiationError::Refused(errno));
                    }
                    send_init(reply, &out);
                    tracing::debug!(?granted, ?way, "mount begins");
                    let of_rings = config.ring_threads.filter(|_| rings.is_some());
                    let threads = of_rings.unwrap_or(config.threads).max(1);
                    let rings = Mutex::new(Rank::SessionRings, rings);
                    let arrivals = Arc::new(Arrivals::new(threads));
                    let settling = matches!(way, Way::Device { .. }).then(|| Arc::clone(&arrivals));
                    return Ok(Self {
                        filesystem,
                        notifier: Notifier::new(&device, settling, granted.max_background),
                        arrivals,
                        device: Mutex::new(Rank::SessionDevice, Some(device)),
                        granted,
                        way,
                        rings,
                        threads,
                        serving: AtomicUsize::new(0),
                        destroyed: AtomicBool::new(false),
                    });
                }
            }
        }
    }

    /// The result of the negotiation.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// How requests arrive.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// How many threads serve requests that may wait.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The filesystem.
    pub fn filesystem(&self) -> &F {
        &self.filesystem
    }

    /// A handle to invalidate caches of the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Serves until the filesystem is unmounted (by whomever) or the connection aborted, and all
    /// threads have ended.
    ///
    /// If a method of the filesystem panics, its caller gets EIO, and the thread continues. After
    /// an error the connection is aborted, so that no process waits forever.
    pub fn run(&self) -> Result<(), SessionError> {
        self.run_and(|| ())
    }

    /// The same as [`run`](Self::run), but calls `begun` when all threads that it needs have
    /// started, and not if one of them has failed to start.
    pub fn run_and(&self, begun: impl FnOnce()) -> Result<(), SessionError> {
        let Some(device) = self.device.lock().take() else { return Ok(()) };
        let rings = self.rings.lock().take();
        let served = match rings {
            Some(rings) => self.serve_rings(rings, &device, begun),
            None => self.serve_device(&device, begun),
        };
        drop(device);
        self.destroy();
        served.map_err(SessionError::Device)
    }

    fn serve_rings(&self, rings: Rings, device: &Arc<Device>, begun: impl FnOnce()) -> io::Result<()> {
        let destroy = || self.destroy();
        let handler = ring::Handler { filesystem: &self.filesystem, destroy: &destroy, form: self.granted.form() };
        let buffer = buffer_size(self.granted.max_write as usize, rustix::param::page_size());
        ring::serve(rings, device, (self.threads, buffer), &handler, begun)
    }

    fn serve_device(&self, device: &Arc<Device>, begun: impl FnOnce()) -> io::Result<()> {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 1..self.threads {
                let queue = match device.another() {
                    Ok(queue) => Arc::new(queue),
                    Err(error) => {
                        tracing::warn!(%error, "no queue of its own for a thread; it shares the first one");
                        Arc::clone(device)
                    }
                };
                let thread = thread::Builder::new()
                    .name(format!("fuse-{number}"))
                    .spawn_scoped(scope, move || self.serve(&queue));
                match thread {
                    Ok(thread) => threads.push(thread),
                    // The session can serve with fewer threads.
                    Err(error) => tracing::warn!(%error, "fewer threads than wanted"),
                }
            }
            begun();
            let first = self.serve(device);
            threads.into_iter().fold(first, |result, thread| {
                result.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            })
        })
    }

    /// Serves the requests of one queue.
    fn serve(&self, device: &Arc<Device>) -> io::Result<()> {
        let responder = device::responder(device);
        let form = self.granted.form();
        let size = buffer_size(self.granted.max_write as usize, rustix::param::page_size());
        let mut buffer = vec![0; size];
        let entered = self.arrivals.enter();
        while let Some(length) = device.receive(&mut buffer)? {
            let message = buffer.get(..length).unwrap_or_default();
            let header = crate::request::header(message).unwrap_or_default();
            let opcode = header.opcode;
            match opcode {
                opcode::NOTIFY_REPLY => {
                    self.arrivals.marker(header.unique);
                    continue;
                }
                opcode::WRITE => {
                    self.arrivals.remember(header.nodeid);
                    if !entered.is_own_write(message, device) {
                        continue;
                    }
                }
                _ => {}
            }
            let serve = |message: &[u8], responder: &Arc<dyn Responder>| {
                let serve =
                    || dispatch::message(&self.filesystem, || self.destroy_when_written(), message, form, responder);
                // If the panic drops the reply object, the drop answers the request.
                if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                    tracing::error!(request = opcode::name(opcode), "the filesystem panicked");
                }
            };
            self.serving.fetch_add(1, Ordering::Relaxed);
            if opcode == opcode::WRITE {
                let of_others = |waiting: &Waiting| serve(&waiting.message, &device::responder(&waiting.device));
                entered.serving_writes(|| serve(message, &responder), of_others);
            } else {
                entered.serving(|| serve(message, &responder));
            }
            self.serving.fetch_sub(1, Ordering::Relaxed);
        }
        self.filesystem.disconnected(self.serving.load(Ordering::Relaxed) > 0);
        Ok(())
    }

    /// Serves the kernel's last request. Other threads may still serve WRITEs of pages that came
    /// before it.
    fn destroy_when_written(&self) {
        self.arrivals.wait_for_writes();
        self.destroy();
    }

    /// Notifies the filesystem, the first time only, that the mount has ended.
    fn destroy(&self) {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.filesystem.destroy();
        }
    }
}

impl<F> std::fmt::Debug for Session<F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Session")
            .field("granted", &self.granted)
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}

/// Makes rings if they are requested and offered. Returns an error if they are required and can't
/// be made.
fn rings(init: &Init, config: &Config, page: usize, device: &Arc<Device>) -> Result<(Option<Rings>, Way), NoRing> {
    if config.transport == Transport::Device {
        return Ok((None, Way::Device { why: None }));
    }
    let prepared = if init.capabilities.contains(Capabilities::OVER_IO_URING) {
        Rings::prepare(device, longest_write(config, page) as usize)
    } else {
        Err(NoRing::not_offered())
    };
    match prepared {
        Ok(rings) => {
            let (count, hops) = (rings.count(), rings.hops());
            Ok((Some(rings), Way::Rings { count, hops }))
        }
        Err(why) if config.transport == Transport::Ring => Err(why),
        Err(why) => Ok((None, Way::Device { why: Some(why) })),
    }
}

fn buffer_size(max_write: usize, page: usize) -> usize {
    (max_write.max(page) + HEADERS.max(page)).max(MIN_BUFFER)
}

fn send_init(reply: Reply, out: &InitOut) {
    reply.send(&[out.as_bytes()]);
}
