//! Calls of ioctl(2), and of `file_getattr(2)`, which does the work of some.
//!
//! The numbers are defined here again, from the kernel's headers, since the server takes its own
//! from `ubtrfs_format::ioctl`: a wrong number there must make its answer differ from that of the
//! kernel's btrfs.

use std::os::fd::{AsRawFd, RawFd};

use super::{Caller, line, name_of, text};
use crate::differential::call::{Call, Features, On};
use crate::differential::sys;

/// The flag of a read-only subvolume.
const READ_ONLY: u64 = 2;
/// Longer than a tick of the kernel's clock. In a subvolume that became read-only, the kernel
/// refuses a change of an open file only when the change would also update the file's times
/// (measured: of 200 calls of fallocate(2), 23 failed right after the flag was set, and all of them
/// 20 ms later).
const TICK: std::time::Duration = std::time::Duration::from_millis(20);

const fn btrfs(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | 0x94 << 8 | number
}

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;
const BOTH: u32 = 3;

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
const FIEMAP: u32 = 0xc020_660b;

const SNAP_CREATE: u32 = btrfs(WRITE, 1, 4096);
const DEFRAG: u32 = btrfs(WRITE, 2, 4096);
const SYNC: u32 = btrfs(NONE, 8, 0);
const CLONE: u32 = btrfs(WRITE, 9, 4);
const CLONE_RANGE: u32 = btrfs(WRITE, 13, 32);
const SUBVOL_CREATE: u32 = btrfs(WRITE, 14, 4096);
const SNAP_DESTROY: u32 = btrfs(WRITE, 15, 4096);
const DEFRAG_RANGE: u32 = btrfs(WRITE, 16, 48);
const TREE_SEARCH: u32 = btrfs(BOTH, 17, 4096);
const INO_LOOKUP: u32 = btrfs(BOTH, 18, 4096);
const DEFAULT_SUBVOL: u32 = btrfs(WRITE, 19, 8);
const WAIT_SYNC: u32 = btrfs(WRITE, 22, 8);
const SNAP_CREATE_V2: u32 = btrfs(WRITE, 23, 4096);
const START_SYNC: u32 = btrfs(READ, 24, 8);
const SUBVOL_CREATE_V2: u32 = btrfs(WRITE, 24, 4096);
const SUBVOL_GETFLAGS: u32 = btrfs(READ, 25, 8);
const SUBVOL_SETFLAGS: u32 = btrfs(WRITE, 26, 8);
const DEV_INFO: u32 = btrfs(BOTH, 30, 4096);
const FS_INFO: u32 = btrfs(READ, 31, 1024);
const SET_RECEIVED: u32 = btrfs(BOTH, 37, 200);
const GET_LABEL: u32 = btrfs(READ, 49, 256);
const SET_LABEL: u32 = btrfs(WRITE, 50, 256);
const GET_DEV_STATS: u32 = btrfs(BOTH, 52, 1032);
const DEDUPE: u32 = btrfs(BOTH, 54, 24);
const GET_FEATURES: u32 = btrfs(READ, 57, 24);
const GET_SUPPORTED: u32 = btrfs(READ, 57, 72);
const GET_SUBVOL_INFO: u32 = btrfs(READ, 60, 504);
const GET_ROOTREF: u32 = btrfs(BOTH, 61, 4096);
const INO_LOOKUP_USER: u32 = btrfs(BOTH, 62, 4096);
const SNAP_DESTROY_V2: u32 = btrfs(WRITE, 63, 4096);

/// Larger files are not defragmented, since the kernel looks at each part of a file, including its
/// holes. For a file of exabytes that takes years, and no signal ends it.
const DEFRAGMENTED: u64 = 1 << 32;

/// Features by which the superblock shows that a compression was used, or that nodes are larger
/// than a page. The kernel notes the latter, though nobody needs to know it.
const BY_USE: u64 = 0x38;

const FILE_GETATTR: i64 = 468;
const FILE_SETATTR: i64 = 469;

/// Writes bytes into an argument.
fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    data[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    data[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Returns the text of `data` from `at` up to a zero.
fn text_at(data: &[u8], at: usize) -> String {
    data[at..].split(|byte| *byte == 0).next().unwrap_or_default().escape_ascii().to_string()
}

/// Returns an argument with a descriptor at its beginning and a name at `at`, which is cut if it
/// does not fit.
fn named(name: &str, at: usize, file: RawFd) -> Vec<u8> {
    let mut data = vec![0; 4096];
    put(&mut data, 0, &i64::from(file).to_le_bytes());
    let most = 4095 - at;
    put(&mut data, at, &name.as_bytes()[..name.len().min(most)]);
    data
}

/// The offset of names in the older and the newer arguments for subvolumes.
const OLD_NAME: usize = 8;
const NEW_NAME: usize = 56;

/// Returns the id of a subvolume's tree, and that of the directory that has its name.
fn ids_of(file: RawFd) -> Result<(u64, u64), i32> {
    let mut data = vec![0; 504];
    sys::ioctl(file, GET_SUBVOL_INFO, &mut data)?;
    Ok((u64_at(&data, 0), u64_at(&data, 272)))
}

/// The answer that replaces one about the top subvolume, in which other sequences work, too.
const OF_THE_TOP: &str = "of the top";

fn is_in_top(file: RawFd) -> bool {
    const TOP: u64 = 5;
    ids_of(file).is_ok_and(|(id, _)| id == TOP)
}

impl Caller {
    /// Makes an ioctl whose only answer is whether it succeeded.
    fn asked(&self, dir: RawFd, on: &On, command: u32, mut data: Vec<u8>) -> Result<String, i32> {
        self.opened(dir, on, |file| sys::ioctl(file, command, &mut data)).map(|number| line(Ok(number)))
    }

    /// Makes an ioctl whose answer is in its argument.
    fn answered(
        &self,
        dir: RawFd,
        on: &On,
        command: u32,
        mut data: Vec<u8>,
        show: impl FnOnce(&[u8]) -> String,
    ) -> Result<String, i32> {
        self.opened(dir, on, |file| sys::ioctl(file, command, &mut data))?;
        Ok(show(&data))
    }

    /// Calls `act` with the descriptors of a directory and of another object.
    fn both<T>(
        &self,
        dir: RawFd,
        on: &On,
        other: &str,
        act: impl FnOnce(RawFd, RawFd) -> Result<T, i32>,
    ) -> Result<T, i32> {
        let other = On::Path(other.to_owned());
        self.opened(dir, on, |on| self.opened(dir, &other, |other| act(on, other)))
    }

    pub(super) fn ioctl(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        let flags_only = |flags: u64| flags.to_le_bytes().to_vec();
        let outcome = match call {
            Call::GetFlags { on } => {
                self.answered(dir, on, GETFLAGS, vec![0; 8], |data| format!("{:x}", u32_at(data, 0)))
            }
            Call::SetFlags { on, flags } => self.asked(dir, on, SETFLAGS, flags_only(flags.0)),
            Call::GetFsx { on } => self.answered(dir, on, FSGETXATTR, vec![0; 28], |data| {
                format!(
                    "{:x} {} {} {} {}",
                    u32_at(data, 0),
                    u32_at(data, 4),
                    u32_at(data, 8),
                    u32_at(data, 12),
                    u32_at(data, 16)
                )
            }),
            Call::SetFsx { on, flags, project, extent_size } => {
                let mut data = vec![0; 28];
                put(&mut data, 0, &(flags.0 as u32).to_le_bytes());
                put(&mut data, 4, &extent_size.to_le_bytes());
                put(&mut data, 12, &project.to_le_bytes());
                self.asked(dir, on, FSSETXATTR, data)
            }
            Call::GetFileAttributes { path } => {
                let mut data = [0; 24];
                sys::file_attributes(FILE_GETATTR, dir, &text(path), &mut data)
                    .map(|_| format!("{:x} {}", u64_at(&data, 0), data[8..].escape_ascii()))
            }
            Call::SetFileAttributes { path, flags } => {
                let mut data = [0; 24];
                put(&mut data, 0, &flags.0.to_le_bytes());
                sys::file_attributes(FILE_SETATTR, dir, &text(path), &mut data).map(|number| line(Ok(number)))
            }
            Call::Clone { to, from } => self.slot(*from).and_then(|from| {
                let to = self.slot(*to)?;
                sys::numbers(libc::SYS_ioctl, [to.into(), CLONE.into(), from.into()]).map(|number| line(Ok(number)))
            }),
            Call::CloneRange { to, from, from_offset, length, to_offset } => self.slot(*from).and_then(|from| {
                let mut data = i64::from(from).to_le_bytes().to_vec();
                for number in [from_offset, length, to_offset] {
                    data.extend_from_slice(&number.to_le_bytes());
                }
                self.asked(dir, &On::Slot(*to), CLONE_RANGE, data)
            }),
            Call::Deduplicate { from, from_offset, length, to, to_offset } => self.slot(*to).and_then(|to| {
                // The argument is a head and one target: file, offset, bytes done, status,
                // reserved.
                let mut data = [from_offset.to_le_bytes(), length.to_le_bytes(), 1_u64.to_le_bytes()].concat();
                data.extend_from_slice(&[i64::from(to).to_le_bytes(), to_offset.to_le_bytes()].concat());
                data.resize(56, 0);
                self.answered(dir, &On::Slot(*from), DEDUPE, data, |data| {
                    format!("{} bytes, status {}", u64_at(data, 40), u32_at(data, 48) as i32)
                })
            }),
            Call::MapExtents { on } => {
                let mut data = vec![0; 32];
                put(&mut data, 8, &u64::MAX.to_le_bytes());
                self.answered(dir, on, FIEMAP, data, |_| "ok".into())
            }
            Call::PlainIoctl { on, number } => {
                let room = (number.0 as usize >> 16 & 0x3fff).max(64);
                self.answered(dir, on, number.0 as u32, vec![0; room], |_| "ok".into())
            }
            _ => return self.of_subvolumes(dir, call).or_else(|| self.of_volume(dir, call)),
        };
        Some(Ok(outcome.unwrap_or_else(name_of)))
    }

    fn of_subvolumes(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        let outcome = match call {
            Call::MakeSubvolume { on, name, old: true, .. } => {
                self.asked(dir, on, SUBVOL_CREATE, named(name, OLD_NAME, 0))
            }
            Call::MakeSubvolume { on, name, flags, .. } => {
                let mut data = named(name, NEW_NAME, 0);
                put(&mut data, 16, &flags.0.to_le_bytes());
                self.asked(dir, on, SUBVOL_CREATE_V2, data)
            }
            Call::MakeSnapshot { on, name, source, old, flags } => self.both(dir, on, source, |on, source| {
                let (command, mut data) = if *old {
                    (SNAP_CREATE, named(name, OLD_NAME, source))
                } else {
                    (SNAP_CREATE_V2, named(name, NEW_NAME, source))
                };
                if !old {
                    put(&mut data, 16, &flags.0.to_le_bytes());
                }
                sys::ioctl(on, command, &mut data).map(|number| line(Ok(number)))
            }),
            Call::DestroySubvolume { on, name, by_id: true, .. } => self.both(dir, on, name, |on, target| {
                let mut data = vec![0; 4096];
                put(&mut data, 16, &0x10_u64.to_le_bytes());
                put(&mut data, NEW_NAME, &ids_of(target)?.0.to_le_bytes());
                sys::ioctl(on, SNAP_DESTROY_V2, &mut data).map(|number| line(Ok(number)))
            }),
            Call::DestroySubvolume { on, name, old, .. } => {
                let (command, at) = if *old { (SNAP_DESTROY, OLD_NAME) } else { (SNAP_DESTROY_V2, NEW_NAME) };
                self.asked(dir, on, command, named(name, at, 0))
            }
            Call::GetSubvolumeFlags { on } => {
                self.answered(dir, on, SUBVOL_GETFLAGS, vec![0; 8], |data| format!("{:x}", u64_at(data, 0)))
            }
            Call::SetSubvolumeFlags { on, flags } => {
                let answer = self.asked(dir, on, SUBVOL_SETFLAGS, flags.0.to_le_bytes().to_vec());
                if flags.0 & READ_ONLY != 0 {
                    std::thread::sleep(TICK);
                }
                answer
            }
            Call::SetDefault { on, target } => self.both(dir, on, target, |on, target| {
                let (id, _) = ids_of(target)?;
                sys::ioctl(on, DEFAULT_SUBVOL, &mut id.to_le_bytes()).map(|number| line(Ok(number)))
            }),
            Call::LookUpInode { on, inode } => {
                let mut data = vec![0; 4096];
                put(&mut data, 8, &inode.to_le_bytes());
                self.answered(dir, on, INO_LOOKUP, data, |data| text_at(data, 16))
            }
            Call::LookUpAsUser { on, target } => self.both(dir, on, target, |on, target| {
                let (id, directory) = ids_of(target)?;
                let mut data = vec![0; 4096];
                put(&mut data, 0, &directory.to_le_bytes());
                put(&mut data, 8, &id.to_le_bytes());
                sys::ioctl(on, INO_LOOKUP_USER, &mut data)?;
                Ok(format!("{} in {}", text_at(&data, 16), text_at(&data, 272)))
            }),
            Call::SubvolumeInfo { on } => self.answered(dir, on, GET_SUBVOL_INFO, vec![0; 504], |data| {
                let is_set = |range: std::ops::Range<usize>| u8::from(data[range].iter().any(|byte| *byte != 0));
                format!(
                    "{} flags {:x} uuid {} parent {} received {} times {}{}",
                    text_at(data, 8),
                    u64_at(data, 288),
                    is_set(296..312),
                    is_set(312..328),
                    is_set(328..344),
                    is_set(376..384),
                    is_set(392..400),
                )
            }),
            Call::SubvolumeReferences { on, least } => self.opened(dir, on, |file| {
                if is_in_top(file) {
                    return Ok(OF_THE_TOP.into());
                }
                let mut data = vec![0; 4096];
                put(&mut data, 0, &least.to_le_bytes());
                sys::ioctl(file, GET_ROOTREF, &mut data)?;
                Ok(data[4088].to_string())
            }),
            Call::SetReceived { on, seed } => {
                let mut data = vec![0; 200];
                data[..16].fill(*seed);
                put(&mut data, 16, &u64::from(*seed).to_le_bytes());
                self.asked(dir, on, SET_RECEIVED, data)
            }
            _ => return None,
        };
        Some(Ok(outcome.unwrap_or_else(name_of)))
    }

    fn of_volume(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        let outcome = match call {
            Call::SearchTree { on, kinds, most } => self.opened(dir, on, |file| {
                if is_in_top(file) {
                    return Ok(OF_THE_TOP.into());
                }
                // Pending changes are not in the trees yet.
                sys::ioctl(file, SYNC, &mut [])?;
                search(file, *kinds, *most)
            }),
            Call::SyncVolume { on, wait } => self.opened(dir, on, |file| {
                if !wait {
                    return sys::ioctl(file, SYNC, &mut []).map(|number| line(Ok(number)));
                }
                let mut transaction = [0; 8];
                sys::ioctl(file, START_SYNC, &mut transaction)?;
                sys::ioctl(file, WAIT_SYNC, &mut transaction).map(|number| line(Ok(number)))
            }),
            Call::Defragment { on } => self.opened(dir, on, |file| {
                if sys::statx(file, c"", libc::AT_EMPTY_PATH)?.stx_size > DEFRAGMENTED {
                    return Ok("too large".into());
                }
                sys::ioctl(file, DEFRAG, &mut vec![0; 4096]).map(|number| line(Ok(number)))
            }),
            Call::DefragmentRange { on, start, length, flags, compression } => {
                let mut data = [start.to_le_bytes(), length.to_le_bytes(), flags.0.to_le_bytes()].concat();
                data.resize(48, 0);
                put(&mut data, 28, &compression.to_le_bytes());
                self.asked(dir, on, DEFRAG_RANGE, data)
            }
            Call::Trim { on, start, length } => {
                let data = [start.to_le_bytes(), length.to_le_bytes(), [0; 8]].concat();
                self.asked(dir, on, FITRIM, data)
            }
            Call::VolumeInfo { on } => self.answered(dir, on, FS_INFO, vec![0; 1024], |data| {
                format!(
                    "devices {} to {}, {} {} {}",
                    u64_at(data, 8),
                    u64_at(data, 0),
                    u32_at(data, 32),
                    u32_at(data, 36),
                    u32_at(data, 40)
                )
            }),
            Call::DeviceInfo { on, device } => {
                let mut data = vec![0; 4096];
                put(&mut data, 0, &device.to_le_bytes());
                self.answered(dir, on, DEV_INFO, data, |data| {
                    format!("device {} of {}", u64_at(data, 0), u64_at(data, 32))
                })
            }
            Call::DeviceErrors { on, device, reset } => {
                let mut data = vec![0; 1032];
                put(&mut data, 0, &device.to_le_bytes());
                put(&mut data, 8, &5_u64.to_le_bytes());
                data[16] = u8::from(*reset);
                self.answered(dir, on, GET_DEV_STATS, data, |data| {
                    format!(
                        "{} {:?}",
                        u64_at(data, 8),
                        (24..64).step_by(8).map(|at| u64_at(data, at)).collect::<Vec<_>>()
                    )
                })
            }
            Call::Features { on, which } => {
                let (command, size) = if *which == Features::Of { (GET_FEATURES, 24) } else { (GET_SUPPORTED, 72) };
                self.answered(dir, on, command, vec![0; size], |data| {
                    let flags = (0..size).step_by(8).map(|at| u64_at(data, at) & !BY_USE);
                    format!("{:x?}", flags.collect::<Vec<_>>())
                })
            }
            Call::GetLabel { on } => self.answered(dir, on, GET_LABEL, vec![0; 256], |data| text_at(data, 0)),
            Call::SetLabel { on, label } => {
                let mut data = vec![0; 256];
                put(&mut data, 0, &label.as_bytes()[..label.len().min(256)]);
                self.asked(dir, on, SET_LABEL, data)
            }
            _ => return None,
        };
        Some(Ok(outcome.unwrap_or_else(name_of)))
    }
}

/// Returns the keys of items in the tree of the subvolume of `file`, from its top directory on.
/// Items of extents are left out, since writeback divides data into extents by chance.
fn search(file: RawFd, kinds: (u32, u32), most: u32) -> Result<String, i32> {
    const EXTENT_DATA: u32 = 108;
    let mut data = vec![0; 4096];
    put(&mut data, 8, &256_u64.to_le_bytes());
    put(&mut data, 16, &300_u64.to_le_bytes());
    put(&mut data, 32, &u64::MAX.to_le_bytes());
    put(&mut data, 48, &u64::MAX.to_le_bytes());
    put(&mut data, 56, &kinds.0.to_le_bytes());
    put(&mut data, 60, &kinds.1.to_le_bytes());
    put(&mut data, 64, &most.to_le_bytes());
    sys::ioctl(file.as_raw_fd(), TREE_SEARCH, &mut data)?;
    let mut found = Vec::new();
    let mut at = 104;
    for _ in 0..u32_at(&data, 64) {
        let (inode, offset) = (u64_at(&data, at + 8), u64_at(&data, at + 16));
        let (kind, length) = (u32_at(&data, at + 24), u32_at(&data, at + 28) as usize);
        if kind != EXTENT_DATA {
            found.push(format!("{inode}.{kind}.{offset:x}+{length}"));
        }
        at += 32 + length;
        if at > data.len() - 32 {
            break;
        }
    }
    Ok(found.join(" "))
}
