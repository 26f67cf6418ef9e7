//! Calls about subvolumes and the whole volume.

use super::{DIRS, Generator, SUBVOLUMES};
use crate::differential::call::{Call, Features, Hex, On};

impl Generator {
    /// Returns a directory, and a name in it for a subvolume.
    fn place(&mut self) -> (On, String) {
        let path = self.subvolume();
        if self.rng.one_in(20) {
            let odd = ["", ".", "..", "a/b", "s0/"];
            return (self.on(DIRS), (*self.rng.pick(&odd)).to_owned());
        }
        match path.rsplit_once('/') {
            Some((dir, name)) => (On::Path(dir.to_owned()), name.to_owned()),
            None => (On::Path(".".into()), path),
        }
    }

    pub(super) fn of_subvolumes(&mut self) -> Call {
        match self.rng.below(34) {
            0..=2 => {
                let (on, name) = self.place();
                let flags = Hex(*self.rng.pick(&[0, 0, 0, 2, 1, 8, 16]));
                Call::MakeSubvolume { on, name, old: self.rng.one_in(3), flags }
            }
            3..=8 => {
                let (on, name) = self.place();
                let flags = Hex(*self.rng.pick(&[0, 0, 0, 2, 2, 1, 16]));
                let source = self.subvolume();
                Call::MakeSnapshot { on, name, source, old: self.rng.one_in(3), flags }
            }
            9..=13 => {
                let by_id = self.rng.one_in(4);
                let (on, name) = if by_id { (self.on(DIRS), self.subvolume()) } else { self.place() };
                Call::DestroySubvolume { on, name, old: self.rng.one_in(2), by_id }
            }
            14..=15 => Call::GetSubvolumeFlags { on: self.on(SUBVOLUMES) },
            16..=19 => {
                let flags = Hex(*self.rng.pick(&[0, 0, 2, 2, 2, 1, 4]));
                Call::SetSubvolumeFlags { on: self.on(SUBVOLUMES), flags }
            }
            20 => Call::SetDefault { on: self.on(DIRS), target: self.subvolume() },
            21..=22 => {
                let inode = *self.rng.pick(&[256, 257, 258, 259, 1, 5, u64::MAX - 100]);
                Call::LookUpInode { on: self.on(&["s0", "s0/d0", "s0/f0", "s1"]), inode }
            }
            23 => Call::LookUpAsUser { on: self.on(DIRS), target: self.subvolume() },
            24..=25 => Call::SubvolumeInfo { on: self.on(SUBVOLUMES) },
            26 => Call::SubvolumeReferences { on: self.on(SUBVOLUMES), least: self.rng.below(2) * 300 },
            27 => {
                let kinds = *self.rng.pick(&[(0, 255), (84, 96), (1, 1), (12, 24)]);
                Call::SearchTree { on: self.on(&["s0", "s1"]), kinds, most: *self.rng.pick(&[0, 1, 1000, 1000]) }
            }
            28..=29 => Call::SetReceived { on: self.on(SUBVOLUMES), seed: self.seed() },
            30 => Call::Defragment { on: self.on_any() },
            31 => {
                let (start, length) = (self.offset() as u64, self.length().into());
                let flags = Hex(*self.rng.pick(&[0, 1, 2, 3, 4, 8]));
                Call::DefragmentRange { on: self.on_any(), start, length, flags, compression: self.rng.below(5) as u32 }
            }
            32 if self.rng.one_in(4) => Call::MapExtents { on: self.on_any() },
            _ => {
                let numbers = [
                    0x8004_6601, // FS_IOC32_GETFLAGS
                    0x8008_7601, // FS_IOC_GETVERSION
                    0x2,         // FIGETBSZ
                    0x541b,      // FIONREAD
                    0x5460,      // FIOQSIZE
                    0x9499,      // none
                    0x8011_1500, // FS_IOC_GETFSUUID
                    0xc004_9428, // BTRFS_IOC_QUOTA_CTL, wrong size
                    0xc0c0_5477, // none
                ];
                Call::PlainIoctl { on: self.on_any(), number: Hex(*self.rng.pick(&numbers)) }
            }
        }
    }

    pub(super) fn of_volume(&mut self) -> Call {
        let on = self.on(DIRS);
        match self.rng.below(12) {
            0 => Call::SyncVolume { on, wait: self.rng.one_in(2) },
            1 => {
                Call::Trim { on, start: *self.rng.pick(&[0, 1 << 20, u64::MAX]), length: *self.rng.pick(&[0, 1 << 26]) }
            }
            2..=3 => Call::VolumeInfo { on },
            4 => Call::DeviceInfo { on, device: 1 + self.rng.below(2) },
            5 => Call::DeviceErrors { on, device: 1, reset: self.rng.one_in(3) },
            6..=7 => Call::Features { on, which: *self.rng.pick(&[Features::Of, Features::Supported]) },
            8..=9 => Call::GetLabel { on },
            _ => {
                let label = match self.rng.below(4) {
                    0 => "l".repeat(255),
                    1 => "a/b".into(),
                    _ => "label".into(),
                };
                Call::SetLabel { on, label }
            }
        }
    }
}
