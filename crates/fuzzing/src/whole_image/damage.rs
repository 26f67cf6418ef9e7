//! The language of inputs. The first byte is the number of the base. Damages follow: each is an
//! operation, its operands and, if it overwrites, a length and so many bytes:
//!
//! | operation | operands | what |
//! |---|---|---|
//! | 0 | type, which, offset (u16) | overwrite in the data of an item of that type |
//! | 1 | type, which, offset | overwrite in an item's header: key, offset, size |
//! | 2 | block (u16), offset (u16) | overwrite in a block, its header and all |
//! | 3 | offset (u16) | overwrite in the superblock |
//! | 4 | block (u16), copy, offset (u16) | overwrite in one copy of a block, which makes its checksum wrong |
//! | 5 | block (u16), block (u16) | the first gets the content of the second |
//! | 6 | address (u32, in units of 64 bytes) | overwrite anywhere |
//!
//! All but 4 and 6 correct the checksums afterwards. Numbers are little endian, and operands are
//! taken modulo the number of items, blocks or copies; so every input is valid, and inputs keep
//! their meaning when a base changes a little.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_format::{
    CHECKSUM_FIELD, HEADER_SIZE, ITEM_HEADER_SIZE, ItemType, LeafBuilder, Logical, Physical, SUPERBLOCK_SIZE,
};
use ubtrfs_volume::{Device, DeviceWrite, OverlayDevice, SharedBuffer};

use super::base::{Base, base, read, superblock_checksum};

/// Damages of an input beyond this number are not applied.
const MAX: usize = 64;
/// The unit of writing to a device.
const PAGE: u64 = 4096;
/// The offset of a block's own address.
const BYTENR: std::ops::Range<usize> = 48..56;

/// Returns the volume that an input describes, made of one of these bases; `None` if it describes
/// none.
pub(crate) fn apply(data: &[u8], bases: fn(usize) -> &'static Base) -> Option<Arc<OverlayDevice>> {
    let mut program = Program(data);
    let base = bases(program.byte()?.into());
    let device = OverlayDevice::new(base.image.clone());
    for _ in 0..MAX {
        if one(&mut program, base, &device).is_none() {
            break;
        }
    }
    Some(Arc::new(device))
}

/// The rest of the input.
struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        (0..bytes).try_fold(0, |sum, place| Some(sum | usize::from(self.byte()?) << (8 * place)))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.byte()?) % 65;
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        Some(bytes)
    }
}

fn one(program: &mut Program<'_>, base: &Base, device: &OverlayDevice) -> Option<()> {
    match program.byte()? % 7 {
        kind @ (0 | 1) => {
            let (types, which) = (usize::from(program.byte()?), usize::from(program.byte()?));
            let offset = program.number(if kind == 0 { 2 } else { 1 })?;
            let bytes = program.bytes()?;
            let items = item_list(base, types);
            let (number, slot) = items[which % items.len()];
            change_block(base, device, number, |block| {
                let header = HEADER_SIZE + slot * ITEM_HEADER_SIZE;
                if kind == 1 {
                    overwrite(block, header + offset % ITEM_HEADER_SIZE, bytes);
                    return;
                }
                let field = |at: usize| {
                    let bytes = block.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
                    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
                };
                let (at, size) = (field(header + 17), field(header + 21));
                let within = offset % size.max(1);
                let len = bytes.len().min(size - within.min(size));
                overwrite(block, HEADER_SIZE.saturating_add(at).saturating_add(within), &bytes[..len]);
            });
        }
        2 => {
            let (number, offset) = (program.number(2)?, program.number(2)?);
            let bytes = program.bytes()?;
            change_block(base, device, number, |block| overwrite(block, offset % block.len(), bytes));
        }
        3 => {
            let offset = program.number(2)?;
            let bytes = program.bytes()?;
            for at in base.superblocks() {
                let mut superblock = read(device, at, SUPERBLOCK_SIZE);
                overwrite(&mut superblock, offset % SUPERBLOCK_SIZE, bytes);
                let checksum = superblock_checksum(&superblock).unwrap_or(base.checksum);
                let sum = checksum.compute(&superblock[CHECKSUM_FIELD..]);
                superblock[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
                write(device, at, superblock);
            }
        }
        4 => {
            let (number, copy, offset) = (program.number(2)?, program.number(1)?, program.number(2)?);
            let bytes = program.bytes()?;
            let places = &base.blocks[number % base.blocks.len()].places;
            let at = places[copy % places.len()];
            let mut block = read(device, at, base.node_size);
            overwrite(&mut block, offset % base.node_size, bytes);
            write(device, at, block);
        }
        5 => {
            let (number, source) = (program.number(2)?, program.number(2)?);
            let source = base.blocks[source % base.blocks.len()].places[0];
            let Logical(at) = base.blocks[number % base.blocks.len()].at;
            let content = read(device, source, base.node_size);
            change_block(base, device, number, |block| {
                block.copy_from_slice(&content);
                block[BYTENR].copy_from_slice(&at.to_le_bytes());
            });
        }
        _ => {
            let at = program.number(4)? as u64 * 64 % device.size();
            let bytes = program.bytes()?;
            let page = Physical(at - at % PAGE);
            let mut content = read(device, page, PAGE as usize);
            overwrite(&mut content, (at % PAGE) as usize, bytes);
            write(device, page, content);
        }
    }
    Some(())
}

/// Returns the items of the type with this number or, if there are none, of the type at this index
/// among the types of the base.
fn item_list(base: &Base, item_type: usize) -> &[(usize, usize)] {
    let named = base.items.get(&(item_type as u8));
    let types = base.items.len();
    named.or_else(|| base.items.values().nth(item_type % types)).map_or(&[], Vec::as_slice)
}

fn overwrite(block: &mut [u8], at: usize, bytes: &[u8]) {
    let Some(rest) = block.get_mut(at..) else { return };
    let len = bytes.len().min(rest.len());
    rest[..len].copy_from_slice(&bytes[..len]);
}

fn write(device: &OverlayDevice, at: Physical, bytes: Vec<u8>) {
    let data = SharedBuffer::from(bytes);
    device.submit(vec![DeviceWrite { at, data }]).wait().expect("a write to memory");
}

/// Changes all copies of a block, and corrects its checksum.
fn change_block(base: &Base, device: &OverlayDevice, number: usize, change: impl FnOnce(&mut [u8])) {
    let places = &base.blocks[number % base.blocks.len()].places;
    let mut block = read(device, places[0], base.node_size);
    change(&mut block);
    LeafBuilder::seal(&mut block, base.checksum);
    for at in places {
        write(device, *at, block.clone());
    }
}

/// Returns an input with one damage that overwrites.
pub(crate) fn damage(base: u8, operands: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut input = vec![base];
    input.extend_from_slice(operands);
    input.push(bytes.len() as u8);
    input.extend_from_slice(bytes);
    input
}

/// Returns inputs, with their names, that hit every type of item at several places, headers, block
/// headers, the superblock and single copies. The corpus begins with them.
pub fn inputs() -> Vec<(String, Vec<u8>)> {
    const WIDE: [u8; 8] = [0xff; 8];
    const HALF: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let mut inputs = vec![("sound-0".to_owned(), vec![0])];
    let mut seen = BTreeSet::new();
    for number in 0..super::base::COUNT as u8 {
        for (item_type, found) in &base(number.into()).items {
            // Takes all types of our own volume; of the other bases the types that are new, and the
            // compressed extents.
            let is_new = seen.insert(*item_type);
            if !(is_new || number == 1 && *item_type == ItemType::EXTENT_DATA.0) {
                continue;
            }
            for (round, (offset, bytes)) in [(0_u8, &WIDE), (8, &HALF), (21, &WIDE), (40, &[0; 8])].iter().enumerate() {
                let which = (found.len() / 4 * round).min(255) as u8;
                let name = format!("item-{number}-{item_type}-{offset}");
                inputs.push((name, damage(number, &[0, *item_type, which, *offset, 0], &bytes[..])));
            }
            inputs.push((format!("key-{number}-{item_type}"), damage(number, &[1, *item_type, 1, 9], &WIDE)));
            inputs.push((format!("size-{number}-{item_type}"), damage(number, &[1, *item_type, 0, 21], &[1, 0, 0])));
        }
        inputs.push((format!("block-{number}"), damage(number, &[2, number * 3, 0, 80, 0], &WIDE)));
        inputs.push((format!("pointer-{number}"), damage(number, &[2, 1, 0, 118, 0], &HALF)));
        inputs.push((format!("copy-{number}"), damage(number, &[4, number, 0, 0, 200, 0], &WIDE)));
        inputs.push((format!("both-{number}"), {
            let mut input = damage(number, &[4, 5, 0, 0, 200, 0], &WIDE);
            input.extend_from_slice(&damage(4, &[5, 0, 1, 200, 0], &WIDE));
            input
        }));
        inputs.push((format!("swap-{number}"), vec![number, 5, number + 2, 0, number + 7, 0]));
    }
    for (field, offset) in
        [("root", 80_u16), ("used", 120), ("devices", 136), ("features", 188), ("level", 198), ("chunks", 811)]
    {
        let [low, high] = offset.to_le_bytes();
        inputs.push((format!("super-{field}"), damage(0, &[3, low, high], &HALF)));
    }
    inputs
}
