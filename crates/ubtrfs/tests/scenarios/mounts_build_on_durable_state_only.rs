//! A mount for writing reads, replays and builds upon data that the last process wrote without a
//! barrier, so it makes that data durable before it promises anything (invariant 22).

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::{Filesystem, Options, Result};
use ubtrfs_volume::{FaultyDevice, Lasting, OpenOptions, Operation, Volume};

const EIO: i32 = 5;

fn mount(device: &Arc<FaultyDevice>, read_only: bool) -> Result<Arc<Filesystem>> {
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only }).unwrap();
    Filesystem::open(Arc::new(volume), Options { read_only, background_commits: false, ..Options::default() })
}

#[test]
fn a_mount_for_writing_begins_with_a_barrier() {
    let device = Arc::new(FaultyDevice::new(Arc::new(new_volume(128 << 20))));
    for (read_only, barriers) in [(true, 0), (false, 1)] {
        mount(&device, read_only).unwrap();
        assert_eq!(device.asked(Operation::Flush), barriers, "read_only: {read_only}");
    }
    device.fail(Operation::Flush, 0, EIO, Lasting::Once);
    assert!(mount(&device, false).is_err(), "a barrier that fails goes unnoticed");
}
