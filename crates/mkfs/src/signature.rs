//! Recognises what stands on a device, so that it isn't overwritten unasked.

use std::io;

/// Bytes at a place that tell what a device holds.
struct Signature {
    name: &'static str,
    at: u64,
    magic: &'static [u8],
}

const fn signature(name: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { name, at, magic }
}

/// Ordered so that what is certain comes before what is merely a boot sector.
const SIGNATURES: &[Signature] = &[
    signature("btrfs", 65536 + 64, b"_BHRfS_M"),
    signature("ext2/3/4", 1024 + 56, &[0x53, 0xef]),
    signature("XFS", 0, b"XFSB"),
    signature("F2FS", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    signature("squashfs", 0, b"hsqs"),
    signature("ISO 9660", 32769, b"CD001"),
    signature("LUKS", 0, b"LUKS\xba\xbe"),
    signature("LVM2 physical volume", 512 + 24, b"LVM2 001"),
    signature("md RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    signature("swap", 4096 - 10, b"SWAPSPACE2"),
    signature("swap", 16384 - 10, b"SWAPSPACE2"),
    signature("swap", 65536 - 10, b"SWAPSPACE2"),
    signature("NTFS", 3, b"NTFS    "),
    signature("exFAT", 3, b"EXFAT   "),
    signature("FAT", 82, b"FAT32   "),
    signature("FAT", 54, b"FAT1"),
    signature("GPT partition table", 512, b"EFI PART"),
    signature("GPT partition table", 4096, b"EFI PART"),
    signature("MBR partition table", 510, &[0x55, 0xaa]),
];

/// Names the file system, container or partition table that stands on a device, if one of the
/// common ones does. `read` fills the whole buffer from a byte offset; where it says
/// `UnexpectedEof` the device ends.
pub fn existing_signature(read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Option<String>> {
    for signature in SIGNATURES {
        let mut found = [0; 16];
        let found = &mut found[..signature.magic.len()];
        match read(signature.at, found) {
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
        existing_signature(&mut read).unwrap()
    }

    #[test]
    fn every_signature_is_found_and_nothing_else() {
        assert_eq!(signature_of(&vec![0; 100_000]), None);
        assert_eq!(signature_of(&[]), None);
        for signature in SIGNATURES {
            let mut device = vec![0; 100_000];
            device[signature.at as usize..][..signature.magic.len()].copy_from_slice(signature.magic);
            assert_eq!(signature_of(&device).as_deref(), Some(signature.name));
        }
    }

    #[test]
    fn an_error_of_the_device_is_told() {
        let mut read = |_, _: &mut [u8]| Err(io::Error::other("broken"));
        assert!(existing_signature(&mut read).is_err());
    }
}
