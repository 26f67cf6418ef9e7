//! Recognising the contents of a device, so that they aren't overwritten by mistake.

use std::io;

/// The location of a signature.
#[derive(Clone, Copy)]
enum Place {
    /// The offset in bytes from the start.
    Start(u64),
    /// The offset `into` the block that begins `before` bytes before the end, rounded down to the
    /// unit.
    End { before: u64, unit: u64, into: u64 },
}

impl Place {
    /// Returns the address on a device of this size.
    fn on(self, size: u64) -> Option<u64> {
        match self {
            Self::Start(at) => Some(at),
            Self::End { before, unit, into } => {
                let block = size.checked_sub(before)?;
                Some(block - block % unit + into)
            }
        }
    }
}

/// Bytes at an offset that identify the contents of a device.
struct Signature {
    name: &'static str,
    place: Place,
    magic: &'static [u8],
}

const fn signature(name: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { name, place: Place::Start(at), magic }
}

const fn at_end(name: &'static str, before: u64, unit: u64, into: u64, magic: &'static [u8]) -> Signature {
    Signature { name, place: Place::End { before, unit, into }, magic }
}

const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
/// The first name in the list that a ZFS label holds, with its length.
const ZFS_LABEL: &[u8] = b"\0\0\0\x07version\0";
const ZFS_LABEL_AT: u64 = (16 << 10) + 20;

/// The signatures, ordered so that certain ones come before a mere boot sector.
const SIGNATURES: &[Signature] = &[
    signature("btrfs", 65536 + 64, b"_BHRfS_M"),
    signature("ext2/3/4", 1024 + 56, &[0x53, 0xef]),
    signature("XFS", 0, b"XFSB"),
    signature("F2FS", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    signature("EROFS", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    signature("HFS+", 1024, b"H+\0\x04"),
    signature("HFS+", 1024, b"HX\0\x05"),
    signature("APFS container", 32, b"NXSB"),
    signature("JFS", 32768, b"JFS1"),
    signature("ReiserFS", 8192 + 52, b"ReIsErFs"),
    signature("ReiserFS", 65536 + 52, b"ReIsErFs"),
    signature("ReiserFS", 65536 + 52, b"ReIsEr2Fs"),
    signature("ReiserFS", 65536 + 52, b"ReIsEr3Fs"),
    signature("Reiser4", 65536, b"ReIsEr4"),
    signature("OCFS2", 1024, b"OCFSV2"),
    signature("OCFS2", 2048, b"OCFSV2"),
    signature("OCFS2", 4096, b"OCFSV2"),
    signature("OCFS2", 8192, b"OCFSV2"),
    signature("GFS2", 65536, &[0x01, 0x16, 0x19, 0x70]),
    signature("UFS", 8192 + 1372, &[0x54, 0x19, 0x01, 0x00]),
    signature("UFS", 65536 + 1372, &[0x19, 0x01, 0x54, 0x19]),
    signature("BeFS", 512 + 32, b"1SFB"),
    signature("HPFS", 8192, &[0x49, 0xe8, 0x95, 0xf9]),
    signature("squashfs", 0, b"hsqs"),
    signature("squashfs", 0, b"sqsh"),
    signature("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    signature("cramfs", 0, &[0x28, 0xcd, 0x3d, 0x45]),
    signature("romfs", 0, b"-rom1fs-"),
    signature("zonefs", 0, b"SFOZ"),
    signature("ISO 9660", 32769, b"CD001"),
    signature("UDF", 32769, b"BEA01"),
    signature("VMFS", 1 << 20, &[0x0d, 0xd0, 0x01, 0xc0]),
    signature("ZFS pool member", ZFS_LABEL_AT, ZFS_LABEL),
    signature("ZFS pool member", (256 << 10) + ZFS_LABEL_AT, ZFS_LABEL),
    at_end("ZFS pool member", 512 << 10, 256 << 10, ZFS_LABEL_AT, ZFS_LABEL),
    at_end("ZFS pool member", 256 << 10, 256 << 10, ZFS_LABEL_AT, ZFS_LABEL),
    signature("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    signature("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    signature("LUKS", 0, b"LUKS\xba\xbe"),
    signature("LUKS", 16384, b"SKUL\xba\xbe"),
    signature("BitLocker volume", 3, b"-FVE-FS-"),
    signature("LVM2 physical volume", 24, b"LVM2 001"),
    signature("LVM2 physical volume", 512 + 24, b"LVM2 001"),
    signature("LVM2 physical volume", 1024 + 24, b"LVM2 001"),
    signature("LVM2 physical volume", 1536 + 24, b"LVM2 001"),
    signature("Stratis pool member", 512 + 4, b"!Stra0tis"),
    signature("VDO volume", 0, b"dmvdo001"),
    signature("dm-integrity volume", 0, b"integrt\0"),
    signature("Ceph BlueStore", 0, b"bluestore block "),
    signature("md RAID member", 0, MD),
    signature("md RAID member", 4096, MD),
    // The formats 1.0 and 0.90.
    at_end("md RAID member", 8 << 10, 4 << 10, 0, MD),
    at_end("md RAID member", 64 << 10, 64 << 10, 0, MD),
    signature("swap", 4096 - 10, b"SWAPSPACE2"),
    signature("swap", 16384 - 10, b"SWAPSPACE2"),
    signature("swap", 65536 - 10, b"SWAPSPACE2"),
    signature("swap", 4096 - 10, b"SWAP-SPACE"),
    signature("hibernated system", 4096 - 10, b"S1SUSPEND"),
    signature("NTFS", 3, b"NTFS    "),
    signature("exFAT", 3, b"EXFAT   "),
    signature("ReFS", 3, b"ReFS\0"),
    signature("FAT", 82, b"FAT32   "),
    signature("FAT", 54, b"FAT1"),
    // Signatures with a magic of two bytes come last.
    signature("NILFS2", 1024 + 6, b"44"),
    at_end("NILFS2", 4 << 10, 4 << 10, 6, b"44"),
    signature("minix", 1024 + 16, &[0x7f, 0x13]),
    signature("minix", 1024 + 16, &[0x8f, 0x13]),
    signature("minix", 1024 + 16, &[0x68, 0x24]),
    signature("minix", 1024 + 16, &[0x78, 0x24]),
    signature("minix", 1024 + 24, &[0x5a, 0x4d]),
    signature("HFS", 1024, b"BD"),
    signature("GPT partition table", 512, b"EFI PART"),
    signature("GPT partition table", 4096, b"EFI PART"),
    at_end("GPT partition table", 512, 512, 0, b"EFI PART"),
    at_end("GPT partition table", 4096, 4096, 0, b"EFI PART"),
    signature("Apple partition map", 512, b"PM\0\0"),
    signature("MBR partition table", 510, &[0x55, 0xaa]),
];

/// Returns the name of the file system, container or partition table on a device of `size` bytes,
/// if it is a common one. `read` fills the whole buffer from a byte offset; `UnexpectedEof` means
/// that the device ends.
pub fn existing_signature(
    size: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<String>> {
    for signature in SIGNATURES {
        let mut found = [0; 16];
        let found = &mut found[..signature.magic.len()];
        let Some(at) = signature.place.on(size) else { continue };
        if at.checked_add(found.len() as u64).is_none_or(|end| end > size) {
            continue;
        }
        match read(at, found) {
            Ok(()) if found == signature.magic => return Ok(Some(signature.name.to_owned())),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature_of(device: &[u8]) -> Option<String> {
        let mut read = |at: u64, buffer: &mut [u8]| {
            let at = at as usize;
            let from = device.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(from);
            Ok(())
        };
        existing_signature(device.len() as u64, &mut read).unwrap()
    }

    #[test]
    fn every_signature_is_found_and_nothing_else() {
        assert_eq!(signature_of(&vec![0; 100_000]), None);
        assert_eq!(signature_of(&[]), None);
        let mut device = vec![0; (2 << 20) + 12345];
        for signature in SIGNATURES {
            let at = signature.place.on(device.len() as u64).unwrap() as usize;
            let place = at..at + signature.magic.len();
            device[place.clone()].copy_from_slice(signature.magic);
            assert_eq!(signature_of(&device).as_deref(), Some(signature.name));
            device[place].fill(0);
        }
        assert_eq!(signature_of(&device), None);
    }

    /// The superblocks of these formats are where md(4) says.
    #[test]
    fn members_of_raids_are_found_by_their_ends() {
        let size: u64 = (1 << 20) + 5 * 4096 + 512;
        for at in [(size & !65535) - 65536, ((size >> 9) - 16) / 8 * 8 * 512] {
            let mut device = vec![0; size as usize];
            device[at as usize..][..4].copy_from_slice(MD);
            assert_eq!(signature_of(&device).as_deref(), Some("md RAID member"), "{at}");
        }
    }

    #[test]
    fn an_error_of_the_device_is_reported() {
        let mut read = |_, _: &mut [u8]| Err(io::Error::other("broken"));
        assert!(existing_signature(1 << 20, &mut read).is_err());
    }
}
