//! The log: what an fsync makes durable between two commits.
//!
//! An fsync joins the *group* that gathers. Its first member leads: it waits for its turn, closes
//! the group, turns what changed of the inodes (and of those without which they could not be
//! recovered) into items of log trees, and writes these with whatever data is still on its way; a
//! flush, the primary superblock, a flush. While it writes, the next group gathers. While a commit
//! is under way groups wait for it: the committer writes their log with its own superblock.
//!
//! | file | what it does |
//! |---|---|
//! | `queue` | groups, leaders, turns; what an fsync has to wait for |
//! | `gather` | who has to be in the log, until its names agree with each other |
//! | `items` | the items of one inode |
//! | `tree_log` | the log as it stands on the devices |
//! | `nodes` | space for log nodes |
//! | `write` | merge, write, publish |

mod arena;
mod exists;
mod gather;
mod items;
mod nodes;
mod prepared;
mod queue;
mod ranges;
mod reason;
mod tree_log;
mod write;

pub(crate) use queue::{ClosedGroup, Log};
pub use reason::Reason;
