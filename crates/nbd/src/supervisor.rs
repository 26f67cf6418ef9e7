//! The threads of a session: two for each connection, of which one sends requests and one reads the
//! answers; one that watches for silence; and one that connects again, as long as that takes.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ubtrfs_errors::sentence;
use ubtrfs_threads::time::Instant;

use crate::connect::Link;
use crate::resume::resume;
use crate::session::{Phase, Session};

/// If the watching thread is late by more than this, the process was stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// The pause before the second attempt to connect; each one doubles it up to …
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// … this.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Starts to use these connections.
pub(crate) fn take_over(session: &Arc<Session>, links: Vec<Link>) -> io::Result<()> {
    let (epoch, lines) = session.install(&links)?;
    for (lane, (link, line)) in links.into_iter().zip(lines).enumerate() {
        let (reader, sender) = (Arc::clone(session), Arc::clone(session));
        let started = spawn("ubtrfs-nbd-read", move || read_answers(&reader, link, epoch, lane)).and_then(|()| {
            spawn("ubtrfs-nbd-send", move || {
                if let Err(error) = line.run() {
                    sender.break_link(epoch, &sentence(&error));
                }
            })
        });
        if let Err(error) = started {
            session.break_link(epoch, &sentence(&error));
            return Err(error);
        }
    }
    Ok(())
}

fn read_answers(session: &Session, mut link: Link, epoch: u64, lane: usize) {
    loop {
        let expected = |cookie| session.expected(epoch, lane, cookie);
        match link.decoder.read(&mut link.incoming, expected) {
            Ok(Some(answer)) => session.answered(epoch, lane, answer),
            // This was only a part of an answer.
            Ok(None) => {}
            Err(error) => return session.break_link(epoch, &sentence(&error)),
        }
    }
}

/// Watches over the session until it is closed.
pub(crate) fn supervise(session: &Arc<Session>) {
    let tick = (session.timeout / 16).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let mut state = session.state.lock();
    let mut last = Instant::now();
    while !state.is_closing {
        if last.elapsed() > tick + STOPPED.min(session.timeout / 4) {
            state.wake_up();
        }
        last = Instant::now();
        session.look_at_writing_again(&mut state);
        match &state.phase {
            Phase::Up => {
                session.look_for_silence(&mut state);
                if matches!(state.phase, Phase::Up) {
                    session.look_at_lease(&mut state, tick);
                }
            }
            Phase::Away { .. } => {
                if !state.is_connecting {
                    let connecting = Arc::clone(session);
                    state.is_connecting = spawn("ubtrfs-nbd-connect", move || connect_again(&connecting)).is_ok();
                }
            }
            Phase::Refused(_) => {}
        }
        session.look_for_unanswered(&mut state);
        session.look_for_the_end(&mut state);
        session.changed.wait_for(&mut state, tick);
    }
}

/// Tries to connect until that succeeds, or is of no use any more.
fn connect_again(session: &Arc<Session>) {
    let mut pause = FIRST_PAUSE;
    wait(session, session.rest());
    loop {
        let error = match resume(session) {
            Ok(links) => match take_over(session, links) {
                Ok(()) => {
                    tracing::info!("{}: connected again", session.uri);
                    break;
                }
                Err(error) => sentence(&error),
            },
            Err(error) if error.may_pass() => sentence(&error),
            Err(error) => {
                session.refuse(&sentence(&error));
                break;
            }
        };
        let mut state = session.state.lock();
        if let Phase::Away { why, .. } = &mut state.phase {
            *why = error;
        }
        drop(state);
        if wait(session, pause) {
            break;
        }
        pause = MAX_PAUSE.min(2 * pause);
    }
    session.state.lock().is_connecting = false;
    session.changed.notify_all();
}

/// Waits that long, or until the session is closed. Returns whether it is closed.
fn wait(session: &Session, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    let mut state = session.state.lock();
    while !state.is_closing && Instant::now() < until && !session.changed.wait_until(&mut state, until).timed_out() {}
    state.is_closing
}

/// Starts a thread that nobody waits for.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}
