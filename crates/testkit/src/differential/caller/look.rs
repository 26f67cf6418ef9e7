//! Makes calls that change nothing, and keeps of their answers what is the same on any two volumes.

use std::os::fd::RawFd;

use super::{Caller, line, name_of, text};
use crate::differential::call::{Call, On};
use crate::differential::sys;

/// Returns the names and types of an open directory, sorted.
fn listing(file: RawFd) -> Result<String, i32> {
    let mut names = Vec::new();
    let mut room = vec![0; 32 << 10];
    loop {
        let read = sys::with_buffer(libc::SYS_getdents64, file, &mut room, [])? as usize;
        if read == 0 {
            break;
        }
        let mut at = 0;
        while at < read {
            // An entry has a number, a position, its length, a type and the name, as getdents64(2)
            // describes.
            let length = usize::from(u16::from_ne_bytes([room[at + 16], room[at + 17]]));
            let name = room[at + 19..at + length].split(|byte| *byte == 0).next().unwrap_or_default();
            names.push(format!("{}:{}", name[..name.len().min(30)].escape_ascii(), room[at + 18]));
            at += length;
        }
    }
    names.sort();
    Ok(names.join(" "))
}

impl Caller {
    /// Makes calls that change nothing except for times of access.
    pub(super) fn look(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        let seen = match call {
            Call::Stat { on, follow } => {
                let answer = match on {
                    On::Path(path) => {
                        let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                        sys::statx(dir, &text(path), flags)
                    }
                    On::Slot(slot) => self.slot(*slot).and_then(|file| sys::statx(file, c"", libc::AT_EMPTY_PATH)),
                };
                answer.map(|answer| self.seen.stat(&answer))
            }
            Call::Access { path, mode, flags } => {
                let outcome = sys::at(libc::SYS_faccessat2, dir, &text(path), [(*mode).into(), (*flags).into()]);
                Ok(line(outcome))
            }
            Call::StatVolume { on } => self.opened(dir, on, |file| {
                let seen = sys::stat_volume(file)?;
                Ok(format!("block {} name {} flags {:x}", seen.f_bsize, seen.f_namelen, seen.f_flags & !0x20))
            }),
            Call::ReadLink { path } => {
                let mut room = [0; 5000];
                let read = sys::read_link(dir, &text(path), &mut room);
                read.map(|length| format!("{length} bytes {:08x}", crc32fast::hash(&room[..length as usize])))
            }
            Call::List { on } => self.opened(dir, on, listing),
            Call::GetXattr { on, name, room } => {
                let mut value = vec![0; *room as usize];
                let outcome = self.xattr(dir, on, |on| sys::get_xattr(on, &text(name), &mut value));
                outcome.map(|length| {
                    value.truncate(length as usize);
                    format!("{length} bytes {}", value[..value.len().min(64)].escape_ascii())
                })
            }
            Call::ListXattrs { on, room } => {
                let mut names = vec![0; *room as usize];
                let outcome = self.xattr(dir, on, |on| sys::list_xattrs(on, &mut names));
                outcome.map(|length| {
                    names.truncate(length as usize);
                    let mut names: Vec<String> =
                        names.split(|byte| *byte == 0).map(|name| name.escape_ascii().to_string()).collect();
                    names.sort();
                    format!("{length} bytes{}", names.join(" "))
                })
            }
            _ => return None,
        };
        Some(Ok(seen.unwrap_or_else(name_of)))
    }
}
