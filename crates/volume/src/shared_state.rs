//! What everything that reads or writes a volume shares.

use std::sync::Arc;

use crate::devices::VolumeDevices;
use crate::identity::VolumeIdentity;
use crate::shared_chunk_map::SharedChunkMap;
use crate::write_access::WriteAccess;

/// The owners that know nothing of superblocks, reads and writes, from the bottom up.
#[derive(Clone, Debug)]
pub(crate) struct SharedState {
    pub(crate) identity: Arc<VolumeIdentity>,
    pub(crate) access: Arc<WriteAccess>,
    pub(crate) chunk_map: Arc<SharedChunkMap>,
    pub(crate) devices: Arc<VolumeDevices>,
}
