use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ubtrfs_dump::{DumpOptions, RestoreOptions, RestorePlan, Target};
use ubtrfs_volume::Device;

use crate::whole_image::base::base;
use crate::whole_image::damage::{apply, damage};

/// The largest device that is restored.
const MAX_DEVICE: u64 = 1 << 40;
/// Bytes of a change of the dump: place, manner and value.
const CHANGE: usize = 4;

/// A device to restore to, of which only what was written takes memory.
#[derive(Default)]
struct Sparse {
    size: u64,
    sectors: BTreeMap<u64, Box<[u8; 4096]>>,
}

impl Target for Sparse {
    fn set_size(&mut self, size: u64) -> io::Result<()> {
        self.size = size;
        if size < MAX_DEVICE { Ok(()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (at..).zip(buf) {
            *byte = self.sectors.get(&(at / 4096)).map_or(0, |sector| sector[(at % 4096) as usize]);
        }
        Ok(())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(at + bytes.len() as u64 <= self.size, "a write beyond the device that the dump describes");
        for (at, byte) in (at..).zip(bytes) {
            self.sectors.entry(at / 4096).or_insert_with(|| Box::new([0; 4096]))[(at % 4096) as usize] = *byte;
        }
        Ok(())
    }
}

/// Dumps a damaged volume, and restores a damaged dump. An input is a number of changes of the
/// dump, these changes, and a volume with damages in the language of `whole_image`.
pub fn dump(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let len = (usize::from(*count) * CHANGE).min(rest.len());
    let (changes, volume) = rest.split_at(len);
    let Some(image) = apply(volume, base) else { return };
    let devices: Vec<Arc<dyn Device>> = vec![image];
    let level = if changes.is_empty() { 0 } else { u32::from(changes[0] % 2) };
    for sanitise in [false, true] {
        let mut bytes = Vec::new();
        let options = DumpOptions { sanitise, level, threads: 1, progress: &|_| true };
        if ubtrfs_dump::dump(&devices, &mut bytes, &options).is_err() {
            return;
        }
        let plan = RestorePlan::read(&bytes.as_slice());
        plan.unwrap_or_else(|error| panic!("the dump of a damaged volume can't be read: {error:?}"));
        restore(&bytes);
        for change in changes.chunks_exact(CHANGE) {
            let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
            // The beginning, where headers are, byte by byte; or anywhere.
            let at = if change[2] % 2 == 0 { place } else { (place * bytes.len()) >> 16 };
            if let Some(byte) = bytes.get_mut(at) {
                *byte = change[3];
            }
        }
        restore(&bytes);
    }
}

fn restore(bytes: &[u8]) {
    let Ok(plan) = RestorePlan::read(&bytes) else { return };
    let mut targets: Vec<Sparse> = plan.devices().iter().map(|_| Sparse::default()).collect();
    let mut targets: Vec<&mut dyn Target> = targets.iter_mut().map(|target| target as &mut dyn Target).collect();
    let _ = ubtrfs_dump::restore(&bytes, &plan, &mut targets, &RestoreOptions { threads: 1, progress: &|_, _| true });
}

/// Returns inputs, with their names. The corpus begins with them.
pub fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for number in 0..7_u8 {
        inputs.push((format!("sound-{number}"), vec![0, number]));
        let changes = [(0_u16, 0_u8), (9, 1), (16, 0xff), (20, 1), (20, 2), (30, 0xff), (32, 0xff), (1024 + 300, 0xff)];
        for (at, value) in changes {
            let [low, high] = at.to_le_bytes();
            inputs.push((format!("header-{number}-{at}-{value}"), vec![1, low, high, 0, value, number]));
        }
        inputs.push((format!("content-{number}"), vec![2, 1, 80, 1, 0xff, 1, 160, 1, 0, number]));
        for (item_type, offset) in
            [(1_u8, 52_u8), (12, 8), (84, 27), (24, 25), (108, 20), (132, 176), (156, 16), (228, 44)]
        {
            let mut input = vec![0];
            input.extend(damage(number, &[0, item_type, 1, offset, 0], &[0xff; 8]));
            inputs.push((format!("item-{number}-{item_type}"), input));
        }
    }
    inputs
}
