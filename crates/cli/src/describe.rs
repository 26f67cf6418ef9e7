//! Describes an item in one line.

use std::fmt::Write;

use ubtrfs_format::items::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, CsumItem, DevExtent, DevItem, ExtentFlags, ExtentItem, FileExtent,
    FileExtentKind, FreeSpaceHeader, FreeSpaceInfo, InlineRef, InodeItem, RootItem, RootRef, decode_data_ref,
    decode_shared_data_ref, dir_entries, extrefs, inode_refs,
};
use ubtrfs_format::{ItemType, Key, Logical, Result, Superblock, Uuid, objectid};

use crate::show;

/// Returns the essentials of an item; a malformed item is marked as such and shown as bytes.
pub fn item(key: &Key, data: &[u8], superblock: &Superblock) -> String {
    match known(key, data, superblock) {
        Ok(Some(text)) => text,
        Ok(None) => show::hex(data),
        Err(error) => format!("malformed ({error}): {}", show::hex(data)),
    }
}

fn known(key: &Key, data: &[u8], superblock: &Superblock) -> Result<Option<String>> {
    Ok(Some(match key.item_type {
        ItemType::INODE_ITEM => inode(&InodeItem::parse(data)?),
        ItemType::INODE_REF => list(
            inode_refs(data)
                .map(|name| name.map(|name| format!("index {} \"{}\"", name.index, show::bytes(name.name)))),
        )?,
        ItemType::INODE_EXTREF => list(extrefs(data).map(|name| {
            name.map(|name| format!("parent {} index {} \"{}\"", name.parent, name.index, show::bytes(name.name)))
        }))?,
        ItemType::XATTR_ITEM => list(dir_entries(data).map(|entry| {
            entry.map(|entry| format!("\"{}\" = \"{}\"", show::bytes(entry.name), show::bytes(entry.value)))
        }))?,
        ItemType::DIR_ITEM | ItemType::DIR_INDEX => list(dir_entries(data).map(|entry| {
            entry.map(|entry| {
                format!(
                    "\"{}\" -> {} {:?} (generation {})",
                    show::bytes(entry.name),
                    entry.location,
                    entry.file_type,
                    entry.transid
                )
            })
        }))?,
        ItemType::EXTENT_DATA => file_extent(&FileExtent::parse(data)?),
        ItemType::EXTENT_CSUM => checksums(key, data, superblock)?,
        ItemType::ROOT_ITEM => root(&RootItem::parse(data)?),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let entry = RootRef::parse(data)?;
            format!("directory {} index {} \"{}\"", entry.dirid, entry.sequence, show::bytes(entry.name))
        }
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent(&ExtentItem::parse(key, data)?),
        ItemType::EXTENT_DATA_REF => {
            let (data, count) = decode_data_ref(data)?;
            format!("root {} inode {} offset {} count {count}", data.root, data.ino, data.offset)
        }
        ItemType::SHARED_DATA_REF => format!("count {}", decode_shared_data_ref(data)?),
        ItemType::BLOCK_GROUP_ITEM => {
            let group = BlockGroupItem::parse(data)?;
            format!("used {} {}", group.used, group_flags(BlockGroupFlags(group.flags)))
        }
        ItemType::FREE_SPACE_INFO => {
            let info = FreeSpaceInfo::parse(data)?;
            let kind = if info.flags & FreeSpaceInfo::USING_BITMAPS != 0 { "bitmaps" } else { "extents" };
            format!("{} free ranges as {kind}", info.extent_count)
        }
        ItemType::FREE_SPACE_BITMAP => {
            let free: u32 = data.iter().map(|byte| byte.count_ones()).sum();
            format!("{free} sectors free of {}", data.len() * 8)
        }
        ItemType::DEV_EXTENT => {
            let extent = DevExtent::parse(data)?;
            format!("chunk {} length {}", extent.chunk_offset, extent.length)
        }
        ItemType::DEV_ITEM => device(&DevItem::parse(data)?),
        ItemType::CHUNK_ITEM => chunk(&ChunkItem::parse(data)?),
        ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => {
            let (ids, _) = data.as_chunks::<8>();
            ids.iter().map(|id| u64::from_le_bytes(*id).to_string()).collect::<Vec<_>>().join(", ")
        }
        ItemType(0) if key.objectid == objectid::FREE_SPACE => {
            let header = FreeSpaceHeader::parse(data)?;
            format!(
                "generation {} with {} entries and {} bitmaps in {}",
                header.generation,
                header.num_entries,
                header.num_bitmaps,
                Key::from(header.location)
            )
        }
        _ if data.is_empty() => String::new(),
        _ => return Ok(None),
    }))
}

fn list(parts: impl Iterator<Item = Result<String>>) -> Result<String> {
    Ok(parts.collect::<Result<Vec<_>>>()?.join("; "))
}

fn inode(inode: &InodeItem) -> String {
    format!(
        "{} links {} owner {}:{} size {} bytes {} rdev {} flags {:#x} generation {} transid {} sequence {} mtime {}",
        show::mode(inode.mode),
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.size,
        inode.nbytes,
        inode.rdev,
        inode.flags,
        inode.generation,
        inode.transid,
        inode.sequence,
        show::time(inode.mtime)
    )
}

fn file_extent(extent: &FileExtent<'_>) -> String {
    let tail = format!("ram {} {:?} generation {}", extent.ram_bytes, extent.compression, extent.generation);
    match extent.kind {
        FileExtentKind::Inline(data) => format!("inline {} bytes {tail}", data.len()),
        FileExtentKind::Regular { disk_bytenr: Logical(0), num_bytes, .. } => format!("hole of {num_bytes} {tail}"),
        FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } => {
            let kind = if prealloc { "prealloc" } else { "regular" };
            format!("{kind} disk {disk_bytenr}+{disk_num_bytes} offset {offset} length {num_bytes} {tail}")
        }
    }
}

fn checksums(key: &Key, data: &[u8], superblock: &Superblock) -> Result<String> {
    let sums = CsumItem::parse(Logical(key.offset), data, superblock.checksum, superblock.sector_size)?;
    Ok(format!("sectors from {} to {}", sums.start(), sums.end()))
}

fn root(root: &RootItem) -> String {
    let mut text = format!(
        "at {} level {} generation {} bytes {} refs {} flags {:#x}",
        root.bytenr, root.level, root.generation, root.bytes_used, root.refs, root.flags
    );
    if root.last_snapshot.0 != 0 {
        let _ = write!(text, " last snapshot {}", root.last_snapshot);
    }
    for (name, uuid) in [("uuid", root.uuid), ("parent", root.parent_uuid), ("received", root.received_uuid)] {
        if uuid != Uuid::NIL {
            let _ = write!(text, " {name} {uuid}");
        }
    }
    text
}

fn extent(extent: &ExtentItem) -> String {
    let kind = if extent.flags & ExtentFlags::TREE_BLOCK != 0 { "tree block" } else { "data" };
    let full = if extent.flags & ExtentFlags::FULL_BACKREF != 0 { " full backref" } else { "" };
    let mut text = format!("{kind}{full} refs {} generation {}", extent.refs, extent.generation);
    for reference in &extent.inline_refs {
        let said = match reference {
            InlineRef::TreeBlock { root } => format!("root {root}"),
            InlineRef::SharedBlock { parent } => format!("parent {parent}"),
            InlineRef::Data { data, count } => {
                format!("root {} inode {} offset {} count {count}", data.root, data.ino, data.offset)
            }
            InlineRef::SharedData { parent, count } => format!("parent {parent} count {count}"),
            owner @ InlineRef::Owner { .. } => format!("{owner:?}"),
        };
        let _ = write!(text, "; {said}");
    }
    text
}

fn device(device: &DevItem) -> String {
    format!(
        "device {} {} of {} bytes in chunks uuid {}",
        device.devid, device.bytes_used, device.total_bytes, device.uuid
    )
}

fn chunk(chunk: &ChunkItem) -> String {
    let stripes: Vec<String> =
        chunk.stripes.iter().map(|stripe| format!("device {} at {}", stripe.devid, stripe.offset)).collect();
    format!("{} length {}: {}", group_flags(chunk.flags), chunk.length, stripes.join(", "))
}

fn group_flags(flags: BlockGroupFlags) -> String {
    format!("{} {}", flags.type_name(), flags.profile_name())
}
