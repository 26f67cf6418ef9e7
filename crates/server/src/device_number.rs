//! Converts the numbers of device nodes between FUSE's form and that of the volume.

/// The largest major number that the kernel has.
const MAJOR_MAX: u64 = (1 << 12) - 1;
/// The largest minor number that the kernel has.
const MINOR_MAX: u64 = (1 << 20) - 1;

/// Converts from FUSE's 32 bits (12 bits of the major number between the two parts of the 20 bits
/// of the minor) to the form of an inode item (`major << 20 | minor`).
pub fn to_disk(rdev: u32) -> u64 {
    let major = u64::from(rdev >> 8) & MAJOR_MAX;
    let minor = u64::from(rdev & 0xff | rdev >> 12 & 0xf_ff00);
    major << 20 | minor
}

/// Converts from the form of an inode item to FUSE's. Bits that no device has are left out.
pub fn from_disk(rdev: u64) -> u32 {
    let (major, minor) = (rdev >> 20 & MAJOR_MAX, rdev & MINOR_MAX);
    (major << 8 | minor & 0xff | (minor & !0xff) << 12) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are what the kernel's btrfs wrote for `mknod c 10 74565` and others.
    #[test]
    fn the_disk_form_is_the_kernels() {
        let fuse = |major: u32, minor: u32| major << 8 | minor & 0xff | (minor & !0xff) << 12;
        for (major, minor, disk) in [(10, 74565, 10_560_325), (4095, 1_048_575, 4_294_967_295), (259, 300, 271_581_484)]
        {
            assert_eq!(to_disk(fuse(major, minor)), disk);
            assert_eq!(from_disk(disk), fuse(major, minor));
        }
        assert_eq!(to_disk(0), 0);
    }
}
