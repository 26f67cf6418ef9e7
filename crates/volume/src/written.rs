//! Proofs of what has been written, which only writing gives (invariant 1).

use std::marker::PhantomData;
use std::sync::Arc;

use ubtrfs_format::Resilvered;

use crate::in_flight::InFlight;

/// The content of files, as a kind of writes.
#[derive(Clone, Copy, Debug)]
pub enum Data {}

/// Nodes of trees, as a kind of writes.
#[derive(Clone, Copy, Debug)]
pub enum Nodes {}

/// Proof that certain writes of one kind have completed, though they may not be durable. Only a
/// wait on a volume gives it; [`VolumeWriter::wait_all`](crate::VolumeWriter::wait_all) without
/// writes gives the proof that nothing of the kind had to be written. Completed writes stay
/// completed, so the proof may be shared.
///
/// It can't be made without a volume:
/// ```compile_fail
/// let written = ubtrfs_volume::CompletedWrites::<ubtrfs_volume::Data>::default();
/// ```
/// Written nodes do not prove that the data to which they refer is written (invariant 1):
/// ```compile_fail
/// use ubtrfs_volume::{CompletedWrites, Nodes, VolumeWriter};
/// fn forgets_data(writer: &VolumeWriter, nodes: CompletedWrites<Nodes>) {
///     let _ = writer.flush(nodes.clone(), nodes);
/// }
/// ```
/// With both it compiles:
/// ```
/// use ubtrfs_volume::{CompletedWrites, Data, Flushed, Nodes, Result, VolumeWriter};
/// fn flush(writer: &VolumeWriter, data: CompletedWrites<Data>, nodes: CompletedWrites<Nodes>) -> Result<Flushed> {
///     writer.flush(data, nodes)
/// }
/// ```
#[must_use = "completed writes are durable only after a flush"]
#[derive(Clone, Debug)]
pub struct CompletedWrites<Kind> {
    /// Identifies the volume of the writes.
    volume: Arc<InFlight>,
    _kind: PhantomData<Kind>,
}

/// Proof that writes completed and that all devices were flushed afterwards. It can be used for one
/// superblock only:
/// ```compile_fail
/// use ubtrfs_format::Superblock;
/// use ubtrfs_volume::{Copies, Flushed, Superblocks};
/// fn twice(superblocks: &Superblocks, superblock: &Superblock, flushed: Flushed) {
///     let _first = superblocks.write(superblock, Copies::All, flushed);
///     let _second = superblocks.write(superblock, Copies::All, flushed);
/// }
/// ```
#[must_use = "a flush that no superblock follows publishes nothing"]
#[derive(Debug)]
pub struct Flushed {
    pub(crate) volume: Arc<InFlight>,
    /// The superblocks were read during the flush, and are those that were written last.
    pub(crate) has_looked: bool,
    /// How far a device had been brought up to the others before the flush.
    pub(crate) resilvered: Option<(Resilvered, u64)>,
}

impl<Kind> CompletedWrites<Kind> {
    /// Gives the proof for all writes of a volume that have been waited for.
    pub(crate) fn of(volume: &Arc<InFlight>) -> Self {
        Self { volume: Arc::clone(volume), _kind: PhantomData }
    }

    /// Uses the proof up. Returns what identifies the volume of the writes.
    pub(crate) fn into_volume(self) -> Arc<InFlight> {
        self.volume
    }

    /// Proof of both sets of writes.
    ///
    /// # Panics
    ///
    /// If they are of two volumes.
    pub fn merge(self, other: Self) -> Self {
        let Self { volume, .. } = other;
        assert!(Arc::ptr_eq(&self.volume, &volume), "invariant 1: a proof is of one volume");
        self
    }
}
