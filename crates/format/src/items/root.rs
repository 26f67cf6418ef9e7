//! `ROOT_ITEM`, `ROOT_REF` and `ROOT_BACKREF`: trees, and the entries of subvolumes.

use zerocopy::{FromBytes, IntoBytes};

use super::inode::InodeItem;
use super::{Timespec, slice};
use crate::{Error, Generation, Ino, ItemType, Key, KeyBytes, Logical, Result, Uuid};

const SIZE: usize = 439;
/// Before Linux 3.6 the item ended after `level`.
const OLD_SIZE: usize = 239;
const WHAT: &str = "root item";

/// Flags of a subvolume.
pub struct RootFlags;

impl RootFlags {
    /// Read-only.
    pub const RDONLY: u64 = 1 << 0;
    /// Set by the kernels of Synology's devices. Its meaning is not known to us, so it is kept as
    /// it is.
    pub const SYNOLOGY: u64 = 1 << 34;
    /// Being deleted.
    pub const DEAD: u64 = 1 << 48;
}

/// The root of a tree. Key `(tree ROOT_ITEM n)`, n = 0 or, for snapshots, the transaction that made
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootItem {
    /// An embedded inode, most of which is unused.
    pub inode: InodeItem,
    /// The transaction that last changed the tree.
    pub generation: Generation,
    /// The root directory's inode (256 for subvolumes).
    pub root_dirid: Ino,
    /// The root block.
    pub bytenr: Logical,
    /// Unused limit.
    pub byte_limit: u64,
    /// Bytes of the tree's blocks.
    pub bytes_used: u64,
    /// The transaction of the last snapshot of this tree.
    pub last_snapshot: Generation,
    /// [`RootFlags`].
    pub flags: u64,
    /// 0 for a subvolume that is being deleted, else 1.
    pub refs: u32,
    /// The key that a deletion has reached.
    pub drop_progress: Key,
    /// The level at which the deletion stopped.
    pub drop_level: u8,
    /// The root block's level.
    pub level: u8,
    /// Equal to `generation` if a writer that knows the fields below wrote the item.
    pub generation_v2: Generation,
    /// The subvolume's id.
    pub uuid: Uuid,
    /// The id of the subvolume that this is a snapshot of.
    pub parent_uuid: Uuid,
    /// The id of the subvolume that this was received from.
    pub received_uuid: Uuid,
    /// Transactions of the last change, creation, send and receipt.
    pub transids: [u64; 4],
    /// Times of the last change, creation, send and receipt.
    pub times: [Timespec; 4],
}

impl RootItem {
    /// The size of the item in bytes, as current kernels write it.
    pub const SIZE: usize = SIZE;

    /// Reads an item; the fields that an old one lacks are zero.
    pub fn parse(item: &[u8]) -> Result<Self> {
        if item.len() != SIZE && item.len() != OLD_SIZE {
            return Err(Error::WrongLength { what: WHAT, need: SIZE, have: item.len() });
        }
        let mut whole = [0; SIZE];
        whole[..item.len()].copy_from_slice(item);
        let word = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&whole[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let uuid = |at: usize| {
            let mut field = [0; 16];
            field.copy_from_slice(&whole[at..at + 16]);
            Uuid(field)
        };
        let mut times = [Timespec::default(); 4];
        for (index, time) in times.iter_mut().enumerate() {
            *time = Timespec::parse_prefix(&whole[327 + 12 * index..])?;
        }
        let (drop_progress, _) = KeyBytes::read_from_prefix(&whole[220..]).map_err(|_| Error::TooShort {
            what: WHAT,
            need: SIZE,
            have: item.len(),
        })?;
        let mut refs = [0; 4];
        refs.copy_from_slice(&whole[216..220]);
        Ok(Self {
            inode: InodeItem::parse_prefix(&whole)?,
            generation: Generation(word(160)),
            root_dirid: Ino(word(168)),
            bytenr: Logical(word(176)),
            byte_limit: word(184),
            bytes_used: word(192),
            last_snapshot: Generation(word(200)),
            flags: word(208),
            refs: u32::from_le_bytes(refs),
            drop_progress: drop_progress.into(),
            drop_level: whole[237],
            level: whole[238],
            generation_v2: Generation(word(239)),
            uuid: uuid(247),
            parent_uuid: uuid(263),
            received_uuid: uuid(279),
            transids: [word(295), word(303), word(311), word(319)],
            times,
        })
    }

    /// Returns the item's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut item = Vec::with_capacity(SIZE);
        item.extend_from_slice(&self.inode.to_bytes());
        for field in [
            self.generation.0,
            self.root_dirid.0,
            self.bytenr.0,
            self.byte_limit,
            self.bytes_used,
            self.last_snapshot.0,
            self.flags,
        ] {
            item.extend_from_slice(&field.to_le_bytes());
        }
        item.extend_from_slice(&self.refs.to_le_bytes());
        item.extend_from_slice(KeyBytes::from(self.drop_progress).as_bytes());
        item.extend_from_slice(&[self.drop_level, self.level]);
        item.extend_from_slice(&self.generation_v2.0.to_le_bytes());
        for uuid in [self.uuid, self.parent_uuid, self.received_uuid] {
            item.extend_from_slice(&uuid.0);
        }
        for transid in self.transids {
            item.extend_from_slice(&transid.to_le_bytes());
        }
        for time in self.times {
            item.extend_from_slice(&time.to_bytes());
        }
        item.resize(SIZE, 0);
        item
    }
}

/// Returns the key in the UUID tree of subvolumes with this id. The item has the numbers of these
/// subvolumes, 8 bytes each.
pub fn uuid_key(item_type: ItemType, uuid: &Uuid) -> Key {
    let (high, low) = uuid.0.split_at(8);
    let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Key::new(half(high), item_type, half(low))
}

/// The entry of a subvolume: `(parent ROOT_REF child)` and `(child ROOT_BACKREF parent)` have the
/// same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// The directory that holds the entry.
    pub dirid: Ino,
    /// The entry's number in it.
    pub sequence: u64,
    /// The entry's name.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Reads an item.
    pub fn parse(item: &'a [u8]) -> Result<Self> {
        const WHAT: &str = "root reference";
        let header = slice(item, 0, 18, WHAT)?;
        let (mut dirid, mut sequence) = ([0; 8], [0; 8]);
        dirid.copy_from_slice(&header[..8]);
        sequence.copy_from_slice(&header[8..16]);
        let name = slice(item, 18, usize::from(u16::from_le_bytes([header[16], header[17]])), WHAT)?;
        if name.is_empty() || name.len() + 18 != item.len() {
            return Err(Error::WrongLength { what: WHAT, need: name.len() + 18, have: item.len() });
        }
        Ok(Self { dirid: Ino(u64::from_le_bytes(dirid)), sequence: u64::from_le_bytes(sequence), name })
    }

    /// Returns the item's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut item = Vec::with_capacity(18 + self.name.len());
        item.extend_from_slice(&self.dirid.0.to_le_bytes());
        item.extend_from_slice(&self.sequence.to_le_bytes());
        item.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        item.extend_from_slice(self.name);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_root_items_are_parsed_as_written() {
        let mut item = RootItem::parse(&[0; SIZE]).unwrap();
        item.generation = Generation(9);
        item.level = 2;
        item.uuid = Uuid([3; 16]);
        item.transids = [1, 2, 3, 4];
        item.times[3] = Timespec { sec: 5, nsec: 6 };
        assert_eq!(RootItem::parse(&item.to_bytes()), Ok(item.clone()));
        assert_eq!(RootItem::parse(&item.to_bytes()[..OLD_SIZE]).unwrap().uuid, Uuid::NIL);
        assert!(RootItem::parse(&item.to_bytes()[..=OLD_SIZE]).is_err());
    }
}
