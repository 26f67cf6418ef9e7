//! Writing what a dump has to the devices of the volume that is restored.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ubtrfs_format::{Logical, Physical};
use ubtrfs_volume::{ChunkMap, IoStripe, parity};

use crate::error::{Error, Result};

/// What a device is restored to. It begins empty, and what was never written reads as zeros.
pub trait Target {
    /// Gives it this size in bytes.
    fn set_size(&mut self, size: u64) -> io::Result<()>;
    /// Fills `buf` from byte `at` on.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes at byte `at`.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Target for File {
    fn set_size(&mut self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, at)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }
}

/// The targets of a volume's devices, by the devices' numbers.
pub(crate) struct Targets<'a> {
    pub(crate) devices: BTreeMap<u64, &'a mut dyn Target>,
}

impl Targets<'_> {
    /// Writes to a device.
    pub(crate) fn write(&mut self, devid: u64, at: Physical, bytes: &[u8]) -> Result<()> {
        let failed = |source| Error::Target { device: devid, at: at.0, source };
        let target = self.devices.get_mut(&devid).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        target.write_at(at.0, bytes).map_err(failed)
    }

    /// Writes to all copies of an address, and updates parity. Returns how many of the bytes have
    /// no place because no chunk has their address.
    pub(crate) fn write_logical(&mut self, map: &ChunkMap, at: Logical, bytes: &[u8], sector: u64) -> Result<u64> {
        let (mut done, mut unmapped) = (0, 0);
        while done < bytes.len() {
            let here = at.plus(done as u64);
            let left = (bytes.len() - done) as u64;
            let Ok(piece) = map.locate(here, left) else {
                // Chunks begin at sectors.
                let step = (sector - here.0 % sector).min(left);
                unmapped += step;
                done += step as usize;
                continue;
            };
            let part = &bytes[done..done + piece.len as usize];
            if !piece.writable {
                self.update_parity(map, here, part)?;
            }
            for IoStripe { devid, at } in piece.copies {
                self.write(devid.0, at, part)?;
            }
            done += piece.len as usize;
        }
        Ok(unmapped)
    }

    /// Adds the difference between what is at an address and the new bytes to the parity of its
    /// row. All of the range must be in one stripe.
    fn update_parity(&mut self, map: &ChunkMap, at: Logical, new: &[u8]) -> Result<()> {
        let Some(row) = map.row(at) else { return Ok(()) };
        let mut difference = self.read(row.stripes.get(row.wanted), new.len())?;
        parity::add(&mut difference, new, 1);
        for which in 0..row.parities() {
            let place = row.stripes.get(row.data + which);
            let factors = parity::parity(row.data, row.parities(), which);
            let mut sum = self.read(place, new.len())?;
            parity::add(&mut sum, &difference, factors.get(row.wanted).copied().unwrap_or(0));
            if let Some(IoStripe { devid, at }) = place {
                self.write(devid.0, *at, &sum)?;
            }
        }
        Ok(())
    }

    fn read(&self, place: Option<&IoStripe>, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        if let Some(IoStripe { devid, at }) = place {
            let failed = |source| Error::Target { device: devid.0, at: at.0, source };
            let target = self.devices.get(&devid.0).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
            target.read_at(at.0, &mut bytes).map_err(failed)?;
        }
        Ok(bytes)
    }
}
