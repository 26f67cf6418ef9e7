//! statmount(2), by which the kernel describes one mount in any mount namespace.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::ioctl::{Getter, ioctl};

use super::id_map::IdMaps;

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): a number that no later mount gets.
pub(crate) const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// `NS_GET_MNTNS_ID`.
const NS_GET_MNTNS_ID: u32 = 0x8008_b705;
/// The system call's number, which is the same on all architectures that use the common table.
const SYS_STATMOUNT: libc::c_long = 457;
/// `STATMOUNT_MNT_UIDMAP` and `STATMOUNT_MNT_GIDMAP` (since Linux 6.15).
const ID_MAPS: u64 = 0x2000 | 0x4000;
/// Offsets in `struct statmount`: of the mask of what was filled in, of the number of ranges and
/// the offset of the first range (for users and for groups), and of the strings.
const MASK: usize = 8;
const MAPS: [(usize, usize); 2] = [(152, 156), (160, 164)];
const STRINGS: usize = 512;
/// Bytes for 340 ranges each of users and groups, the most that a map can have.
const ROOM: usize = 64 << 10;

/// `struct mnt_id_req`.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    wanted: u64,
    namespace: u64,
}

/// The id maps of the mount of an open file, which is in the mount namespace of this process or of
/// `pid`. `None` if the kernel does not say.
pub(super) fn id_maps(open: BorrowedFd<'_>, pid: u32) -> Option<IdMaps> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(open, "", flags, UNIQUE_ID).ok()?;
    if !StatxFlags::from_bits_retain(found.stx_mask).contains(UNIQUE_ID) {
        return None;
    }
    let namespaces = [namespace_of(pid), Some(0)];
    namespaces.into_iter().flatten().find_map(|namespace| id_maps_in(found.stx_mnt_id, namespace))
}

/// The number of the mount namespace of a process.
fn namespace_of(pid: u32) -> Option<u64> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt")).ok()?;
    // SAFETY: this command fills in a number.
    let getter = unsafe { Getter::<NS_GET_MNTNS_ID, u64>::new() };
    // SAFETY: the same.
    unsafe { ioctl(namespace.as_fd(), getter) }.ok()
}

fn id_maps_in(mount: u64, namespace: u64) -> Option<IdMaps> {
    let request = Request { size: size_of::<Request>() as u32, spare: 0, mount, wanted: ID_MAPS, namespace };
    let mut answer = vec![0_u8; ROOM];
    // SAFETY: the kernel reads the request, which says its size, and fills in at most as many
    // bytes of the answer as there are.
    let done = unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, answer.as_mut_ptr(), answer.len(), 0_usize) };
    if done == 0 { parse(&answer) } else { None }
}

/// The maps in an answer.
fn parse(answer: &[u8]) -> Option<IdMaps> {
    let word = |at: usize| answer.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize);
    let mask = answer.get(MASK..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))?;
    if mask & ID_MAPS != ID_MAPS {
        return None;
    }
    let lines = |(count, first): (usize, usize)| -> Option<Vec<&str>> {
        let strings = answer.get(STRINGS.checked_add(word(first)?)?..)?;
        let lines = strings.split(|byte| *byte == 0).take(word(count)?);
        lines.map(|line| std::str::from_utf8(line).ok()).collect()
    };
    let [users, groups] = MAPS.map(lines);
    IdMaps::parse(users?.into_iter(), groups?.into_iter())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    fn answer(mask: u64, users: (u32, u32), groups: (u32, u32), strings: &[u8]) -> Vec<u8> {
        let mut answer = vec![0; STRINGS];
        answer[MASK..MASK + 8].copy_from_slice(&mask.to_ne_bytes());
        for ((count, first), (count_at, first_at)) in [users, groups].into_iter().zip(MAPS) {
            answer[count_at..count_at + 4].copy_from_slice(&count.to_ne_bytes());
            answer[first_at..first_at + 4].copy_from_slice(&first.to_ne_bytes());
        }
        answer.extend(strings);
        answer
    }

    #[test]
    fn maps_are_read_from_the_answer() {
        let strings = b"0 5000 10\x00100 7 1\x005 6 7\0";
        let maps = parse(&answer(ID_MAPS, (2, 0), (1, 18), strings)).unwrap();
        assert_eq!((maps.shown_user(100), maps.shown_group(11)), (Some(7), Some(12)));
        assert_eq!(parse(&answer(0x2000, (2, 0), (1, 18), strings)), None, "an older kernel");
        assert_eq!(parse(&answer(ID_MAPS, (2, 0), (1, 9999), strings)), None);
        assert_eq!(parse(&answer(ID_MAPS, (9, 0), (1, 18), strings)), None);
        assert_eq!(parse(&[0; 20]), None);
    }
}
