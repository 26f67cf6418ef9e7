//! Windows of devices around the tree blocks that were read last, so that neighbours take one
//! request instead of one for each.

use std::collections::VecDeque;

use ubtrfs_format::Physical;
use ubtrfs_volume::{Buffer, Device};

/// The length of a window in bytes.
const WINDOW: u64 = 128 << 10;
/// How many windows are kept.
const MAX_WINDOWS: usize = 128;

struct Window {
    devid: u64,
    start: u64,
    content: Buffer,
}

/// The windows, the one that was used last at the end.
#[derive(Default)]
pub(crate) struct Windows(VecDeque<Window>);

impl Windows {
    /// Fills `buf` from this address of a device. Returns `false` if it is not inside one window,
    /// or if the window can't be read as a whole.
    pub(crate) fn read(&mut self, devid: u64, device: &dyn Device, at: u64, buf: &mut [u8]) -> bool {
        let start = at / WINDOW * WINDOW;
        let position = self.0.iter().rposition(|window| window.devid == devid && window.start == start);
        let known = position.and_then(|position| self.0.remove(position));
        let Some(window) = known.or_else(|| self.window(devid, device, start)) else { return false };
        let from = (at - start) as usize;
        let found = window.content.get(from..from.saturating_add(buf.len()));
        if let Some(found) = found {
            buf.copy_from_slice(found);
        }
        let is_found = found.is_some();
        self.0.push_back(window);
        is_found
    }

    fn window(&mut self, devid: u64, device: &dyn Device, start: u64) -> Option<Window> {
        let length = device.size().saturating_sub(start).min(WINDOW) as usize;
        // The memory of the oldest window is used again.
        let old = if self.0.len() >= MAX_WINDOWS { self.0.pop_front() } else { None };
        let content = old.map(|old| old.content).filter(|content| content.len() == length);
        let mut content = content.unwrap_or_else(|| Buffer::zeroed(length));
        device.read_at(Physical(start), &mut content).ok()?;
        Some(Window { devid, start, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_volume::{Exclusive, FileDevice, OpenMode};

    #[test]
    fn every_part_of_a_device_is_read_as_it_is() {
        let length = WINDOW as usize * (MAX_WINDOWS + 3) + 4096;
        let content: Vec<u8> = (0..length).map(|at| (at / 4096 % 251) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let device = FileDevice::open(file.path(), OpenMode::ReadOnly, Exclusive::No).unwrap();
        let mut windows = Windows::default();
        let mut buf = vec![0; 16384];
        for round in 0..2 {
            for at in (0..length - 16384).step_by(16384) {
                assert!(windows.read(1, &device, at as u64, &mut buf), "{round} {at}");
                assert!(buf == content[at..at + 16384], "{round} {at}");
            }
        }
        assert_eq!(windows.0.len(), MAX_WINDOWS);
        // Over the border of two windows, and beyond the end.
        assert!(!windows.read(1, &device, WINDOW - 4096, &mut buf));
        assert!(!windows.read(1, &device, length as u64 - 4096, &mut buf));
        assert!(!windows.read(1, &device, length as u64 + WINDOW, &mut buf));
    }
}
