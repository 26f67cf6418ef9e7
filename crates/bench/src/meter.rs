//! The costs of a piece of work: processor time, and bytes to the device.

use crate::failure::Result;
use crate::machine;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

/// Costs of a piece of work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Processor seconds of this program and the programs it ran.
    pub client: f64,
    /// Processor seconds of the serving process, if there is one.
    pub daemon: Option<f64>,
    /// Processor seconds of the whole machine: the only figure that includes the kernel's threads.
    pub machine: f64,
    /// Bytes that the file system wrote to its device until all was durable.
    pub device: Option<u64>,
    /// Bytes that all writers wrote to the disk below the images.
    pub disk: Option<u64>,
}

struct Reading {
    client: f64,
    daemon: Option<f64>,
    machine: f64,
    device: Option<u64>,
    disk: Option<u64>,
}

impl Reading {
    /// Reads all counters. With `first`, those that take long to read are read before the clocks,
    /// otherwise after them.
    fn take(mounted: &Mounted, first: bool) -> Self {
        let disk = machine::disk_below(mounted.directory().parent().unwrap_or(mounted.directory()));
        let slow = || (mounted.device_written(), disk.as_deref().and_then(machine::disk_written));
        let early = first.then(slow);
        let client = machine::own_cpu();
        let daemon = mounted.daemon().and_then(machine::process_cpu);
        let machine = machine::machine_cpu();
        let (device, disk) = early.unwrap_or_else(slow);
        Self { client, daemon, machine, device, disk }
    }
}

/// Does some work and returns its costs. The sync that follows counts only for the bytes.
pub fn metered<T>(mounted: &Mounted, work: impl FnOnce() -> Result<T>) -> Result<(T, Usage)> {
    let before = Reading::take(mounted, true);
    let result = work()?;
    let after = Reading::take(mounted, false);
    mounted.sync()?;
    let synced = Reading::take(mounted, false);
    let bytes = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
    let usage = Usage {
        client: after.client - before.client,
        daemon: after.daemon.zip(before.daemon).map(|(to, from)| to - from),
        machine: after.machine - before.machine,
        device: bytes(before.device, synced.device),
        disk: bytes(before.disk, synced.disk),
    };
    Ok((result, usage))
}

impl Usage {
    /// Adds the processor time of each of `operations`, in microseconds.
    pub fn per_operation(&self, measured: &mut Measured, operations: f64) {
        let each = |seconds: f64| seconds * 1e6 / operations.max(1.0);
        measured.add("cpu client", each(self.client), "µs/op", Better::Lower);
        if let Some(daemon) = self.daemon {
            measured.add("cpu daemon", each(daemon), "µs/op", Better::Lower);
        }
        measured.add("cpu machine", each(self.machine), "µs/op", Better::Lower);
    }

    /// Adds the bytes that were written below for each byte that programs wrote.
    pub fn amplification(&self, measured: &mut Measured, written: f64) {
        let each = |bytes: u64| bytes as f64 / written.max(1.0);
        if let Some(device) = self.device {
            measured.add("bytes to device", each(device), "per byte", Better::Lower);
        }
        if let Some(disk) = self.disk {
            measured.add("bytes to disk", each(disk), "per byte", Better::Lower);
        }
    }
}
