//! Calls that change attributes.

use super::Generator;
use crate::differential::call::{Bytes, Call, Hex, Time};

/// Names of xattrs: usual ones, those with a meaning, and invalid ones.
const XATTRS: &[&str] = &[
    "user.a",
    "user.b",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "security.capability",
    "btrfs.compression",
    "trusted.t",
    "security.s",
    "user.",
    "user",
    "nonsense.x",
    "system.x",
    "btrfs.nonsense",
    "trusted.",
    "security.",
    "",
];

/// The tags of an ACL's entries, in the order in which a list must have them.
mod tag {
    pub const USER_OBJ: u16 = 1;
    pub const USER: u16 = 2;
    pub const GROUP_OBJ: u16 = 4;
    pub const GROUP: u16 = 8;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

impl Generator {
    pub(super) fn of_attributes(&mut self) -> Call {
        match self.rng.below(24) {
            0..=3 => Call::Chmod { on: self.on_any(), mode: self.mode() },
            4..=6 => {
                let (user, group) = (self.id(), self.id());
                Call::Chown { on: self.on_any(), user, group }
            }
            7..=9 => {
                let (access, modification) = (self.time(), self.time());
                Call::Times { on: self.on_any(), access, modification }
            }
            10..=15 => {
                let name = self.xattr_name();
                let value = Bytes(self.xattr_value(&name));
                let flags = *self.rng.pick(&[0, 0, 0, 1, 2, 3, 4]);
                Call::SetXattr { on: self.on_any(), name, value, flags }
            }
            16..=17 => Call::RemoveXattr { on: self.on_any(), name: self.xattr_name() },
            18 => Call::GetFlags { on: self.on_any() },
            19..=20 => Call::SetFlags { on: self.on_any(), flags: Hex(self.flags()) },
            21 => Call::GetFsx { on: self.on_any() },
            22 => {
                let xflags = [0, 0x8, 0x10, 0x20, 0x40, 0x80, 0x2, 0x100, 0x200, 0x800];
                let flags = *self.rng.pick(&xflags) | if self.rng.one_in(4) { *self.rng.pick(&xflags) } else { 0 };
                let (project, extent_size) = if self.rng.one_in(8) { (7, 4096) } else { (0, 0) };
                Call::SetFsx { on: self.on_any(), flags: Hex(flags), project, extent_size }
            }
            _ if self.rng.one_in(2) => Call::GetFileAttributes { path: self.any() },
            _ => {
                let flags = *self.rng.pick(&[0, 0x8, 0x10, 0x20, 0x40, 0x80, 0x2, 0x100]);
                Call::SetFileAttributes { path: self.any(), flags: Hex(flags) }
            }
        }
    }

    fn id(&mut self) -> Option<u32> {
        let ids = [0, 1000, 1001, 1002, 1003, 2000, 7, 1, 70_000];
        (!self.rng.one_in(3)).then(|| *self.rng.pick(&ids))
    }

    fn time(&mut self) -> Time {
        match self.rng.below(6) {
            0 => Time::Now,
            1 => Time::Omit,
            2 => Time::At(*self.rng.pick(&[0, -1, -5_000_000_000, 86_400])),
            _ => Time::At(1000 * self.rng.below(100_000) as i64),
        }
    }

    fn flags(&mut self) -> u64 {
        // Synchronous, immutable, append-only, no dump, no atime, compressed, not compressed,
        // synchronous directories, no copy-on-write, and flags that nobody may set.
        let flags = [0, 0x8, 0x10, 0x20, 0x40, 0x80, 0x4, 0x400, 0x1_0000, 0x80_0000, 0x8_0000, 0x1, 0x10_0000];
        *self.rng.pick(&flags) | if self.rng.one_in(4) { *self.rng.pick(&flags) } else { 0 }
    }

    pub(super) fn xattr_name(&mut self) -> String {
        if self.rng.one_in(30) {
            return format!("user.{}", "n".repeat(*self.rng.pick(&[249, 250, 251, 252])));
        }
        let index = self.rng.index(XATTRS.len()).min(self.rng.index(XATTRS.len()));
        XATTRS[index].to_owned()
    }

    fn xattr_value(&mut self, name: &str) -> Vec<u8> {
        if self.rng.one_in(12) {
            let length = *self.rng.pick(&[0, 1, 100, 4000, 15_000, 16_300, 65_536, 65_537]);
            return self.rng.noise(length);
        }
        match name {
            "btrfs.compression" => {
                let values = ["zlib", "zstd", "lzo", "none", "no", "", "zlib:3", "gzip", "zst", "zstd\0"];
                (*self.rng.pick(&values)).into()
            }
            "security.capability" => {
                // Version 2 or 3, with the flag that all of them are effective.
                let version: u32 = *self.rng.pick(&[0x0200_0001, 0x0300_0001, 0x0200_0000, 0x0100_0001, 5]);
                let mut value = version.to_le_bytes().to_vec();
                value.resize(if version >> 24 == 3 { 24 } else { 20 }, 0);
                value[5] = 0x20;
                if version >> 24 == 3 && self.rng.one_in(2) {
                    value[20..].copy_from_slice(&1000_u32.to_le_bytes());
                }
                value
            }
            "system.posix_acl_access" | "system.posix_acl_default" => self.acl(),
            _ => {
                let length = self.rng.below(40) as usize;
                self.rng.bytes(length)
            }
        }
    }

    fn acl(&mut self) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let mut entries: Vec<(u16, u32)> = vec![(tag::USER_OBJ, NOBODY)];
        let mut has_named = false;
        for (kind, ids) in [(tag::USER, [1000, 1001, 1002]), (tag::GROUP_OBJ, [0; 3]), (tag::GROUP, [1000, 2000, 7])] {
            if kind == tag::GROUP_OBJ {
                entries.push((kind, NOBODY));
                continue;
            }
            for id in ids {
                if self.rng.one_in(4) {
                    entries.push((kind, id));
                    has_named = true;
                }
            }
        }
        if has_named || self.rng.one_in(3) {
            entries.push((tag::MASK, NOBODY));
        }
        entries.push((tag::OTHER, NOBODY));
        if self.rng.one_in(10) {
            // Makes the list invalid.
            let victim = self.rng.index(entries.len());
            if self.rng.one_in(2) {
                entries.remove(victim);
            } else {
                entries.push(entries[victim]);
            }
        }
        let version: u32 = if self.rng.one_in(30) { 1 } else { 2 };
        let mut value = version.to_le_bytes().to_vec();
        for (kind, id) in entries {
            let rights = if self.rng.one_in(40) { 9 } else { self.rng.below(8) as u16 };
            value.extend_from_slice(&kind.to_le_bytes());
            value.extend_from_slice(&rights.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }
}
