//! The object that applies a log.

use std::sync::Arc;

use crate::fs_info::FsInfo;
use crate::names::Names;
use crate::reserve::Reserver;

/// Applies the log that a mount has found.
pub(crate) struct Replayer {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) names: Arc<Names>,
    pub(crate) reserver: Arc<Reserver>,
}
