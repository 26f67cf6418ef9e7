//! The minimal cost of an fsync: its data and one block, a barrier, a superblock, and a barrier.
//! Fsyncs that arrive during one share the next.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use ubtrfs_format::Physical;
use ubtrfs_fuse::Errno;
use ubtrfs_fuse::reply::ReplyEmpty;
use ubtrfs_volume::{Buffer, Device, DeviceWrite, Exclusive, FileDevice, OpenMode, SharedBuffer};

/// A block of the log, or the superblock: 4 KiB.
const BLOCK: u64 = 4096;
/// Data is written from a constant buffer of so many bytes, in as many writes as necessary.
const CHUNK: u64 = 1 << 20;
/// The address of the first write; the block in place of the superblock is below.
const BEGIN: u64 = 1 << 20;
/// The end of the range, from which writes begin again. The range is written beforehand, so that
/// the file system below allocates nothing.
const END: u64 = 65 << 20;

/// The group commit: a thread that makes durable what waits for it, again and again.
pub struct Barrier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    device: FileDevice,
    buffer: SharedBuffer,
    queue: Mutex<Queue>,
    wakes: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<ReplyEmpty>,
    /// Bytes of data for the waiting fsyncs.
    bytes: u64,
    ending: bool,
}

impl Barrier {
    /// Opens the file `backing` for barriers.
    pub fn new(backing: &Path) -> io::Result<Self> {
        let device = FileDevice::open(backing, OpenMode::ReadWrite, Exclusive::No).map_err(io::Error::other)?;
        let buffer = Buffer::zeroed(CHUNK as usize).share();
        let shared = Arc::new(Shared { device, buffer, queue: Mutex::default(), wakes: Condvar::new() });
        shared.write(&mut { BEGIN }, END - BEGIN)?;
        let working = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("barriers".into()).spawn(move || working.work())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Answers `reply` when `bytes` of data and their metadata are durable.
    pub fn wait(&self, bytes: u64, reply: ReplyEmpty) {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push(reply);
        queue.bytes += bytes;
        drop(queue);
        self.shared.wakes.notify_one();
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.shared.queue.lock().ending = true;
        self.shared.wakes.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut at = BEGIN;
        loop {
            let mut queue = self.queue.lock();
            while queue.waiting.is_empty() {
                if queue.ending {
                    return;
                }
                self.wakes.wait(&mut queue);
            }
            let group = std::mem::take(&mut *queue);
            queue.ending = group.ending;
            drop(queue);
            let result = self.write(&mut at, group.bytes.next_multiple_of(BLOCK) + BLOCK);
            for reply in group.waiting {
                match &result {
                    Ok(()) => reply.ok(),
                    Err(_) => reply.error(Errno::IO),
                }
            }
        }
    }

    /// Writes `bytes` at `at`, which it advances, flushes, writes the superblock, and flushes.
    fn write(&self, at: &mut u64, bytes: u64) -> io::Result<()> {
        let mut writes = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let length = left.min(CHUNK);
            if *at + length > END {
                *at = BEGIN;
            }
            writes.push(DeviceWrite { at: Physical(*at), data: self.buffer.slice(0..length as usize) });
            *at += length;
            left -= length;
        }
        self.device.submit(writes).wait()?;
        self.device.flush()?;
        let superblock = DeviceWrite { at: Physical(0), data: self.buffer.slice(0..BLOCK as usize) };
        self.device.submit(vec![superblock]).wait()?;
        self.device.flush()
    }
}
