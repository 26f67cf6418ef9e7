//! How much of an inode goes in one transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{ItemType, Key};

use super::queue::Waiting;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::space::Demand;

/// So few extents are freed even if no space can be reserved for it: what frees space has a reserve.
const FEW: u64 = 16;

/// A part of a file, to be cut off.
#[derive(Debug, Default)]
struct Cut {
    /// Where it starts.
    from: u64,
    /// Extents in it.
    extents: u64,
    /// Bytes of the file in them.
    bytes: u64,
    /// Where they are on disk, and how long.
    places: Vec<(u64, u64)>,
    /// Nothing is before it.
    is_rest: bool,
}

impl Cut {
    /// What freeing it may take. Extents that are neighbours on disk are so in the trees: they share leaves.
    fn demand(&mut self) -> Demand {
        self.places.sort_unstable();
        let runs = 1 + self.places.windows(2).filter(|pair| pair[0].0 + pair[0].1 != pair[1].0).count() as u64;
        Demand { edits: 4 + 2 * runs + self.extents / 25 + (self.bytes >> 23), frees: true, ..Demand::default() }
    }
}

impl Filesystem {
    /// Frees the end of the first inode in the queue, at most so many extents. Returns how many, the inode itself counted as
    /// one.
    pub(super) fn free_step(&self, waiting: &Waiting, mut most: u64) -> Result<u64> {
        let cut = loop {
            let mut cut = self.plan_cut(&waiting.inode, waiting.reached, most)?;
            let demand = cut.demand();
            if self.try_reserve(demand) {
                break cut;
            }
            // What earlier steps freed may be enough.
            self.commit_once()?;
            self.space.unpin();
            if self.try_reserve(demand) || most <= FEW {
                break cut;
            }
            most = (most / 4).max(FEW);
        };
        let mut state = waiting.inode.write();
        if cut.is_rest {
            self.end_inode(&waiting.inode, &mut state);
        } else {
            let transaction = self.gate.enter();
            state.join(&waiting.inode, &transaction);
            state.pending.layout.truncate(cut.from);
            state.item.size = state.item.size.min(cut.from);
        }
        drop(state);
        self.inactivator.steps.fetch_add(1, Ordering::Relaxed);
        self.inactivator.extents.fetch_add(cut.extents, Ordering::Relaxed);
        self.inactivator.advance((!cut.is_rest).then_some(cut.from), cut.bytes);
        Ok(cut.extents + 1)
    }

    /// Looks for the last extents before `end` of a dead inode: `most`, or fewer if that is all there are.
    fn plan_cut(&self, inode: &Arc<Inode>, end: u64, most: u64) -> Result<Cut> {
        let state = loop {
            let mut state = inode.write();
            self.freeze_older(&mut state);
            if state.frozen.is_none() {
                break state;
            }
            // What the commit in flight adds is not in the trees yet.
            drop(state);
            drop(self.commit_place.lock());
            if let Some(reason) = self.abort_reason() {
                return Err(Error::Aborted(reason));
            }
        };
        let mut cut = Cut { from: end, ..Cut::default() };
        if !state.committed || end == 0 {
            return Ok(Cut { is_rest: true, ..cut });
        }
        let key = |offset| Key::new(inode.id.ino.0, ItemType::EXTENT_DATA, offset);
        for item in self.committed().tree(inode.id.subvolume)?.range_rev(key(0)..=key(end - 1)) {
            if cut.extents == most {
                return Ok(cut);
            }
            let item = item?;
            cut.from = item.key.offset;
            cut.extents += 1;
            if let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, num_bytes, .. } =
                FileExtent::parse(&item)?.kind
                && disk_bytenr.0 != 0
            {
                cut.bytes += num_bytes;
                cut.places.push((disk_bytenr.0, disk_num_bytes));
            }
        }
        Ok(Cut { is_rest: true, ..cut })
    }
}
