//! What a commit writes of data: the edits of the checksum tree and of the extent items, and the
//! extents that it frees.

use ubtrfs_file::{AdjacentSums, CsumEdits, SumMap};
use ubtrfs_format::TreeId;
use ubtrfs_tree::EditBatch;

use super::data_refs;
use super::merge_trees::Merging;
use crate::error::Result;

impl Merging<'_> {
    /// Returns the edits of the checksum tree. Also gathers the edits of the extent tree for data,
    /// and frees the extents that nothing refers to any more.
    #[inline(never)]
    pub(super) fn data_edits(&mut self) -> Result<EditBatch> {
        let (committer, transaction) = (self.committer, self.transaction);
        let superblock = &self.committed.superblock;
        let node_size = superblock.node_size as usize;
        let csum_tree = self.committed.tree(TreeId::CSUM)?;
        let mut csums =
            CsumEdits::new(&csum_tree, superblock.checksum.size(), u64::from(superblock.sector_size), node_size);
        let freed = &mut self.freed;
        let extent_edits = &mut self.extent_edits;
        let later = transaction.later_sums();
        for (start, sums) in later.iter().flat_map(SumMap::iter) {
            csums.put(start, sums)?;
        }
        let sums = self.refs.take_sums();
        let mut deltas = sums.extents().peekable();
        let (mut old, mut used, mut new_sums) = (Vec::new(), Vec::new(), AdjacentSums::default());
        for (start, extent) in transaction.extents().iter() {
            old.extend(std::iter::from_fn(|| deltas.next_if(|delta| delta.start < *start)));
            let is_used = match deltas.next_if(|delta| delta.start == *start) {
                Some(delta) => data_refs::put_new_extent(&delta, transaction.generation, node_size, extent_edits)?,
                None => false,
            };
            if is_used {
                used.push((*start, extent.length));
                if let Some(sums) = &extent.sums {
                    new_sums.append(*start, extent.length, sums, &mut csums)?;
                }
            } else {
                if later.is_some() {
                    csums.delete(*start, extent.length)?;
                }
                freed.push((*start, extent.length));
            }
        }
        new_sums.put(&mut csums)?;
        committer.info.space.record(&used, true)?;
        let unused = freed.len();
        let mut new_places: Vec<_> = self.moved_data.iter().map(|(_, length, to)| (*to, *length)).collect();
        new_places.sort_unstable();
        committer.info.space.record(&new_places, true)?;
        freed.extend(self.moved_data.iter().map(|(from, length, _)| (*from, *length)));
        for delta in old.into_iter().chain(deltas) {
            if data_refs::change_extent(self.extent_tree, &delta, node_size, extent_edits)? {
                freed.push((delta.start, delta.length));
            }
        }
        committer.info.space.record(&freed[unused..], false)?;
        csums.delete_all(&freed[unused..])?;
        Ok(csums.into_edits())
    }
}
