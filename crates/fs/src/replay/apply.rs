//! Applies a log that a mount has found.

use std::collections::BTreeSet;

use super::read::FoundLog;
use super::replayer::Replayer;
use super::subvolume::Replay;
use crate::error::{Error, Refusal, Result};
use ubtrfs_file::SumMap;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// The blocks and new extents of a `FoundLog` are not in the trees. The changes that they cause
/// there are estimated from the size of the log.
const EDITS_PER_LOG_BLOCK: u64 = 8;

impl Replayer {
    /// Replays the volume's log, durably if the file system is writable. To be called before any
    /// other use of the file system.
    pub(crate) fn replay_log(&self) -> Result<()> {
        let bad = |error: Error| Error::Refused(Refusal::BadLog(error.chain()));
        let log = FoundLog::read(self).map_err(bad)?;
        self.apply_log(&log).map_err(bad)?;
        tracing::info!(blocks = log.blocks.len(), subvolumes = log.subvolumes.len(), "replayed the log");
        if self.info.is_read_only() {
            return Ok(());
        }
        self.reserve_for_replay(&log)?;
        self.reserver.commit()?;
        // No superblock refers to the log any more.
        for block in &log.blocks {
            self.info.space.release(*block, self.info.space.node_size());
        }
        Ok(())
    }

    fn apply_log(&self, log: &FoundLog) -> Result<()> {
        // There are no other operations yet, so no commit can end the transaction meanwhile.
        let transaction = self.info.gate.current();
        let committed = self.info.committed();
        let mut sums = SumMap::new(committed.superblock.sector_size, committed.superblock.checksum.size());
        for logged in &log.subvolumes {
            let mut replay = Replay {
                fs: self,
                transaction: &transaction,
                committed: &committed,
                subvolume: logged.id,
                tree: committed.tree(logged.id)?,
                log: &logged.tree,
                sums: &mut sums,
                recount: BTreeSet::new(),
                files: BTreeSet::new(),
            };
            replay.run()?;
        }
        transaction.set_logged_sums(sums);
        Ok(())
    }

    /// Reserves space for the commit of the replayed changes. No commit may come before that one,
    /// so a shortage can't be cured. The commit is tried anyway, since the estimate is high and a
    /// commit that fails leaves the log as it was.
    fn reserve_for_replay(&self, log: &FoundLog) -> Result<()> {
        let node_size = self.info.space.node_size();
        let blocks = log.blocks.len() as u64;
        let edits = self.info.gate.current().changes() * 2 + blocks * EDITS_PER_LOG_BLOCK;
        let demand = Demand {
            edits,
            item_bytes: 2 * blocks * node_size,
            global_reserve: UseOfGlobalReserve::All,
            ..Demand::default()
        };
        let mut space = self.info.space.lock();
        space.may_use_all_of_global_reserve();
        while space.reserve(demand).is_err() {
            let kind = ubtrfs_format::items::BlockGroupFlags::METADATA;
            if space.add_chunk(kind, &self.info.volume)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}
