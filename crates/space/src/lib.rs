//! The space of a btrfs volume: block groups, allocation, pinning, reservations.
//!
//! There are two maps of each block group. The *available* map serves allocation and runs ahead.
//! The *recorded* map follows the edits of the commit in progress; the free-space tree, the block
//! group items and the sums are made from it (invariant 9).
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
//!            available ── SpaceState::exclude_free: for a discard ──▶ excluded
//!               ▲                                                        │
//!               └────────────── SpaceState::make_available ──────────────┘
//!
//! a chunk:   unallocated ── SpaceState::add_chunk ──▶ new ── ChunkChanges::take ──▶ committed
//!               ▲                                                                      │
//!               │                                        SpaceState::take_empty_groups │
//!               └────────── SpaceState::vacate ──────────────────── leaving ◀──────────┘
//! ```
//!
//! A pinned range was freed by a durable commit. It becomes available when the commit before that
//! one has no reader, or only readers that keep a commit older than the range's allocation
//! (invariant 3). Each range is recorded once (invariant 10). A chunk is removed if all of it is
//! available, and its device space is used again when that is durable (invariant 18). Only excluded
//! ranges are discarded (invariant 19). Reservations ensure that a commit finds the space that it
//! needs (invariant 8), and that the kernel does (invariant 25).

#![allow(clippy::missing_panics_doc, reason = "a panic is an invariant of this crate that does not hold")]

mod add_chunks;
mod allocator;
mod chunks;
mod demand;
mod device_changes;
mod device_map;
mod discards;
mod emptying;
mod error;
mod free_map;
mod free_space_tree;
mod freed_ranges;
mod give_back_groups;
mod global_reserve;
mod group;
mod groups;
mod load;
mod pinning;
mod pins;
mod profiles;
mod remove_chunks;
mod reserve;
mod room;
mod space;
mod totals;

pub use chunks::NewChunk;
pub use demand::{Demand, Needs, Shortage, UseOfGlobalReserve};
pub use device_changes::DeviceChanges;
pub use device_map::{DeviceMap, stripe_length};
pub use error::{Error, Result};
pub use free_space_tree::GroupEdits;
pub use freed_ranges::FreedRanges;
pub use give_back_groups::{Help, WaitsForGroups};
pub use global_reserve::global_reserve;
pub use load::{SpaceSources, load_space};
pub use pins::ReadableCommit;
pub use reserve::Reservation;
pub use space::{Space, SpaceGuard, SpaceState};
pub use totals::SpaceTotals;
