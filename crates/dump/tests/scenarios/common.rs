//! What the tests share: volumes, dumps of them, an own reading of dumps, and comparisons.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use ubtrfs_check::{Options, Report};
use ubtrfs_dump::{DumpOptions, Dumped, RestoreOptions, RestorePlan, Restored, Target};
use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{Header, ItemType, Key, Node};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode};

/// Opens images for reading.
pub fn devices(images: &[PathBuf]) -> Vec<Arc<dyn Device>> {
    let open = |path: &PathBuf| -> Arc<dyn Device> {
        Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::No).unwrap())
    };
    images.iter().map(open).collect()
}

/// Dumps a volume.
pub fn dump(images: &[PathBuf], sanitise: bool, level: u32) -> (Dumped, Vec<u8>) {
    let mut out = Vec::new();
    let options = DumpOptions { sanitise, level, threads: 2, progress: &|_| true };
    let dumped = ubtrfs_dump::dump(&devices(images), &mut out, &options).unwrap();
    assert_eq!(dumped.file_bytes, out.len() as u64);
    (dumped, out)
}

/// Restores a dump to images in a directory, in the order of the devices' numbers.
pub fn restore(dump: &[u8], directory: &Path) -> (Restored, Vec<PathBuf>) {
    let plan = RestorePlan::read(&dump).unwrap();
    let names: Vec<_> =
        plan.devices().iter().map(|device| directory.join(format!("restored.{}", device.devid))).collect();
    let open = |name: &PathBuf| File::options().read(true).write(true).create(true).truncate(true).open(name).unwrap();
    let mut files: Vec<File> = names.iter().map(open).collect();
    let mut targets: Vec<&mut dyn Target> = files.iter_mut().map(|file| file as &mut dyn Target).collect();
    let options = RestoreOptions { threads: 2, progress: &|_, _| true };
    let restored = ubtrfs_dump::restore(&dump, &plan, &mut targets, &options).unwrap();
    (restored, names)
}

/// Checks the structures of a volume.
pub fn check(images: &[PathBuf]) -> Report {
    ubtrfs_check::check(&devices(images), &Options { data_checksums: false, ..Options::default() }).unwrap()
}

/// The faults of a report as text.
pub fn faults(report: &Report) -> Vec<String> {
    let mut faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    faults.sort();
    faults
}

/// The items of a dump, read by the tests' own code: the superblock, and all others by their
/// addresses, cut into blocks of `node` bytes.
pub fn blocks_of(dump: &[u8], node: usize) -> (Vec<u8>, BTreeMap<u64, Vec<u8>>) {
    let number = |at: usize, len: usize| {
        dump[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (mut superblock, mut blocks, mut at) = (None, BTreeMap::new(), 0);
    while at < dump.len() {
        assert_eq!((number(at, 8), number(at + 8, 8)), (0xbd5c_25e2_7295_668b, at as u64));
        let mut content = at + 1024;
        for item in 0..number(at + 16, 4) as usize {
            let place = at + 21 + 12 * item;
            let (logical, len) = (number(place, 8), number(place + 8, 4) as usize);
            let stored = &dump[content..content + len];
            let mut unpacked = Vec::new();
            match dump[at + 20] {
                0 => unpacked.extend_from_slice(stored),
                _ => drop(ZlibDecoder::new(stored).read_to_end(&mut unpacked).unwrap()),
            }
            content += len;
            if superblock.is_none() {
                assert_eq!(logical, 65536);
                superblock = Some(unpacked);
            } else {
                let pieces = unpacked.chunks(node).enumerate();
                blocks.extend(pieces.map(|(index, piece)| (logical + (index * node) as u64, piece.to_vec())));
            }
        }
        at = content.next_multiple_of(1024);
    }
    (superblock.unwrap(), blocks)
}

/// The content of a block apart from what a dump leaves out: its checksum, the contents of inline
/// extents, and bytes that nothing refers to. For a block without structure all of it.
pub fn essence(block: &[u8]) -> (Header, Vec<(Key, Vec<u8>)>) {
    let header = Header::parse(block).unwrap();
    let items = match Node::view(block).unwrap() {
        Node::Internal(node) => {
            let pointer = |child: ubtrfs_format::ChildPointer| {
                (child.key, [child.bytenr.0.to_le_bytes(), child.generation.0.to_le_bytes()].concat())
            };
            node.iter().map(pointer).collect()
        }
        Node::Leaf(leaf) => leaf.iter().map(|(key, data)| (key, without_content(key, data))).collect(),
    };
    (header, items)
}

fn without_content(key: Key, data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let is_inline = key.item_type == ItemType::EXTENT_DATA
        && FileExtent::parse(&data).is_ok_and(|extent| matches!(extent.kind, FileExtentKind::Inline(_)));
    if is_inline {
        data[ubtrfs_format::items::INLINE_DATA_OFFSET..].fill(0);
    }
    data
}
