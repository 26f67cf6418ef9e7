//! Trees without the blocks that can't be read. What can still be read of such a block becomes a
//! new one; if that is nothing, the block above it is copied without the pointer to it. Everything
//! else stays where it is, also shared with other trees.

use std::collections::HashMap;

use ubtrfs_format::{
    BACKREF_REV_MIXED, ChildPointer, Generation, Header, InternalBuilder, LeafBuilder, Logical, Node, NodeFlags, TreeId,
};
use ubtrfs_tree::{NodeAllocator, NodeRef, Root};
use ubtrfs_volume::Write;

use crate::bad_block::BadBlock;
use crate::error::Result;
use crate::session::Session;
use crate::space::FreeNodes;
use crate::survey::Survey;

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is as it was.
    Stays,
    /// Nothing of it can be read.
    Lost,
    /// It has a copy with fewer pointers.
    Copied(ChildPointer),
}

/// The blocks that were looked at, which several trees may share.
pub struct Pruned<'a> {
    survey: &'a Survey,
    generation: Generation,
    fates: HashMap<Logical, Fate>,
}

impl<'a> Pruned<'a> {
    /// Copies are of this generation.
    pub fn new(survey: &'a Survey, generation: Generation) -> Self {
        Self { survey, generation, fates: HashMap::new() }
    }

    /// Returns the new root of a tree, or `None` if nothing of it has changed. A tree of which
    /// nothing can be read becomes an empty leaf.
    pub fn tree(&mut self, session: &Session, root: Root, nodes: &mut FreeNodes) -> Result<Option<Root>> {
        let generation = self.generation;
        match self.block(session, &NodeRef::root(&root), nodes)? {
            Fate::Stays => Ok(None),
            Fate::Copied(copy) => Ok(Some(Root { bytenr: copy.bytenr, generation, ..root })),
            Fate::Lost => {
                let bytenr = nodes.allocate(root.owner, 0)?;
                let mut block = vec![0; session.geometry.node_size as usize];
                LeafBuilder::new(&mut block).finish(self.header(session, root.owner, bytenr, 0));
                write(session, bytenr, block)?;
                Ok(Some(Root { bytenr, generation, level: 0, ..root }))
            }
        }
    }

    fn block(&mut self, session: &Session, at: &NodeRef, nodes: &mut FreeNodes) -> Result<Fate> {
        if let Some(fate) = self.fates.get(&at.bytenr) {
            return Ok(*fate);
        }
        let fate = self.new_fate(session, at, nodes)?;
        self.fates.insert(at.bytenr, fate);
        Ok(fate)
    }

    fn new_fate(&mut self, session: &Session, at: &NodeRef, nodes: &mut FreeNodes) -> Result<Fate> {
        if self.survey.unreadable.contains_key(&at.bytenr) {
            return self.salvaged(session, at, nodes);
        }
        if at.level == 0 {
            return Ok(Fate::Stays);
        }
        let Ok(block) = session.cache.get(at) else { return Ok(Fate::Lost) };
        let Node::Internal(node) = block.node()? else { return Ok(Fate::Stays) };
        let (mut children, mut is_changed) = (Vec::with_capacity(node.len()), false);
        for (slot, pointer) in node.iter().enumerate() {
            let Some(child) = at.child(&node, slot) else { continue };
            match self.block(session, &child, nodes)? {
                Fate::Stays => children.push(pointer),
                Fate::Lost => is_changed = true,
                Fate::Copied(copy) => {
                    is_changed = true;
                    children.push(copy);
                }
            }
        }
        if !is_changed {
            return Ok(Fate::Stays);
        }
        self.internal(session, block.header()?.owner, at.level, children, nodes)
    }

    /// Makes a block of what can still be read of a bad one.
    fn salvaged(&mut self, session: &Session, at: &NodeRef, nodes: &mut FreeNodes) -> Result<Fate> {
        let Some(bad) = BadBlock::read(session, at) else { return Ok(Fate::Lost) };
        let owner = bad.owner(at.tree);
        if at.level == 0 {
            let items = bad.items(session);
            let Some((first, _)) = items.first() else { return Ok(Fate::Lost) };
            let mut bytes = vec![0; session.geometry.node_size as usize];
            let bytenr = nodes.allocate(owner, 0)?;
            let mut builder = LeafBuilder::new(&mut bytes);
            items.iter().try_for_each(|(key, data)| builder.push(*key, data))?;
            builder.finish(self.header(session, owner, bytenr, 0));
            write(session, bytenr, bytes)?;
            return Ok(Fate::Copied(ChildPointer { key: *first, bytenr, generation: self.generation }));
        }
        let mut children = Vec::new();
        for child in bad.children(session) {
            match self.block(session, &child.0, nodes)? {
                Fate::Stays => children.push(child.1),
                Fate::Lost => {}
                Fate::Copied(copy) => children.push(copy),
            }
        }
        self.internal(session, owner, at.level, children, nodes)
    }

    /// Writes a block above these children, if there are any.
    fn internal(
        &self,
        session: &Session,
        owner: TreeId,
        level: u8,
        children: Vec<ChildPointer>,
        nodes: &mut FreeNodes,
    ) -> Result<Fate> {
        let Some(key) = children.first().map(|first| first.key) else { return Ok(Fate::Lost) };
        let mut bytes = vec![0; session.geometry.node_size as usize];
        let bytenr = nodes.allocate(owner, level)?;
        let mut builder = InternalBuilder::new(&mut bytes);
        children.into_iter().try_for_each(|child| builder.push(child))?;
        builder.finish(self.header(session, owner, bytenr, level));
        write(session, bytenr, bytes)?;
        Ok(Fate::Copied(ChildPointer { key, bytenr, generation: self.generation }))
    }

    fn header(&self, session: &Session, owner: TreeId, bytenr: Logical, level: u8) -> Header {
        Header {
            fsid: session.geometry.fsid,
            bytenr,
            flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
            chunk_tree_uuid: session.geometry.chunk_tree_uuid,
            generation: self.generation,
            owner,
            nritems: 0,
            level,
        }
    }
}

fn write(session: &Session, at: Logical, mut block: Vec<u8>) -> Result<()> {
    LeafBuilder::seal(&mut block, session.geometry.checksum);
    let writer = session.volume.writer();
    let ticket = writer.submit_nodes(vec![Write { at, data: block.into() }])?;
    let _ = writer.wait(ticket)?;
    Ok(())
}
