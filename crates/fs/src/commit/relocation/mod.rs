//! Moving extents and nodes to other addresses (invariant 35).
//!
//! A node of the trees is never changed in place, and snapshots share nodes. To move something,
//! each node that points to it is written again, once, with the new address. So such a node moves,
//! too, and so on up to the roots of all trees that share it. A moved node stays the same node
//! except for its address and its generation: every tree shares with every other what it shared
//! before, and snapshots have nothing to unshare.
//!
//! The generation is that of the commit that moves the node, since a device that missed the commit
//! may have another node at the address, which must not be taken for this one (invariant 34). The
//! old generation showed whether snapshots may share the node; now the flag RELOC in its header
//! does. Such a node refers to its children by its own address, as nodes that the kernel moves do.
//!
//! | what | what changes |
//! |---|---|
//! | the node | its address and generation, and those of its children, as far as they move |
//! | its extent item, with keyed references | the key and the generation; where a reference names a parent, the parent's address |
//! | a child that it refers to by its own address, from now on or already | the reference names the new address |
//! | a root | the root item, or the superblock |
//! | data | the address of the extent item and of its checksums |
//!
//! Of a subvolume that is being dropped only the remaining part counts (`half_dropped`).
//!
//! [`RelocationPlan`] looks all of this up in the trees of the last commit, which changes nothing
//! and so may fail. `carry_out` does it, in a commit that does nothing else: the commit of a
//! transaction that no inode has joined, between the one that has just been committed and the one
//! that is open. When the commit is published, the old addresses in the open transaction's maps are
//! replaced.

mod by_address;
mod carry_out;
mod half_dropped;
mod parents;
mod plan;
mod step;

pub(crate) use plan::RelocationPlan;
pub(crate) use step::{DataTarget, RelocationStep};
