//! Performs operations on the engine and on the model: both must have the same result.

mod attributes;
mod data;
mod deleted;
mod devices;
mod names;
mod subvolumes;

use std::fmt::Debug;
use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, InodeId};
use ubtrfs_format::TreeId;
use ubtrfs_format::items::Timespec;
use ubtrfs_threads::mpsc::channel;
use ubtrfs_volume::Device;

use crate::content::Content;
use crate::model::Touched;
use crate::{Compare, Model, Operation, Times, What, compare};

/// Errors that an operation may return without a reason in the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// The volume may be full.
    pub no_space: bool,
    /// The device may fail.
    pub faults: bool,
}

/// Open inodes of a deleted subvolume.
struct OpenOfDeleted {
    subvolume: TreeId,
    read_only: bool,
    files: Vec<(InodeId, Content)>,
    dir: Option<InodeId>,
    /// The number of operations for which they stay open.
    left: u64,
}

/// A program at work: the engine, and the expected state.
pub struct Worker {
    /// The engine.
    pub fs: Arc<Filesystem>,
    /// The expected state, below the model's root.
    pub model: Model,
    /// Inodes with references; each is listed once per reference.
    pub handles: Vec<InodeId>,
    /// Open inodes of deleted subvolumes.
    deleted: Vec<OpenOfDeleted>,
    /// What was written in place to files of deleted subvolumes since the last call of
    /// [`Self::take_written_in_place`].
    written_in_place: Vec<(InodeId, Content)>,
    /// Devices that the volume has or may get.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Errors that are not faults of the engine.
    pub tolerance: Tolerance,
    /// Whether times are compared.
    pub times: bool,
    /// The number of operations that failed with a tolerated error.
    pub tolerated: usize,
}

/// Calls fsync or fdatasync; for every other inode in two parts, as a server does by two threads.
pub(crate) fn make_durable(fs: &Filesystem, id: InodeId, data_only: bool) -> ubtrfs::Result<()> {
    if id.ino.0.is_multiple_of(2) {
        return if data_only { fs.durability().fdatasync(id) } else { fs.durability().fsync(id) };
    }
    let (sender, result) = channel();
    let leader = fs.durability().join_fsync(id, data_only, Box::new(move |result| drop(sender.send(result))));
    if let Some(leader) = leader {
        fs.durability().lead_fsync(leader);
    }
    result.recv().unwrap_or_else(|_| Err(Errno::IO.into()))
}

impl Worker {
    /// Makes a worker on a mounted volume.
    pub fn new(fs: Arc<Filesystem>, model: Model, tolerance: Tolerance, times: bool) -> Self {
        let (handles, deleted, devices) = (Vec::new(), Vec::new(), Vec::new());
        let written_in_place = Vec::new();
        Self { fs, model, handles, deleted, written_in_place, devices, tolerance, times, tolerated: 0 }
    }

    /// Continues with a volume that was mounted again, in which nothing is open.
    pub(crate) fn follow_remount(&mut self, fs: Arc<Filesystem>) {
        self.fs = fs;
        self.handles.clear();
        self.deleted.clear();
    }

    /// Returns the inode of an operation's object; `None` if it does not exist, so that the
    /// operation is left out.
    pub fn find(&self, what: &What) -> Option<InodeId> {
        match what {
            What::At(path) => self.model.resolve(path),
            What::Handle(_) if self.handles.is_empty() => None,
            What::Handle(number) => {
                let id = self.handles.get(number % self.handles.len()).copied();
                // The subvolume of the handle may have been deleted.
                id.filter(|id| self.model.nodes.contains_key(id))
            }
        }
    }

    /// Performs an operation. Returns the inodes whose times it changed, or a sentence if engine
    /// and model disagree.
    pub fn perform(&mut self, operation: &Operation) -> Result<Touched, String> {
        let mut touched = Touched::new();
        self.use_deleted()?;
        self.apply(operation, &mut touched)?;
        self.learn_times(&touched)?;
        Ok(touched)
    }

    /// Returns the results if engine and model agree that an operation succeeded; `None` if they
    /// agree that it failed.
    fn agree<T, U: Debug>(
        &mut self,
        operation: &Operation,
        expected: Result<T, Errno>,
        actual: ubtrfs::Result<U>,
    ) -> Result<Option<(T, U)>, String> {
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => Ok(Some((expected, actual))),
            (Err(errno), Err(error)) if error.errno() == errno => Ok(None),
            (_, Err(error)) if self.tolerates(operation, error.errno()) => {
                self.tolerated += 1;
                Ok(None)
            }
            (Ok(_), Err(error)) => Err(format!("failed: {} ({:?})", error.chain(), error.errno())),
            (Err(errno), Err(error)) => Err(format!("failed with {}, not {errno:?}", error.chain())),
            (Err(errno), Ok(actual)) => Err(format!("gave {actual:?}, not {errno:?}")),
        }
    }

    fn tolerates(&self, operation: &Operation, errno: Errno) -> bool {
        (self.tolerance.no_space && errno == Errno::NOSPC && !operation.frees())
            || (self.tolerance.faults && matches!(errno, Errno::IO | Errno::ROFS | Errno::NOSPC))
    }

    /// Takes the engine's times into the model, if they are plausible.
    fn learn_times(&mut self, touched: &Touched) -> Result<(), String> {
        for (id, content) in touched {
            if !self.model.nodes.contains_key(id) {
                continue;
            }
            let found = match self.fs.inodes().attributes(*id) {
                Ok(found) => found,
                Err(error) if self.tolerance.faults && error.errno() == Errno::IO => {
                    self.model.node_mut(*id).times = None;
                    continue;
                }
                Err(error) => return Err(format!("stat of inode {}: {}", id.ino, error.chain())),
            };
            let times = Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime };
            let order = |time: Timespec| (time.sec as i64, time.nsec);
            if let Some(old) = self.model.node(*id).times {
                if order(times.ctime) < order(old.ctime) || times.btime != old.btime {
                    return Err(format!("times of inode {} went from {old:?} to {times:?}", id.ino));
                }
                if !content && times.mtime != old.mtime {
                    return Err(format!("inode {} has a new mtime though its content is the old one", id.ino));
                }
            }
            self.model.node_mut(*id).times = Some(times);
        }
        Ok(())
    }

    /// Deletes a node that has neither a name nor a handle.
    fn drop_unreferenced(&mut self, id: InodeId) {
        if self.model.nodes.get(&id).is_some_and(|node| node.nlink == 0) && !self.handles.contains(&id) {
            self.model.nodes.remove(&id);
        }
    }

    fn apply(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        if self.may_not_change(operation)? {
            return Ok(());
        }
        match operation {
            Operation::Create { .. } => self.create(operation, touched),
            Operation::Unnamed { .. } => self.create_unnamed(operation, touched),
            Operation::Open { .. } => self.open(operation),
            Operation::Close { .. } => {
                self.close(operation);
                Ok(())
            }
            Operation::Write { .. } => self.write(operation, touched),
            Operation::Truncate { .. } => self.truncate(operation, touched),
            Operation::Punch { .. } => self.punch(operation, touched),
            Operation::Allocate { .. } => self.allocate(operation, touched),
            Operation::Clone { .. } => self.clone_range(operation, touched),
            Operation::Defragment { .. } => self.defragment(operation),
            Operation::EmptyBlockGroup { .. } => self.empty_block_group(operation),
            Operation::ChangeDevices { change } => self.change_devices(operation, *change),
            Operation::Attributes { .. } => self.set_attributes(operation, touched),
            Operation::SetXattr { .. } => self.set_xattr(operation, touched),
            Operation::RemoveXattr { .. } => self.remove_xattr(operation, touched),
            Operation::ModeAndXattr { .. } => self.set_mode_and_xattr(operation, touched),
            Operation::NoDataCow { .. } => self.set_nodatacow(operation, touched),
            Operation::Link { .. } => self.link(operation, touched),
            Operation::Unlink { .. } | Operation::Rmdir { .. } => self.remove(operation, touched),
            Operation::Rename { .. } => self.rename(operation, touched),
            Operation::CreateSubvolume { .. } => self.create_subvolume(operation, touched),
            Operation::Snapshot { .. } => self.snapshot(operation, touched),
            Operation::DeleteSubvolume { .. } => self.delete_subvolume(operation, touched),
            Operation::ResetSubvolume { .. } => self.reset_subvolume(operation, touched),
            Operation::SetReadOnly { .. } => self.set_read_only(operation),
            Operation::SetDefault { .. } => self.set_default(operation),
            Operation::Fsync { what, data_only } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                self.agree(operation, Ok(()), make_durable(&self.fs, id, *data_only)).map(drop)
            }
            Operation::Sync => self.agree(operation, Ok(()), self.fs.durability().sync()).map(drop),
            Operation::Look if self.tolerance.faults => Ok(()),
            Operation::Look => compare(&self.fs, &self.model, Compare { times: self.times, nameless: true }),
            Operation::Remount => Err("a worker can't mount".into()),
        }
    }
}
