//! A device that is far away. Sequential reads of it are enlarged, since a round trip takes longer
//! than the transfer of the additional bytes.
//!
//! Files that were written in sequence are adjacent on the device, and programs that walk over them
//! read adjacent places. A read that begins near the end of an earlier one is taken to be part of
//! such a walk, and also reads the bytes behind it, twice as many each time. Random reads are not
//! enlarged.
//!
//! What was written is kept, too, since programs read again what they have just written, and small
//! files are not in the kernel's page cache then. A scrub reads from the device only
//! (`begin_comparing`).
//!
//! No read returns data that was read before a write of the same place had ended (invariant 33).
//! What is kept of a place is dropped when a write of it begins and again when the write has ended;
//! what is being read then is not kept. What was written is kept if no other write of the place is
//! in flight. Superblocks are not kept, since they show whether somebody else writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_threads::{Mutex, Rank};

use crate::deferred_writes::Submit;
use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, check_range};
use crate::error::WriteError;

/// A read continues an earlier one if it begins at most this many bytes behind it.
const NEAR: u64 = 256 << 10;
/// The least and the most bytes that one read of a walk takes.
const FIRST: u64 = 64 << 10;
const MAX: u64 = 1 << 20;
/// How many bytes are kept.
const MAX_KEPT: u64 = 32 << 20;
/// How many walks are followed at a time.
const WALKS: usize = 16;

/// A device with read-ahead and a cache.
#[derive(Debug)]
pub struct ReadAheadDevice {
    device: Arc<dyn Device>,
    /// The address at which the volume begins. Its superblocks are not kept.
    start: u64,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Pieces by their start address; they don't overlap.
    pieces: BTreeMap<u64, Piece>,
    /// When each piece was used last, and its start address.
    by_use: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// Counts reads and writes.
    clock: u64,
    walks: Vec<Walk>,
    /// Ranges that are being read in order to be kept, each with whether it still may be kept.
    reading: BTreeMap<u64, (Range<u64>, bool)>,
    /// Writes in flight.
    writing: BTreeMap<u64, Vec<Range<u64>>>,
    /// How many comparisons are running. They need the content of the device, so no write is kept
    /// meanwhile.
    comparisons: usize,
}

#[derive(Debug)]
struct Piece {
    data: Vec<u8>,
    /// When it was used last.
    used: u64,
}

/// Reads that follow each other.
#[derive(Debug)]
struct Walk {
    end: u64,
    /// How many bytes the next read takes; 0 at first.
    window: u64,
    used: u64,
}

impl ReadAheadDevice {
    /// Wraps a device that is far away, on which a volume begins at `start`.
    pub fn new(device: Arc<dyn Device>, start: u64) -> Self {
        Self { device, start, kept: Arc::new(Mutex::with_default(Rank::ReadAheadKept)) }
    }

    /// Returns the start addresses of superblocks.
    fn superblocks(&self) -> impl Iterator<Item = u64> {
        SUPERBLOCK_COPIES.iter().map(|copy| copy.0.saturating_add(self.start))
    }

    fn is_of_a_superblock(&self, range: &Range<u64>) -> bool {
        self.superblocks().any(|at| at < range.end && range.start < at.saturating_add(SUPERBLOCK_SIZE as u64))
    }

    /// Reads a piece, and keeps it if nothing was written there meanwhile.
    fn read_piece(&self, range: Range<u64>, number: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut data = vec![0; (range.end - range.start) as usize];
        let result = self.device.read_at(Physical(range.start), &mut data);
        let mut kept = self.kept.lock();
        let may_be_kept = kept.reading.remove(&number).is_some_and(|(_, may_be_kept)| may_be_kept);
        result?;
        buf.copy_from_slice(&data[..buf.len()]);
        if may_be_kept {
            assert!(!self.is_of_a_superblock(&range), "invariant 33: a superblock is kept");
            kept.insert(range.start, data);
        }
        Ok(())
    }

    fn submit_by(&self, writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        let ranges: Vec<_> = writes.iter().map(range_of).collect();
        let to_keep = writes.iter().filter(|write| !self.is_of_a_superblock(&range_of(write))).cloned().collect();
        let number = {
            let mut kept = self.kept.lock();
            kept.forget(&ranges);
            kept.clock += 1;
            let number = kept.clock;
            kept.writing.insert(number, ranges);
            number
        };
        let ticket = Some(how.submit(&*self.device, writes));
        DeviceTicket::new(Keeping { ticket, number, to_keep, kept: Arc::clone(&self.kept) })
    }
}

impl Device for ReadAheadDevice {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size())?;
        let range = at.0..at.0 + buf.len() as u64;
        if self.is_of_a_superblock(&range) {
            return self.device.read_at(at, buf);
        }
        let mut kept = self.kept.lock();
        kept.clock += 1;
        let is_there = kept.show(at.0, buf);
        let window = kept.note_read(&range, is_there);
        if is_there {
            return Ok(());
        }
        let superblocks = self.superblocks().filter(|at| *at >= range.end);
        let end = superblocks.fold(self.size().min(range.start + window), u64::min);
        if end <= range.end {
            drop(kept);
            return self.device.read_at(at, buf);
        }
        let number = kept.clock;
        kept.reading.insert(number, (range.start..end, true));
        drop(kept);
        self.read_piece(range.start..end, number, buf).or_else(|_| self.device.read_at(at, buf))
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Usual)
    }

    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Fua)
    }

    fn has_fua(&self) -> bool {
        self.device.has_fua()
    }

    fn reads_ahead(&self) -> usize {
        self.device.reads_ahead()
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn protect(&self) -> io::Result<()> {
        self.device.protect()
    }

    fn release(&self) {
        self.device.release();
    }

    fn take_writes_again(&self) {
        self.device.take_writes_again();
    }

    fn begin_comparing(&self) {
        let mut kept = self.kept.lock();
        kept.comparisons += 1;
        // This includes what is being read now, since the device may have read it before.
        let all = 0..u64::MAX;
        kept.forget(std::slice::from_ref(&all));
    }

    fn end_comparing(&self) {
        let mut kept = self.kept.lock();
        kept.comparisons = kept.comparisons.saturating_sub(1);
    }

    fn stop_waiting(&self) {
        self.device.stop_waiting();
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        let range = at.0..at.0.saturating_add(len);
        self.kept.lock().forget(std::slice::from_ref(&range));
        let done = self.device.discard(at, len);
        self.kept.lock().forget(std::slice::from_ref(&range));
        done
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        self.device.data_ranges()
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

impl Kept {
    /// Copies kept bytes from an address on. Returns false if not all of them are kept.
    fn show(&mut self, at: u64, buf: &mut [u8]) -> bool {
        let clock = self.clock;
        let Some((start, piece)) = self.pieces.range_mut(..=at).next_back() else { return false };
        let skip = (at - start) as usize;
        let Some(data) = piece.data.get(skip..).and_then(|data| data.get(..buf.len())) else { return false };
        buf.copy_from_slice(data);
        self.by_use.remove(&(piece.used, *start));
        piece.used = clock;
        self.by_use.insert((clock, *start));
        true
    }

    /// Notes a read, and returns how many bytes are best read instead.
    fn note_read(&mut self, range: &Range<u64>, is_there: bool) -> u64 {
        let used = self.clock;
        let follows = |walk: &&mut Walk| walk.end <= range.start && range.start - walk.end <= NEAR;
        if let Some(walk) = self.walks.iter_mut().find(follows) {
            (walk.end, walk.used) = (range.end, used);
            if !is_there {
                walk.window = (2 * walk.window).clamp(FIRST, MAX);
            }
            return walk.window;
        }
        let new = Walk { end: range.end, window: 0, used };
        if self.walks.len() < WALKS {
            self.walks.push(new);
        } else if let Some(oldest) = self.walks.iter_mut().min_by_key(|walk| walk.used) {
            *oldest = new;
        }
        0
    }

    fn insert(&mut self, at: u64, data: Vec<u8>) {
        let end = at + data.len() as u64;
        self.drop_range(&(at..end));
        self.bytes += data.len() as u64;
        self.by_use.insert((self.clock, at));
        self.pieces.insert(at, Piece { data, used: self.clock });
        while self.bytes > MAX_KEPT {
            let Some((_, oldest)) = self.by_use.first().copied() else { break };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, at: u64) {
        if let Some(piece) = self.pieces.remove(&at) {
            self.by_use.remove(&(piece.used, at));
            self.bytes -= piece.data.len() as u64;
        }
    }

    /// Notes that writes have ended, of which those in `done` succeeded.
    fn written(&mut self, number: u64, done: &[DeviceWrite]) {
        let ranges = self.writing.remove(&number).unwrap_or_default();
        self.forget(&ranges);
        let done = if self.comparisons == 0 { done } else { &[] };
        for write in done {
            let range = range_of(write);
            let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
            if !self.writing.values().flatten().any(overlaps) {
                self.clock += 1;
                self.insert(range.start, write.data.to_vec());
            }
        }
    }

    /// Forgets these ranges, also those parts of them that are being read.
    fn forget(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            self.drop_range(range);
            for (reading, may_be_kept) in self.reading.values_mut() {
                *may_be_kept &= reading.end <= range.start || range.end <= reading.start;
            }
        }
    }

    fn drop_range(&mut self, range: &Range<u64>) {
        let from = self.pieces.range(..=range.start).next_back().map_or(range.start, |(at, _)| *at);
        let overlaps = |at: u64, piece: &Piece| at < range.end && range.start < at + piece.data.len() as u64;
        let touched = self.pieces.range(from..range.end.max(from)).filter(|(at, piece)| overlaps(**at, piece));
        let touched: Vec<u64> = touched.map(|(at, _)| *at).collect();
        for at in touched {
            self.remove(at);
        }
    }
}

fn range_of(write: &DeviceWrite) -> Range<u64> {
    write.at.0..write.at.0.saturating_add(write.data.len() as u64)
}

/// Writes in flight. When they have ended, what was read meanwhile is forgotten, and what was
/// written is kept.
#[derive(Debug)]
struct Keeping {
    /// `None` once it was waited for.
    ticket: Option<DeviceTicket>,
    number: u64,
    to_keep: Vec<DeviceWrite>,
    kept: Arc<Mutex<Kept>>,
}

impl Keeping {
    fn finish(&mut self) -> Result<(), WriteError> {
        let Some(ticket) = self.ticket.take() else { return Ok(()) };
        let result = ticket.wait();
        let done = if result.is_ok() { &self.to_keep[..] } else { &[] };
        self.kept.lock().written(self.number, done);
        result
    }
}

impl PendingWrites for Keeping {
    fn wait(mut self: Box<Self>) -> Result<(), WriteError> {
        self.finish()
    }

    fn is_done(&self) -> bool {
        self.ticket.as_ref().is_none_or(DeviceTicket::is_done)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        // Nobody has waited for the writes, so their end has to be awaited here.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Subject, assert_conforms};
    use crate::{FaultyDevice, Lasting, MemoryDevice, Operation, Rng, SharedBuffer};

    const SIZE: usize = 8 << 20;

    fn device() -> (Arc<MemoryDevice>, ReadAheadDevice) {
        let memory = Arc::new(MemoryDevice::new(SIZE));
        (memory.clone(), ReadAheadDevice::new(memory, 0))
    }

    /// A device whose writes take effect only when they are waited for.
    #[derive(Debug)]
    struct Late(Arc<MemoryDevice>);

    #[derive(Debug)]
    struct LateWrites(Arc<MemoryDevice>, Option<Vec<DeviceWrite>>);

    impl LateWrites {
        fn write(&mut self) -> Result<(), WriteError> {
            self.1.take().map_or(Ok(()), |writes| self.0.submit(writes).wait())
        }
    }

    impl PendingWrites for LateWrites {
        fn wait(mut self: Box<Self>) -> Result<(), WriteError> {
            self.write()
        }

        fn is_done(&self) -> bool {
            false
        }
    }

    impl Drop for LateWrites {
        fn drop(&mut self) {
            let _ = self.write();
        }
    }

    impl Device for Late {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
            self.0.read_at(at, buf)
        }

        fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
            DeviceTicket::new(LateWrites(Arc::clone(&self.0), Some(writes)))
        }

        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }

        fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
            self.0.discard(at, len)
        }

        fn counters(&self) -> DeviceCounters {
            self.0.counters()
        }
    }

    #[test]
    fn a_device_with_late_writes_conforms() {
        assert_conforms(Subject::new(Arc::new(Late(Arc::new(MemoryDevice::new(2 << 20))))));
    }

    fn read(device: &ReadAheadDevice, at: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        device.read_at(Physical(at), &mut buf).unwrap();
        buf
    }

    fn write(device: &dyn Device, at: u64, byte: u8, len: usize) {
        let data = SharedBuffer::from(vec![byte; len]);
        device.submit(vec![DeviceWrite { at: Physical(at), data }]).wait().unwrap();
    }

    #[test]
    fn reads_that_follow_each_other_are_few() {
        let (memory, device) = device();
        for at in (1 << 20..4 << 20).step_by(8192) {
            read(&device, at, 4096);
        }
        assert!(memory.counters().reads < 12, "{:?}", memory.counters());
    }

    #[test]
    fn comparisons_see_what_is_on_the_device() {
        // A distance that read-ahead of one place does not reach.
        const FAR: u64 = 2 << 20;
        let (memory, device) = device();
        let at = FAR;
        let pending = device.submit(vec![DeviceWrite { at: Physical(3 * FAR), data: vec![1; 4096].into() }]);
        write(&device, at, 1, 4096);
        // The second comparison goes on when the first one ends.
        device.begin_comparing();
        device.begin_comparing();
        pending.wait().unwrap();
        device.end_comparing();
        write(&device, 2 * FAR, 1, 4096);
        for lost in [at, 2 * FAR, 3 * FAR] {
            write(&*memory, lost, 2, 4096);
            assert_eq!(read(&device, lost, 4096)[0], 2, "{lost}");
        }
        device.end_comparing();
        write(&device, at, 3, 4096);
        write(&*memory, at, 4, 4096);
        assert_eq!(read(&device, at, 4096)[0], 3, "a write is kept again");
    }

    /// Of invariant 33: superblocks are read each time.
    #[test]
    fn what_was_written_is_read_without_the_device() {
        let (memory, device) = device();
        let write = |at: u64, byte: u8| DeviceWrite { at: Physical(at), data: vec![byte; 8192].into() };
        let superblock = SUPERBLOCK_COPIES[0].0;
        device.submit(vec![write(2 << 20, 1), write(4 << 20, 2), write(superblock, 3)]).wait().unwrap();
        let older = device.submit(vec![write(2 << 20, 4)]);
        // A write has also ended when its ticket was dropped.
        drop(device.submit(vec![write(4 << 20, 5)]));
        older.wait().unwrap();
        for (at, byte, reads) in [(2 << 20, 4, 0), ((4 << 20) + 4096, 5, 0), (superblock, 3, 1)] {
            let before = memory.counters().reads;
            assert_eq!(read(&device, at, 4096), [byte; 4096], "at {at}");
            assert_eq!(memory.counters().reads, before + reads, "at {at}");
        }
        let kept = device.kept.lock();
        assert!(kept.writing.is_empty() && kept.by_use.len() == kept.pieces.len());
    }

    #[test]
    fn reads_that_jump_about_take_nothing_along() {
        let (memory, device) = device();
        let mut random = Rng::new(1);
        for _ in 0..4 {
            read(&device, (2 << 20) + random.next_u64() % 4 * (1 << 20), 4096);
        }
        assert!(memory.counters().read_bytes <= 4 * 4096 + FIRST, "{:?}", memory.counters());
    }

    /// This is invariant 33.
    #[test]
    fn what_was_written_is_shown_whatever_was_read_before_or_meanwhile() {
        let memory = Arc::new(MemoryDevice::new(SIZE));
        let device = ReadAheadDevice::new(Arc::new(Late(memory.clone())), 0);
        let mut random = Rng::new(7);
        let mut model = vec![0; SIZE];
        let mut asked = 0;
        for step in 0..20_000 {
            let at = (random.below(64) * 4096 + (1 << 20)) as usize;
            let len = 4096 * (1 + random.below(4) as usize);
            match random.below(8) {
                0 => {
                    let data = SharedBuffer::from(vec![step as u8; len]);
                    let ticket = device.submit(vec![DeviceWrite { at: Physical(at as u64), data }]);
                    read(&device, at as u64 - 4096, 4096);
                    if random.below(2) == 0 {
                        ticket.wait().unwrap();
                    } else {
                        drop(ticket);
                    }
                    model[at..at + len].fill(step as u8);
                    asked += 1;
                }
                1 => {
                    device.discard(Physical(at as u64), 4096).unwrap();
                    write(&device, at as u64, 9, 4096);
                    model[at..at + 4096].fill(9);
                }
                _ => {
                    assert!(read(&device, at as u64, len) == model[at..at + len], "step {step}");
                    asked += 1;
                }
            }
        }
        assert!(memory.counters().reads < asked, "nothing was kept");
    }

    #[test]
    fn superblocks_are_read_each_time() {
        let (memory, device) = device();
        let at = SUPERBLOCK_COPIES[0].0;
        for start in (0..256 << 10).step_by(4096).filter(|start| *start != at) {
            read(&device, start, 4096);
        }
        write(&*memory, at, 5, SUPERBLOCK_SIZE);
        assert_eq!(read(&device, at, SUPERBLOCK_SIZE), [5; SUPERBLOCK_SIZE]);
        assert!(device.kept.lock().pieces.len() > 1, "nothing is kept on either side of it");
    }

    #[test]
    fn what_is_taken_along_and_can_not_be_read_fails_no_read() {
        let memory = Arc::new(MemoryDevice::new(SIZE));
        let faulty = Arc::new(FaultyDevice::new(memory));
        let device = ReadAheadDevice::new(faulty.clone(), 0);
        read(&device, 1 << 20, 4096);
        faulty.fail(Operation::Read, 0, libc::EIO, Lasting::Once);
        let next = (1 << 20) + 4096;
        assert_eq!(read(&device, next, 4096), [0; 4096]);
        assert!(device.kept.lock().reading.is_empty());
        faulty.fail(Operation::Read, 0, libc::EIO, Lasting::Forever);
        assert!(device.read_at(Physical(next + 4096), &mut [0; 4096]).is_err());
    }

    #[test]
    fn no_more_is_kept_than_a_bound() {
        let memory = Arc::new(MemoryDevice::new(80 << 20));
        let device = ReadAheadDevice::new(memory, 0);
        for at in (1 << 20..79 << 20).step_by(16 << 10) {
            read(&device, at, 16 << 10);
        }
        let kept = device.kept.lock();
        assert!(
            kept.bytes <= MAX_KEPT
                && kept.bytes == kept.pieces.values().map(|piece| piece.data.len() as u64).sum::<u64>()
        );
        assert!(kept.walks.len() <= WALKS && kept.reading.is_empty());
    }
}
