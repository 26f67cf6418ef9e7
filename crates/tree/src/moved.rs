//! Moving a committed node to another address, for relocation.

use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{
    Generation, HEADER_SIZE, Header, ItemType, KEY_POINTER_SIZE, LeafBuilder, Logical, Node, NodeFlags, Result,
};

use crate::block::{Block, Geometry};

/// What an entry of a node points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer {
    /// A node of the next lower level.
    Node {
        /// Its address.
        bytenr: Logical,
        /// Its generation.
        generation: Generation,
    },
    /// An extent with the data of a file.
    Data {
        /// Its address.
        bytenr: Logical,
        /// Its bytes on disk.
        length: u64,
        /// The number of the inode.
        ino: u64,
        /// The file offset at which the whole extent would begin, modulo 2^64.
        offset: u64,
        /// Whether it is reserved space, which reads as zeros.
        prealloc: bool,
    },
}

/// The properties of a moved node.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Its new address.
    pub to: Logical,
    /// The generation of the commit that moves it.
    pub generation: Generation,
    /// Snapshots may share it. Since its generation no longer shows that, a flag in it does.
    pub may_be_shared: bool,
}

/// The offset of an address in a key pointer of a node, and in a file extent item.
const IN_KEY_POINTER: usize = 17;
const IN_FILE_EXTENT: usize = 21;

impl Block {
    /// Returns what the node's entries point to, in order. Holes and inline extents point to
    /// nothing.
    pub fn pointers(&self) -> Result<Vec<Pointer>> {
        Ok(self.places()?.into_iter().map(|(_, pointer)| pointer).collect())
    }

    /// Returns the pointers, each with the place of its address in the block.
    fn places(&self) -> Result<Vec<(usize, Pointer)>> {
        let mut places = Vec::new();
        match self.node()? {
            Node::Internal(node) => {
                for (slot, child) in node.iter().enumerate() {
                    let pointer = Pointer::Node { bytenr: child.bytenr, generation: child.generation };
                    places.push((HEADER_SIZE + slot * KEY_POINTER_SIZE + IN_KEY_POINTER, pointer));
                }
            }
            Node::Leaf(leaf) => {
                for (key, item) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
                    let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, prealloc, .. } =
                        FileExtent::parse(item)?.kind
                    else {
                        continue;
                    };
                    if disk_bytenr.0 != 0 {
                        let offset = key.offset.wrapping_sub(offset);
                        let (bytenr, length, ino) = (disk_bytenr, disk_num_bytes, key.objectid);
                        let pointer = Pointer::Data { bytenr, length, ino, offset, prealloc };
                        places.push((self.offset_of(item) + IN_FILE_EXTENT, pointer));
                    }
                }
            }
        }
        Ok(places)
    }

    /// Returns a copy of the node at its new address, ready to be written. Pointers for which
    /// `moved` returns a new address get that address, and pointers to nodes also get the new
    /// generation. The copy is of this volume, though the node may be of a seed from which the
    /// volume was made (invariant 11). Everything else stays as it is.
    pub fn moved(
        &self,
        new: Moved,
        volume: &Geometry,
        moved: &mut dyn FnMut(Pointer) -> Option<Logical>,
    ) -> Result<Self> {
        let places = self.places()?;
        let old = self.header()?;
        let flags = if new.may_be_shared { old.flags | NodeFlags::RELOC } else { old.flags };
        let Geometry { fsid, chunk_tree_uuid, checksum, .. } = *volume;
        let header = Header { bytenr: new.to, generation: new.generation, flags, fsid, chunk_tree_uuid, ..old };
        let mut copy = self.clone();
        let bytes = copy.bytes_mut();
        header.put(bytes);
        let mut put = |place: usize, value: u64| {
            if let Some(field) = bytes.get_mut(place..place + size_of::<u64>()) {
                field.copy_from_slice(&value.to_le_bytes());
            }
        };
        for (place, pointer) in places {
            let Some(address) = moved(pointer) else { continue };
            put(place, address.0);
            if matches!(pointer, Pointer::Node { .. }) {
                put(place + size_of::<u64>(), new.generation.0);
            }
        }
        LeafBuilder::seal(bytes, checksum);
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{ChecksumType, TreeId, Uuid, verify_node_checksum};

    use super::*;

    /// Of invariant 11: a node of a seed is not found in the volume by the seed's id any more.
    #[test]
    fn a_moved_node_of_a_seed_belongs_to_the_volume() {
        let seed = Header {
            fsid: Uuid([1; 16]),
            bytenr: Logical(1 << 20),
            flags: NodeFlags::WRITTEN,
            chunk_tree_uuid: Uuid([2; 16]),
            generation: Generation(5),
            owner: TreeId::FS,
            nritems: 0,
            level: 0,
        };
        let mut bytes = vec![0; 4096];
        seed.put(&mut bytes);
        let volume = Geometry {
            node_size: 4096,
            sector_size: 4096,
            fsid: Uuid([3; 16]),
            chunk_tree_uuid: Uuid([4; 16]),
            checksum: ChecksumType::Crc32c,
        };
        let new = Moved { to: Logical(2 << 20), generation: Generation(9), may_be_shared: false };
        let moved = Block::from(bytes).moved(new, &volume, &mut |_| None).unwrap();
        let found = moved.header().unwrap();
        assert_eq!((found.fsid, found.chunk_tree_uuid), (volume.fsid, volume.chunk_tree_uuid));
        assert_eq!((found.bytenr, found.generation, found.owner), (new.to, new.generation, TreeId::FS));
        verify_node_checksum(&moved, volume.checksum).unwrap();
    }
}
