//! Makes a connection to an export, from the first byte until requests can be sent, and sends
//! single requests over it as long as nobody else uses it.

use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_threads::time::Instant;

use crate::abi::{CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_WRITE, request};
use crate::channel::{Channel, Handshake, Incoming};
use crate::error::Error;
use crate::lease::Lease;
use crate::negotiate::{Export, negotiate};
use crate::reply::{Decoder, Expected, Refusal};
use crate::uri::Uri;

/// How many bytes of replies are read at once. Longer data is read directly into its own memory.
const AHEAD: usize = 32 << 10;

/// How long further connections may take, which are useful but not necessary.
const MORE: Duration = Duration::from_secs(2);

/// A connection that nobody uses yet.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) channel: Arc<Channel>,
    pub(crate) incoming: BufReader<Incoming>,
    pub(crate) decoder: Decoder,
    pub(crate) export: Export,
}

/// A request whose answer the caller waits for.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Flush,
    Read { at: u64, len: u32 },
    Write { at: u64, data: Bytes, fua: bool },
}

/// Connects within this time. `writes` says that the client may write.
pub(crate) fn connect(uri: &Uri, writes: bool, limit: Duration) -> Result<Link, Error> {
    let mut handshake = Handshake::begin(uri, writes, Instant::now() + limit)?;
    let export = negotiate(&mut handshake, &uri.export, uri.tls.is_some())?;
    let channel = handshake.finish();
    channel.limit(Some(limit))?;
    let incoming = BufReader::with_capacity(AHEAD, Incoming::new(Arc::clone(&channel)));
    Ok(Link { channel, incoming, decoder: Decoder::new(export.structured), export })
}

/// Makes further connections to the same export at the same time, as many as the server accepts
/// soon.
pub(crate) fn connect_more(uri: &Uri, writes: bool, count: usize) -> Vec<Link> {
    std::thread::scope(|scope| {
        let attempts: Vec<_> = (0..count)
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, || connect(uri, writes, MORE)).ok())
            .collect();
        attempts.into_iter().filter_map(|attempt| attempt.join().ok()?.ok()).collect()
    })
}

impl Link {
    /// Sends requests as long as the lease lasts, and waits for all answers. Returns these in the
    /// order of the requests.
    pub(crate) fn call(
        &mut self,
        calls: &[Call],
        lease: Option<&Lease>,
    ) -> Result<Vec<Result<Vec<u8>, Refusal>>, Error> {
        for (cookie, call) in calls.iter().enumerate() {
            let cookie = cookie as u64;
            match call {
                Call::Flush => self.channel.send(&[&request(0, CMD_FLUSH, cookie, 0, 0)], lease)?,
                Call::Read { at, len } => self.channel.send(&[&request(0, CMD_READ, cookie, *at, *len)], lease)?,
                Call::Write { at, data, fua } => {
                    let flags = if *fua { CMD_FLAG_FUA } else { 0 };
                    self.channel.send(&[&request(flags, CMD_WRITE, cookie, *at, data.len() as u32), data], lease)?;
                }
            }
        }
        let mut results: Vec<Option<Result<Vec<u8>, Refusal>>> = vec![None; calls.len()];
        while results.iter().any(Option::is_none) {
            let unanswered = |cookie| {
                let call =
                    results.get(usize::try_from(cookie).ok()?)?.is_none().then(|| calls.get(cookie as usize))??;
                Some(match call {
                    Call::Flush => Expected { at: 0, reads: None },
                    Call::Write { at, .. } => Expected { at: *at, reads: None },
                    Call::Read { at, len } => Expected { at: *at, reads: Some(*len) },
                })
            };
            if let Some(answer) = self.decoder.read(&mut self.incoming, unanswered)? {
                results[answer.cookie as usize] = Some(answer.result);
            }
        }
        Ok(results.into_iter().flatten().collect())
    }
}
