//! The second half of a commit: writing the nodes, then the superblocks, and publishing.

use std::sync::Arc;

use ubtrfs_format::Superblock;
use ubtrfs_space::ReadableCommit;
use ubtrfs_volume::{CompletedWrites, Copies, Data, Nodes, Published, Ticket};

use super::early::EarlyLeaves;
use super::merge_trees::MergedTrees;
use super::owner::Committer;
use super::submit::submit;
use super::superblock;
use crate::committed::Committed;
use crate::error::{AtStep, Error, Result, Step};
use crate::inode::Inode;
use crate::log::{ClosedGroup, PreparedLog};

/// How fsyncs that come in while a commit is in progress are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fsyncs {
    /// The commit writes their log, too.
    Logged,
    /// They go on waiting: another commit follows before any log can be written.
    Waiting,
    /// They write their log after the commit, since it changes the maps of files.
    Free,
}

impl MergedTrees {
    /// Writes the nodes, then the superblocks; publishes. `data` is the proof for all data that the
    /// nodes refer to. Writes the log of fsyncs that came in meanwhile, too. Returns the group of
    /// those that need another commit.
    #[inline(never)]
    pub(super) fn write(
        self,
        committer: &Committer,
        committed: &Arc<Committed>,
        inodes: &[Arc<Inode>],
        data: CompletedWrites<Data>,
        fsyncs: Fsyncs,
    ) -> Result<Option<ClosedGroup>> {
        let nodes = submit(committer, self.dirty.into_sealed())?;
        let mut superblock = superblock::next(
            committer,
            committed,
            self.generation,
            &self.root_tree,
            &self.chunk_tree,
            &self.roots,
            &self.chunks,
        );
        let trees = self.roots.into_trees();
        let next =
            Committed::after(superblock.clone(), self.root_tree, self.chunk_tree, trees, committer.info.cache.clone());
        let next = Arc::new(next);

        let mut tree_log = committer.log.tree_log();
        let mut waiting = match fsyncs {
            Fsyncs::Logged => committer.log.prepare_waiting_log(&mut tree_log, &next)?,
            Fsyncs::Waiting | Fsyncs::Free => None,
        };
        let log = waiting.as_ref().and_then(|(_, log)| log.as_ref());
        let published = match publish(committer, (data, nodes), self.early, log, &mut superblock) {
            Ok(published) => published,
            Err(error) => {
                // The abort comes before the waiters for the log are notified.
                let error = committer.info.abort(error.at(Step::Commit(self.generation)));
                if let Some((closed, _)) = waiting {
                    closed.failed(error.clone());
                }
                return Err(Error::Shared(error));
            }
        };
        let closed = waiting.take().map(|(closed, log)| {
            if let Some(log) = log {
                log.published(&published, &committer.info, &mut tree_log);
            }
            closed
        });
        committer.replacement.published();
        let previous = committer.info.publish(&next, &published);
        committer.info.follow_moved();
        committer.info.space.lock().vacate(&committer.info.volume, &published);
        for (inode, nbytes) in inodes.iter().zip(self.nbytes) {
            let mut state = inode.write();
            if state.forget_frozen(&published) {
                drop(state);
                committer.info.inodes.remove(inode.id);
                continue;
            }
            state.committed = true;
            if state.pending.is_clean() && state.dirty.is_empty() {
                state.item.nbytes = nbytes;
            }
        }
        if let Some(transaction) = committer.info.roots.frozen() {
            committer.info.end_replaced(&transaction);
            if transaction.subvolumes().may_drop > 0 {
                committer.info.deleted.dropped(&next);
            }
        }
        committer.info.roots.forget_frozen(&published);
        committer.writeback.forget_ended();
        if fsyncs != Fsyncs::Waiting {
            committer.log.commit_ended(&mut tree_log);
        }
        drop(tree_log);
        // Fsyncs whose log is durable end now.
        let closed = match closed {
            Some(closed) if !closed.needs_commit() => {
                closed.logged(&published);
                None
            }
            closed => closed,
        };
        committer.reader.forget();
        let needs = committer.info.committed().needs();
        committer.info.space.lock().commit_ends(needs, &published);
        let readers: ReadableCommit = previous.clone();
        committer.info.space.pin((previous.generation, &readers), self.freed, &published);
        Ok(closed)
    }
}

/// Makes the data, the nodes and the nodes of the log that goes with the commit durable, and then
/// the superblock that points to them.
fn publish(
    committer: &Committer,
    (mut data, nodes): (CompletedWrites<Data>, Ticket<Nodes>),
    early: EarlyLeaves,
    log: Option<&PreparedLog>,
    superblock: &mut Superblock,
) -> Result<Published> {
    let volume = &committer.info.volume;
    let mut nodes = early.finish(committer, volume.writer().wait(nodes).at(Step::WriteTreeBlocks)?)?;
    if let Some(log) = log {
        let log_nodes = volume.writer().submit_nodes(log.writes().collect()).at(Step::WriteLogTreeBlocks)?;
        data = data.merge(committer.writeback.wait_for_all(&log.ordered).map_err(Error::Shared)?);
        nodes = nodes.merge(volume.writer().wait(log_nodes).at(Step::WriteLogTreeBlocks)?);
        log.enter_into(superblock);
    }
    let flushed = volume.writer().flush(data, nodes).at(Step::FlushBeforeSuperblock)?;
    committer.info.check_panics()?;
    volume.superblocks().write(superblock, Copies::All, flushed).map_err(|error| {
        let step = Step::of_superblock(&error);
        Error::from(error).at(step)
    })
}
