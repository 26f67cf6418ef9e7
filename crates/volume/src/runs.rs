//! Joining writes to runs: neighbours on the device become one vectored write.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use ubtrfs_format::Physical;

use crate::buffer::{Buffer, SharedBuffer, is_aligned};
use crate::device::DeviceWrite;
use crate::error::WriteError;

/// The most bytes of a run.
const MAX_RUN_BYTES: usize = 1 << 20;
/// The most parts of a run.
const MAX_RUN_PARTS: usize = 64;

/// Bytes for one address of a device.
#[derive(Debug)]
pub(crate) struct Run {
    /// The address in bytes.
    pub(crate) at: u64,
    /// The bytes, in order.
    pub(crate) parts: Vec<SharedBuffer>,
    /// How many bytes there are in all.
    pub(crate) len: usize,
}

impl Run {
    /// Returns the error of a run that could not be written.
    pub(crate) fn failed(&self, source: io::Error) -> WriteError {
        WriteError { at: Physical(self.at), len: self.len, source }
    }

    /// Writes the run from its byte `from` on, and waits.
    pub(crate) fn write_from(&self, fd: impl AsFd, from: usize) -> io::Result<()> {
        let mut done = from;
        while done < self.len {
            let mut skip = done;
            let slices: Vec<IoSlice<'_>> = self
                .parts
                .iter()
                .filter_map(|part| {
                    let start = skip.min(part.len());
                    skip -= start;
                    Some(&part[start..]).filter(|rest| !rest.is_empty()).map(IoSlice::new)
                })
                .collect();
            match rustix::io::pwritev(&fd, &slices, self.at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Joins writes that are adjacent both in the list and on the device. With `direct`, parts whose
/// memory is not aligned are copied to memory that is.
pub(crate) fn join(writes: Vec<DeviceWrite>, direct: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for write in writes.into_iter().filter(|write| !write.data.is_empty()) {
        let len = write.data.len();
        let data = if direct && !is_aligned(&write.data) { Buffer::from(&*write.data).share() } else { write.data };
        match runs.last_mut() {
            Some(run)
                if run.at + run.len as u64 == write.at.0
                    && run.len + len <= MAX_RUN_BYTES
                    && run.parts.len() < MAX_RUN_PARTS =>
            {
                run.parts.push(data);
                run.len += len;
            }
            _ => runs.push(Run { at: write.at.0, parts: vec![data], len }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, len: usize) -> DeviceWrite {
        DeviceWrite { at: Physical(at), data: Buffer::zeroed(len).share() }
    }

    #[test]
    fn neighbours_are_joined_up_to_the_limit() {
        let runs = join(vec![write(0, 4096), write(4096, 8192), write(20480, 4096), write(24576, 2 << 20)], true);
        let shape: Vec<_> = runs.iter().map(|run| (run.at, run.len, run.parts.len())).collect();
        assert_eq!(shape, [(0, 12288, 2), (20480, 4096, 1), (24576, 2 << 20, 1)]);
        assert_eq!(join((0..200).map(|n| write(n * 4096, 4096)).collect(), true).len(), 4);
    }

    #[test]
    fn the_rest_of_a_run_is_written() {
        let file = tempfile::tempfile().unwrap();
        let data = |byte: u8| SharedBuffer::from(vec![byte; 10]);
        let run = Run { at: 5, parts: vec![data(1), data(2), data(3)], len: 30 };
        run.write_from(&file, 15).unwrap();
        let mut bytes = [9; 35];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes[..20], [0; 20]);
        assert_eq!(bytes[20..25], [2; 5]);
        assert_eq!(bytes[25..], [3; 10]);
    }
}
