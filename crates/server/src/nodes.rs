//! The numbers by which the kernel names inodes, and those that programs see.

use std::collections::HashMap;

use ubtrfs::InodeId;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_fuse::{Errno, ROOT};
use ubtrfs_threads::RwLock;

/// Bits of an inode number where subvolume and inode number share one number.
const INO_BITS: u32 = 40;
/// Set in numbers that were given by the mount.
const GIVEN: u64 = 1 << 63;

/// Node numbers and `st_ino`s of a mount.
///
/// The root of the mounted subvolume is node 1. Its other inodes have their own numbers; inodes of
/// other subvolumes are `id << 40 | ino` where both fit. All other inodes get a number of their
/// own, which is valid until the mount ends. No two inodes have one node.
#[derive(Debug)]
pub struct NodeNumbers {
    mounted: TreeId,
    given: RwLock<Given>,
}

#[derive(Debug, Default)]
struct Given {
    numbers: HashMap<InodeId, u64>,
    inodes: Vec<InodeId>,
}

impl NodeNumbers {
    /// The numbers of a mount of this subvolume.
    pub fn new(mounted: TreeId) -> Self {
        Self { mounted, given: RwLock::default() }
    }

    /// The node of an inode.
    pub fn node(&self, id: InodeId) -> u64 {
        if id == InodeId::root_of(self.mounted) { ROOT } else { self.composed(id).unwrap_or_else(|| self.give(id)) }
    }

    /// The inode of a node; `ESTALE` if the kernel was never given that number.
    pub fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        if node == ROOT {
            return Ok(InodeId::root_of(self.mounted));
        }
        if node & GIVEN != 0 {
            let given = self.given.read();
            return given.inodes.get((node & !GIVEN) as usize).copied().ok_or(Errno::STALE);
        }
        let ino = Ino(node & ((1 << INO_BITS) - 1));
        Ok(match node >> INO_BITS {
            0 => InodeId::new(self.mounted, ino),
            subvolume => InodeId::new(TreeId(subvolume), ino),
        })
    }

    /// The number that stat(2) shows: in the mounted subvolume the inode's own, elsewhere the
    /// node's.
    pub fn shown(&self, id: InodeId) -> u64 {
        if id.subvolume == self.mounted { id.ino.0 } else { self.node(id) }
    }

    /// The inode that [`Self::shown`] shows as this number. An inode of the mounted subvolume with
    /// a number that a node could be is taken for that node's.
    pub fn shown_as(&self, number: u64) -> Result<InodeId, Errno> {
        if number >> INO_BITS == 0 { Ok(InodeId::new(self.mounted, Ino(number))) } else { self.inode(number) }
    }

    /// The node that follows from the inode alone.
    fn composed(&self, id: InodeId) -> Option<u64> {
        let (subvolume, ino) = (id.subvolume.0, id.ino.0);
        if ino >> INO_BITS != 0 {
            return None;
        }
        if id.subvolume == self.mounted {
            // 0 and 1 mean something else, and no inode of a sane volume has them.
            return (ino > ROOT).then_some(ino);
        }
        (subvolume != 0 && subvolume < GIVEN >> INO_BITS).then_some(subvolume << INO_BITS | ino)
    }

    fn give(&self, id: InodeId) -> u64 {
        if let Some(number) = self.given.read().numbers.get(&id) {
            return *number;
        }
        let mut given = self.given.write();
        let next = GIVEN | given.inodes.len() as u64;
        let number = *given.numbers.entry(id).or_insert(next);
        if number == next {
            given.inodes.push(id);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: TreeId = TreeId(300);

    fn id(subvolume: u64, ino: u64) -> InodeId {
        InodeId::new(TreeId(subvolume), Ino(ino))
    }

    #[test]
    fn numbers_are_as_documented() {
        let numbers = NodeNumbers::new(MOUNTED);
        assert_eq!(numbers.node(id(300, 256)), 1);
        assert_eq!(numbers.shown(id(300, 256)), 256);
        assert_eq!(numbers.node(id(300, 257)), 257);
        assert_eq!(numbers.node(id(5, 256)), 5 << 40 | 256);
        assert_eq!(numbers.shown(id(5, 256)), 5 << 40 | 256);
        assert_eq!(numbers.shown(id(300, 1 << 50)), 1 << 50);
        assert_eq!(numbers.node(id(300, 1 << 50)), GIVEN);
        assert_eq!(numbers.node(id(1 << 23, 256)), GIVEN | 1);
        assert_eq!(numbers.node(id(300, 1 << 50)), GIVEN);
    }

    #[test]
    fn every_node_maps_back_to_its_inode_and_no_two_share_one() {
        let numbers = NodeNumbers::new(MOUNTED);
        let parts = [0, 1, 2, 5, 255, 256, 257, 300, (1 << 23) - 1, 1 << 23, (1 << 40) - 1, 1 << 40, 1 << 63, u64::MAX];
        let all: Vec<InodeId> = parts.iter().flat_map(|sub| parts.iter().map(|ino| id(*sub, *ino))).collect();
        let mut seen = HashMap::new();
        for inode in all {
            let node = numbers.node(inode);
            assert_ne!(node, 0);
            assert_eq!(numbers.inode(node), Ok(inode));
            assert_eq!(seen.insert(node, inode), None);
        }
    }

    #[test]
    fn numbers_that_were_never_given_are_stale() {
        assert_eq!(NodeNumbers::new(MOUNTED).inode(GIVEN | 7), Err(Errno::STALE));
    }
}
