//! The successive states of a volume.

use crate::model::Model;

/// A state of the volume between two operations, or between two steps of one.
#[derive(Clone, Debug)]
pub struct Version {
    /// Events of the device before the operation that made this state.
    pub began: usize,
    /// The state.
    pub model: Model,
}
