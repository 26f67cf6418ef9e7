//! Finding old roots of the root tree. A commit writes the tree's root elsewhere, and the old one
//! stays readable until its space is used again. The search reads the block groups of metadata. Its
//! memory is bounded, and it reads no more than the devices have.

use std::collections::BTreeMap;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{Generation, Header, Logical, NodeExpectation, TreeId};

use crate::buffer::Buffer;
use crate::rescue::{Candidate, Origin};
use crate::volume::Volume;

/// How many bytes are read at once.
const STRETCH: u64 = 1 << 20;
/// How many commits' roots are remembered: those of the newest ones.
const MAX_COMMITS: usize = 1 << 16;
/// How many nodes of one commit are kept as its possible roots. An interrupted commit may have been
/// made again.
const MAX_ROOTS: usize = 4;

/// For each commit, the highest level of a node that was found, and the nodes of that level.
#[derive(Default)]
struct Highest(BTreeMap<Generation, (u8, Vec<Logical>)>);

impl Highest {
    fn add(&mut self, header: &Header) {
        let (level, nodes) = self.0.entry(header.generation).or_insert_with(|| (header.level, Vec::new()));
        if header.level > *level {
            (*level, *nodes) = (header.level, Vec::new());
        }
        if header.level == *level && nodes.len() < MAX_ROOTS {
            nodes.push(header.bytenr);
        }
        if self.0.len() > MAX_COMMITS {
            self.0.pop_first();
        }
    }
}

impl Volume {
    /// Returns the nodes of the root tree that may be the root of an older commit, newest first, as
    /// states of this volume. Does not check whether the trees below are whole, nor whether a node
    /// above the highest one of a commit has been lost. Reads all block groups of metadata.
    pub fn find_old_roots(&self) -> Vec<Candidate> {
        let superblock = self.superblocks().current();
        let mut found = Highest::default();
        // A hostile volume may have many chunks at the same place.
        let mut left =
            self.devices().set().members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.device.size()));
        for (start, chunk) in self.chunk_map().all() {
            if chunk.flags.contains(BlockGroupFlags::METADATA) {
                let length = chunk.length.min(left);
                left -= length;
                self.look_through(start, length, superblock.generation, &mut found);
            }
        }
        let state = |generation: Generation, level: u8, root: Logical| {
            let mut state = superblock.clone();
            (state.generation, state.root, state.root_level) = (generation, root, level);
            state.drop_log();
            Candidate { copy: superblock.bytenr, superblock: state, origin: Origin::Scan }
        };
        let commits = found.0.into_iter().rev();
        commits
            .flat_map(|(generation, (level, nodes))| nodes.into_iter().map(move |node| (generation, level, node)))
            .map(|(generation, level, node)| state(generation, level, node))
            .collect()
    }

    fn look_through(&self, start: Logical, length: u64, newest: Generation, found: &mut Highest) {
        let node_size = u64::from(self.node_size());
        let mut at = 0;
        while at < length {
            let len = STRETCH.min(length - at);
            let len = len - len % node_size;
            if len == 0 {
                return;
            }
            let mut bytes = Buffer::for_reading(len as usize);
            if self.reader().read_data(start.plus(at), &mut bytes, None).is_ok() {
                self.look_at(start.plus(at), &bytes, newest, found);
            } else {
                // Reads node by node to skip what can't be read.
                let mut node = Buffer::for_reading(node_size as usize);
                for place in (at..at + len).step_by(node_size as usize) {
                    if self.reader().read_data(start.plus(place), &mut node, None).is_ok() {
                        self.look_at(start.plus(place), &node, newest, found);
                    }
                }
            }
            at += len;
        }
    }

    fn look_at(&self, start: Logical, bytes: &[u8], newest: Generation, found: &mut Highest) {
        for (index, block) in bytes.chunks_exact(self.node_size() as usize).enumerate() {
            let at = start.plus((index * block.len()) as u64);
            let Ok(header) = Header::parse(block) else { continue };
            if header.bytenr != at || header.owner != TreeId::ROOT || header.generation > newest {
                continue;
            }
            let expected = NodeExpectation {
                bytenr: at,
                level: Some(header.level),
                generation: Some(header.generation),
                owner: Some(TreeId::ROOT),
                first_key: None,
                fsid: self.metadata_fsid(),
            };
            if self.reader().read_node(&expected).is_ok() {
                found.add(&header);
            }
        }
    }
}
