//! A volume of the kernel, on which the harness is tested.

use std::path::Path;

use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

/// Calls `work` with a fresh volume of `size` bytes that the kernel has mounted. `btrfs check` must
/// find no fault afterwards.
pub fn on_the_kernel(size: u64, work: impl FnOnce(&Path)) {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, size, &[]);
    let mount = Subject::Kernel.mount(&[&image], "");
    work(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(&image);
}
