//! Describes what a device without btrfs holds instead, and what to do about it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use ubtrfs_format::Physical;
use ubtrfs_mkfs::existing_signature;
use ubtrfs_volume::{Device, DevicePart, Error, is_remote, open_to_look};

use crate::partitions::Partitions;

/// Files that wrap an image: their bytes at an offset, what they are, and the remedy.
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

/// Files that wrap no image, but that somebody may miss: their bytes at an offset, and what they
/// are.
const OTHERS: &[(u64, &[u8], &str)] = &[
    (0, b"SQLite format 3\0", "an SQLite database"),
    (257, b"ustar", "a tar archive"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"\x7fELF", "a program"),
    (0, b"%PDF-", "a PDF document"),
];

/// A volume is larger than this, since its superblock ends there, in bytes.
const MIN: u64 = 68 << 10;
/// How many bytes at the start are searched for anything but zeros.
const BEGINNING: usize = 128 << 10;

const CONVERT: &str = "'qemu-img convert -O raw' makes an image of it that can be read";

/// Describes what a device holds instead of btrfs, as the end of a sentence; for a mount, by its
/// options. Returns `None` if that isn't known.
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
    if size < MIN {
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

/// Describes what a new volume would overwrite in a part of a device, or in an image file; `None`
/// if nobody can miss it. In a file, any byte that is not zero counts. A device may have remains of
/// what was deleted, so only recognised contents count there.
pub fn overwritten(path: &Path, device: &dyn Device, part: DevicePart) -> io::Result<Option<String>> {
    let rest = device.size().saturating_sub(part.start);
    let size = part.size.map_or(rest, |limit| limit.min(rest));
    let mut read = |at: u64, buffer: &mut [u8]| device.read_at(Physical(part.start.saturating_add(at)), buffer);
    if let Some(found) = existing_signature(size, &mut read)? {
        return Ok(Some(format!("a {found}")));
    }
    let wrapped = WRAPPED.iter().map(|(at, magic, what, _)| (at, magic, what));
    for (at, magic, what) in wrapped.chain(OTHERS.iter().map(|(at, magic, what)| (at, magic, what))) {
        let mut found = vec![0; magic.len()];
        if at + magic.len() as u64 <= size && read(*at, &mut found).is_ok() && found == *magic {
            return Ok(Some((*what).to_owned()));
        }
    }
    let is_file = !is_remote(path) && std::fs::metadata(path)?.is_file();
    let has_data = is_file && has_data(&File::open(path)?, part.start, part.start.saturating_add(size))?;
    Ok(has_data.then(|| "data that is no file system".to_owned()))
}

/// Whether a part of a file has a byte that is not zero.
fn has_data(file: &File, mut at: u64, end: u64) -> io::Result<bool> {
    let mut buffer = vec![0; 1 << 20];
    while at < end {
        // Skips holes and space that is only preallocated.
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(false),
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let wanted = buffer.len().min(usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX));
        let len = file.read_at(&mut buffer[..wanted], at)?;
        if len == 0 {
            return Ok(false);
        }
        if buffer[..len].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += len as u64;
    }
    Ok(false)
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
