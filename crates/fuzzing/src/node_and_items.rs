use ubtrfs_format::items::{
    BlockGroupItem, ChunkItem, CsumItem, DevExtent, DevItem, ExtentItem, FileExtent, FreeSpaceHeader, FreeSpaceInfo,
    InodeItem, RootItem, RootRef, decode_data_ref, decode_shared_data_ref, dir_entries, extrefs, inode_refs,
};
use ubtrfs_format::{
    ChecksumType, Generation, Header, Incompat, Internal, ItemContext, Key, Leaf, Logical, Node, NodeExpectation,
    check_item, check_leaf, verify_node_checksum,
};

const SECTOR_SIZE: u32 = 4096;

/// Reads arbitrary bytes as a tree block: views, walks and searches it whether its structure is
/// right or not, reads every item by every parser, and checks it against the rules.
pub fn node_and_items(data: &[u8]) {
    for checksum in ChecksumType::ALL {
        drop(verify_node_checksum(data, checksum));
    }
    let Ok(header) = Header::parse(data) else { return };
    let expected = NodeExpectation {
        bytenr: header.bytenr,
        level: Some(header.level),
        generation: Some(header.generation),
        owner: Some(header.owner),
        first_key: None,
        fsid: header.fsid,
    };
    let is_sound = Node::check(data, &expected, SECTOR_SIZE).is_ok();
    match Node::view(data) {
        Ok(Node::Leaf(leaf)) => walk_leaf(&header, &leaf, is_sound, data.len()),
        Ok(Node::Internal(internal)) => walk_internal(&internal, is_sound),
        Err(_) => assert!(!is_sound, "a block that cannot be viewed passed the check"),
    }
}

fn walk_internal(internal: &Internal<'_>, is_sound: bool) {
    for (slot, child) in internal.iter().enumerate() {
        let found = internal.slot_for(&child.key);
        assert!(!is_sound || found == slot, "slot {slot} is found at {found}");
    }
    assert_eq!(internal.iter().count(), internal.len());
    assert!(internal.child(internal.len()).is_none());
}

fn walk_leaf(header: &Header, leaf: &Leaf<'_>, is_sound: bool, block_size: usize) {
    let used = leaf.used();
    assert!(!is_sound || used <= block_size);
    for incompat in [Incompat(u64::MAX), Incompat::SKINNY_METADATA] {
        let context = ItemContext {
            sector_size: SECTOR_SIZE,
            node_size: block_size as u32,
            checksum: ChecksumType::Crc32c,
            generation: header.generation,
            incompat,
        };
        drop(check_leaf(header.owner, leaf, &context));
        for slot in 0..leaf.len() {
            let (Some(key), Some(item)) = (leaf.key(slot), leaf.data(slot)) else {
                assert!(!is_sound, "an item of a sound leaf is not there");
                continue;
            };
            assert!(!is_sound || leaf.search(&key) == Ok(slot));
            let verdict = check_item(&key, item, &context);
            parse(&key, item, verdict.is_ok());
        }
    }
}

/// Reads the item by its own parser and by all others. The parser of its own type must read an item
/// that the rules have approved.
fn parse(key: &Key, item: &[u8], is_approved: bool) {
    use ubtrfs_format::ItemType as Type;
    let file_extent = FileExtent::parse(item).map(|extent| {
        let same = extent.to_bytes() == item;
        // The parser refuses an encoding field that is not zero, so nothing is lost.
        assert!(same, "a file extent is written differently from how it was read");
        let _ = (extent.len(), extent.is_empty());
    });
    let extent = ExtentItem::parse(key, item).map(|extent| {
        assert_eq!(ExtentItem::parse(key, &extent.to_bytes()).map(|again| again.to_bytes()), Ok(extent.to_bytes()));
    });
    let chunk = ChunkItem::parse(item).map(|chunk| assert_eq!(chunk.to_bytes(), item));
    let root = RootItem::parse(item).map(|root| assert_eq!(RootItem::parse(&root.to_bytes()), Ok(root)));
    let root_ref = RootRef::parse(item).map(|reference| assert_eq!(reference.to_bytes(), item));
    let inode = InodeItem::parse(item).map(|inode| assert_eq!(inode.to_bytes(), item));
    let device = DevItem::parse(item).map(|device| assert_eq!(device.to_bytes(), item));
    let device_extent = DevExtent::parse(item).map(|extent| assert_eq!(extent.to_bytes(), item));
    let group = BlockGroupItem::parse(item).map(|group| assert_eq!(group.to_bytes(), item));
    let info = FreeSpaceInfo::parse(item).map(|info| assert_eq!(info.to_bytes(), item));
    drop(FreeSpaceHeader::parse(item));
    let entries = dir_entries(item).try_for_each(|entry| entry.map(drop));
    let names = inode_refs(item).try_for_each(|name| name.map(drop));
    let more_names = extrefs(item).try_for_each(|name| name.map(drop));
    let data_ref = decode_data_ref(item).map(drop);
    let shared_ref = decode_shared_data_ref(item).map(drop);
    let csum = CsumItem::parse(Logical(key.offset), item, ChecksumType::Crc32c, SECTOR_SIZE).map(|sums| {
        let _ = (sums.end(), sums.get(sums.start()), sums.get(sums.end()), sums.get(Logical(u64::MAX)));
    });
    let own = match key.item_type {
        Type::EXTENT_DATA => file_extent,
        Type::EXTENT_ITEM | Type::METADATA_ITEM => extent,
        Type::CHUNK_ITEM => chunk,
        Type::ROOT_ITEM => root,
        Type::ROOT_REF | Type::ROOT_BACKREF => root_ref,
        Type::INODE_ITEM => inode,
        Type::DEV_ITEM => device,
        Type::DEV_EXTENT => device_extent,
        Type::BLOCK_GROUP_ITEM => group,
        Type::FREE_SPACE_INFO => info,
        Type::DIR_ITEM | Type::DIR_INDEX | Type::XATTR_ITEM => entries,
        Type::INODE_REF => names,
        Type::INODE_EXTREF => more_names,
        Type::EXTENT_DATA_REF => data_ref,
        Type::SHARED_DATA_REF => shared_ref,
        Type::EXTENT_CSUM => csum,
        _ => Ok(()),
    };
    assert!(!is_approved || own.is_ok(), "{key} passed the rules, but cannot be read: {own:?}");
    let _ = (key.successor(), key.to_string(), Generation(key.offset).next());
}
