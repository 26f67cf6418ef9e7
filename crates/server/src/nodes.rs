//! The numbers by which the kernel names inodes, and those that programs see.
//!
//! A program of 32 bits can't take a larger inode number: stat(2) fails with `EOVERFLOW`, and so
//! does the listing of a directory that has such an inode. So the numbers that programs see fit
//! into 32 bits as long as possible (invariant 48). Inodes of the mounted subvolume are shown with
//! their own numbers. The inodes of other subvolumes share the upper half of the 32-bit numbers: it
//! is divided into windows of 4096 numbers, and a window is assigned to as many consecutive inode
//! numbers of a subvolume when the first of them is shown. No two inodes are shown as one number,
//! and an inode keeps its number until the mount ends.

use std::collections::HashMap;

use ubtrfs::InodeId;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_fuse::{Errno, ROOT};
use ubtrfs_threads::{Rank, RwLock};

/// The bits of the inode number in a node that has both subvolume and inode number.
const INO_BITS: u32 = 40;
/// Set in nodes that this mount has assigned.
const GIVEN: u64 = 1 << 63;
/// The lower bits of a shown number that are the inode's own; the upper bits are the number of the
/// window.
const WINDOW_BITS: u32 = 12;
/// The shown numbers of windows. The numbers below are the mounted subvolume's.
const WINDOWS: std::ops::Range<u64> = 1 << 31..1 << 32;
/// The number of windows. If all are in use, their table takes up to 40 MiB.
const MAX_WINDOWS: usize = ((WINDOWS.end - WINDOWS.start) >> WINDOW_BITS) as usize;

/// Node numbers and `st_ino`s of a mount.
///
/// The root of the mounted subvolume, or of the top level where the kernel has the whole volume, is
/// node 1. Other inodes of the mounted subvolume have their own numbers; inodes of other subvolumes
/// are `id << 40 | ino` where both fit. All other inodes get a number of their own, which is valid
/// until the mount ends. No two inodes have one node.
#[derive(Debug)]
pub struct NodeNumbers {
    mounted: TreeId,
    /// The subvolume whose root is node 1.
    top: TreeId,
    given: RwLock<Given>,
    windows: RwLock<Windows>,
    most_windows: usize,
}

#[derive(Debug, Default)]
struct Given {
    numbers: HashMap<InodeId, u64>,
    inodes: Vec<InodeId>,
}

/// A subvolume, and the upper bits of inode numbers in it.
type Window = (TreeId, u64);

#[derive(Debug, Default)]
struct Windows {
    numbers: HashMap<Window, u32>,
    windows: Vec<Window>,
}

impl Windows {
    /// Assigns a number to a window, unless another thread has done so meanwhile. `None` if there
    /// are `most` windows.
    fn add(&mut self, window: Window, most: usize) -> Option<u32> {
        if let Some(number) = self.numbers.get(&window) {
            return Some(*number);
        }
        let next = self.windows.len();
        if next >= most {
            return None;
        }
        self.windows.push(window);
        self.numbers.insert(window, next as u32);
        Some(next as u32)
    }
}

impl NodeNumbers {
    /// Returns the numbers for a mount of this subvolume.
    pub fn new(mounted: TreeId) -> Self {
        let (given, windows) = (RwLock::with_default(Rank::Nodes), RwLock::with_default(Rank::NodeWindows));
        Self { mounted, top: mounted, given, windows, most_windows: MAX_WINDOWS }
    }

    /// Returns the numbers for a kernel that has the whole volume from the top level. The first
    /// mount shows the subvolume `mounted` of it.
    pub fn of_whole(mounted: TreeId) -> Self {
        Self { top: TreeId::FS, ..Self::new(mounted) }
    }

    /// The subvolume whose root is the kernel's root of the volume.
    pub fn top(&self) -> TreeId {
        self.top
    }

    /// The node of an inode.
    pub fn node(&self, id: InodeId) -> u64 {
        if id == InodeId::root_of(self.top) {
            return ROOT;
        }
        // The nodes 0 and 1 have other meanings, and no inode of a sane volume has these numbers.
        let is_own = id.subvolume == self.mounted && id.ino.0 > ROOT && id.ino.0 >> INO_BITS == 0;
        if is_own { id.ino.0 } else { Self::composed(id).unwrap_or_else(|| self.give(id)) }
    }

    /// The inode of a node; `ESTALE` if the kernel was never given that number.
    pub fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        if node == ROOT {
            return Ok(InodeId::root_of(self.top));
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

    /// The number that stat(2) and listings show: in the mounted subvolume the inode's own,
    /// elsewhere one of a window. If neither fits into 32 bits, it is the node, or a number
    /// composed in the same way.
    ///
    /// # Panics
    ///
    /// If another inode is shown with the same number (invariant 48).
    pub fn shown(&self, id: InodeId) -> u64 {
        let ino = id.ino.0;
        let number = if id.subvolume == self.mounted {
            (ino >> INO_BITS == 0 && !WINDOWS.contains(&ino)).then_some(ino)
        } else {
            self.windowed(id)
        };
        let number = number.unwrap_or_else(|| Self::composed(id).unwrap_or_else(|| self.give(id)));
        assert_eq!(self.shown_as(number), Ok(id), "invariant 48: two inodes are shown as one number");
        number
    }

    /// The inode that [`Self::shown`] shows as this number.
    pub fn shown_as(&self, number: u64) -> Result<InodeId, Errno> {
        if number >> INO_BITS != 0 {
            return self.inode(number);
        }
        if !WINDOWS.contains(&number) {
            return Ok(InodeId::new(self.mounted, Ino(number)));
        }
        let (window, within) = ((number - WINDOWS.start) >> WINDOW_BITS, number & ((1 << WINDOW_BITS) - 1));
        let (subvolume, upper) = *self.windows.read().windows.get(window as usize).ok_or(Errno::STALE)?;
        Ok(InodeId::new(subvolume, Ino(upper << WINDOW_BITS | within)))
    }

    /// The number of an inode in its window, which is assigned now if the inode is the first of it.
    /// `None` if all windows are assigned to others.
    fn windowed(&self, id: InodeId) -> Option<u64> {
        let window = (id.subvolume, id.ino.0 >> WINDOW_BITS);
        let known = self.windows.read().numbers.get(&window).copied();
        let number = match known {
            Some(number) => number,
            None => self.windows.write().add(window, self.most_windows)?,
        };
        Some(WINDOWS.start + (u64::from(number) << WINDOW_BITS | id.ino.0 & ((1 << WINDOW_BITS) - 1)))
    }

    /// The number that is composed of the inode's number and its subvolume's; `None` if these don't
    /// fit.
    fn composed(id: InodeId) -> Option<u64> {
        let (subvolume, ino) = (id.subvolume.0, id.ino.0);
        let fits = ino >> INO_BITS == 0 && subvolume != 0 && subvolume < GIVEN >> INO_BITS;
        fits.then_some(subvolume << INO_BITS | ino)
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
    const PARTS: [u64; 19] = [
        0,
        1,
        2,
        5,
        255,
        256,
        257,
        300,
        4095,
        4096,
        (1 << 23) - 1,
        1 << 23,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        (1 << 40) - 1,
        1 << 40,
        1 << 63,
        u64::MAX,
    ];

    fn id(subvolume: u64, ino: u64) -> InodeId {
        InodeId::new(TreeId(subvolume), Ino(ino))
    }

    fn all() -> impl Iterator<Item = InodeId> {
        PARTS.iter().flat_map(|sub| PARTS.iter().map(|ino| id(*sub, *ino)))
    }

    #[test]
    fn the_top_level_is_the_root_of_a_whole_volume() {
        let numbers = NodeNumbers::of_whole(MOUNTED);
        let (top, root) = (InodeId::root_of(TreeId::FS), InodeId::root_of(MOUNTED));
        assert_eq!((numbers.node(top), numbers.node(root)), (ROOT, root.ino.0));
        for id in [top, root, id(300, 257), id(5, 257), id(301, 256)] {
            assert_eq!(numbers.inode(numbers.node(id)), Ok(id));
        }
        assert_eq!(numbers.shown(id(300, 257)), 257);
    }

    #[test]
    fn numbers_are_as_documented() {
        let numbers = NodeNumbers::new(MOUNTED);
        assert_eq!(numbers.node(id(300, 256)), 1);
        assert_eq!(numbers.shown(id(300, 256)), 256);
        assert_eq!(numbers.node(id(300, 257)), 257);
        assert_eq!(numbers.node(id(300, 1 << 31)), 1 << 31);
        assert_eq!(numbers.node(id(5, 256)), 5 << 40 | 256);
        assert_eq!(numbers.shown(id(5, 256)), 1 << 31 | 256);
        assert_eq!(numbers.shown(id(5, 4096)), 1 << 31 | 4096);
        assert_eq!(numbers.shown(id(6, 4095)), (1 << 31) + 2 * 4096 + 4095);
        assert_eq!(numbers.shown(id(5, 257)), (1 << 31) + 257, "it stays");
        assert_eq!(numbers.shown(id(300, 1 << 31)), 300 << 40 | 1 << 31);
        assert_eq!(numbers.shown(id(300, 1 << 32)), 1 << 32);
        assert_eq!(numbers.node(id(300, 1 << 50)), GIVEN);
        assert_eq!(numbers.node(id(1 << 23, 256)), GIVEN | 1);
        assert_eq!(numbers.shown(id(300, 1 << 50)), GIVEN);
    }

    #[test]
    fn every_node_maps_back_to_its_inode_and_no_two_share_one() {
        let numbers = NodeNumbers::new(MOUNTED);
        let mut seen = HashMap::new();
        for inode in all() {
            let node = numbers.node(inode);
            assert_ne!(node, 0);
            assert_eq!(numbers.inode(node), Ok(inode));
            assert_eq!(seen.insert(node, inode), None);
        }
    }

    /// Invariant 48, also when all windows are assigned.
    #[test]
    fn no_two_inodes_are_shown_as_one_number_and_most_fit_32_bits() {
        for most_windows in [0, 3, MAX_WINDOWS] {
            let numbers = NodeNumbers { most_windows, ..NodeNumbers::new(MOUNTED) };
            let mut seen = HashMap::new();
            let shown: Vec<(InodeId, u64)> = all().map(|inode| (inode, numbers.shown(inode))).collect();
            for (inode, number) in shown {
                assert_eq!(numbers.shown_as(number), Ok(inode));
                assert_eq!(numbers.shown(inode), number, "{inode:?} keeps its number");
                assert_eq!(seen.insert(number, inode), None);
                let is_small = inode.subvolume != MOUNTED || inode.ino.0 < 1 << 31;
                assert!(most_windows < MAX_WINDOWS || !is_small || number < 1 << 32, "{inode:?}: {number:x}");
            }
        }
    }

    #[test]
    fn numbers_that_were_never_given_are_stale() {
        let numbers = NodeNumbers::new(MOUNTED);
        assert_eq!(numbers.inode(GIVEN | 7), Err(Errno::STALE));
        assert_eq!(numbers.shown_as(1 << 31 | 256), Err(Errno::STALE));
    }
}
