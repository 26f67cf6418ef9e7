//! Decodes replies. A reply that answers no request, or does not fit its request, is an error that
//! ends the connection (the requests are sent again over the next one).

use std::collections::HashMap;
use std::io::{self, Read};

use ubtrfs_errors::sentence;

use crate::abi::{
    CHUNK_ERROR, CHUNK_ERROR_OFFSET, CHUNK_NONE, CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, MAX_STRING, REPLY_DONE,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, readable,
};
use crate::error::Error;

/// How many errors one reply may have.
const MAX_ERRORS: usize = 64;

/// A request that has no answer yet, as far as decoding needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its address.
    pub at: u64,
    /// How many bytes it reads; `None` if it is no read.
    pub reads: Option<u32>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The cookie of the request.
    pub cookie: u64,
    /// The bytes that were read (none for other requests), or why the request failed.
    pub result: Result<Vec<u8>, Refusal>,
}

/// Why the server refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the error, as in errno(3) on Linux.
    pub errno: u32,
    /// What the server said.
    pub said: String,
}

/// Reads the replies of one connection.
#[derive(Debug)]
pub struct Decoder {
    structured: bool,
    /// Structured replies of which not all chunks have come yet.
    partial: HashMap<u64, Partial>,
}

#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// How many bytes have come.
    received: usize,
    refusal: Option<Refusal>,
    errors: usize,
}

impl Decoder {
    /// Returns a decoder for a connection with or without structured replies.
    pub fn new(structured: bool) -> Self {
        Self { structured, partial: HashMap::new() }
    }

    /// Reads one message. Returns the answer that it completes, if any.
    pub fn read(
        &mut self,
        stream: &mut impl Read,
        expected: impl Fn(u64) -> Option<Expected>,
    ) -> Result<Option<Answer>, Error> {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let magic = number::<4>(&header[..4]) as u32;
        let cookie = number::<8>(&header[8..]);
        let request = expected(cookie).ok_or_else(|| bad("it answers what was not asked"))?;
        match magic {
            SIMPLE_REPLY_MAGIC => {
                if self.structured && request.reads.is_some() || self.partial.contains_key(&cookie) {
                    return Err(bad("a simple reply where a structured one was agreed upon"));
                }
                let errno = number::<4>(&header[4..8]) as u32;
                if errno != 0 {
                    return Ok(Some(Answer { cookie, result: Err(Refusal { errno, said: String::new() }) }));
                }
                let mut bytes = vec![0; request.reads.unwrap_or_default() as usize];
                stream.read_exact(&mut bytes)?;
                Ok(Some(Answer { cookie, result: Ok(bytes) }))
            }
            STRUCTURED_REPLY_MAGIC if self.structured => {
                let (flags, kind) = (number::<2>(&header[4..6]) as u16, number::<2>(&header[6..8]) as u16);
                let mut len = [0; 4];
                stream.read_exact(&mut len)?;
                let is_last = flags & REPLY_DONE != 0;
                let chunk = Chunk { kind, len: u32::from_be_bytes(len) as usize, is_last };
                let partial = self.partial.entry(cookie).or_default();
                partial.receive(stream, chunk, request)?;
                if !is_last {
                    return Ok(None);
                }
                let partial = self.partial.remove(&cookie).unwrap_or_default();
                Ok(Some(Answer { cookie, result: partial.finish(request)? }))
            }
            _ => Err(bad("a reply has a wrong beginning")),
        }
    }
}

#[derive(Clone, Copy)]
struct Chunk {
    kind: u16,
    len: usize,
    is_last: bool,
}

impl Partial {
    fn receive(&mut self, stream: &mut impl Read, chunk: Chunk, request: Expected) -> Result<(), Error> {
        match chunk.kind {
            CHUNK_NONE if chunk.len == 0 && chunk.is_last => Ok(()),
            CHUNK_OFFSET_DATA if chunk.len > 8 => {
                let at = number::<8>(&bytes_of::<8>(stream)?);
                let place = self.place(at, chunk.len - 8, request)?;
                stream.read_exact(place)?;
                Ok(())
            }
            CHUNK_OFFSET_HOLE if chunk.len == 12 => {
                let hole = bytes_of::<12>(stream)?;
                let (at, len) = (number::<8>(&hole[..8]), number::<4>(&hole[8..]) as usize);
                if len == 0 {
                    return Err(bad("a hole of no bytes"));
                }
                self.place(at, len, request)?.fill(0);
                Ok(())
            }
            kind if kind >= 1 << 15 => {
                if chunk.len < 6 || chunk.len > MAX_STRING + 14 {
                    return Err(bad("an error of a wrong length"));
                }
                self.errors += 1;
                if self.errors > MAX_ERRORS {
                    return Err(bad("errors without an end"));
                }
                let mut payload = vec![0; chunk.len];
                stream.read_exact(&mut payload)?;
                let said = match kind {
                    CHUNK_ERROR | CHUNK_ERROR_OFFSET => payload.get(6..6 + number::<2>(&payload[4..6]) as usize),
                    _ => Some(&[][..]),
                };
                let said = readable(said.ok_or_else(|| bad("an error whose text is longer than it"))?);
                // An error with the number 0 is an error nevertheless.
                let errno = (number::<4>(&payload[..4]) as u32).max(1);
                self.refusal.get_or_insert(Refusal { errno, said });
                Ok(())
            }
            _ => Err(bad("a chunk of an unknown kind")),
        }
    }

    /// Returns the place in the buffer for bytes that were read.
    fn place(&mut self, at: u64, len: usize, request: Expected) -> Result<&mut [u8], Error> {
        let wanted = request.reads.ok_or_else(|| bad("bytes of a request that reads none"))? as usize;
        if self.bytes.is_empty() {
            self.bytes = vec![0; wanted];
        }
        self.received = self.received.saturating_add(len);
        let start = at.checked_sub(request.at).and_then(|start| usize::try_from(start).ok());
        let place = start.and_then(|start| self.bytes.get_mut(start..)?.get_mut(..len));
        // Chunks don't overlap, so together they have as many bytes as were requested.
        place.filter(|_| self.received <= wanted).ok_or_else(|| bad("bytes that were not asked for"))
    }

    fn finish(self, request: Expected) -> Result<Result<Vec<u8>, Refusal>, Error> {
        match self.refusal {
            Some(refusal) => Ok(Err(refusal)),
            None if self.received == request.reads.unwrap_or_default() as usize => Ok(Ok(self.bytes)),
            None => Err(bad("a read is answered in part")),
        }
    }
}

impl Refusal {
    /// Converts the refusal to the error of the request.
    pub fn to_io(&self) -> io::Error {
        const ON_LINUX: [u32; 7] = [1, 5, 12, 22, 28, 75, 95];
        let errno = if ON_LINUX.contains(&self.errno) { self.errno } else { 5 };
        let plain = io::Error::from_raw_os_error(errno as i32);
        if self.said.is_empty() {
            plain
        } else {
            io::Error::new(plain.kind(), format!("{}: {}", sentence(&plain), self.said))
        }
    }
}

fn number<const N: usize>(bytes: &[u8]) -> u64 {
    bytes.iter().take(N).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn bytes_of<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bad(what: &str) -> Error {
    Error::Protocol(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simple(errno: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    }

    fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
        let header = [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&header[..], &cookie.to_be_bytes(), &(payload.len() as u32).to_be_bytes(), payload].concat()
    }

    fn data(at: u64, bytes: &[u8]) -> Vec<u8> {
        [&at.to_be_bytes()[..], bytes].concat()
    }

    fn hole(at: u64, len: u32) -> Vec<u8> {
        [&at.to_be_bytes()[..], &len.to_be_bytes()].concat()
    }

    /// The expected requests: 1 reads 8 bytes at 100, 2 writes.
    fn expected(cookie: u64) -> Option<Expected> {
        match cookie {
            1 => Some(Expected { at: 100, reads: Some(8) }),
            2 => Some(Expected { at: 0, reads: None }),
            _ => None,
        }
    }

    fn decode(structured: bool, messages: &[Vec<u8>]) -> Result<Vec<Answer>, Error> {
        let bytes = messages.concat();
        let mut stream = &bytes[..];
        let mut decoder = Decoder::new(structured);
        let mut answers = Vec::new();
        while !stream.is_empty() {
            answers.extend(decoder.read(&mut stream, expected)?);
        }
        Ok(answers)
    }

    #[test]
    fn simple_replies_are_understood() {
        let answers = decode(false, &[simple(0, 2, b""), simple(0, 1, b"12345678"), simple(28, 2, b"")]).unwrap();
        let results: Vec<_> = answers.into_iter().map(|answer| (answer.cookie, answer.result)).collect();
        let full = Refusal { errno: 28, said: String::new() };
        assert_eq!(full.to_io().raw_os_error(), Some(28));
        assert_eq!(results, [(2, Ok(vec![])), (1, Ok(b"12345678".to_vec())), (2, Err(full))]);
    }

    #[test]
    fn structured_replies_come_in_pieces_and_in_any_order() {
        let answers = decode(
            true,
            &[
                chunk(0, CHUNK_OFFSET_DATA, 1, &data(104, b"5678")),
                chunk(REPLY_DONE, CHUNK_NONE, 2, &[]),
                chunk(0, CHUNK_OFFSET_HOLE, 1, &hole(102, 2)),
                chunk(REPLY_DONE, CHUNK_OFFSET_DATA, 1, &data(100, b"12")),
                simple(5, 2, b""),
                chunk(REPLY_DONE, CHUNK_ERROR, 1, &[&[0, 0, 0, 5, 0, 3][..], b"bad"].concat()),
            ],
        )
        .unwrap();
        let read: Vec<_> = answers.iter().filter_map(|answer| answer.result.as_ref().ok()).collect();
        assert_eq!(read, [&vec![], &b"12\0\x005678".to_vec()]);
        assert_eq!(answers[3].result, Err(Refusal { errno: 5, said: "bad".into() }));
    }

    #[test]
    fn what_was_not_asked_ends_the_connection() {
        for (what, structured, message) in [
            ("another cookie", false, simple(0, 3, b"")),
            ("a wrong beginning", false, vec![9; 16]),
            ("structured without agreement", false, chunk(REPLY_DONE, CHUNK_NONE, 2, &[])),
            ("a simple read", true, simple(0, 1, b"12345678")),
            ("a short read", false, simple(0, 1, b"1234")),
            ("before the range", true, chunk(0, CHUNK_OFFSET_DATA, 1, &data(99, b"1"))),
            ("behind the range", true, chunk(0, CHUNK_OFFSET_DATA, 1, &data(107, b"12"))),
            ("far behind it", true, chunk(0, CHUNK_OFFSET_HOLE, 1, &hole(u64::MAX, u32::MAX))),
            ("a huge hole", true, chunk(0, CHUNK_OFFSET_HOLE, 1, &hole(100, u32::MAX))),
            ("data of a write", true, chunk(0, CHUNK_OFFSET_DATA, 2, &data(0, b"1"))),
            ("in part", true, chunk(REPLY_DONE, CHUNK_OFFSET_DATA, 1, &data(100, b"1234"))),
            ("nothing of a read", true, chunk(REPLY_DONE, CHUNK_NONE, 1, &[])),
            ("a long text", true, chunk(REPLY_DONE, CHUNK_ERROR, 1, &[0, 0, 0, 5, 0xff, 0xff, b'x'])),
            ("nothing, and no end", true, chunk(0, CHUNK_NONE, 1, &[])),
            ("a hole of nothing", true, chunk(0, CHUNK_OFFSET_HOLE, 1, &hole(100, 0))),
            ("errors without an end", true, chunk(0, CHUNK_ERROR, 1, &[0, 0, 0, 5, 0, 0]).repeat(MAX_ERRORS + 1)),
            ("an unknown kind", true, chunk(REPLY_DONE, 77, 1, &[1])),
        ] {
            let decoded = decode(structured, std::slice::from_ref(&message));
            assert!(decoded.is_err(), "{what}: {decoded:?}");
        }
        let twice = chunk(0, CHUNK_OFFSET_DATA, 1, &data(100, b"12345"));
        assert!(decode(true, &[twice.clone(), twice]).is_err(), "more bytes than were asked for");
    }
}
