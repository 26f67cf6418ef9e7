//! The host's files, as what commands write: no other module of the program writes to any of them,
//! but for devices and image files themselves.

pub mod destination;
pub mod replacement;
pub mod sources;
pub mod target;
