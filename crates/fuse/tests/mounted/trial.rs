//! Decides which requests a [`MemFs`](crate::memfs::MemFs) serves at once where they arrive over
//! rings: it leaves some, tries some and finds that they have to wait, and serves the rest.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ubtrfs_fuse::reply::{FileRead, FileReads, ReplyAttr, ReplyEntry};
use ubtrfs_fuse::{Errno, Operation, Request};

thread_local! {
    static POSTPONING: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub struct Trial {
    requests: AtomicU32,
    /// Answers that the transport was to read from files.
    pub from_files: AtomicU32,
    pub postponed: AtomicU32,
}

/// A reply whose request can be postponed.
pub trait Again {
    fn again(self);
}

impl Again for ReplyEntry {
    fn again(self) {
        self.error(Errno::AGAIN);
    }
}

impl Again for ReplyAttr {
    fn again(self) {
        self.error(Errno::AGAIN);
    }
}

impl Trial {
    pub fn try_nonblocking(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        if matches!(request.op, Operation::SyncFs | Operation::Destroy) {
            return;
        }
        match self.requests.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => {}
            1 => assert!(serve()),
            _ => {
                POSTPONING.set(true);
                let before = self.postponed.load(Ordering::Relaxed);
                let postponed = !serve();
                assert!(!postponed || self.postponed.load(Ordering::Relaxed) > before);
                POSTPONING.set(false);
            }
        }
    }

    /// Returns an answer of these bytes that is read from a file in two parts. Three of four times
    /// this fails, since the content is wrong, is cut short, or can't be read.
    pub fn file_reads(&self, bytes: &[u8]) -> FileReads {
        let way = self.from_files.fetch_add(1, Ordering::Relaxed) % 4;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(if way == 2 { &bytes[..bytes.len().saturating_sub(1)] } else { bytes }).unwrap();
        let file = Arc::new(if way == 3 { File::open("/").unwrap() } else { file });
        let half = bytes.len() / 2;
        let read = |range: Range<usize>| FileRead { file: Arc::clone(&file), at: range.start as u64, range };
        let reads = vec![read(0..half), read(half..bytes.len())];
        let expected = bytes.to_vec();
        let check = move |buffer: &[u8]| {
            assert!(buffer[..expected.len()] == expected);
            way != 1
        };
        FileReads { length: bytes.len(), reads, check: Box::new(check) }
    }

    /// Returns `reply`, unless the request has to come again.
    pub fn unless_postponed<R: Again>(&self, reply: R) -> Option<R> {
        if POSTPONING.get() {
            self.postponed.fetch_add(1, Ordering::Relaxed);
            reply.again();
            return None;
        }
        Some(reply)
    }
}
