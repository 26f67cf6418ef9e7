//! Calls that read and write files.

use super::Generator;
use crate::differential::call::{Call, Hex, On, OpenFlags, Syncing};

impl Generator {
    pub(super) fn of_data(&mut self) -> Call {
        let slot = self.slot();
        match self.rng.below(64) {
            0..=11 => Call::Write { slot, offset: self.offset(), length: self.length(), seed: self.seed() },
            12..=13 => {
                let flags = match self.rng.below(4) {
                    0 => self.rng.below(64),
                    _ => *self.rng.pick(&[0x10, 2, 4, 0x20]),
                };
                // Leaves RWF_NOWAIT out, since it depends on chance whether the write would have to
                // wait.
                let flags = Hex(flags & !8);
                let offset = self.offset();
                Call::WriteFlagged { slot, offset, length: self.length(), seed: self.seed(), flags }
            }
            14..=18 => Call::Read { slot, offset: self.offset(), length: self.length() },
            19..=20 => Call::ReadOn { slot, length: self.length() },
            21..=23 => Call::WriteOn { slot, length: self.length(), seed: self.seed() },
            24..=27 => Call::Seek { slot, offset: self.offset(), whence: self.rng.below(6) as i32 },
            28..=32 => {
                let on = if self.rng.one_in(2) { On::Slot(slot) } else { On::Path(self.file()) };
                Call::Truncate { on, length: self.offset() }
            }
            33..=37 => {
                let mode = match self.rng.below(8) {
                    0 => self.rng.below(256),
                    _ => *self.rng.pick(&[0, 1, 3, 0x10, 0x11]),
                };
                let (offset, length) = (self.offset(), i64::from(self.length()));
                Call::Allocate { slot, mode: Hex(mode), offset, length }
            }
            38..=41 => {
                let (from_offset, to_offset) = (self.offset(), self.offset());
                Call::CopyRange { from: self.slot(), to: slot, from_offset, to_offset, length: self.length() }
            }
            42 => Call::SendFile { from: self.slot(), to: slot, offset: self.offset(), length: self.length() },
            43 => {
                let how = match self.rng.below(16) {
                    0..=5 => Syncing::File,
                    6..=9 => Syncing::Data,
                    10..=14 => Syncing::Range,
                    _ => Syncing::Volume,
                };
                Call::Sync { slot, how }
            }
            44 => {
                let (offset, length) = (self.offset(), i64::from(self.length()));
                Call::Advise { slot, offset, length, advice: self.rng.below(7) as i32 }
            }
            45..=48 => {
                let offset = *self.rng.pick(&[0, 0, 4096, 65536, 1]);
                let (writable, shared) = (!self.rng.one_in(4), !self.rng.one_in(5));
                Call::Map { map: self.slot(), slot, offset, pages: 1 + self.rng.below(5) as u8, writable, shared }
            }
            49..=53 => {
                let offset = self.rng.below(9000) as u32;
                Call::Store { map: self.slot(), offset, length: self.rng.below(6000) as u32, seed: self.seed() }
            }
            54..=55 => {
                let offset = self.rng.below(9000) as u32;
                Call::Load { map: self.slot(), offset, length: self.rng.below(6000) as u32 }
            }
            56 => Call::SyncMap { map: self.slot(), flags: *self.rng.pick(&[4, 1, 2, 6, 5, 0]) },
            57 => Call::Unmap { map: self.slot() },
            58 => Call::Lock {
                slot,
                how: self.rng.below(3) as i32,
                start: self.rng.below(3) as i64 * 10,
                length: self.rng.below(3) as i64 * 10,
            },
            59 => Call::Flock { slot, how: *self.rng.pick(&[1, 2, 8, 3]) },
            60 => {
                let flags = [libc::O_APPEND, libc::O_DIRECT, libc::O_NOATIME, 0, libc::O_NONBLOCK];
                Call::SetFileFlags { slot, flags: OpenFlags(*self.rng.pick(&flags)) }
            }
            61 => Call::GetFileFlags { slot },
            62 if self.rng.one_in(4) => {
                let (from_offset, to_offset) = (self.offset() as u64, self.offset() as u64);
                Call::CloneRange { to: slot, from: self.slot(), from_offset, length: self.length().into(), to_offset }
            }
            62 if self.rng.one_in(2) => {
                let (from_offset, to_offset) = (self.offset() as u64, self.offset() as u64);
                let length = self.length().into();
                Call::Deduplicate { from: self.slot(), from_offset, length, to: slot, to_offset }
            }
            62 if self.rng.one_in(2) => Call::Clone { to: slot, from: self.slot() },
            _ => Call::Close { slot },
        }
    }

    pub(super) fn seed(&mut self) -> u8 {
        self.rng.below(256) as u8
    }
}
