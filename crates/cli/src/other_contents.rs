//! What a device without btrfs holds instead, and what to do about it.

use std::path::Path;

use ubtrfs_format::Physical;
use ubtrfs_mkfs::existing_signature;
use ubtrfs_volume::{Error, open_to_look};

use crate::partitions::Partitions;

/// Bytes at an offset of files that wrap an image: what they are, and the remedy.
const WRAPPED: &[(u64, &[u8], &str, &str)] = &[
    (0, b"\x1f\x8b\x08", "a file compressed by gzip", "unpack it with 'gzip -d' first"),
    (0, b"\x28\xb5\x2f\xfd", "a file compressed by zstd", "unpack it with 'zstd -d' first"),
    (0, b"\xfd7zXZ\0", "a file compressed by xz", "unpack it with 'xz -d' first"),
    (0, b"BZh", "a file compressed by bzip2", "unpack it with 'bzip2 -d' first"),
    (0, b"QFI\xfb", "a disk image in the format qcow2", CONVERT),
    (0, b"KDMV", "a disk image in the format VMDK", CONVERT),
    (0, b"# Disk DescriptorFile", "a disk image in the format VMDK", CONVERT),
    (0, b"vhdxfile", "a disk image in the format VHDX", CONVERT),
    (64, b"\x7f\x10\xda\xbe", "a disk image in the format VDI", CONVERT),
];

/// A volume has more bytes than this: its superblock ends there.
const LEAST: u64 = 68 << 10;
/// What is looked at to find out whether there is anything.
const BEGINNING: usize = 128 << 10;

const CONVERT: &str = "'qemu-img convert -O raw' makes an image of it that can be read";

/// What else than btrfs is on a device, as the end of a sentence, for a mount in words of its
/// options: nothing if that isn't known.
pub fn instead_of_btrfs(path: &Path, of_mount: bool) -> Option<String> {
    let device = open_to_look(path).ok()?;
    match Partitions::of(path) {
        Ok(Some(partitions)) => return Some(partitions.as_hint(of_mount)),
        Err(error @ Error::PartitionTable(_)) => {
            let offset = if of_mount { "-o offset=" } else { "--offset" };
            return Some(format!("{error}; name where a partition begins with {offset}"));
        }
        _ => {}
    }
    for (at, magic, what, remedy) in WRAPPED {
        let mut found = vec![0; magic.len()];
        if device.read_at(Physical(*at), &mut found).is_ok() && found == *magic {
            return Some(format!("it is {what}: {remedy}"));
        }
    }
    let size = device.size();
    if size < LEAST {
        return Some(format!("it has {size} bytes, fewer than any volume"));
    }
    let mut read = |at: u64, buffer: &mut [u8]| device.read_at(Physical(at), buffer);
    let found = existing_signature(size, &mut read).ok()?.filter(|found| found != "btrfs");
    let Some(found) = found else {
        let mut beginning = vec![0; BEGINNING.min(usize::try_from(size).unwrap_or(BEGINNING))];
        let is_empty = read(0, &mut beginning).is_ok() && beginning.iter().all(|byte| *byte == 0);
        return is_empty.then(|| format!("it is empty; 'ubtrfs mkfs {}' makes a volume of it", path.display()));
    };
    Some(match remedy(&found, of_mount) {
        Some(remedy) => format!("the device holds this instead: {found}; {remedy}"),
        None => format!("the device holds this instead: {found}"),
    })
}

fn remedy(found: &str, of_mount: bool) -> Option<&'static str> {
    match found {
        "GPT partition table" | "MBR partition table" | "Apple partition map" => Some(if of_mount {
            "name the device of a partition, or where it begins with -o offset=; 'sfdisk -l' lists them"
        } else {
            "name the device of a partition, or where it begins with --offset; 'sfdisk -l' lists them"
        }),
        "LUKS" => Some("open it with 'cryptsetup open', and name the device that this makes"),
        "BitLocker volume" => Some("open it with 'cryptsetup bitlkOpen', and name the device that this makes"),
        "LVM2 physical volume" => Some("activate its volumes with 'vgchange -ay', and name one of them"),
        "md RAID member" => Some("assemble it with 'mdadm --assemble', and name the device that this makes"),
        _ => None,
    }
}
