//! Tests the checker: every damage is found with its right kind, and no other fault is reported.
//! This shows that `check` would find violations of the invariants for which all tests use it: free
//! space and used space (invariant 9, invariant 10) and references (invariant 20).

use crate::common::cases::{Case, Progs, is, judge, of_type};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{
    BlockGroupItem, DataRef, DevItem, ExtentFlags, ExtentItem, FileExtent, FileExtentKind, FileType, FreeSpaceInfo,
    InlineRef, InodeFlags, InodeItem, InodeRef, RootItem, dir_entries, encode_dir_entry, encode_inode_ref,
    encode_sys_chunk, inode_refs, sys_chunks,
};
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, Logical, Physical, TreeId};

/// The inode number of the first regular file with an extent on disk.
fn file_with_extent(image: &Image) -> u64 {
    let items = image.items(TreeId::FS);
    let on_disk = |data: &[u8]| {
        matches!(
            FileExtent::parse(data).unwrap().kind,
            FileExtentKind::Regular { disk_bytenr, prealloc: false, .. } if disk_bytenr.0 != 0
        )
    };
    items.iter().find(|(key, data)| key.item_type == ItemType::EXTENT_DATA && on_disk(data)).unwrap().0.objectid
}

fn change_inode(image: &Image, ino: u64, change: impl Fn(&mut InodeItem)) {
    image.edit(TreeId::FS, is(ino, ItemType::INODE_ITEM), |_, data| {
        let mut item = InodeItem::parse(data).unwrap();
        change(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

fn change_extent_item(image: &Image, wanted: impl Fn(&ExtentItem) -> bool, change: impl Fn(&mut ExtentItem)) {
    let is_extent = |key: &Key| matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM);
    image.edit(
        TreeId::EXTENT,
        |key, data| is_extent(key) && wanted(&ExtentItem::parse(key, data).unwrap()),
        |key, data| {
            let mut item = ExtentItem::parse(key, data).unwrap();
            change(&mut item);
            *data = item.to_bytes();
        },
    );
}

/// A leaf that several trees use, and by whose address its data has backrefs.
fn shared_leaf(image: &Image) -> Logical {
    let items = image.items(TreeId::EXTENT);
    let leaf = items.iter().find(|(key, data)| {
        let item = || ExtentItem::parse(key, data).unwrap();
        let is_shared = |item: ExtentItem| item.flags & ExtentFlags::FULL_BACKREF != 0 && item.refs > 1;
        let holds_data = || {
            items.iter().any(|(other, data)| {
                other.item_type == ItemType::EXTENT_ITEM
                    && ExtentItem::parse(other, data).unwrap().inline_refs.iter().any(|reference| {
                        matches!(reference, InlineRef::SharedData { parent, .. } if parent.0 == key.objectid)
                    })
            })
        };
        key.item_type == ItemType::METADATA_ITEM && is_shared(item()) && holds_data()
    });
    Logical(leaf.unwrap().0.objectid)
}

fn change_extent_of(image: &Image, extent: Logical, change: impl Fn(&mut ExtentItem)) {
    image.edit(
        TreeId::EXTENT,
        |key, _| key.objectid == extent.0 && key.item_type == ItemType::METADATA_ITEM,
        |key, data| {
            let mut item = ExtentItem::parse(key, data).unwrap();
            change(&mut item);
            *data = item.to_bytes();
        },
    );
}

fn is_data(item: &ExtentItem) -> bool {
    item.flags & ExtentFlags::DATA != 0
}

const CASES: &[Case] = &[
    Case {
        name: "link count too high",
        fixture: "prof-dup",
        damage: |image| {
            change_inode(image, file_with_extent(image), |item| item.nlink += 1);
        },
        kinds: &["link_count"],
        progs: Progs::Objects,
    },
    Case {
        name: "link count zero, no orphan item",
        fixture: "prof-dup",
        damage: |image| {
            change_inode(image, file_with_extent(image), |item| item.nlink = 0);
        },
        kinds: &["link_count", "no_orphan_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "orphan item gone",
        fixture: "orphans",
        damage: |image| {
            image.remove(TreeId::FS, of_type(ItemType::ORPHAN_ITEM));
        },
        kinds: &["no_orphan_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "directory size",
        fixture: "prof-dup",
        damage: |image| {
            change_inode(image, 256, |item| item.size += 2);
        },
        kinds: &["directory_size"],
        progs: Progs::Objects,
    },
    Case {
        name: "nbytes",
        fixture: "prof-dup",
        damage: |image| {
            change_inode(image, file_with_extent(image), |item| item.nbytes += 4096);
        },
        kinds: &["nbytes"],
        progs: Progs::Objects,
    },
    Case {
        name: "inode item gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::FS, is(file_with_extent(image), ItemType::INODE_ITEM));
        },
        kinds: &["missing_inode", "entry_without_inode"],
        progs: Progs::Objects,
    },
    Case {
        name: "directory index gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::FS, is(256, ItemType::DIR_INDEX));
        },
        kinds: &["directory_size", "item_without_index", "ref_without_entry"],
        progs: Progs::Objects,
    },
    Case {
        name: "directory item gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::FS, is(256, ItemType::DIR_ITEM));
        },
        kinds: &["directory_size", "index_without_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "directory entry gone",
        fixture: "prof-dup",
        damage: |image| {
            let index = image
                .items(TreeId::FS)
                .into_iter()
                .find(|(key, _)| key.objectid == 256 && key.item_type == ItemType::DIR_INDEX)
                .unwrap();
            let name = dir_entries(&index.1).next().unwrap().unwrap().name.to_vec();
            image.remove(TreeId::FS, |key, _| *key == index.0);
            image.remove(TreeId::FS, |key, data| {
                key.item_type == ItemType::DIR_ITEM && dir_entries(data).next().unwrap().unwrap().name == name
            });
        },
        kinds: &["directory_size", "ref_without_entry"],
        progs: Progs::Objects,
    },
    Case {
        name: "inode reference gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::FS, |key, _| key.item_type == ItemType::INODE_REF && key.objectid == 261);
        },
        kinds: &["link_count", "entry_without_ref"],
        progs: Progs::Objects,
    },
    Case {
        name: "index differs",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::FS,
                |key, _| key.item_type == ItemType::INODE_REF && key.objectid == 261,
                |_, data| {
                    let name = inode_refs(data).next().unwrap().unwrap().name.to_vec();
                    let mut item = Vec::new();
                    encode_inode_ref(&mut item, InodeRef { index: DirIndex(9999), name: &name });
                    *data = item;
                },
            );
        },
        kinds: &["index_mismatch"],
        progs: Progs::Objects,
    },
    Case {
        name: "name differs",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::FS,
                |key, _| key.item_type == ItemType::INODE_REF && key.objectid == 261,
                |_, data| {
                    *data.last_mut().unwrap() ^= 1;
                },
            );
        },
        kinds: &["name_mismatch"],
        progs: Progs::Objects,
    },
    Case {
        name: "type differs",
        fixture: "prof-dup",
        damage: |image| {
            image.edit_leaf(TreeId::FS, |items| {
                let mut changed = 0;
                for (key, data) in items.iter_mut().filter(|(key, _)| {
                    key.objectid == 256 && matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX)
                }) {
                    let mut entry = dir_entries(data).next().unwrap().unwrap();
                    if entry.location.objectid == 261 {
                        entry.file_type = FileType::Fifo;
                        let mut item = Vec::new();
                        encode_dir_entry(&mut item, &entry);
                        changed += 1;
                        let _ = key;
                        *data = item;
                    }
                }
                changed == 2
            });
        },
        kinds: &["type_mismatch"],
        progs: Progs::Objects,
    },
    Case {
        name: "name hash",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(TreeId::FS, is(256, ItemType::DIR_ITEM), |_, data| *data.last_mut().unwrap() ^= 1);
        },
        kinds: &["bad_item", "index_without_item", "item_without_index"],
        progs: Progs::Objects,
    },
    Case {
        name: "file extent gone",
        fixture: "holes",
        damage: |image| {
            let ino = file_with_extent(image);
            image.remove(TreeId::FS, is(ino, ItemType::EXTENT_DATA));
        },
        kinds: &["nbytes", "file_gap", "unused_extent_item"],
        progs: Progs::Objects,
    },
    Case {
        name: "checksum item gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::CSUM, of_type(ItemType::EXTENT_CSUM));
        },
        kinds: &["missing_checksum"],
        progs: Progs::Objects,
    },
    Case {
        name: "checksum without data",
        fixture: "prof-dup",
        damage: |image| {
            let last = image.items(TreeId::CSUM).pop().unwrap().0;
            image.add(TreeId::CSUM, Key { offset: last.offset + (8 << 20), ..last }, &[1, 2, 3, 4]);
        },
        kinds: &["checksum_without_extent", "bad_data"],
        progs: Progs::Objects,
    },
    Case {
        name: "checksums on a file that has none",
        fixture: "prof-dup",
        damage: |image| {
            change_inode(image, file_with_extent(image), |item| item.flags |= InodeFlags::NODATASUM);
        },
        kinds: &["odd_checksum"],
        progs: Progs::Objects,
    },
    Case {
        name: "used space listed free",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::FREE_SPACE,
                |key, _| key.item_type == ItemType::FREE_SPACE_EXTENT && key.objectid > 63_963_136,
                |key, _| {
                    key.objectid -= 4096;
                    key.offset += 4096;
                },
            );
        },
        kinds: &["used_listed_free"],
        progs: Progs::Objects,
    },
    Case {
        name: "free space not listed",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::FREE_SPACE,
                |key, _| key.item_type == ItemType::FREE_SPACE_EXTENT && key.objectid > 63_963_136,
                |key, _| key.offset -= 4096,
            );
        },
        kinds: &["free_not_listed"],
        progs: Progs::Objects,
    },
    Case {
        name: "free space count",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_INFO), |_, data| {
                let mut info = FreeSpaceInfo::parse(data).unwrap();
                info.extent_count += 1;
                *data = info.to_bytes().to_vec();
            });
        },
        kinds: &["free_space_count"],
        progs: Progs::Objects,
    },
    Case {
        name: "free space info gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::FREE_SPACE, of_type(ItemType::FREE_SPACE_INFO));
        },
        kinds: &["free_space_info_missing", "free_space_outside"],
        progs: Progs::Objects,
    },
    Case {
        name: "free space of no block group",
        fixture: "prof-dup",
        damage: |image| {
            image.add(TreeId::FREE_SPACE, Key::new(1 << 40, ItemType::FREE_SPACE_INFO, 1 << 20), &[0; 8]);
        },
        kinds: &["free_space_stale"],
        progs: Progs::Objects,
    },
    Case {
        name: "block group use",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(TreeId::EXTENT, of_type(ItemType::BLOCK_GROUP_ITEM), |_, data| {
                let mut item = BlockGroupItem::parse(data).unwrap();
                item.used += 16384;
                *data = item.to_bytes().to_vec();
            });
        },
        kinds: &["block_group_used"],
        progs: Progs::Objects,
    },
    Case {
        name: "block group flags",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::EXTENT,
                |key, _| key.item_type == ItemType::BLOCK_GROUP_ITEM && key.objectid == 63_963_136,
                |_, data| {
                    let mut item = BlockGroupItem::parse(data).unwrap();
                    item.flags ^= 0b101;
                    *data = item.to_bytes().to_vec();
                },
            );
        },
        kinds: &["block_group_differs_from_chunk", "extent_in_wrong_block_group"],
        progs: Progs::Objects,
    },
    Case {
        name: "block group gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::EXTENT, |key, _| {
                key.item_type == ItemType::BLOCK_GROUP_ITEM && key.objectid == 131_072_000
            });
        },
        kinds: &["chunk_without_block_group", "extent_outside_block_group", "free_space_stale"],
        progs: Progs::Objects,
    },
    Case {
        name: "device extent gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::DEV, of_type(ItemType::DEV_EXTENT));
        },
        kinds: &["chunk_without_device_extent", "device_bytes_used"],
        progs: Progs::Objects,
    },
    Case {
        name: "device use",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(TreeId::CHUNK, of_type(ItemType::DEV_ITEM), |_, data| {
                let mut item = DevItem::parse(data).unwrap();
                item.bytes_used -= 65536;
                *data = item.to_bytes().to_vec();
            });
        },
        kinds: &["device_bytes_used", "superblock_field"],
        progs: Progs::Objects,
    },
    Case {
        name: "data extent item gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::EXTENT, |key, data| {
                key.item_type == ItemType::EXTENT_ITEM && is_data(&ExtentItem::parse(key, data).unwrap())
            });
        },
        kinds: &[
            "missing_extent_item",
            "free_not_listed",
            "block_group_used",
            "superblock_field",
            "checksum_without_extent",
        ],
        progs: Progs::Objects,
    },
    Case {
        name: "metadata extent item gone",
        fixture: "prof-dup",
        damage: |image| {
            image.remove(TreeId::EXTENT, of_type(ItemType::METADATA_ITEM));
        },
        kinds: &["missing_extent_item", "free_not_listed", "block_group_used", "superblock_field"],
        progs: Progs::Objects,
    },
    Case {
        name: "reference count",
        fixture: "prof-dup",
        damage: |image| {
            change_extent_item(image, is_data, |item| {
                if let Some(InlineRef::Data { count, .. }) = item.inline_refs.first_mut() {
                    *count += 1;
                }
                item.refs += 1;
            });
        },
        kinds: &["surplus_reference"],
        progs: Progs::Objects,
    },
    Case {
        name: "reference total",
        fixture: "prof-dup",
        damage: |image| {
            change_extent_item(image, is_data, |item| item.refs += 1);
        },
        kinds: &["reference_total"],
        progs: Progs::Objects,
    },
    Case {
        name: "reference to another file",
        fixture: "prof-dup",
        damage: |image| {
            change_extent_item(image, is_data, |item| {
                if let Some(InlineRef::Data { data, .. }) = item.inline_refs.first_mut() {
                    data.ino.0 += 1000;
                }
            });
        },
        kinds: &["surplus_reference", "missing_reference"],
        progs: Progs::Objects,
    },
    Case {
        name: "block owner",
        fixture: "prof-dup",
        damage: |image| {
            change_extent_item(
                image,
                |item| matches!(item.inline_refs.first(), Some(InlineRef::TreeBlock { root: TreeId::FS })),
                |item| {
                    item.inline_refs = vec![InlineRef::TreeBlock { root: TreeId::CSUM }];
                },
            );
        },
        kinds: &["surplus_reference", "missing_reference", "full_backref_missing"],
        progs: Progs::Objects,
    },
    Case {
        name: "full back references denied",
        fixture: "shared",
        damage: |image| {
            let leaf = shared_leaf(image);
            change_extent_of(image, leaf, |item| item.flags &= !ExtentFlags::FULL_BACKREF);
        },
        kinds: &["full_backref_missing", "missing_reference", "surplus_reference", "free_space_stale"],
        progs: Progs::Objects,
    },
    Case {
        name: "shared reference's count",
        fixture: "shared",
        damage: |image| {
            change_extent_item(
                image,
                |item| matches!(item.inline_refs.last(), Some(InlineRef::SharedData { .. })),
                |item| {
                    if let Some(InlineRef::SharedData { count, .. }) = item.inline_refs.last_mut() {
                        *count += 1;
                    }
                    item.refs += 1;
                },
            );
        },
        kinds: &["surplus_reference", "free_space_stale"],
        progs: Progs::Objects,
    },
    Case {
        name: "a snapshot's use of a block gone",
        fixture: "shared",
        damage: |image| {
            let leaf = shared_leaf(image);
            change_extent_of(image, leaf, |item| {
                item.inline_refs.remove(0);
                item.refs -= 1;
            });
        },
        kinds: &["missing_reference", "free_space_stale"],
        progs: Progs::Objects,
    },
    Case {
        name: "extent generation",
        fixture: "prof-dup",
        damage: |image| {
            change_extent_item(image, |item| !is_data(item), |item| item.generation = Generation(1));
        },
        kinds: &["extent_generation"],
        progs: Progs::Silent,
    },
    Case {
        name: "extent level",
        fixture: "prof-dup",
        damage: |image| {
            image.edit(
                TreeId::EXTENT,
                |key, _| key.item_type == ItemType::METADATA_ITEM && key.offset == 1,
                |key, _| key.offset = 2,
            );
        },
        kinds: &["extent_level"],
        progs: Progs::Objects,
    },
    Case {
        name: "extent nobody uses",
        fixture: "prof-dup",
        damage: |image| {
            let item = ExtentItem {
                refs: 1,
                generation: image.superblock.generation,
                flags: ExtentFlags::DATA,
                tree_block: None,
                inline_refs: vec![InlineRef::Data {
                    data: DataRef { root: TreeId::FS, ino: Ino(257), offset: 0 },
                    count: 1,
                }],
            };
            image.add(TreeId::EXTENT, Key::new(100 << 20, ItemType::EXTENT_ITEM, 4096), &item.to_bytes());
        },
        kinds: &["unused_extent_item", "used_listed_free", "block_group_used", "superblock_field"],
        progs: Progs::Objects,
    },
    Case {
        name: "one copy of a block",
        fixture: "prof-dup",
        damage: |image| {
            image.flip(image.leaves(TreeId::FS)[0].plus(4000), &[1]);
        },
        kinds: &["bad_copy"],
        progs: Progs::Silent,
    },
    Case {
        name: "both copies of a block",
        fixture: "prof-dup",
        damage: |image| {
            image.flip_all(image.leaves(TreeId::FS)[3].plus(4000));
        },
        kinds: &["bad_block"],
        progs: Progs::Objects,
    },
    Case {
        name: "one copy of data",
        fixture: "prof-dup",
        damage: |image| {
            let at = image.items(TreeId::CSUM)[0].0.offset;
            image.flip(Logical(at), &[1]);
        },
        kinds: &["bad_data"],
        progs: Progs::Objects,
    },
    Case {
        name: "generation of a block",
        fixture: "prof-dup",
        damage: |image| {
            let at = image.leaves(TreeId::FS)[3];
            let mut block = image.read_block(at);
            block[80] ^= 1;
            image.write_block(at, block);
        },
        kinds: &["bad_block"],
        progs: Progs::Objects,
    },
    Case {
        name: "superblock copy unreadable",
        fixture: "prof-dup",
        damage: |image| {
            image.flip_raw(Physical((64 << 20) + 100));
        },
        kinds: &["superblock_copy_bad"],
        progs: Progs::Silent,
    },
    Case {
        name: "superblock copy old",
        fixture: "prof-dup",
        damage: |image| {
            image.edit_superblock(&[1], |superblock| {
                superblock.generation.0 -= 1;
                superblock.chunk_root_generation = superblock.generation;
            });
        },
        kinds: &["superblock_copy_stale"],
        progs: Progs::Silent,
    },
    Case {
        name: "superblock copy differs",
        fixture: "prof-dup",
        damage: |image| image.edit_superblock(&[1], |superblock| superblock.label[0] ^= 1),
        kinds: &["superblock_copy_differs"],
        progs: Progs::Silent,
    },
    Case {
        name: "system chunk array has a chunk that is not in the tree",
        fixture: "prof-dup",
        damage: |image| {
            image.edit_superblock(&[0, 1], |superblock| {
                let (mut key, chunk) = sys_chunks(&superblock.sys_chunk_array).unwrap().remove(0);
                key.offset = 1 << 40;
                encode_sys_chunk(&mut superblock.sys_chunk_array, key, &chunk);
            });
        },
        kinds: &["system_chunk_differs"],
        progs: Progs::Silent,
    },
    Case {
        name: "directory is its own ancestor",
        fixture: "prof-dup",
        damage: |image| {
            // "dir" (257) moves from the root into its own "dir/sub".
            let items = image.items(TreeId::FS);
            let entry = |data: &[u8]| dir_entries(data).next().unwrap().unwrap().name.to_vec();
            let sub = items
                .iter()
                .find(|(key, data)| key.item_type == ItemType::DIR_INDEX && entry(data) == b"sub")
                .map(|(_, data)| dir_entries(data).next().unwrap().unwrap().location.objectid)
                .unwrap();
            image.edit_leaf(TreeId::FS, |items| {
                let is_entry = |key: &Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
                let moved = |(key, data): &(Key, Vec<u8>)| {
                    (key.objectid == 256 && is_entry(key) && entry(data) == b"dir")
                        || (key.objectid == 257 && key.item_type == ItemType::INODE_REF)
                };
                let (mut taken, mut rest): (Vec<_>, Vec<_>) = items.drain(..).partition(moved);
                for (key, data) in &mut taken {
                    match key.item_type {
                        ItemType::INODE_REF => {
                            key.offset = sub;
                            data[..8].copy_from_slice(&77_u64.to_le_bytes());
                        }
                        ItemType::DIR_INDEX => (key.objectid, key.offset) = (sub, 77),
                        _ => key.objectid = sub,
                    }
                }
                rest.extend(taken);
                rest.sort();
                *items = rest;
                true
            });
            change_inode(image, 256, |item| item.size -= 6);
            change_inode(image, sub, |item| item.size += 6);
        },
        kinds: &["unreachable_directory"],
        progs: Progs::Silent,
    },
    Case {
        name: "file extents overlap",
        fixture: "holes",
        damage: |image| {
            let is_hole = |data: &[u8]| {
                matches!(FileExtent::parse(data).unwrap().kind, FileExtentKind::Regular { disk_bytenr: Logical(0), .. })
            };
            image.edit(
                TreeId::FS,
                |key, data| key.item_type == ItemType::EXTENT_DATA && is_hole(data),
                |_, data| {
                    let mut extent = FileExtent::parse(data).unwrap();
                    if let FileExtentKind::Regular { num_bytes, .. } = &mut extent.kind {
                        *num_bytes += 4096;
                    }
                    extent.ram_bytes += 4096;
                    *data = extent.to_bytes();
                },
            );
        },
        kinds: &["file_extents_overlap"],
        progs: Progs::Objects,
    },
    Case {
        name: "superblock use",
        fixture: "prof-dup",
        damage: |image| {
            image.edit_superblock(&[0, 1], |superblock| superblock.bytes_used += 4096);
        },
        kinds: &["superblock_field"],
        progs: Progs::Objects,
    },
    Case {
        name: "subvolume's back reference gone",
        fixture: "snapshots",
        damage: |image| {
            image.remove(TreeId::ROOT, of_type(ItemType::ROOT_BACKREF));
        },
        kinds: &["root_ref_without_backref", "subvolume_names"],
        progs: Progs::Objects,
    },
    Case {
        name: "subvolume's reference gone",
        fixture: "snapshots",
        damage: |image| {
            image.remove(TreeId::ROOT, of_type(ItemType::ROOT_REF));
        },
        kinds: &["root_backref_without_ref", "subvolume_entry_without_ref"],
        progs: Progs::Objects,
    },
    Case {
        name: "subvolume's entry gone",
        fixture: "snapshots",
        damage: |image| {
            image.edit_leaf(TreeId::FS, |items| {
                let before = items.len();
                items.retain(|(key, data)| {
                    !matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX)
                        || dir_entries(data).next().unwrap().unwrap().name != b"sv"
                });
                items.len() + 2 == before
            });
        },
        kinds: &["root_ref_without_entry", "directory_size"],
        progs: Progs::Objects,
    },
    Case {
        name: "deleted subvolume without orphan item",
        fixture: "snapshots",
        damage: |image| {
            image.edit(TreeId::ROOT, is(257, ItemType::ROOT_ITEM), |_, data| {
                let mut item = RootItem::parse(data).unwrap();
                item.refs = 0;
                *data = item.to_bytes();
            });
        },
        kinds: &["root_without_orphan", "subvolume_names"],
        progs: Progs::Objects,
    },
    Case {
        name: "UUID of a subvolume gone",
        fixture: "snapshots",
        damage: |image| {
            image.edit_superblock(&[0, 1], |superblock| superblock.uuid_tree_generation = superblock.generation);
            image.remove(TreeId::UUID, of_type(ItemType::UUID_KEY_SUBVOL));
        },
        kinds: &["uuid_missing"],
        progs: Progs::Silent,
    },
    Case {
        name: "symbolic link's size",
        fixture: "prof-dup",
        damage: |image| {
            let link = image
                .items(TreeId::FS)
                .into_iter()
                .find(|(key, data)| {
                    key.item_type == ItemType::INODE_ITEM && InodeItem::parse(data).unwrap().mode >> 12 == 0o12
                })
                .unwrap();
            change_inode(image, link.0.objectid, |item| item.size += 1);
        },
        kinds: &["symlink_rule"],
        progs: Progs::Silent,
    },
    Case {
        name: "data of a log",
        fixture: "log-append",
        damage: |image| {
            let items = image.items(TreeId::LOG);
            let sums = items.iter().find(|(key, _)| key.item_type == ItemType::EXTENT_CSUM).unwrap();
            image.flip(Logical(sums.0.offset), &[0]);
        },
        kinds: &["bad_data"],
        progs: Progs::Silent,
    },
    Case {
        name: "checksum of a log gone",
        fixture: "log-append",
        damage: |image| image.remove(TreeId::LOG, of_type(ItemType::EXTENT_CSUM)),
        kinds: &["missing_checksum"],
        progs: Progs::Silent,
    },
    Case {
        name: "extent of a log where the root tree is",
        fixture: "log-append",
        damage: |image| {
            let is_on_disk = |key: &Key, data: &[u8]| {
                key.item_type == ItemType::EXTENT_DATA
                    && matches!(FileExtent::parse(data).unwrap().kind, FileExtentKind::Regular { .. })
            };
            image.edit(TreeId::LOG, is_on_disk, |_, data| {
                data[21..29].copy_from_slice(&image.superblock.root.0.to_le_bytes());
            });
        },
        kinds: &["log_over_used_space", "missing_checksum"],
        progs: Progs::Silent,
    },
    Case {
        name: "block of a log in use",
        fixture: "log-append",
        damage: |image| {
            let log = image.root(TreeId::LOG);
            let key = Key::new(log.0, ItemType::METADATA_ITEM, 0);
            let other = image.items(TreeId::EXTENT);
            let (_, data) = other.iter().find(|(key, _)| key.item_type == ItemType::METADATA_ITEM).unwrap();
            image.add(TreeId::EXTENT, key, data);
        },
        kinds: &[
            "block_group_used",
            "log_over_used_space",
            "superblock_field",
            "unused_extent_item",
            "used_listed_free",
        ],
        progs: Progs::Objects,
    },
];

#[test]
fn every_damage_is_found_and_nothing_else() {
    judge(CASES);
}
