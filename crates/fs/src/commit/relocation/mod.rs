//! Moving extents and nodes to other addresses (invariant 40).
//!
//! A node of the trees never changes, and snapshots share nodes. To move something, each node that
//! points to it is written again, once, with the new address; so such a node moves, too, and so on
//! up to the roots of all trees that share it. A moved node stays the same node in all but its
//! address and its generation: every tree shares with every other what it shared before, and
//! nothing is made that snapshots would have to unshare.
//!
//! The generation is that of the commit that moves the node, since a device that missed it may have
//! another node at the address, which must not be taken for this one (invariant 34). Whether
//! snapshots may share it, which its old generation showed, its header says with the flag RELOC.
//! Such a node refers to what it points to by its own address, as the kernel's do.
//!
//! | what | what changes |
//! |---|---|
//! | the node | its address and generation, and those of what it points to, as far as that moves |
//! | its extent item, with keyed references | the key and the generation; where a reference names a parent, the parent's address |
//! | what it points to by its own address, from now on or already | the reference names the new address |
//! | a root | the root item, or the superblock |
//! | data | the address of the extent item and of its checksums |
//!
//! Of a subvolume that is being dropped only what is left counts (`half_dropped`).
//!
//! [`RelocationPlan`] looks all of this up in the trees of the last commit, which does not change
//! anything and so may fail. `carry_out` does it, in a commit that does nothing else: of a
//! transaction that nobody has joined, between the one that has just been committed and the one
//! that is open. What the latter's maps have of the old addresses is set right as the commit is
//! published.

mod by_address;
mod carry_out;
mod half_dropped;
mod parents;
mod plan;
mod step;

pub(crate) use plan::RelocationPlan;
pub(crate) use step::{DataTarget, RelocationStep};
