//! Which mount is seen at a path.

use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): a number that no later mount gets.
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The number of the mount that is seen at `path`. Before Linux 6.8 another mount may get it when this one has ended. Asks
/// nothing of the filesystem, so it works while nobody serves it.
pub fn of(path: &Path) -> Option<u64> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    [UNIQUE_ID, StatxFlags::MNT_ID].into_iter().find_map(|kind| {
        let statx = rustix::fs::statx(&place, "", flags, kind).ok()?;
        StatxFlags::from_bits_retain(statx.stx_mask).contains(kind).then_some(statx.stx_mnt_id)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn mounts_differ() {
        let root = super::of("/".as_ref()).unwrap();
        assert_eq!(super::of("/".as_ref()), Some(root));
        assert_ne!(super::of("/proc".as_ref()), Some(root));
        assert_eq!(super::of("/does/not/exist".as_ref()), None);
    }
}
