//! The writeback of a mount.

use std::sync::Arc;

use super::in_flight::InFlight;
use super::packers::Packers;
use super::shared_nodes::SharedNodes;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inode::{Inode, InodeState};

/// The writeback of a mount.
pub(crate) struct Writeback {
    pub(super) info: Arc<FsInfo>,
    pub(super) reader: Arc<FileReader>,
    pub(super) in_flight: InFlight,
    pub(super) packers: Packers,
    pub(super) shared_nodes: SharedNodes,
}

impl Writeback {
    pub(crate) fn new(info: Arc<FsInfo>, reader: Arc<FileReader>) -> Self {
        let packers = Packers::new(info.volume.sector_size() as usize, info.options.compression_threads);
        Self { info, reader, in_flight: InFlight::default(), packers, shared_nodes: SharedNodes::default() }
    }

    /// Sets how many threads may compress data of one file from now on.
    pub(crate) fn set_compression_threads(&self, threads: usize) {
        self.packers.set_threads(threads);
    }

    /// Returns how many threads may compress data of one file.
    pub(crate) fn compression_threads(&self) -> usize {
        self.packers.threads()
    }

    /// Returns the bytes of data that has been submitted and is still in memory.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.in_flight.bytes()
    }

    /// Notes that a file, whose lock the caller holds, has data in flight if it has any.
    pub(crate) fn note_in_flight(&self, inode: &Arc<Inode>, state: &InodeState) {
        self.in_flight.note(inode, state);
    }

    /// Removes files whose data a commit has waited for.
    pub(crate) fn forget_ended(&self) {
        self.in_flight.forget_ended();
    }
}
