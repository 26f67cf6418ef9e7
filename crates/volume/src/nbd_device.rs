//! Exports of NBD servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_nbd::{Bytes, Client, Lease, Options, Uri};

use crate::buffer::ALIGNMENT;
use crate::device::{CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};
use crate::device_part::DevicePart;
use crate::error::{Error, Result, WriteError};
use crate::file_device::OpenMode;
use crate::runs;
use crate::write_group::WriteGroup;

/// How long requests wait by default for a server that is away.
pub const USUAL_TIMEOUT: Duration = Duration::from_secs(120);
/// How many connections are used, if the server lets several serve one export.
const CONNECTIONS: usize = 4;
/// How many reads are in flight at a time before what they read is needed.
const READS_AHEAD: usize = 16;

/// A callback that gets the result of a write.
type WriteDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// An export of an NBD server.
#[derive(Debug)]
pub struct NbdDevice {
    client: Client,
    /// The size in bytes, rounded down to whole blocks.
    size: u64,
    counters: CounterCells,
}

impl NbdDevice {
    /// Connects to the export that the URI names. The volume is in a part of it. After the server
    /// was away, the volume's superblock and the writer's mark show whether the export is still the
    /// same. The threads behind it do not survive a `fork`: open after it.
    pub fn open(uri: &str, mode: OpenMode, part: DevicePart, timeout: Option<Duration>) -> Result<Self> {
        Self::open_leased(uri, mode, part, timeout, None)
    }

    /// As [`Self::open`], but sends nothing any more once the lease has ended.
    pub(crate) fn open_leased(
        uri: &str,
        mode: OpenMode,
        part: DevicePart,
        timeout: Option<Duration>,
        lease: Option<Arc<Lease>>,
    ) -> Result<Self> {
        let failed = |error: ubtrfs_nbd::Error| {
            let kind = match &error {
                ubtrfs_nbd::Error::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
                error => error.io().map_or(io::ErrorKind::Other, io::Error::kind),
            };
            Error::Open { path: Uri::without_secrets(uri).into(), source: io::Error::new(kind, error) }
        };
        let read_only = mode == OpenMode::ReadOnly;
        let superblock = part.start.saturating_add(SUPERBLOCK_COPIES[0].0);
        let mark = superblock.saturating_add(SUPERBLOCK_SIZE as u64);
        // A reader does not care who writes.
        let witnesses = if read_only { vec![superblock] } else { vec![superblock, mark] };
        let timeout = timeout.unwrap_or(USUAL_TIMEOUT);
        let options = Options { read_only, timeout, connections: CONNECTIONS, witnesses, lease };
        let client = Client::open(Uri::parse(uri).map_err(failed)?, &options).map_err(failed)?;
        let size = client.size() - client.size() % ALIGNMENT as u64;
        Ok(Self { client, size, counters: CounterCells::default() })
    }
}

impl NbdDevice {
    fn submit_by(&self, writes: Vec<DeviceWrite>, write: impl Fn(u64, &[Bytes], WriteDone)) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        let runs = runs::join(writes, false);
        if let (true, Some(run)) = (self.is_read_only(), runs.first()) {
            return DeviceTicket::done(Err(run.failed(io::ErrorKind::ReadOnlyFilesystem.into())));
        }
        let group = WriteGroup::new(runs.len());
        for run in runs {
            self.counters.write(run.len);
            let (at, len) = (Physical(run.at), run.len);
            let parts: Vec<Bytes> = run.parts.into_iter().map(Bytes::from_owner).collect();
            let group = Arc::clone(&group);
            let done = move |result: io::Result<()>| {
                group.finish(result.map_err(|source| WriteError { at, len, source }));
            };
            write(at.0, &parts, Box::new(done));
        }
        group.ticket()
    }
}

impl Device for NbdDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.client.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        self.client.read(at.0, buf)?;
        self.counters.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, |at, parts, done| self.client.write(at, parts, done))
    }

    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, |at, parts, done| self.client.write_fua(at, parts, done))
    }

    fn submit_urgently(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, |at, parts, done| self.client.write_urgently(at, parts, done))
    }

    fn has_fua(&self) -> bool {
        self.client.has_fua()
    }

    fn reads_ahead(&self) -> usize {
        READS_AHEAD
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        self.client.flush()
    }

    fn take_writes_again(&self) {
        self.client.write_again();
    }

    fn stop_waiting(&self) {
        self.client.stop_waiting();
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        if self.is_read_only() {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if !self.client.can_trim() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.counters.discard();
        self.client.trim(at.0, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}
