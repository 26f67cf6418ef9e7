//! What several scenarios need.

pub mod filling;
pub mod fsyncs;
pub mod gated;
pub mod memory;
pub mod tree;
