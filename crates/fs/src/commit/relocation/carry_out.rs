//! Writes the new nodes, the new references and the new roots of a plan.

use ubtrfs_format::{ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{Moved, Pointer, Root};

use super::super::extent_refs::User;
use super::super::merge_trees::Merging;
use super::by_address::ChangedUsers;
use super::plan::RelocationPlan;
use crate::error::Result;

impl Merging<'_> {
    /// Moves the nodes and the data of the plan. All of them have their new addresses.
    pub(in super::super) fn relocate(&mut self, mut plan: RelocationPlan) -> Result<()> {
        let generation = self.transaction.generation;
        let volume = *self.committer.info.cache.geometry();
        let mut copies = Vec::with_capacity(plan.nodes.len());
        for node in plan.nodes.values() {
            let new = Moved { to: node.to, generation, may_be_shared: plan.may_be_shared(node) };
            let copy = node.block.moved(new, &volume, &mut |pointer| match pointer {
                Pointer::Node { bytenr, generation } => plan.moving(bytenr, generation).map(|child| child.to),
                Pointer::Data { bytenr, .. } => plan.data.get(&bytenr).map(|data| data.to),
            })?;
            copies.push((node.to, copy));
        }
        self.tree.nodes.early.submit(self.committer, copies)?;
        self.rename_parents(&plan)?;
        self.move_roots(&plan)?;
        let changed = self.refer_by_address(&mut plan)?;
        self.move_extent_items(plan, changed)
    }

    /// Changes the references to children that do not move and that are referred to by the address
    /// of a moved node.
    fn rename_parents(&mut self, plan: &RelocationPlan) -> Result<()> {
        for (from, node) in plan.nodes.iter().filter(|(_, node)| node.is_named_by_address()) {
            for pointer in plan.half_dropped.pointers(*from, &node.block)? {
                match pointer {
                    Pointer::Node { bytenr, generation } if plan.moving(bytenr, generation).is_none() => {
                        let level = node.level.saturating_sub(1);
                        let refs = self.tree.nodes.block_refs();
                        refs.change_user(bytenr, level, User::Block(*from), User::Block(node.to))?;
                    }
                    Pointer::Data { bytenr, length, .. } if !plan.data.contains_key(&bytenr) => {
                        self.refs.add(bytenr, length, User::Leaf(node.to), 1);
                        self.refs.add(bytenr, length, User::Leaf(*from), -1);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn move_roots(&mut self, plan: &RelocationPlan) -> Result<()> {
        for id in &plan.roots {
            let root = plan.root(*id)?;
            let Some(node) = plan.nodes.get(&root.bytenr) else { continue };
            let moved = Root { bytenr: node.to, generation: self.transaction.generation, ..root };
            match *id {
                TreeId::ROOT => self.root_tree = moved,
                TreeId::CHUNK => self.chunk_tree = moved,
                id => self.roots.set_moved(id, moved),
            }
        }
        Ok(())
    }

    fn move_extent_items(&mut self, mut plan: RelocationPlan, mut changed: ChangedUsers) -> Result<()> {
        let (nodes, data) = (std::mem::take(&mut plan.nodes), std::mem::take(&mut plan.data));
        let new: std::collections::BTreeMap<Logical, Logical> =
            nodes.iter().map(|(from, node)| (*from, node.to)).collect();
        let renamed = |user| {
            let now = |at: Logical| new.get(&at).copied().unwrap_or(at);
            match user {
                User::Block(parent) => User::Block(now(parent)),
                User::Leaf(leaf) => User::Leaf(now(leaf)),
                user => user,
            }
        };
        let node_size = self.committer.info.space.node_size();
        for (from, mut node) in nodes {
            let key = self.tree.nodes.key_of(node.to, node.level, node_size);
            if self.tree.nodes.is_skinny() {
                node.refs.item.tree_block = None;
            }
            let gone = node.refs.move_to(key, &renamed);
            changed.apply(from, &mut node.refs, node_size as usize)?;
            node.refs.item.generation = self.transaction.generation;
            self.tree.nodes.block_refs().move_block(from, gone, node.to, node.refs);
            self.tree.nodes.leave(from);
            self.tree.nodes.moved.insert(node.to, (node.owner, node.level));
        }
        for (from, mut data) in data {
            let key = Key::new(data.to.0, ItemType::EXTENT_ITEM, data.length);
            data.refs.move_to(key, &renamed).emit(&mut self.extent_edits);
            changed.apply(from, &mut data.refs, node_size as usize)?;
            data.refs.emit(&mut self.extent_edits);
            self.moved_data.push((from, data.length, data.to));
        }
        Ok(())
    }
}
