//! The content of a file: extents that neither overlap nor leave gaps, and sizes that follow from
//! them.

use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind, FileType, InodeFlags, InodeItem};
use ubtrfs_format::{Generation, ItemType, Key, Logical};

use super::inode::Inode;
use crate::change::Loss;
use crate::lost_extents::LostExtent;

/// What content needs to know of the volume.
#[derive(Clone, Copy, Debug)]
pub struct ContentRules {
    pub sector_size: u64,
    /// Whether holes need no item.
    pub no_holes: bool,
    /// The generation of the commit that is being made.
    pub generation: Generation,
}

/// An extent item that is being put right.
struct Piece<'a> {
    offset: u64,
    extent: FileExtent<'a>,
}

impl Piece<'_> {
    fn end(&self, sector_size: u64) -> u64 {
        let end = self.offset.saturating_add(self.extent.len());
        match self.extent.kind {
            FileExtentKind::Inline(_) => end.checked_next_multiple_of(sector_size).unwrap_or(u64::MAX),
            FileExtentKind::Regular { .. } => end,
        }
    }

    /// Leaves out everything before `start`. Returns whether something is left.
    fn cut_front(&mut self, start: u64) -> bool {
        let FileExtentKind::Regular { ref mut offset, ref mut num_bytes, disk_bytenr, .. } = self.extent.kind else {
            return false;
        };
        let cut = start - self.offset;
        if cut >= *num_bytes {
            return false;
        }
        *num_bytes -= cut;
        if disk_bytenr.0 != 0 {
            *offset += cut;
        }
        self.offset = start;
        true
    }

    /// Leaves out everything from `end` on. Returns whether something is left.
    fn cut_back(&mut self, end: u64) -> bool {
        let FileExtentKind::Regular { ref mut num_bytes, .. } = self.extent.kind else { return false };
        *num_bytes = end.saturating_sub(self.offset).min(*num_bytes);
        *num_bytes > 0
    }
}

/// Gives a file its lost extents back, if its attributes say how much it lacks and these extents
/// are just that. Those that are compressed are longer in the file than on disk, so they never are.
/// Returns how many bytes it has got back.
pub fn take_back(inode: &mut Inode, lost: &[LostExtent], rules: &ContentRules) -> u64 {
    let Some(item) = inode.item() else { return 0 };
    let mut present: Vec<(u64, u64)> = Vec::new();
    let mut nbytes = 0_u64;
    for (key, bytes) in inode.of_type(ItemType::EXTENT_DATA) {
        let Ok(extent) = FileExtent::parse(bytes) else { return 0 };
        present.push((key.offset, key.offset.saturating_add(extent.len())));
        let is_hole = matches!(extent.kind, FileExtentKind::Regular { disk_bytenr: Logical(0), .. });
        nbytes = nbytes.saturating_add(if is_hole { 0 } else { extent.len() });
    }
    let mut found = Vec::new();
    for extent in lost {
        let end = extent.offset.saturating_add(extent.length);
        let next = present.iter().map(|(start, _)| *start).filter(|start| *start >= extent.offset).min();
        let end = next.map_or(end, |next| end.min(next));
        let is_free = present.iter().all(|(start, last)| end <= *start || extent.offset >= *last);
        if is_free && end > extent.offset && extent.offset.is_multiple_of(rules.sector_size) {
            present.push((extent.offset, end));
            found.push((extent, end - extent.offset));
        }
    }
    let bytes: u64 = found.iter().map(|(_, length)| length).sum();
    if found.is_empty() || nbytes.checked_add(bytes) != Some(item.nbytes) {
        return 0;
    }
    for (extent, num_bytes) in found {
        let kind = FileExtentKind::Regular {
            disk_bytenr: extent.start,
            disk_num_bytes: extent.length,
            offset: 0,
            num_bytes,
            prealloc: false,
        };
        let (generation, ram_bytes) = (extent.generation, extent.length);
        let item = FileExtent { generation, ram_bytes, compression: Compression::None, kind };
        inode.items.insert(Key::new(inode.ino, ItemType::EXTENT_DATA, extent.offset), item.to_bytes());
    }
    bytes
}

/// Puts the content of an inode right. Returns what a user loses by it.
pub fn settle(inode: &mut Inode, mapped: &dyn Fn(Logical, u64) -> bool, rules: &ContentRules) -> Vec<Loss> {
    let Some(mut item) = inode.item() else { return Vec::new() };
    let file_type = FileType::from_mode(item.mode);
    let mut losses = Vec::new();
    let items: Vec<(u64, Vec<u8>)> =
        inode.of_type(ItemType::EXTENT_DATA).map(|(key, bytes)| (key.offset, bytes.clone())).collect();
    if !matches!(file_type, FileType::Regular | FileType::Symlink) {
        for (offset, bytes) in &items {
            let len = FileExtent::parse(bytes).map_or(0, |extent| extent.len());
            losses.push(Loss { offset: *offset, length: len });
            inode.items.remove(&Key::new(inode.ino, ItemType::EXTENT_DATA, *offset));
        }
        return losses;
    }
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for (offset, bytes) in &items {
        let Ok(extent) = FileExtent::parse(bytes) else {
            losses.push(Loss { offset: *offset, length: rules.sector_size });
            continue;
        };
        let mut piece = Piece { offset: *offset, extent };
        if !is_possible(&mut piece, mapped, rules) {
            losses.push(Loss { offset: *offset, length: piece.extent.len() });
            continue;
        }
        // Of two extents for the same range, the newer one stays.
        while let Some(last) = pieces.last_mut() {
            let end = last.end(rules.sector_size);
            if end <= piece.offset {
                break;
            }
            if last.extent.generation <= piece.extent.generation {
                if !last.cut_back(piece.offset) {
                    pieces.pop();
                    continue;
                }
            } else if !piece.cut_front(end) {
                piece.extent.kind = FileExtentKind::Inline(&[]);
            }
            break;
        }
        if !piece.extent.is_empty() || !matches!(piece.extent.kind, FileExtentKind::Inline(_)) || items.len() == 1 {
            pieces.push(piece);
        }
    }
    let needs_holes = file_type == FileType::Regular && !rules.no_holes && item.nlink != 0;
    let mut extents = Vec::new();
    let (mut at, mut nbytes) = (0, 0_u64);
    for piece in &pieces {
        if piece.offset > at && at < item.size && needs_holes {
            extents.push((at, hole(piece.offset.min(aligned(item.size, rules)) - at, rules)));
        }
        let is_hole = matches!(piece.extent.kind, FileExtentKind::Regular { disk_bytenr: Logical(0), .. });
        nbytes = nbytes.saturating_add(if is_hole { 0 } else { piece.extent.len() });
        at = at.max(piece.end(rules.sector_size));
        extents.push((piece.offset, piece.extent.to_bytes()));
    }
    if at < item.size && needs_holes {
        extents.push((at, hole(aligned(item.size, rules) - at, rules)));
    }
    inode.items.retain(|key, _| key.item_type != ItemType::EXTENT_DATA);
    for (offset, bytes) in extents {
        inode.items.insert(Key::new(inode.ino, ItemType::EXTENT_DATA, offset), bytes);
    }
    item.nbytes = nbytes;
    if file_type == FileType::Symlink {
        settle_symlink(&mut item, &pieces);
    }
    inode.set_item(item);
    losses
}

/// Whether an extent can be as its item says; what can be put right in it is.
fn is_possible(piece: &mut Piece<'_>, mapped: &dyn Fn(Logical, u64) -> bool, rules: &ContentRules) -> bool {
    let ram_bytes = piece.extent.ram_bytes;
    let compression = piece.extent.compression;
    match &mut piece.extent.kind {
        FileExtentKind::Inline(data) => {
            piece.offset == 0 && (compression != Compression::None || data.len() as u64 == ram_bytes)
        }
        FileExtentKind::Regular { disk_bytenr, num_bytes, offset, disk_num_bytes, .. } => {
            if disk_bytenr.0 != 0 {
                *num_bytes = (*num_bytes).min(ram_bytes.saturating_sub(*offset));
            }
            let is_there = disk_bytenr.0 == 0
                || disk_bytenr.0.is_multiple_of(rules.sector_size) && mapped(*disk_bytenr, *disk_num_bytes);
            *num_bytes > 0 && is_there
        }
    }
}

/// The size of a symbolic link is the length of its target.
fn settle_symlink(item: &mut InodeItem, pieces: &[Piece<'_>]) {
    if let [Piece { extent: FileExtent { kind: FileExtentKind::Inline(data), ram_bytes, compression, .. }, .. }] =
        pieces
    {
        // A zero at the end does not count.
        let is_terminated = *compression == Compression::None && data.last() == Some(&0);
        item.size = ram_bytes - u64::from(is_terminated);
    }
}

fn aligned(size: u64, rules: &ContentRules) -> u64 {
    size.checked_next_multiple_of(rules.sector_size).unwrap_or(size)
}

fn hole(length: u64, rules: &ContentRules) -> Vec<u8> {
    let kind = FileExtentKind::Regular {
        disk_bytenr: Logical(0),
        disk_num_bytes: 0,
        offset: 0,
        num_bytes: length,
        prealloc: false,
    };
    FileExtent { generation: rules.generation, ram_bytes: length, compression: Compression::None, kind }.to_bytes()
}

/// Returns the attributes of an inode that has none, by its content.
pub fn derived_item(inode: &Inode, file_type: FileType, parent: Option<InodeItem>, rules: &ContentRules) -> InodeItem {
    let is_directory = file_type == FileType::Directory;
    let extents = inode.of_type(ItemType::EXTENT_DATA);
    let end = extents.filter_map(|(key, bytes)| Some(key.offset.saturating_add(FileExtent::parse(bytes).ok()?.len())));
    let parent = parent.unwrap_or_default();
    InodeItem {
        generation: rules.generation,
        transid: rules.generation,
        size: if is_directory { 0 } else { end.max().unwrap_or_default() },
        nlink: 1,
        uid: parent.uid,
        gid: parent.gid,
        mode: file_type.type_bits() | if is_directory { 0o700 } else { 0o600 },
        atime: parent.mtime,
        ctime: parent.mtime,
        mtime: parent.mtime,
        otime: parent.mtime,
        ..InodeItem::default()
    }
}

/// Returns the type that an inode without attributes must have by its items, if these tell.
pub fn type_by_items(inode: &Inode) -> Option<FileType> {
    let has = |item_type| inode.of_type(item_type).next().is_some();
    if has(ItemType::DIR_ITEM) || has(ItemType::DIR_INDEX) {
        Some(FileType::Directory)
    } else if has(ItemType::EXTENT_DATA) {
        Some(FileType::Regular)
    } else {
        None
    }
}

/// Returns attributes whose fields have possible values.
pub fn possible_item(item: InodeItem, rules: &ContentRules) -> InodeItem {
    InodeItem {
        generation: item.generation.min(rules.generation),
        transid: item.transid.min(rules.generation),
        mode: item.mode & 0o177_777,
        flags: item.flags & InodeFlags::ALL,
        ..item
    }
}
