//! Writeback: dirty data gets its location on disk and is submitted, as ordered extents. It does
//! not depend on the caller (fsync, commit, memory pressure), nor on later changes of the file.
//!
//! | file | what it does |
//! |---|---|
//! | `cause` | why it is written back |
//! | `ordered` | dirty data becomes ordered extents |
//! | `place` | chooses the location of data |
//! | `submission` | writes that are submitted together |
//! | `packing` | compresses dirty data before that |
//! | `packers` | the threads and contexts for compression |
//! | `nocow` | which data may overwrite its old extents |
//! | `sharing` | whether a file shares an extent |
//! | `shared_nodes` | which nodes of trees have several references |
//! | `in_flight` | how much is in flight to the devices |

mod cause;
mod in_flight;
mod nocow;
mod ordered;
mod owner;
mod packers;
mod packing;
mod place;
mod shared_nodes;
mod sharing;
mod submission;

pub(crate) use cause::Cause;
pub(crate) use nocow::{is_nodatacow, may_be_nocow};
pub(crate) use owner::Writeback;
pub(crate) use packers::Packed;
