//! Devices that break the rules. The simulator must notice this, or it proves nothing.

use std::io;
use std::sync::Arc;

use ubtrfs_format::{Physical, SUPERBLOCK_COPIES};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, RecordingDevice, SharedBuffer};

/// The way in which a device lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Barriers do nothing: a crash reorders across them.
    NoBarriers,
    /// The barrier with this number does nothing.
    DroppedBarrier(usize),
    /// The write with this number, not counting superblocks, is lost.
    LostWrite(usize),
    /// All writes of nodes and data reach the device only after the superblock that refers to them.
    SuperblockFirst,
    /// Only the first sector of the primary superblock with this number is written.
    TornSuperblock(usize),
    /// So many primary superblocks from this number on are lost, so that the one before them stays.
    LostSuperblocks {
        /// The number of the first lost one.
        first: usize,
        /// The number of lost ones.
        count: usize,
    },
    /// The write with this number, counting those to space that was written before, is lost, so
    /// that the old content stays.
    StaleBlock(usize),
}

/// A recording device with a lie.
#[derive(Debug)]
pub struct LyingDevice {
    inner: Arc<RecordingDevice>,
    lie: Lie,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: usize,
    lied: bool,
    held: Vec<DeviceWrite>,
    superblock_written: bool,
    written: std::collections::HashSet<u64>,
}

impl LyingDevice {
    /// Makes a device that lies in this way.
    pub fn new(inner: Arc<RecordingDevice>, lie: Lie) -> Self {
        Self { inner, lie, state: Mutex::with_default(Rank::LyingDevice) }
    }

    /// Returns whether the device has lied.
    pub fn has_lied(&self) -> bool {
        self.state.lock().lied
    }

    /// Decides about a write: returns what is written now, if anything.
    fn pass(&self, state: &mut State, write: DeviceWrite) -> Option<DeviceWrite> {
        let is_superblock = SUPERBLOCK_COPIES.contains(&write.at);
        let reused = !state.written.insert(write.at.0);
        let counts = match self.lie {
            Lie::SuperblockFirst => {
                if is_superblock {
                    state.superblock_written = true;
                    return Some(write);
                }
                state.lied = true;
                state.held.push(write);
                return None;
            }
            Lie::LostWrite(_) => !is_superblock,
            Lie::TornSuperblock(_) => write.at == SUPERBLOCK_COPIES[0],
            Lie::LostSuperblocks { first, count } if write.at == SUPERBLOCK_COPIES[0] => {
                let is_lost = (first..first + count).contains(&state.seen);
                state.seen += 1;
                state.lied |= is_lost;
                return (!is_lost).then_some(write);
            }
            Lie::LostSuperblocks { .. } | Lie::NoBarriers | Lie::DroppedBarrier(_) => false,
            Lie::StaleBlock(_) => !is_superblock && reused,
        };
        let (Lie::LostWrite(number) | Lie::TornSuperblock(number) | Lie::StaleBlock(number)) = self.lie else {
            return Some(write);
        };
        let torn = matches!(self.lie, Lie::TornSuperblock(_)).then(|| self.torn(&write));
        // If a superblock only points to another log, all of its changes may be in the part that is
        // written.
        if !counts || torn.as_ref().is_some_and(|torn| torn[..] == write.data[..]) {
            return Some(write);
        }
        state.seen += 1;
        if state.seen != number + 1 {
            return Some(write);
        }
        state.lied = true;
        torn.map(|bytes| DeviceWrite { at: write.at, data: SharedBuffer::from(bytes) })
    }

    /// Returns what the device has after the first sector of a write.
    fn torn(&self, write: &DeviceWrite) -> Vec<u8> {
        let mut bytes = vec![0; write.data.len()];
        let read = self.inner.read_at(write.at, &mut bytes);
        debug_assert!(read.is_ok(), "a recording device can be read");
        let sector = 512.min(bytes.len());
        bytes[..sector].copy_from_slice(&write.data[..sector]);
        bytes
    }
}

impl Device for LyingDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let mut state = self.state.lock();
        let writes = writes.into_iter().filter_map(|write| self.pass(&mut state, write)).collect();
        self.inner.submit(writes)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if self.lie == Lie::NoBarriers {
            state.lied = true;
            return Ok(());
        }
        if let Lie::DroppedBarrier(number) = self.lie {
            state.seen += 1;
            if state.seen == number + 1 {
                state.lied = true;
                return Ok(());
            }
        }
        self.inner.flush()?;
        if std::mem::take(&mut state.superblock_written) {
            let held = std::mem::take(&mut state.held);
            self.inner.submit(held).wait()?;
            self.inner.flush()?;
        }
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.inner.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ubtrfs_volume::Fate;
    use ubtrfs_volume::conformance::{Promise, Subject, assert_conforms, broken_promises};

    use super::*;

    fn subject(lie: Lie) -> Subject {
        let recording = Arc::new(RecordingDevice::new(vec![0; 2 << 20].into()));
        let device = LyingDevice::new(recording.clone(), lie);
        let left = move || Arc::new(recording.crash_state(recording.len(), &mut |_| Fate::Lost)) as Arc<dyn Device>;
        Subject::new(Arc::new(device)).after_crash(left).timeout(Duration::from_millis(500))
    }

    #[test]
    fn a_device_that_has_not_lied_yet_conforms() {
        assert_conforms(subject(Lie::DroppedBarrier(usize::MAX - 1)));
    }

    #[test]
    fn lies_are_broken_promises() {
        let broken = |lie| broken_promises(subject(lie)).iter().map(|it| it.promise).collect::<Vec<_>>();
        assert_eq!(broken(Lie::NoBarriers), [Promise::Flush]);
        assert_eq!(broken(Lie::LostWrite(0)), [Promise::Reads]);
        assert!(broken(Lie::SuperblockFirst).contains(&Promise::Writes));
    }
}
