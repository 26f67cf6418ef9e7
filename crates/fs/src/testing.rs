//! Test support: devices that fail, that are slow, or that show what a crash could leave, and
//! faults of the engine that a test must be able to find. It exists only with the feature
//! `testing`; nothing here is stable.

pub use ubtrfs_volume::{
    Event, Fate, FaultyDevice, Lasting, OpenWrite, Operation, OverlayDevice, RecordedWrite, RecordingDevice, Rng,
    ThrottledDevice, random_fates,
};

pub use crate::faults::{CommitFault, CommitHook, CommitStep, Faults, LogFault, ResilverFault};
