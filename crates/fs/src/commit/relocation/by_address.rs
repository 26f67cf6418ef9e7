//! Makes moved nodes that may be shared refer to their children by their own address, as nodes that
//! the kernel moves do.

use std::collections::BTreeMap;

use ubtrfs_format::items::{DataRef, ExtentFlags};
use ubtrfs_format::{Ino, Logical};
use ubtrfs_tree::Pointer;

use super::super::extent_refs::{ExtentRefs, User};
use super::super::merge_trees::Merging;
use super::plan::{MovingNode, RelocationPlan};
use crate::error::Result;

/// Changes of references to moved nodes and data, by their old addresses: the old user and the new
/// one.
#[derive(Default)]
pub(super) struct ChangedUsers(BTreeMap<Logical, Vec<(User, User)>>);

impl ChangedUsers {
    /// Changes the references of the node or data that has moved from `from`.
    pub(super) fn apply(&mut self, from: Logical, refs: &mut ExtentRefs, node_size: usize) -> Result<()> {
        for (gone, new) in self.0.remove(&from).unwrap_or_default() {
            refs.change(None, new, 1, node_size)?;
            refs.change(None, gone, -1, node_size)?;
        }
        Ok(())
    }
}

impl Merging<'_> {
    /// Sets the flag of the moved nodes that have to refer by address and do not do so yet, and
    /// changes the references to children that do not move.
    pub(super) fn refer_by_address(&mut self, plan: &mut RelocationPlan) -> Result<ChangedUsers> {
        let mut changed = ChangedUsers::default();
        let is_new = |node: &MovingNode| plan.may_be_shared(node) && !node.is_named_by_address();
        let new: Vec<Logical> = plan.nodes.iter().filter(|(_, node)| is_new(node)).map(|(from, _)| *from).collect();
        for from in new {
            let Some(node) = plan.nodes.get_mut(&from) else { continue };
            node.refs.item.flags |= ExtentFlags::FULL_BACKREF;
            let (to, owner, level) = (node.to, node.owner, node.level.saturating_sub(1));
            let pointers = plan.half_dropped.pointers(from, &node.block)?;
            for pointer in pointers {
                match pointer {
                    Pointer::Node { bytenr, generation } => {
                        let (gone, new) = (User::Tree(owner), User::Block(to));
                        if plan.moving(bytenr, generation).is_some() {
                            changed.0.entry(bytenr).or_default().push((gone, new));
                        } else {
                            let refs = self.tree.nodes.block_refs();
                            refs.change_user(bytenr, level, gone, new)?;
                        }
                    }
                    Pointer::Data { bytenr, length, ino, offset, .. } => {
                        let gone = User::File(DataRef { root: owner, ino: Ino(ino), offset });
                        let new = User::Leaf(to);
                        if plan.data.contains_key(&bytenr) {
                            changed.0.entry(bytenr).or_default().push((gone, new));
                        } else {
                            self.refs.add(bytenr, length, new, 1);
                            self.refs.add(bytenr, length, gone, -1);
                        }
                    }
                }
            }
        }
        Ok(changed)
    }
}
