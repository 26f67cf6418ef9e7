//! A walk over all nodes of a tree, for checks and dumps.

use std::ops::ControlFlow;

use ubtrfs_format::Node;

use crate::tree::{Reader, Tree};
use crate::{Block, NodeRef, Result};

/// How a walk continues after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// With the node's children, then its right neighbours.
    Descend,
    /// Only with its right neighbours.
    Skip,
    /// The walk ends.
    Stop,
}

impl<R: Reader> Tree<R> {
    /// Calls `visit` for every node, for parents before their children, in the order of keys. If a
    /// node can't be read or does not fit its position, `visit` gets the error, and the walk
    /// continues with the node's neighbours.
    pub fn walk(&self, visit: &mut dyn FnMut(&NodeRef, Result<&Block>) -> Walk) {
        // The caller does not distinguish stopping early from reaching the end.
        let _ = self.walk_from(&NodeRef::root(self.root()), visit);
    }

    fn walk_from(&self, at: &NodeRef, visit: &mut dyn FnMut(&NodeRef, Result<&Block>) -> Walk) -> ControlFlow<()> {
        let block = match self.fetch(at) {
            Ok(block) => block,
            Err(error) => return stop_or_continue(visit(at, Err(error))),
        };
        let node = match at.view(&block) {
            Ok(node) => node,
            Err(error) => return stop_or_continue(visit(at, Err(error))),
        };
        let wanted = visit(at, Ok(&block));
        if let (Walk::Descend, Node::Internal(node)) = (wanted, node) {
            for slot in 0..node.len() {
                if let Some(child) = at.child(&node, slot) {
                    self.walk_from(&child, visit)?;
                }
            }
        }
        stop_or_continue(wanted)
    }
}

fn stop_or_continue(wanted: Walk) -> ControlFlow<()> {
    if wanted == Walk::Stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
