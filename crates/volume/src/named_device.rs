//! Opening a device by its name: a path, or the URI of an export. All commands open devices here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_nbd::{BootTime, Lease, Uri};

use crate::device::Device;
use crate::device_part::DevicePart;
use crate::error::{Error, Result};
use crate::file_device::{Exclusive, FileDevice, OpenMode};
use crate::nbd_device::NbdDevice;
use crate::protected_device::ProtectedDevice;
use crate::read_ahead_device::ReadAheadDevice;
use crate::writer_lease::{Refusal, Timing};
#[cfg(feature = "testing")]
use crate::writer_mark::WriterMark;

/// How a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The access.
    pub mode: OpenMode,
    /// Which others are excluded. For an export these are other writers.
    pub exclusive: Exclusive,
    /// The part that is used.
    pub part: DevicePart,
    /// How long requests wait for the server of an export that is away.
    pub timeout: Option<Duration>,
}

/// Opens the device of this name: an NBD URI, or the path of an image file or block device.
pub fn open_named(name: &Path, how: Opening) -> Result<Arc<dyn Device>> {
    let Opening { mode, exclusive, part, timeout } = how;
    if is_remote(name) {
        let is_protected = mode == OpenMode::ReadWrite && exclusive != Exclusive::No;
        let lease = is_protected.then(|| Arc::new(Lease::new(Arc::new(BootTime))));
        let uri = name.to_string_lossy();
        let mut device: Arc<dyn Device> = Arc::new(NbdDevice::open_leased(&uri, mode, part, timeout, lease.clone())?);
        if is_protected {
            let protected =
                ProtectedDevice::new(device, part.start, Timing::USUAL, lease).map_err(|refusal| match refusal {
                    Refusal::Held(by) => Error::Held { path: name.into(), by: Some(by) },
                    Refusal::Failed(source) => Error::Open { path: name.into(), source },
                })?;
            device = Arc::new(protected);
        }
        return Ok(Arc::new(ReadAheadDevice::new(device, part.start)));
    }
    FileDevice::open_part(name, mode, exclusive, part).map(|device| Arc::new(device) as _)
}

/// When to check that nobody else has an export: to test the tests.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCheck {
    /// Whenever bytes are sent.
    AsSent,
    /// Only when a write is submitted, which is wrong.
    AsSubmitted,
}

/// Opens an export for writing as another machine with a clock of its own would.
///
/// # Errors
/// As [`open_named`].
#[cfg(feature = "testing")]
pub fn open_elsewhere(
    uri: &str,
    timing: Timing,
    clock: Arc<dyn ubtrfs_nbd::Clock>,
    check: LeaseCheck,
) -> Result<Arc<dyn Device>> {
    let lease = Arc::new(Lease::new(Arc::clone(&clock)));
    let (mode, part) = (OpenMode::ReadWrite, DevicePart::WHOLE);
    let device = Arc::new(NbdDevice::open_leased(uri, mode, part, None, Some(Arc::clone(&lease)))?);
    let lease = (check == LeaseCheck::AsSent).then_some(lease);
    let mark = WriterMark::elsewhere();
    let protected =
        ProtectedDevice::with_mark(device, 0, timing, (clock, lease), mark).map_err(|refusal| match refusal {
            Refusal::Held(by) => Error::Held { path: uri.into(), by: Some(by) },
            Refusal::Failed(source) => Error::Open { path: uri.into(), source },
        })?;
    Ok(Arc::new(ReadAheadDevice::new(Arc::new(protected), 0)))
}

/// Opens a device for reading, without excluding anybody.
pub fn open_to_look(name: &Path) -> Result<Arc<dyn Device>> {
    let part = DevicePart::WHOLE;
    open_named(name, Opening { mode: OpenMode::ReadOnly, exclusive: Exclusive::No, part, timeout: None })
}

/// Returns whether the name is that of a server's export, not a path.
pub fn is_remote(name: impl AsRef<OsStr>) -> bool {
    Uri::is_meant(name)
}

/// Returns whether two names mean the same export of the same server, however it is connected to.
pub fn is_same_export(one: impl AsRef<OsStr>, other: impl AsRef<OsStr>) -> bool {
    match (Uri::parse(one), Uri::parse(other)) {
        (Ok(one), Ok(other)) => (one.address, one.export) == (other.address, other.export),
        _ => false,
    }
}

/// Returns a name of the same device that is valid in any directory.
pub fn absolute_name(name: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Open { path: name.into(), source };
    if !is_remote(name) {
        return std::path::absolute(name).map_err(failed);
    }
    let failed = |source| Error::Open { path: Uri::without_secrets(&name.to_string_lossy()).into(), source };
    let uri = Uri::parse(name).map_err(|error| failed(std::io::Error::other(error)))?;
    uri.absolute().map(|uri| uri.to_string().into()).map_err(failed)
}
