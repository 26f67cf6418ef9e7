//! The identity of nodes.

use crate::NodeRef;

/// A node's identity: an address is reused only by a later generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId {
    pub(crate) bytenr: u64,
    pub(crate) generation: u64,
}

impl NodeId {
    pub(crate) fn of(node: &NodeRef) -> Self {
        Self { bytenr: node.bytenr.0, generation: node.generation.0 }
    }
}
