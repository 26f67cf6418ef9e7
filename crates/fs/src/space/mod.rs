//! Space: block groups, allocation, pinning, reservations.
//!
//! Two pictures are kept of each block group. *Available* serves allocation and runs ahead;
//! *recorded* follows the edits of the commit being made, and is what the free-space tree, the
//! block group items and the sums say (invariant 9).
//!
//! ```text
//! a range:   available ── Space::allocate_data, Space::allocate_node ──▶ allocated
//!               ▲                                                          │
//!               ├───── Space::release: no tree has named it ───────────────┤
//!               │                              BlockGroup::record_allocated│
//!               │                                                          ▼
//!               │                                                       recorded
//!               │                                   BlockGroup::record_freed│
//!               │                                                          ▼
//!               └───── Space::unpin ──── pinned ◀──── Space::pin ──────── freed
//!
//!            available ── SpaceInner::exclude_free: for a discard ──▶ excluded
//!               ▲                                                        │
//!               └────────────── SpaceInner::make_available ──────────────┘
//!
//! a chunk:   unallocated ── SpaceInner::add_chunk ──▶ new ── ChunkChanges::take ──▶ committed
//!               ▲                                                                      │
//!               │                                        SpaceInner::take_empty_groups │
//!               └────────── SpaceInner::vacate ──────────────────── leaving ◀──────────┘
//! ```
//!
//! What is pinned was freed by a durable commit, and becomes available when the commit before it
//! has no reader, or only those who keep a commit that is older than what was freed (invariant 3).
//! Each range is recorded once (invariant 10). A chunk leaves if all of it is available, and its
//! place is given to others when that is durable (invariant 18). Discarded is what is excluded
//! (invariant 19). Reservations see to it that a commit finds what it needs (invariant 8), and that
//! the kernel does (invariant 25).

mod allocator;
mod demand;
mod device_changes;
mod device_map;
mod discards;
mod emptying;
mod free_map;
mod free_space_tree;
mod freed;
mod give_back;
mod global_reserve;
mod group;
mod groups;
mod load;
mod pinning;
mod remove_chunks;
mod reserve;
mod room;

pub use allocator::SpaceTotals;
pub(crate) use allocator::{NewChunk, Space, SpaceInner};
pub(crate) use demand::{Demand, Shortage, UseOfKept};
pub(crate) use device_changes::DeviceChanges;
pub(crate) use device_map::{DeviceMap, stripe_length};
pub(crate) use free_space_tree::GroupEdits;
pub(crate) use give_back::Help;
pub(crate) use group::{BlockGroup, FreeSpaceForm};
pub(crate) use load::{SpaceSources, load_space};
pub(crate) use reserve::Reservation;
