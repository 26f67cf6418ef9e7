//! Comparing all copies of allocated blocks and data with what they should be, and rewriting those
//! that are wrong.

pub(crate) mod copies;
pub(crate) mod parity;

use std::sync::Arc;

use crate::devices::VolumeDevices;
use crate::identity::VolumeIdentity;
use crate::read::VolumeReader;
use crate::shared_chunk_map::SharedChunkMap;
use crate::shared_state::SharedState;

/// Compares all copies on the devices of a volume. All methods may be called by many threads at
/// once.
#[derive(Debug)]
pub struct VolumeScrub {
    identity: Arc<VolumeIdentity>,
    chunk_map: Arc<SharedChunkMap>,
    devices: Arc<VolumeDevices>,
    reader: Arc<VolumeReader>,
}

impl VolumeScrub {
    pub(crate) fn new(shared: SharedState, reader: Arc<VolumeReader>) -> Self {
        let SharedState { identity, chunk_map, devices, .. } = shared;
        Self { identity, chunk_map, devices, reader }
    }
}
