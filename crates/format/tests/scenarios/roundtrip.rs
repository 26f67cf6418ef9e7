//! Encoded values are parsed as the same values, whatever they are, and no bytes make a parser
//! panic.

#![allow(clippy::wildcard_imports, reason = "nearly every name of the crate is under test")]

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use ubtrfs_format::items::*;
use ubtrfs_format::*;

fn bytes16() -> impl Strategy<Value = Uuid> {
    any::<[u8; 16]>().prop_map(Uuid)
}

fn key() -> impl Strategy<Value = Key> {
    any::<(u64, u8, u64)>().prop_map(|(objectid, item_type, offset)| Key::new(objectid, ItemType(item_type), offset))
}

fn time() -> impl Strategy<Value = Timespec> {
    any::<(u64, u32)>().prop_map(|(sec, nsec)| Timespec { sec, nsec })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=255)
}

fn inode() -> impl Strategy<Value = InodeItem> {
    (any::<[u64; 7]>(), any::<[u32; 4]>(), time(), time(), time(), time()).prop_map(
        |(words, halves, atime, ctime, mtime, otime)| InodeItem {
            generation: Generation(words[0]),
            transid: Generation(words[1]),
            size: words[2],
            nbytes: words[3],
            rdev: words[4],
            flags: words[5],
            sequence: words[6],
            nlink: halves[0],
            uid: halves[1],
            gid: halves[2],
            mode: halves[3],
            atime,
            ctime,
            mtime,
            otime,
            ..InodeItem::default()
        },
    )
}

fn inline_ref() -> impl Strategy<Value = InlineRef> {
    (0..5_u8, any::<[u64; 3]>(), any::<u32>()).prop_map(|(kind, words, count)| match kind {
        0 => InlineRef::TreeBlock { root: TreeId(words[0]) },
        1 => InlineRef::SharedBlock { parent: Logical(words[0]) },
        2 => InlineRef::Data { data: DataRef { root: TreeId(words[0]), ino: Ino(words[1]), offset: words[2] }, count },
        3 => InlineRef::SharedData { parent: Logical(words[0]), count },
        _ => InlineRef::Owner { root: TreeId(words[0]) },
    })
}

fn backup() -> impl Strategy<Value = BackupRoot> {
    any::<([(u64, u64, u8); 6], u64, u64, u64)>().prop_map(|(trees, total_bytes, bytes_used, num_devices)| BackupRoot {
        trees: trees.map(|(bytenr, generation, level)| (Logical(bytenr), Generation(generation), level)),
        total_bytes,
        bytes_used,
        num_devices,
    })
}

fn item_map() -> impl Strategy<Value = BTreeMap<Key, Vec<u8>>> {
    btree_map(key(), vec(any::<u8>(), 0..400), 0..60)
}

/// Makes a leaf of as many of the items as fit, and returns these.
fn fill_leaf(block: &mut [u8], items: &BTreeMap<Key, Vec<u8>>) -> Vec<(Key, Vec<u8>)> {
    let mut builder = LeafBuilder::new(block);
    let held =
        items.iter().map_while(|(key, data)| builder.push(*key, data).ok().map(|()| (*key, data.clone()))).collect();
    builder.finish(Header::default());
    held
}

proptest! {
    #[test]
    fn fixed_structures(
        inode in inode(),
        words in any::<[u64; 6]>(),
        halves in any::<[u32; 4]>(),
        small in any::<[u8; 2]>(),
        (one, two) in (bytes16(), bytes16()),
    ) {
        prop_assert_eq!(InodeItem::parse(&inode.to_bytes()), Ok(inode));
        let device = DevItem {
            devid: DeviceId(words[0]), total_bytes: words[1], bytes_used: words[2],
            io_align: halves[0], io_width: halves[1], sector_size: halves[2],
            device_type: words[3], generation: Generation(words[4]), start_offset: words[5],
            dev_group: halves[3], seek_speed: small[0], bandwidth: small[1], uuid: one, fsid: two,
        };
        prop_assert_eq!(DevItem::parse(&device.to_bytes()), Ok(device));
        let extent = DevExtent {
            chunk_tree: words[0], chunk_objectid: words[1], chunk_offset: Logical(words[2]), length: words[3],
            chunk_tree_uuid: one,
        };
        prop_assert_eq!(DevExtent::parse(&extent.to_bytes()), Ok(extent));
        let group = BlockGroupItem { used: words[0], chunk_objectid: words[1], flags: words[2] };
        prop_assert_eq!(BlockGroupItem::parse(&group.to_bytes()), Ok(group));
        let info = FreeSpaceInfo { extent_count: halves[0], flags: halves[1] };
        prop_assert_eq!(FreeSpaceInfo::parse(&info.to_bytes()), Ok(info));
    }

    #[test]
    fn roots(inode in inode(), words in any::<[u64; 12]>(), refs: u32, drop_progress in key(), levels: (u8, u8),
             uuids in (bytes16(), bytes16(), bytes16()), times in (time(), time(), time(), time()), name in name()) {
        let root = RootItem {
            inode,
            generation: Generation(words[0]), root_dirid: Ino(words[1]), bytenr: Logical(words[2]),
            byte_limit: words[3], bytes_used: words[4], last_snapshot: Generation(words[5]), flags: words[6], refs,
            drop_progress, drop_level: levels.0, level: levels.1, generation_v2: Generation(words[7]),
            uuid: uuids.0, parent_uuid: uuids.1, received_uuid: uuids.2,
            transids: [words[8], words[9], words[10], words[11]],
            times: [times.0, times.1, times.2, times.3],
        };
        prop_assert_eq!(RootItem::parse(&root.to_bytes()), Ok(root));
        let reference = RootRef { dirid: Ino(words[0]), sequence: words[1], name: &name };
        let bytes = reference.to_bytes();
        prop_assert_eq!(RootRef::parse(&bytes), Ok(reference));
    }

    #[test]
    fn names(entries in vec((key(), any::<u64>(), 0..9_u8, name(), vec(any::<u8>(), 0..300)), 0..5)) {
        let (mut dir, mut refs, mut ext) = (Vec::new(), Vec::new(), Vec::new());
        for (location, word, file_type, name, value) in &entries {
            let file_type = FileType::from_raw(*file_type).unwrap();
            let transid = Generation(*word);
            encode_dir_entry(&mut dir, &DirEntry { location: *location, transid, file_type, name, value });
            encode_inode_ref(&mut refs, InodeRef { index: DirIndex(*word), name });
            encode_extref(&mut ext, ExtRef { parent: Ino(location.objectid), index: DirIndex(*word), name });
        }
        let back: Vec<_> = dir_entries(&dir).map(|entry| {
            let entry = entry.unwrap();
            (entry.location, entry.transid.0, entry.file_type.raw(), entry.name.to_vec(), entry.value.to_vec())
        }).collect();
        prop_assert_eq!(&back, &entries);
        let back: Vec<_> = inode_refs(&refs).map(|entry| entry.map(|entry| (entry.index.0, entry.name.to_vec())).unwrap()).collect();
        prop_assert_eq!(back, entries.iter().map(|entry| (entry.1, entry.3.clone())).collect::<Vec<_>>());
        let back: Vec<_> = extrefs(&ext).map(|entry| entry.map(|entry| (entry.parent.0, entry.index.0, entry.name.to_vec())).unwrap()).collect();
        prop_assert_eq!(back, entries.iter().map(|entry| (entry.0.objectid, entry.1, entry.3.clone())).collect::<Vec<_>>());
    }

    #[test]
    fn extents(words in any::<[u64; 6]>(), packing in 0..4_u8, data in vec(any::<u8>(), 0..100),
               inline_refs in vec(inline_ref(), 0..6), tree_block in proptest::option::of((key(), any::<u8>())), prealloc: bool) {
        let compression = Compression::from_raw(packing).unwrap();
        let inline = FileExtent {
            generation: Generation(words[0]), ram_bytes: words[1], compression, kind: FileExtentKind::Inline(&data),
        };
        let bytes = inline.to_bytes();
        prop_assert_eq!(FileExtent::parse(&bytes), Ok(inline));
        let regular = FileExtent {
            kind: FileExtentKind::Regular {
                disk_bytenr: Logical(words[2]), disk_num_bytes: words[3], offset: words[4], num_bytes: words[5], prealloc,
            },
            ..inline
        };
        let bytes = regular.to_bytes();
        prop_assert_eq!(FileExtent::parse(&bytes), Ok(regular));

        let is_block = tree_block.is_some();
        let flags = if is_block { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
        let extent = ExtentItem { refs: words[0], generation: Generation(words[1]), flags, tree_block, inline_refs };
        let at = Key::new(4096, ItemType::EXTENT_ITEM, 4096);
        let back = ExtentItem::parse(&at, &extent.to_bytes()).unwrap();
        prop_assert_eq!(back.to_bytes(), extent.to_bytes());
        prop_assert_eq!((back.refs, back.generation, back.flags, back.tree_block),
                        (extent.refs, extent.generation, extent.flags, extent.tree_block));
        let sorted = |refs: &[InlineRef]| {
            let mut shown: Vec<_> = refs.iter().map(|reference| format!("{reference:?}")).collect();
            shown.sort();
            shown
        };
        prop_assert_eq!(sorted(&back.inline_refs), sorted(&extent.inline_refs));
    }

    #[test]
    fn chunks(length in 1..1_u64 << 40, owner: u64, kind in 1..8_u64, profile in 0..9_u32, halves: (u32, u32, u32), sub_stripes: u16,
              stripes in vec((any::<u64>(), any::<u64>(), bytes16()), 1..9)) {
        let chunk = ChunkItem {
            length, owner, stripe_len: STRIPE_LEN,
            flags: BlockGroupFlags(kind | if profile == 0 { 0 } else { 1 << (2 + profile) }),
            io_align: halves.0, io_width: halves.1, sector_size: halves.2, sub_stripes,
            stripes: stripes.into_iter().map(|(devid, offset, dev_uuid)| Stripe {
                devid: DeviceId(devid), offset: Physical(offset), dev_uuid,
            }).collect(),
        };
        prop_assert_eq!(ChunkItem::parse(&chunk.to_bytes()), Ok(chunk.clone()));
        let at = Key::new(256, ItemType::CHUNK_ITEM, length);
        let mut array = Vec::new();
        encode_sys_chunk(&mut array, at, &chunk);
        prop_assert_eq!(sys_chunks(&array), Ok(vec![(at, chunk)]));
    }

    #[test]
    fn superblocks(words in any::<[u64; 14]>(), ids in (bytes16(), bytes16()), levels in (0..8_u8, 0..8_u8, 0..8_u8),
                   checksum in 0..4_u16, node_shift in 12..17_u32, label: [u8; 32], array in vec(any::<u8>(), 0..2048),
                   backups in (backup(), backup(), backup(), backup())) {
        let sector = |word: u64| Logical(word & !4095);
        let mut whole_label = [0; 256];
        whole_label[..32].copy_from_slice(&label);
        let mut epochs = Epochs::default();
        for number in 0..words[0] % 5 {
            let before = (Generation(0), number as u32);
            let without = [DeviceId(1 + number % 40)].into_iter().collect();
            epochs.begin(Epoch { before, id: words[1] ^ number, time: words[2], fingerprint: words[3], without });
        }
        let superblock = Superblock {
            fsid: ids.0, bytenr: SUPERBLOCK_COPIES[1], flags: SuperblockFlags(words[0]),
            generation: Generation(words[1]), root: sector(words[2]), chunk_root: sector(words[3]),
            log_root: sector(words[4]), log_root_transid: words[3], total_bytes: words[5], bytes_used: words[6], root_dir_objectid: words[7],
            num_devices: words[8] | 1, sector_size: 4096, node_size: 1 << node_shift, leaf_size: 1 << node_shift,
            stripe_size: 4096, chunk_root_generation: Generation(words[1] / 2), compat_flags: words[9],
            compat_ro: CompatRo(words[10]), incompat: Incompat(words[11]),
            checksum: ChecksumType::from_raw(checksum).unwrap(), root_level: levels.0, chunk_root_level: levels.1,
            log_root_level: levels.2,
            dev_item: DevItem { devid: DeviceId(words[12]), uuid: ids.1, ..DevItem::default() },
            label: whole_label, cache_generation: Generation(u64::MAX), uuid_tree_generation: Generation(words[13]),
            metadata_uuid: ids.1, nr_global_roots: words[12], sys_chunk_array: array,
            backup_roots: [backups.0, backups.1, backups.2, backups.3],
            epochs,
            resilvered: (words[4] & 1 == 0).then(|| Resilvered {
                devid: DeviceId(words[5]), has: Generation(words[6]), nodes: sector(words[7]), data: sector(words[8]),
            }),
        };
        let mut bytes = *superblock.to_bytes().unwrap();
        prop_assert_eq!(Superblock::parse(&bytes, SUPERBLOCK_COPIES[1]), Ok(superblock));
        bytes[100] ^= 1;
        prop_assert_eq!(
            Superblock::parse(&bytes, SUPERBLOCK_COPIES[1]),
            Err(Error::BadChecksum { what: "superblock" })
        );
    }

    #[test]
    fn leaves(items in proptest::collection::btree_map(any::<(u64, u8, u64)>(), vec(any::<u8>(), 0..400), 0..40), node_shift in 12..17_u32) {
        let mut block = vec![0xee; 1 << node_shift];
        let mut builder = LeafBuilder::new(&mut block);
        let mut held = Vec::new();
        for ((objectid, item_type, offset), data) in items {
            let at = Key::new(objectid, ItemType(item_type), offset);
            let room = builder.free() >= data.len() + ITEM_HEADER_SIZE;
            prop_assert_eq!(builder.push(at, &data).is_ok(), room);
            if room {
                held.push((at, data));
            }
        }
        let header = Header {
            fsid: Uuid([3; 16]), bytenr: Logical(1 << 20), flags: NodeFlags::WRITTEN, chunk_tree_uuid: Uuid([4; 16]),
            generation: Generation(5), owner: TreeId::FS, nritems: held.len() as u32, level: 0,
        };
        builder.finish(header);
        LeafBuilder::seal(&mut block, ChecksumType::XxHash64);
        prop_assert_eq!(verify_node_checksum(&block, ChecksumType::XxHash64), Ok(()));
        prop_assert_eq!(Header::parse(&block), Ok(header));
        let expected = NodeExpectation {
            bytenr: Logical(1 << 20), level: Some(0), generation: Some(Generation(5)), owner: Some(TreeId::FS),
            first_key: held.first().map(|(key, _)| *key), fsid: Uuid([3; 16]),
        };
        let Node::Leaf(leaf) = Node::check(&block, &expected, 4096).unwrap() else { panic!("not a leaf") };
        let back: Vec<_> = leaf.iter().map(|(key, data)| (key, data.to_vec())).collect();
        for (slot, (key, _)) in held.iter().enumerate() {
            prop_assert_eq!(leaf.search(key), Ok(slot));
        }
        prop_assert_eq!(back, held);
    }

    /// A leaf made of runs of another leaf and of new items has the same bytes as one that is made
    /// item by item.
    #[test]
    fn leaves_of_runs(old in item_map(), new in item_map(), steps in vec((0..8_usize, 0..3_usize), 0..12)) {
        let (mut source, mut by_runs, mut by_items) = (vec![0xee; 16384], vec![0x11; 16384], vec![0x22; 16384]);
        let held = fill_leaf(&mut source, &old);
        let Node::Leaf(leaf) = Node::view(&source).unwrap() else { panic!("not a leaf") };
        let (mut runs, mut items) = (LeafBuilder::new(&mut by_runs), LeafBuilder::new(&mut by_items));
        let (mut next, mut after) = (0, None);
        // Some items are kept, others dropped, and new ones with keys in between are added.
        for (kept, dropped) in steps {
            let run = next..(next + kept).min(held.len());
            next = (run.end + dropped).min(held.len());
            let room = held[run.clone()].iter().map(|(_, data)| data.len() + ITEM_HEADER_SIZE).sum::<usize>() <= runs.free();
            prop_assert_eq!(runs.push_run(&leaf, run.clone()).is_ok(), room);
            if !room {
                break;
            }
            for (key, data) in &held[run] {
                items.push(*key, data).unwrap();
                after = Some(*key);
            }
            let below = held.get(next).map_or(Key::MAX, |(key, _)| *key);
            if let Some((key, data)) = new.iter().find(|(key, _)| Some(**key) > after && **key < below) {
                prop_assert_eq!(runs.push(*key, data), items.push(*key, data));
                after = after.max(Some(*key));
            }
            prop_assert_eq!((runs.free(), runs.len()), (items.free(), items.len()));
        }
        runs.finish(Header::default());
        items.finish(Header::default());
        prop_assert!(by_runs == by_items);
        let expected = NodeExpectation {
            bytenr: Logical(0), level: Some(0), generation: None, owner: None, first_key: None, fsid: Uuid::NIL,
        };
        prop_assert!(Node::check(&by_runs, &expected, 4096).is_ok());
    }

    /// Runs of unchecked leaves are refused, or they make a leaf that can be viewed.
    #[test]
    fn runs_of_damaged_leaves(items in item_map(), damage in vec((101..600_usize, any::<u8>()), 0..6), run in (0..50_usize, 0..50_usize)) {
        let mut source = vec![0; 4096];
        fill_leaf(&mut source, &items);
        for (at, byte) in damage {
            source[at] = byte;
        }
        let Node::Leaf(leaf) = Node::view(&source).unwrap() else { panic!("not a leaf") };
        let mut block = vec![0xee; 4096];
        let mut builder = LeafBuilder::new(&mut block);
        if builder.push_run(&leaf, run.0..run.0.max(run.1)).is_ok() {
            builder.finish(Header::default());
            let Node::Leaf(copy) = Node::view(&block).unwrap() else { panic!("not a leaf") };
            prop_assert!((0..copy.len()).all(|slot| copy.item(slot).is_some()));
        }
    }

    #[test]
    fn no_item_makes_a_parser_panic(at in key(), item in vec(any::<u8>(), 0..200)) {
        let context = ItemContext {
            sector_size: 4096, node_size: 16384, checksum: ChecksumType::Crc32c, generation: Generation(u64::MAX),
            incompat: Incompat(u64::MAX),
        };
        for item_type in 0..=u8::MAX {
            let _ = check_item(&Key { item_type: ItemType(item_type), ..at }, &item, &context);
        }
    }
}
