//! Space: block groups, allocation, pinning, reservations.
//!
//! Two pictures are kept of each block group. *Available* serves allocation and runs ahead;
//! *recorded* follows the edits of the commit being made, and is what the free-space tree, the
//! block group items and the sums say.

mod allocator;
mod demand;
mod device_map;
mod discards;
mod free_map;
mod free_space_tree;
mod freed;
mod global_reserve;
mod group;
mod load;
mod remove_chunks;
mod reserve;
mod room;

pub use allocator::SpaceTotals;
pub(crate) use allocator::{NewChunk, Space};
pub(crate) use demand::{Demand, Shortage, UseOfKept};
pub(crate) use device_map::{DeviceMap, stripe_length};
pub(crate) use free_space_tree::GroupEdits;
pub(crate) use group::{BlockGroup, FreeSpaceForm};
pub(crate) use load::{SpaceSources, load_space};
pub(crate) use reserve::Reservation;
