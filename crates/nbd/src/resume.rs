//! Brings an export back to a state in which requests can be sent again: checks that it is the same
//! export, and writes again what it had acknowledged.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_errors::sentence;
use ubtrfs_threads::time::Instant;

use crate::abi::{CAN_MULTI_CONN, READ_ONLY, SEND_FLUSH, SEND_FUA, has};
use crate::connect::{Call, Link, connect, connect_more};
use crate::error::Error;
use crate::lease::{Access, Lost};
use crate::negotiate::Export;
use crate::requests::pieces;
use crate::session::{BLOCK, Session};
use crate::watch::Watch;

/// How long an attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How much is written again at once: requests …
const CALLS: usize = 64;
/// … and their bytes, at first and at the most …
const BYTES: (usize, usize) = (256 << 10, 8 << 20);
/// … as many as take about so long, since the lease has to be checked in between.
const A_WHILE: Duration = Duration::from_secs(1);
/// The least number of bytes per second that a server must take of what is written again. A slower
/// one counts as away.
const MIN_RATE: usize = 32 << 10;
/// A lease that ends sooner than this is extended first.
const SHORT: Duration = Duration::from_secs(5);

/// Connects to the export again and restores its state. Nothing is written before it is known to be
/// the same export.
pub(crate) fn resume(session: &Arc<Session>) -> Result<Vec<Link>, Error> {
    let limit = ATTEMPT.min(session.timeout);
    let writes = session.lease.is_some();
    let mut link = connect(&session.uri, writes, limit)?;
    can_serve(&session.export, &link.export)?;
    verify(session, &mut link)?;
    hold_lease(session, &mut link)?;
    let kept = session.state.lock().kept.to_write_again();
    if !kept.is_empty() {
        // There is no limit of time as long as there is progress.
        link.channel.limit(None)?;
        let bytes: usize = kept.iter().map(|(_, data)| data.len()).sum();
        let until = Instant::now() + session.timeout + Duration::from_secs(1) * (bytes / MIN_RATE) as u32;
        session.state.lock().writing_again = Some((Watch::new(Arc::clone(&link.channel)), until));
        let written = write_again(session, &mut link, &kept);
        session.state.lock().writing_again = None;
        written?;
        link.channel.limit(Some(limit))?;
        hold_lease(session, &mut link)?;
        tracing::info!("{}: {} writes that had not been flushed were written again", session.uri, kept.len());
    }
    let mut links = vec![link];
    if has(session.export.flags, CAN_MULTI_CONN) && has(links[0].export.flags, CAN_MULTI_CONN) {
        let more = connect_more(&session.uri, writes, session.connections.saturating_sub(1));
        links.extend(more.into_iter().filter(|link| can_serve(&session.export, &link.export).is_ok()));
    }
    Ok(links)
}

/// Checks that the server supports all requests that can't be replaced by others. Zeros can be
/// written as bytes if the server does not support `WRITE_ZEROES` any more, a flush can follow a
/// write if there is no FUA, a longer request can be divided, and discards are only advice. A
/// server that is not fully set up may support later what it does not support now.
fn can_serve(before: &Export, now: &Export) -> Result<(), Error> {
    let not_yet = |what: String| Err(Error::NotYet(what));
    if has(now.flags, READ_ONLY) && !has(before.flags, READ_ONLY) {
        return not_yet("is read-only".into());
    }
    if has(before.flags, SEND_FLUSH) && !has(now.flags, SEND_FLUSH) {
        return not_yet("offers no FLUSH any more".into());
    }
    if now.size < before.size {
        return not_yet(format!("has an export of {} bytes, which had {}", now.size, before.size));
    }
    if now.smallest_block > before.smallest_block || now.largest_request < BLOCK {
        let (smallest, largest) = (now.smallest_block, now.largest_request);
        return not_yet(format!("takes requests of {smallest} to {largest} bytes only"));
    }
    Ok(())
}

/// Compares the places by which the export is recognised.
fn verify(session: &Arc<Session>, link: &mut Link) -> Result<(), Error> {
    let places: Vec<_> = session.state.lock().witnesses.iter().map(crate::witness::Witness::place).collect();
    if places.is_empty() {
        return Ok(());
    }
    if has(link.export.flags, SEND_FLUSH) {
        // The server first completes the requests of the connection before.
        link.call(&[Call::Flush], None)?;
    }
    let reads: Vec<_> = places.iter().map(|(at, len)| Call::Read { at: *at, len: *len as u32 }).collect();
    let found: Result<Vec<_>, _> = link.call(&reads, None)?.into_iter().collect();
    let found = found.map_err(|refusal| Error::Broken(refusal.to_io()))?;
    let state = session.state.lock();
    for (witness, found) in state.witnesses.iter().zip(found) {
        if !witness.allows(&found) {
            let (at, _) = witness.place();
            return Err(Error::Unusable(format!(
                "the server came back with another content at {at}, where a volume has its superblock or the mark of who \
                 writes: an empty export, an older copy, or one that somebody else has written; nothing is written to it"
            )));
        }
    }
    Ok(())
}

/// Makes sure that the lease lasts for a while, before anything is written. Returns the range that
/// its holder wrote for that.
fn hold_lease(session: &Arc<Session>, link: &mut Link) -> Result<Option<Range<u64>>, Error> {
    let Some(lease) = session.lease.as_ref().filter(|lease| !lease.lasts(SHORT)) else { return Ok(None) };
    let mut own = Own { session, link, written: None };
    match lease.hold(&mut own) {
        Ok(()) => Ok(own.written),
        Err(Lost::To(who)) => {
            Err(Error::Unusable(format!("{who} has taken the volume over; nothing is written to it any more")))
        }
        Err(Lost::Unknown(error)) => Err(Error::Broken(error)),
    }
}

/// The access to the connection for the holder of the lease.
struct Own<'a> {
    session: &'a Session,
    link: &'a mut Link,
    written: Option<Range<u64>>,
}

impl Own<'_> {
    fn call(&mut self, call: Call) -> io::Result<Vec<u8>> {
        let results = self.link.call(&[call], None).map_err(io::Error::other)?;
        let answered = results.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?;
        answered.map_err(|refusal| refusal.to_io())
    }
}

impl Access for Own<'_> {
    fn read(&mut self, at: u64, len: u32) -> io::Result<Vec<u8>> {
        self.call(Call::Read { at, len })
    }

    fn write(&mut self, at: u64, data: Vec<u8>) -> io::Result<()> {
        let data = Bytes::from(data);
        let end = at + data.len() as u64;
        let (cookie, superseded) = {
            let mut state = self.session.state.lock();
            // Earlier writes of this range are not written again, and none comes after this one.
            state.kept.forget(at, end);
            (state.new_content(at, &data), state.supersede(at, end))
        };
        self.written = Some(at..end);
        let written = self.write_durably(at, data);
        if written.is_ok() {
            self.session.state.lock().is_durable(cookie);
        }
        for request in superseded {
            (request.done)(written.as_ref().map(|()| Vec::new()).map_err(|error| error.kind().into()));
        }
        written
    }
}

impl Own<'_> {
    fn write_durably(&mut self, at: u64, data: Bytes) -> io::Result<()> {
        let fua = has(self.link.export.flags, SEND_FUA);
        self.call(Call::Write { at, data, fua })?;
        if !fua && has(self.link.export.flags, SEND_FLUSH) {
            self.call(Call::Flush)?;
        }
        Ok(())
    }
}

/// Writes again what the server may have lost. If it refuses that now, acknowledged writes are
/// lost.
fn write_again(session: &Arc<Session>, link: &mut Link, kept: &[(u64, Bytes)]) -> Result<(), Error> {
    let largest = link.export.largest_request - link.export.largest_request % BLOCK;
    let calls = kept.iter().flat_map(|(start, data)| {
        pieces(*start, data.len() as u64, largest).map(move |(at, len)| {
            let from = (at - start) as usize;
            Call::Write { at, data: data.slice(from..from + len as usize), fua: false }
        })
    });
    let mut calls = calls.peekable();
    let (mut most, mut newer) = (BYTES.0, None);
    while calls.peek().is_some() {
        newer = hold_lease(session, link)?.or(newer);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(Call::Write { at, data, .. }) = calls.peek()
            && batch.len() < CALLS
            && (batch.is_empty() || bytes + data.len() <= most)
        {
            let is_older = newer.as_ref().is_some_and(|newer: &Range<u64>| newer.contains(at));
            bytes += data.len();
            batch.extend(calls.next().filter(|_| !is_older));
        }
        let begun = Instant::now();
        for result in link.call(&batch, session.lease.as_deref())? {
            if let Err(refusal) = result {
                let why = format!(
                    "what was written before the server went away can't be written again: {}",
                    sentence(&refusal.to_io())
                );
                session.state.lock().lose(why);
            }
        }
        most = if begun.elapsed() < A_WHILE { BYTES.1.min(2 * most) } else { BYTES.0.max(most / 2) };
    }
    make_durable(session, link)
}

/// Flushes what was written again, so that it need not be written once more if the server goes away
/// again. So however often it goes away, either there is durable progress, or the wait ends.
fn make_durable(session: &Arc<Session>, link: &mut Link) -> Result<(), Error> {
    let covers = session.state.lock().answers;
    let result = link.call(&[Call::Flush], None)?.into_iter().next();
    let mut state = session.state.lock();
    match result {
        Some(Err(refusal)) => state.fail_flush(&refusal.to_io()),
        _ => state.kept.flushed(covers),
    }
    Ok(())
}
