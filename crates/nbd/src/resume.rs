//! What has to be true of an export before anything is sent to it again: it is the one that it was,
//! and has all that it had acknowledged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::abi::{CAN_MULTI_CONN, LARGEST_REQUEST, READ_ONLY, SEND_FLUSH, SEND_FUA, has};
use crate::connect::{Call, Link, connect, connect_more};
use crate::error::Error;
use crate::negotiate::Export;
use crate::session::Session;
use crate::watch::Watch;

/// How long an attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// What is written again at once: requests …
const CALLS: usize = 64;
/// … and their bytes.
const BYTES: usize = 8 << 20;

/// Connects to the export again and brings it to where it was. Nothing is written before it is
/// known to be the same export.
pub(crate) fn resume(session: &Arc<Session>) -> Result<Vec<Link>, Error> {
    let limit = ATTEMPT.min(session.timeout);
    let mut link = connect(&session.uri, limit)?;
    is_same(&session.export, &link.export)?;
    verify(session, &mut link)?;
    let kept = session.state.lock().kept.to_write_again();
    if !kept.is_empty() {
        // It may take as long as it does, while it makes progress.
        link.channel.limit(None)?;
        session.state.lock().writing_again = Some(Watch::new(Arc::clone(&link.channel)));
        let written = write_again(session, &mut link, &kept);
        session.state.lock().writing_again = None;
        written?;
        link.channel.limit(Some(limit))?;
        tracing::info!("{}: {} writes that had not been flushed were written again", session.uri, kept.len());
    }
    let mut links = vec![link];
    if has(session.export.flags, CAN_MULTI_CONN) && has(links[0].export.flags, CAN_MULTI_CONN) {
        let more = connect_more(&session.uri, session.connections.saturating_sub(1));
        links.extend(more.into_iter().filter(|link| is_same(&session.export, &link.export).is_ok()));
    }
    Ok(links)
}

/// Whether all requests are possible that can't be replaced by others: zeros are written where the
/// server takes no `WRITE_ZEROES` any more, and discards are advice.
fn is_same(before: &Export, now: &Export) -> Result<(), Error> {
    let lost = before.flags & !now.flags & (SEND_FLUSH | SEND_FUA) | now.flags & !before.flags & READ_ONLY;
    let largest = before.largest_request.min(LARGEST_REQUEST);
    if before.size != now.size {
        let (before, now) = (before.size, now.size);
        return Err(Error::Unusable(format!("the export had {before} bytes, and has {now} now: it is another one")));
    }
    if now.smallest_block > before.smallest_block || now.largest_request < largest || lost != 0 {
        return Err(Error::Unusable("the server that came back can do less than the one before".into()));
    }
    Ok(())
}

/// Compares the places that show what the export is.
fn verify(session: &Arc<Session>, link: &mut Link) -> Result<(), Error> {
    let places: Vec<_> = session.state.lock().witnesses.iter().map(crate::witness::Witness::place).collect();
    if places.is_empty() {
        return Ok(());
    }
    if has(link.export.flags, SEND_FLUSH) {
        // What the server still has to do of the connection before is done first.
        link.call(&[Call::Flush])?;
    }
    let reads: Vec<_> = places.iter().map(|(at, len)| Call::Read { at: *at, len: *len as u32 }).collect();
    let found: Result<Vec<_>, _> = link.call(&reads)?.into_iter().collect();
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

/// Writes what the server may have lost. What it refuses now, it had acknowledged before.
fn write_again(session: &Arc<Session>, link: &mut Link, kept: &[(u64, Bytes)]) -> Result<(), Error> {
    let mut rest = kept;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, data): &&(u64, Bytes)| {
            bytes += data.len();
            bytes <= BYTES
        };
        let count = rest.iter().take(CALLS).take_while(fits).count().max(1);
        let (batch, left) = rest.split_at(count);
        let calls: Vec<Call> = batch.iter().map(|(at, data)| Call::Write { at: *at, data: data.clone() }).collect();
        for result in link.call(&calls)? {
            if let Err(refusal) = result {
                let why =
                    format!("what was written before the server went away can't be written again: {}", refusal.to_io());
                session.state.lock().lose(why);
            }
        }
        rest = left;
    }
    make_durable(session, link)
}

/// So it need not be written again if the server goes away once more: however often it does, either
/// something is done for good, or the wait for it has an end.
fn make_durable(session: &Arc<Session>, link: &mut Link) -> Result<(), Error> {
    let covers = session.state.lock().answers;
    let result = link.call(&[Call::Flush])?.into_iter().next();
    let mut state = session.state.lock();
    match result {
        Some(Err(refusal)) => state.lose(format!("a flush failed: {}", refusal.to_io())),
        _ => state.kept.flushed(covers),
    }
    Ok(())
}
