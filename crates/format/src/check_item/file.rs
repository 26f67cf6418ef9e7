//! Inodes, names, xattrs and file extents.

use super::rules::{ItemContext, is_file, length, range, require};
use crate::items::{
    Compression, DIR_ENTRY_HEADER, FileExtent, FileExtentKind, FileType, InodeFlags, InodeItem, MAX_NAME_LEN,
    dir_entries, extrefs, inode_refs,
};
use crate::{Error, ItemType, Key, Result, TreeId, max_item_size, name_hash, objectid};

/// The most bytes that a compressed extent has, packed or unpacked.
const MAX_UNPACKED: u64 = 128 << 10;

pub(super) fn inode(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    let known = is_file(key.objectid) || key.objectid == TreeId::ROOT_TREE_DIR.0 || key.objectid == objectid::FREE_INO;
    require(known, "inode number", key.objectid)?;
    require(key.offset == 0, "inode item key offset", key.offset)?;
    let inode = InodeItem::parse(item)?;
    context.generation("inode generation", inode.generation)?;
    context.generation("inode transid", inode.transid)?;
    let file_type = FileType::from_mode(inode.mode);
    require(file_type != FileType::Unknown, "inode mode", inode.mode.into())?;
    let one_link = file_type != FileType::Directory || inode.nlink <= 1;
    require(one_link, "directory link count", inode.nlink.into())?;
    require(inode.flags & !InodeFlags::ALL == 0, "inode flags", inode.flags)
}

pub(super) fn inode_ref(item: &[u8]) -> Result<()> {
    not_empty("inode reference", item)?;
    inode_refs(item).try_for_each(|name| name.map(drop))
}

pub(super) fn extref(item: &[u8]) -> Result<()> {
    not_empty("extended inode reference", item)?;
    extrefs(item).try_for_each(|name| name.map(drop))
}

fn not_empty(what: &'static str, item: &[u8]) -> Result<()> {
    if item.is_empty() { Err(Error::WrongLength { what, need: 1, have: 0 }) } else { Ok(()) }
}

pub(super) fn entries(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    not_empty("directory item", item)?;
    let is_xattr = key.item_type == ItemType::XATTR_ITEM;
    let most = max_item_size(context.node_size as usize).saturating_sub(DIR_ENTRY_HEADER);
    for entry in dir_entries(item) {
        let entry = entry?;
        let (name_len, value_len) = (entry.name.len(), entry.value.len());
        require(name_len <= MAX_NAME_LEN, "directory item name length", name_len as u64)?;
        require(name_len + value_len <= most, "directory item length", (name_len + value_len) as u64)?;
        require((entry.file_type == FileType::Xattr) == is_xattr, "directory item type", entry.file_type.raw().into())?;
        if is_xattr {
            require(entry.location == Key::default(), "xattr location", entry.location.objectid)?;
        } else {
            require(entry.file_type != FileType::Unknown, "directory item type", 0)?;
            require(value_len == 0, "directory item data length", value_len as u64)?;
            location(&entry.location)?;
        }
        if key.item_type != ItemType::DIR_INDEX {
            require(name_hash(entry.name) == key.offset, "directory item name hash", key.offset)?;
        }
    }
    Ok(())
}

fn location(location: &Key) -> Result<()> {
    match location.item_type {
        ItemType::INODE_ITEM => {
            require(is_file(location.objectid), "directory item inode number", location.objectid)?;
            require(location.offset == 0, "directory item location offset", location.offset)
        }
        ItemType::ROOT_ITEM => {
            require(TreeId(location.objectid).is_subvolume(), "directory item subvolume", location.objectid)
        }
        other => Err(Error::UnexpectedItem(other)),
    }
}

pub(super) fn extent_data(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    context.aligned("file extent key offset", key.offset)?;
    let extent = FileExtent::parse(item)?;
    context.generation("file extent generation", extent.generation)?;
    let packed = extent.compression != Compression::None;
    match extent.kind {
        FileExtentKind::Inline(data) => {
            require(key.offset == 0, "inline file extent key offset", key.offset)?;
            if packed {
                // This is stricter than the kernel, which checks the bound only when it unpacks.
                return require(extent.ram_bytes <= MAX_UNPACKED, "compressed extent length", extent.ram_bytes);
            }
            require(extent.ram_bytes == data.len() as u64, "inline file extent length", extent.ram_bytes)
        }
        FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } => {
            length("file extent item", item, 53)?;
            context.aligned("file extent ram_bytes", extent.ram_bytes)?;
            context.aligned("file extent disk_bytenr", disk_bytenr.0)?;
            context.aligned("file extent disk_num_bytes", disk_num_bytes)?;
            context.aligned("file extent offset", offset)?;
            context.aligned("file extent num_bytes", num_bytes)?;
            range("file extent num_bytes", key.offset, num_bytes)?;
            require(!(prealloc && packed), "compression of a preallocated extent", extent.compression.raw().into())?;
            if disk_bytenr.0 == 0 {
                return Ok(());
            }
            // From here on the checks are stricter than the kernel's, so that no reader leaves the
            // extent.
            range("file extent disk_num_bytes", disk_bytenr.0, disk_num_bytes)?;
            let whole = if packed { extent.ram_bytes } else { disk_num_bytes };
            let inside = offset.checked_add(num_bytes).is_some_and(|end| end <= whole);
            require(inside, "end of a file extent in its extent", num_bytes)?;
            let bounded = !packed || (extent.ram_bytes <= MAX_UNPACKED && disk_num_bytes <= MAX_UNPACKED);
            require(bounded, "compressed extent length", extent.ram_bytes)
        }
    }
}
