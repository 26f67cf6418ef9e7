//! Volumes in memory, for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_format::Physical;
use ubtrfs_mkfs::{Medium, MkfsOptions, Profile};
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

const SIZE: u64 = 48 << 20;

struct Bytes(Vec<u8>);

impl Medium for Bytes {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        let start = at.0 as usize;
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A new volume.
pub fn volume() -> Vec<u8> {
    let mut options = MkfsOptions::new(SIZE);
    options.metadata_profile = Some(Profile::Single);
    let mut bytes = Bytes(vec![0; SIZE as usize]);
    ubtrfs_mkfs::layout(&options).unwrap().write(&mut [&mut bytes]).unwrap();
    bytes.0
}

/// An engine that has so much memory.
pub fn engine(volume: &[u8], memory: usize) -> Arc<Filesystem> {
    engine_on(Arc::new(MemoryDevice::from_bytes(volume.to_vec())), memory)
}

/// The same on a device.
pub fn engine_on(device: Arc<dyn Device>, memory: usize) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, memory, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}
