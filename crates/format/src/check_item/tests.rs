//! Tests that break every rule once.

use super::*;
use crate::items::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, Compression, DataRef, DevExtent, DevItem, DirEntry, ExtentFlags,
    ExtentItem, FileExtent, FileExtentKind, FileType, FreeSpaceInfo, InlineRef, InodeItem, InodeRef, RootItem, RootRef,
    STRIPE_LEN, Stripe, encode_data_ref, encode_dir_entry, encode_inode_ref,
};
use crate::{
    BACKREF_REV_MIXED, ChecksumType, DeviceId, DirIndex, Error, Generation, Header, Incompat, Ino, Leaf, LeafBuilder,
    Logical, Node, NodeFlags, Physical, TreeId, Uuid, name_hash,
};

const CONTEXT: ItemContext = ItemContext {
    sector_size: 4096,
    node_size: 16384,
    checksum: ChecksumType::Crc32c,
    generation: Generation(9),
    incompat: Incompat::SKINNY_METADATA,
};

fn with(feature: Incompat) -> ItemContext {
    ItemContext { incompat: CONTEXT.incompat.with(feature), ..CONTEXT }
}

/// Returns what is wrong with the item.
#[track_caller]
fn fault(key: Key, item: &[u8]) -> &'static str {
    match check_item(&key, item, &CONTEXT) {
        Err(Error::BadValue { what, .. } | Error::WrongLength { what, .. } | Error::TooShort { what, .. }) => what,
        Err(Error::UnexpectedItem(_)) => "unexpected",
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn good(key: Key, item: &[u8]) {
    assert_eq!(check_item(&key, item, &CONTEXT), Ok(()), "{key}");
}

fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(objectid, item_type, offset)
}

#[test]
fn inodes() {
    let at = key(257, ItemType::INODE_ITEM, 0);
    let inode = InodeItem { generation: Generation(10), mode: 0o100_644, nlink: 3, ..InodeItem::default() };
    good(at, &inode.to_bytes());
    good(key(6, ItemType::INODE_ITEM, 0), &inode.to_bytes());
    good(key(objectid::FREE_INO, ItemType::INODE_ITEM, 0), &inode.to_bytes());
    assert_eq!(fault(key(255, ItemType::INODE_ITEM, 0), &inode.to_bytes()), "inode number");
    assert_eq!(fault(key(257, ItemType::INODE_ITEM, 1), &inode.to_bytes()), "inode item key offset");
    assert_eq!(fault(at, &inode.to_bytes()[..159]), "inode item");
    let bad = |change: fn(&mut InodeItem)| {
        let mut changed = inode;
        change(&mut changed);
        fault(at, &changed.to_bytes())
    };
    assert_eq!(bad(|inode| inode.generation = Generation(11)), "inode generation");
    assert_eq!(bad(|inode| inode.transid = Generation(11)), "inode transid");
    assert_eq!(bad(|inode| inode.mode = 0o644), "inode mode");
    assert_eq!(bad(|inode| inode.mode = 0o170_644), "inode mode");
    assert_eq!(bad(|inode| inode.mode = 0o040_755), "directory link count");
    assert_eq!(bad(|inode| inode.flags = 1 << 12), "inode flags");
}

#[test]
fn names() {
    let at = key(257, ItemType::INODE_REF, 256);
    let mut item = Vec::new();
    encode_inode_ref(&mut item, InodeRef { index: DirIndex(2), name: b"name" });
    good(at, &item);
    assert_eq!(fault(at, &item[..item.len() - 1]), "inode reference");
    assert_eq!(fault(at, &[]), "inode reference");
    assert_eq!(fault(key(257, ItemType::INODE_EXTREF, 1), &[]), "extended inode reference");
    assert_eq!(fault(key(257, ItemType::INODE_EXTREF, 1), &item), "extended inode reference");
    let reference = RootRef { dirid: Ino(256), sequence: 2, name: b"sub" }.to_bytes();
    good(key(5, ItemType::ROOT_REF, 257), &reference);
    assert_eq!(fault(key(5, ItemType::ROOT_REF, 257), &reference[..20]), "root reference");
}

#[test]
fn directory_entries() {
    let entry = DirEntry {
        location: key(257, ItemType::INODE_ITEM, 0),
        transid: Generation(8),
        file_type: FileType::Regular,
        name: b"name",
        value: b"",
    };
    let by_hash = key(256, ItemType::DIR_ITEM, name_hash(b"name"));
    let item = |entry: DirEntry<'_>| {
        let mut item = Vec::new();
        encode_dir_entry(&mut item, &entry);
        item
    };
    good(by_hash, &item(entry));
    good(key(256, ItemType::DIR_INDEX, 2), &item(entry));
    assert_eq!(fault(by_hash, &[]), "directory item");
    assert_eq!(fault(key(256, ItemType::DIR_ITEM, 1), &item(entry)), "directory item name hash");
    assert_eq!(fault(by_hash, &item(DirEntry { value: b"v", ..entry })), "directory item data length");
    assert_eq!(fault(by_hash, &item(DirEntry { file_type: FileType::Unknown, ..entry })), "directory item type");
    assert_eq!(fault(by_hash, &item(DirEntry { file_type: FileType::Xattr, ..entry })), "directory item type");
    let at = |location| fault(by_hash, &item(DirEntry { location, ..entry }));
    assert_eq!(at(key(257, ItemType::INODE_ITEM, 1)), "directory item location offset");
    assert_eq!(at(key(1, ItemType::INODE_ITEM, 0)), "directory item inode number");
    assert_eq!(at(key(4, ItemType::ROOT_ITEM, 0)), "directory item subvolume");
    assert_eq!(at(key(257, ItemType::DIR_ITEM, 0)), "unexpected");

    let by_hash = key(257, ItemType::XATTR_ITEM, name_hash(b"name"));
    let xattr = DirEntry { location: Key::default(), file_type: FileType::Xattr, value: b"value", ..entry };
    good(by_hash, &item(xattr));
    assert_eq!(fault(by_hash, &item(entry)), "directory item type");
    assert_eq!(fault(by_hash, &item(DirEntry { location: entry.location, ..xattr })), "xattr location");
    assert_eq!(fault(by_hash, &item(DirEntry { value: &[0; 16225], ..xattr })), "directory item length");
    good(by_hash, &item(DirEntry { value: &[0; 16224], ..xattr }));
}

#[test]
fn file_extents() {
    let at = key(257, ItemType::EXTENT_DATA, 0);
    let inline = FileExtent {
        generation: Generation(9),
        ram_bytes: 5,
        compression: Compression::None,
        kind: FileExtentKind::Inline(b"hello"),
    };
    good(at, &inline.to_bytes());
    assert_eq!(fault(key(257, ItemType::EXTENT_DATA, 1), &inline.to_bytes()), "file extent key offset");
    assert_eq!(fault(key(257, ItemType::EXTENT_DATA, 4096), &inline.to_bytes()), "inline file extent key offset");
    assert_eq!(fault(at, &FileExtent { ram_bytes: 6, ..inline }.to_bytes()), "inline file extent length");
    assert_eq!(fault(at, &FileExtent { generation: Generation(11), ..inline }.to_bytes()), "file extent generation");
    let packed = FileExtent { compression: Compression::Zlib, ram_bytes: 9, ..inline };
    good(at, &packed.to_bytes());
    assert_eq!(fault(at, &FileExtent { ram_bytes: 1 << 30, ..packed }.to_bytes()), "compressed extent length");

    let regular = |disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc| FileExtent {
        kind: FileExtentKind::Regular {
            disk_bytenr: Logical(disk_bytenr),
            disk_num_bytes,
            offset,
            num_bytes,
            prealloc,
        },
        ram_bytes: 8192,
        ..inline
    };
    let whole = regular(4096, 8192, 0, 8192, false);
    good(at, &whole.to_bytes());
    good(at, &regular(0, 0, 0, 1 << 40, false).to_bytes());
    assert_eq!(fault(at, &whole.to_bytes()[..52]), "file extent item");
    assert_eq!(fault(at, &FileExtent { ram_bytes: 8191, ..whole }.to_bytes()), "file extent ram_bytes");
    let bad = |extent: FileExtent<'_>| fault(at, &extent.to_bytes());
    assert_eq!(bad(regular(4097, 8192, 0, 8192, false)), "file extent disk_bytenr");
    assert_eq!(bad(regular(4096, 8193, 0, 8192, false)), "file extent disk_num_bytes");
    assert_eq!(bad(regular(4096, 8192, 1, 4096, false)), "file extent offset");
    assert_eq!(bad(regular(4096, 8192, 0, 4097, false)), "file extent num_bytes");
    assert_eq!(bad(regular(4096, 8192, 0, 0, false)), "file extent num_bytes");
    assert_eq!(bad(regular(4096, 8192, 4096, 8192, false)), "end of a file extent in its extent");
    assert_eq!(bad(regular(u64::MAX - 4095, 8192, 0, 8192, false)), "file extent disk_num_bytes");
    let far = key(257, ItemType::EXTENT_DATA, u64::MAX - 4095);
    assert_eq!(fault(far, &whole.to_bytes()), "file extent num_bytes");
    let packed = FileExtent { compression: Compression::Zstd, ..regular(4096, 4096, 0, 8192, false) };
    good(at, &packed.to_bytes());
    assert_eq!(bad(FileExtent { ram_bytes: 4096, ..packed }), "end of a file extent in its extent");
    assert_eq!(bad(FileExtent { ram_bytes: 1 << 20, ..packed }), "compressed extent length");
    let prealloc = regular(4096, 8192, 0, 8192, true);
    good(at, &prealloc.to_bytes());
    assert_eq!(bad(FileExtent { compression: Compression::Lzo, ..prealloc }), "compression of a preallocated extent");
}

#[test]
fn checksums() {
    let at = |address| key(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, address);
    good(at(4096), &[0; 8]);
    assert_eq!(fault(at(4096), &[0; 7]), "checksum item");
    assert_eq!(fault(at(4096), &[]), "checksum item");
    assert_eq!(fault(at(4097), &[0; 8]), "checksum item address");
    assert_eq!(fault(key(1, ItemType::EXTENT_CSUM, 4096), &[0; 8]), "checksum item objectid");
}

fn extent(flags: u64, refs: u64, inline_refs: Vec<InlineRef>) -> ExtentItem {
    ExtentItem { refs, generation: Generation(9), flags, tree_block: None, inline_refs }
}

#[test]
fn tree_block_extents() {
    let at = key(1 << 20, ItemType::METADATA_ITEM, 0);
    let root = InlineRef::TreeBlock { root: TreeId::FS };
    let block = |inline_refs| extent(ExtentFlags::TREE_BLOCK, 1, inline_refs).to_bytes();
    good(at, &block(vec![root]));
    assert_eq!(fault(key(1, ItemType::METADATA_ITEM, 0), &block(vec![root])), "extent address");
    assert_eq!(fault(key(1 << 20, ItemType::METADATA_ITEM, 8), &block(vec![root])), "extent level");
    assert_eq!(fault(at, &extent(ExtentFlags::DATA, 1, vec![]).to_bytes()), "extent flags of a metadata item");
    assert_eq!(fault(at, &extent(3, 1, vec![root]).to_bytes()), "extent flags");
    assert_eq!(fault(at, &extent(0, 1, vec![root]).to_bytes()), "extent flags");
    assert_eq!(fault(at, &extent(ExtentFlags::TREE_BLOCK | 1 << 4, 1, vec![root]).to_bytes()), "tree block flags");
    assert_eq!(fault(at, &extent(ExtentFlags::TREE_BLOCK, 0, vec![root]).to_bytes()), "extent reference count");
    let late = ExtentItem { generation: Generation(11), ..extent(ExtentFlags::TREE_BLOCK, 1, vec![]) };
    assert_eq!(fault(at, &late.to_bytes()), "extent generation");
    assert_eq!(fault(at, &block(vec![InlineRef::TreeBlock { root: TreeId(0) }])), "reference root");
    assert_eq!(fault(at, &block(vec![InlineRef::SharedBlock { parent: Logical(5) }])), "reference parent");
    assert_eq!(fault(at, &block(vec![InlineRef::SharedData { parent: Logical(0), count: 1 }])), "unexpected");
    assert_eq!(fault(at, &block(vec![root])[..30]), "inline reference");
    let fat = ExtentItem { tree_block: Some((Key::MIN, 8)), ..extent(ExtentFlags::TREE_BLOCK, 1, vec![root]) };
    assert_eq!(fault(key(1 << 20, ItemType::EXTENT_ITEM, 16384), &fat.to_bytes()), "extent level");
    assert_eq!(fault(key(1 << 20, ItemType::EXTENT_ITEM, 4096), &fat.to_bytes()), "tree block length");
    let old = ItemContext { incompat: Incompat(0), ..CONTEXT };
    let refused = check_item(&at, &block(vec![root]), &old);
    assert_eq!(refused, Err(Error::UnexpectedItem(ItemType::METADATA_ITEM)));
}

#[test]
fn data_extents_and_their_references() {
    let at = key(1 << 20, ItemType::EXTENT_ITEM, 8192);
    let file = DataRef { root: TreeId::FS, ino: Ino(257), offset: 0 };
    let used = |data: DataRef, count| InlineRef::Data { data, count };
    let data = |inline_refs| extent(ExtentFlags::DATA, 2, inline_refs).to_bytes();
    good(at, &data(vec![used(file, 2)]));
    assert_eq!(fault(key(1 << 20, ItemType::EXTENT_ITEM, 0), &data(vec![])), "extent length");
    assert_eq!(fault(key(1 << 20, ItemType::EXTENT_ITEM, 4097), &data(vec![])), "extent length");
    let full = extent(ExtentFlags::DATA | ExtentFlags::FULL_BACKREF, 2, vec![]);
    assert_eq!(fault(at, &full.to_bytes()), "data extent flags");
    assert_eq!(fault(at, &data(vec![InlineRef::TreeBlock { root: TreeId::FS }])), "unexpected");
    assert_eq!(fault(at, &data(vec![used(file, 0)])), "reference count");
    assert_eq!(fault(at, &data(vec![used(file, 3)])), "extent reference count");
    let bad = |data_ref| fault(at, &data(vec![used(data_ref, 1)]));
    assert_eq!(bad(DataRef { root: TreeId::EXTENT, ..file }), "data reference root");
    assert_eq!(bad(DataRef { ino: Ino(1), ..file }), "data reference inode");
    assert_eq!(bad(DataRef { offset: 1, ..file }), "data reference offset");
    assert_eq!(fault(at, &data(vec![InlineRef::SharedData { parent: Logical(1), count: 1 }])), "reference parent");
    assert_eq!(fault(at, &data(vec![InlineRef::SharedData { parent: Logical(0), count: 0 }])), "reference count");

    // Since the encoder sorts, the second reference is written by hand before the first.
    let other = DataRef { ino: Ino(258), ..file };
    let sorted = data(vec![used(file, 1), used(other, 1)]);
    good(at, &sorted);
    let mut swapped = sorted[..24].to_vec();
    swapped.extend_from_slice(&sorted[53..]);
    swapped.extend_from_slice(&sorted[24..53]);
    assert_eq!(fault(at, &swapped), "order of inline references");

    let owner = data(vec![InlineRef::Owner { root: TreeId::FS }, used(file, 1)]);
    assert_eq!(fault(at, &owner), "place of an owner reference");
    assert_eq!(check_item(&at, &owner, &with(Incompat::SIMPLE_QUOTA)), Ok(()));
}

#[test]
fn keyed_references() {
    let of = |item_type, offset| key(1 << 20, item_type, offset);
    good(of(ItemType::TREE_BLOCK_REF, 5), &[]);
    assert_eq!(fault(of(ItemType::TREE_BLOCK_REF, 5), &[0]), "tree block reference");
    assert_eq!(fault(of(ItemType::TREE_BLOCK_REF, 0), &[]), "reference root");
    good(of(ItemType::SHARED_BLOCK_REF, 4096), &[]);
    assert_eq!(fault(of(ItemType::SHARED_BLOCK_REF, 4095), &[]), "reference parent");
    assert_eq!(fault(of(ItemType::SHARED_BLOCK_REF, 4096), &[0]), "shared block reference");
    good(of(ItemType::SHARED_DATA_REF, 4096), &[1, 0, 0, 0]);
    assert_eq!(fault(of(ItemType::SHARED_DATA_REF, 4096), &[0; 4]), "reference count");
    assert_eq!(fault(of(ItemType::SHARED_DATA_REF, 4096), &[1; 5]), "shared data reference");
    let file = encode_data_ref(DataRef { root: TreeId::FS, ino: Ino(257), offset: 0 }, 1);
    good(of(ItemType::EXTENT_DATA_REF, 1), &file);
    assert_eq!(fault(of(ItemType::EXTENT_DATA_REF, 1), &file[..27]), "data reference");
    assert_eq!(fault(of(ItemType::EXTENT_DATA_REF, 1), &[0; 28]), "data reference root");
    assert_eq!(fault(key(1, ItemType::SHARED_DATA_REF, 4096), &[1, 0, 0, 0]), "extent address");
    assert_eq!(fault(of(ItemType::EXTENT_OWNER_REF, 0), &[0; 8]), "unexpected");
}

#[test]
fn roots() {
    let at = key(5, ItemType::ROOT_ITEM, 0);
    let root = RootItem { bytenr: Logical(4096), ..RootItem::parse(&[0; RootItem::SIZE]).unwrap() };
    good(at, &root.to_bytes());
    assert_eq!(fault(key(0, ItemType::ROOT_ITEM, 0), &root.to_bytes()), "root item objectid");
    assert_eq!(fault(at, &root.to_bytes()[..438]), "root item");
    let bad = |change: fn(&mut RootItem)| {
        let mut changed = root.clone();
        change(&mut changed);
        fault(at, &changed.to_bytes())
    };
    assert_eq!(bad(|root| root.generation = Generation(11)), "root item generation");
    assert_eq!(bad(|root| root.generation_v2 = Generation(11)), "root item generation_v2");
    assert_eq!(bad(|root| root.last_snapshot = Generation(11)), "root item last_snapshot");
    assert_eq!(bad(|root| root.bytenr = Logical(1)), "root item bytenr");
    assert_eq!(bad(|root| root.level = 8), "root item level");
    assert_eq!(bad(|root| root.drop_level = 8), "root item drop_level");
    assert_eq!(bad(|root| root.flags = 2), "root item flags");
}

#[test]
fn block_groups_and_chunks() {
    let at = key(1 << 20, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
    let group = BlockGroupItem { used: 4096, chunk_objectid: 256, flags: BlockGroupFlags::DATA.0 };
    let bad = |group: BlockGroupItem| fault(at, &group.to_bytes());
    good(at, &group.to_bytes());
    assert_eq!(fault(key(1, ItemType::BLOCK_GROUP_ITEM, 0), &group.to_bytes()), "block group length");
    assert_eq!(bad(BlockGroupItem { chunk_objectid: 1, ..group }), "block group chunk_objectid");
    assert_eq!(bad(BlockGroupItem { used: (1 << 20) + 1, ..group }), "block group use");
    for flags in [0, 0b11, 0b101, 0b1 | 0b11 << 3] {
        assert_eq!(bad(BlockGroupItem { flags, ..group }), "block group type");
    }
    let mixed = BlockGroupItem { flags: 0b101, ..group }.to_bytes();
    assert_eq!(check_item(&at, &mixed, &with(Incompat::MIXED_GROUPS)), Ok(()));

    let at = key(256, ItemType::CHUNK_ITEM, 1 << 20);
    let stripe = Stripe { devid: DeviceId(1), offset: Physical(1 << 20), dev_uuid: Uuid::NIL };
    let chunk = ChunkItem {
        length: 1 << 20,
        owner: 2,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::METADATA.with(BlockGroupFlags::DUP),
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 1,
        stripes: vec![stripe; 2],
    };
    good(at, &chunk.to_bytes());
    assert_eq!(fault(key(1, ItemType::CHUNK_ITEM, 1 << 20), &chunk.to_bytes()), "chunk item objectid");
    assert_eq!(fault(key(256, ItemType::CHUNK_ITEM, 1), &chunk.to_bytes()), "chunk address");
    let bad = |chunk: ChunkItem| fault(at, &chunk.to_bytes());
    assert_eq!(bad(ChunkItem { length: 4097, ..chunk.clone() }), "chunk length");
    assert_eq!(bad(ChunkItem { length: 0, ..chunk.clone() }), "chunk length");
    assert_eq!(bad(ChunkItem { sector_size: 512, ..chunk.clone() }), "chunk sector_size");
    assert_eq!(bad(ChunkItem { stripe_len: 4096, ..chunk.clone() }), "chunk stripe_len");
    assert_eq!(bad(ChunkItem { flags: BlockGroupFlags(0b110), ..chunk.clone() }), "chunk type");
    let crooked = vec![Stripe { offset: Physical(1), ..stripe }; 2];
    assert_eq!(bad(ChunkItem { stripes: crooked, ..chunk.clone() }), "chunk stripe offset");
    let profiles = [
        (BlockGroupFlags(0), 1, 1),
        (BlockGroupFlags::DUP, 2, 1),
        (BlockGroupFlags::RAID1, 2, 1),
        (BlockGroupFlags::RAID1C3, 3, 1),
        (BlockGroupFlags::RAID1C4, 4, 1),
        (BlockGroupFlags::RAID10, 4, 2),
        (BlockGroupFlags::RAID5, 2, 1),
        (BlockGroupFlags::RAID6, 3, 1),
        (BlockGroupFlags::RAID0, 1, 1),
    ];
    for (profile, stripes, sub_stripes) in profiles {
        let flags = BlockGroupFlags::DATA.with(profile);
        let fits = ChunkItem { flags, sub_stripes, stripes: vec![stripe; stripes], ..chunk.clone() };
        good(at, &fits.to_bytes());
        if stripes > 1 {
            assert_eq!(bad(ChunkItem { stripes: vec![stripe], ..fits }), "chunk num_stripes", "{flags:?}");
        } else {
            assert_eq!(bad(ChunkItem { stripes: vec![], ..fits }), "chunk num_stripes", "{flags:?}");
        }
    }
}

#[test]
fn devices() {
    let device = DevItem { devid: DeviceId(1), total_bytes: 10, bytes_used: 10, ..DevItem::default() };
    good(key(1, ItemType::DEV_ITEM, 1), &device.to_bytes());
    assert_eq!(fault(key(2, ItemType::DEV_ITEM, 1), &device.to_bytes()), "device item objectid");
    assert_eq!(fault(key(1, ItemType::DEV_ITEM, 2), &device.to_bytes()), "device item devid");
    let full = DevItem { bytes_used: 11, ..device };
    assert_eq!(fault(key(1, ItemType::DEV_ITEM, 1), &full.to_bytes()), "device item use");

    let at = key(1, ItemType::DEV_EXTENT, 1 << 20);
    let extent = DevExtent {
        chunk_tree: 3,
        chunk_objectid: 256,
        chunk_offset: Logical(1 << 20),
        length: 1 << 20,
        chunk_tree_uuid: Uuid::NIL,
    };
    good(at, &extent.to_bytes());
    let bad = |extent: DevExtent| fault(at, &extent.to_bytes());
    assert_eq!(bad(DevExtent { chunk_tree: 2, ..extent }), "device extent chunk_tree");
    assert_eq!(bad(DevExtent { chunk_objectid: 2, ..extent }), "device extent chunk_objectid");
    assert_eq!(bad(DevExtent { chunk_offset: Logical(1), ..extent }), "device extent chunk_offset");
    assert_eq!(bad(DevExtent { length: 1, ..extent }), "device extent length");
    assert_eq!(bad(DevExtent { length: 0, ..extent }), "device extent length");
    assert_eq!(fault(key(1, ItemType::DEV_EXTENT, 1), &extent.to_bytes()), "device extent address");
}

#[test]
fn free_space() {
    let at = |item_type, length| key(1 << 20, item_type, length);
    let info = FreeSpaceInfo { extent_count: 1, flags: 1 };
    good(at(ItemType::FREE_SPACE_INFO, 1 << 20), &info.to_bytes());
    let odd = FreeSpaceInfo { flags: 2, ..info };
    assert_eq!(fault(at(ItemType::FREE_SPACE_INFO, 1 << 20), &odd.to_bytes()), "free space info flags");
    assert_eq!(fault(at(ItemType::FREE_SPACE_INFO, 0), &info.to_bytes()), "free space length");
    assert_eq!(fault(key(1, ItemType::FREE_SPACE_INFO, 4096), &info.to_bytes()), "free space address");
    good(at(ItemType::FREE_SPACE_EXTENT, 4096), &[]);
    assert_eq!(fault(at(ItemType::FREE_SPACE_EXTENT, 4096), &[0]), "free space extent");
    assert_eq!(fault(at(ItemType::FREE_SPACE_EXTENT, 4095), &[]), "free space length");
    good(at(ItemType::FREE_SPACE_BITMAP, 2048 * 4096), &[0; 256]);
    good(at(ItemType::FREE_SPACE_BITMAP, 9 * 4096), &[0; 2]);
    assert_eq!(fault(at(ItemType::FREE_SPACE_BITMAP, 2049 * 4096), &[0; 257]), "free space bitmap length");
    assert_eq!(fault(at(ItemType::FREE_SPACE_BITMAP, 2048 * 4096), &[0; 255]), "free space bitmap");
}

#[test]
fn other_items() {
    good(key(objectid::ORPHAN, ItemType::ORPHAN_ITEM, 257), &[]);
    assert_eq!(fault(key(5, ItemType::ORPHAN_ITEM, 257), &[]), "orphan item objectid");
    assert_eq!(fault(key(objectid::ORPHAN, ItemType::ORPHAN_ITEM, 257), &[0]), "orphan item");
    good(key(256, ItemType::DIR_LOG_INDEX, 2), &[0; 8]);
    assert_eq!(fault(key(256, ItemType::DIR_LOG_INDEX, 2), &[0; 7]), "directory log range");
    good(key(1, ItemType::UUID_KEY_SUBVOL, 2), &[0; 16]);
    assert_eq!(fault(key(1, ItemType::UUID_KEY_SUBVOL, 2), &[0; 15]), "uuid item");
    assert_eq!(fault(key(4096, ItemType::RAID_STRIPE, 4096), &[0; 16]), "unexpected");
    let striped = with(Incompat::RAID_STRIPE_TREE);
    assert_eq!(check_item(&key(4096, ItemType::RAID_STRIPE, 4096), &[0; 16], &striped), Ok(()));
    assert!(check_item(&key(4096, ItemType::RAID_STRIPE, 4096), &[0; 15], &striped).is_err());
    good(key(1, ItemType(250), 1), b"anything");
}

/// Returns the fault of a leaf with these items, as slot and message.
fn leaf_fault(owner: TreeId, items: &[(Key, Vec<u8>)]) -> Option<(usize, String)> {
    let mut block = vec![0; 16384];
    let mut builder = LeafBuilder::new(&mut block);
    for (key, item) in items {
        builder.push(*key, item).unwrap();
    }
    builder.finish(Header {
        fsid: Uuid::NIL,
        bytenr: Logical(0),
        flags: 0,
        chunk_tree_uuid: Uuid::NIL,
        generation: Generation(1),
        owner,
        nritems: 0,
        level: 0,
    });
    let leaf: Leaf<'_> = match Node::view(&block).unwrap() {
        Node::Leaf(leaf) => leaf,
        Node::Internal(_) => unreachable!("level 0"),
    };
    check_leaf(owner, &leaf, &CONTEXT).err().map(|fault| (fault.slot, fault.error.to_string()))
}

#[test]
fn neighbours_in_a_leaf() {
    let inode = InodeItem { mode: 0o100_644, ..InodeItem::default() }.to_bytes().to_vec();
    let mut name = Vec::new();
    encode_inode_ref(&mut name, InodeRef { index: DirIndex(2), name: b"n" });
    let stray = [(key(257, ItemType::INODE_ITEM, 0), inode), (key(258, ItemType::INODE_REF, 256), name)];
    assert_eq!(leaf_fault(TreeId::FS, &stray).unwrap().0, 1);
    assert_eq!(leaf_fault(TreeId::LOG, &stray), None);
    assert_eq!(leaf_fault(TreeId::ROOT, &stray), None);

    let hole = FileExtent {
        generation: Generation(1),
        ram_bytes: 8192,
        compression: Compression::None,
        kind: FileExtentKind::Regular {
            disk_bytenr: Logical(0),
            disk_num_bytes: 0,
            offset: 0,
            num_bytes: 8192,
            prealloc: false,
        },
    };
    let pieces = |second| [0, second].map(|offset| (key(257, ItemType::EXTENT_DATA, offset), hole.to_bytes()));
    assert_eq!(leaf_fault(TreeId::FS, &pieces(8192)), None);
    assert!(leaf_fault(TreeId::FS, &pieces(4096)).unwrap().1.contains("inside the one before"));

    let sums = |second| [4096, second].map(|at| (key(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at), vec![0; 8]));
    assert_eq!(leaf_fault(TreeId::CSUM, &sums(4096 * 3)), None);
    assert!(leaf_fault(TreeId::CSUM, &sums(4096 * 2)).unwrap().1.contains("inside the one before"));

    let block = extent(ExtentFlags::TREE_BLOCK, 1, vec![InlineRef::TreeBlock { root: TreeId::FS }]).to_bytes();
    let blocks = |second| [1 << 20, second].map(|at| (key(at, ItemType::METADATA_ITEM, 0), block.clone()));
    assert_eq!(leaf_fault(TreeId::EXTENT, &blocks((1 << 20) + 16384)), None);
    assert!(leaf_fault(TreeId::EXTENT, &blocks((1 << 20) + 4096)).unwrap().1.contains("inside the one before"));

    let device = DevExtent {
        chunk_tree: 3,
        chunk_objectid: 256,
        chunk_offset: Logical(1 << 20),
        length: 1 << 20,
        chunk_tree_uuid: Uuid::NIL,
    };
    let extents = |second| [1 << 20, second].map(|at| (key(1, ItemType::DEV_EXTENT, at), device.to_bytes().to_vec()));
    assert_eq!(leaf_fault(TreeId::DEV, &extents(2 << 20)), None);
    assert!(leaf_fault(TreeId::DEV, &extents((2 << 20) - 4096)).unwrap().1.contains("inside the one before"));
}

#[test]
fn trees_that_are_never_empty() {
    assert_eq!(leaf_fault(TreeId::CSUM, &[]), None);
    for owner in [TreeId::ROOT, TreeId::EXTENT, TreeId::CHUNK, TreeId::DEV, TreeId::FS, TreeId::DATA_RELOC] {
        assert!(leaf_fault(owner, &[]).is_some(), "{owner}");
    }
}

#[test]
fn headers() {
    let good = Header {
        fsid: Uuid::NIL,
        bytenr: Logical(4096),
        flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
        chunk_tree_uuid: Uuid([1; 16]),
        generation: Generation(1),
        owner: TreeId::FS,
        nritems: 0,
        level: 0,
    };
    let fault = |header: Header| match check_header(&header, Uuid([1; 16])) {
        Err(Error::BadValue { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(check_header(&good, Uuid([1; 16])), Ok(()));
    assert_eq!(fault(Header { flags: BACKREF_REV_MIXED, ..good }), "block flags");
    assert_eq!(fault(Header { flags: NodeFlags::WRITTEN, ..good }), "block backref revision");
    assert_eq!(fault(Header { owner: TreeId(0), ..good }), "block owner");
    assert_eq!(fault(Header { chunk_tree_uuid: Uuid::NIL, ..good }), "block chunk_tree_uuid");
}
