//! Writeback: dirty data gets its location on disk and goes there, as ordered extents. It knows
//! neither who asks for it (fsync, commit, memory pressure) nor what becomes of the file.
//!
//! | file | what it does |
//! |---|---|
//! | `ordered` | dirty data becomes ordered extents |
//! | `nocow` | what may be written over its old extents |
//! | `in_flight` | how much is on its way to the devices |

mod in_flight;
mod nocow;
mod ordered;
mod owner;

pub(crate) use nocow::{is_nodatacow, may_be_nocow};
pub(crate) use owner::Writeback;
