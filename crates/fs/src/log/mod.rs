//! The tree log, which makes fsyncs durable between two commits.
//!
//! An fsync joins the open *group*. The first member of a group leads it: it waits for its turn,
//! closes the group, turns the changes of the inodes (and of others without which they could not be
//! replayed) into items of log trees, and writes these together with data in flight; then it
//! flushes, writes the primary superblock, and flushes again. During the write the next group is
//! open. During a commit groups wait: the committer writes their log with its own superblock.
//!
//! ```text
//! gathering ── Log::close_group, by its leader, or Log::close_waiting, by a commit ──▶ closed
//!                                                                                        │
//!      Gatherer::gather, Log::merge_log ─────────────────────────────────────────────────┘
//!                 │                     │
//!                 ▼                     └── Log::fall_back ──▶ needs a commit
//!             prepared                                             │ ClosedGroup::committed
//!                 │ Writeback::wait_for_all: data                  │
//!                 │ VolumeWriter::wait: nodes                      │
//!                 │ VolumeWriter::flush, Superblocks::write        │
//!                 ▼                                                ▼
//!             published ── PreparedLog::published, ClosedGroup::logged ──▶ ended, FsyncGroup::end
//!
//! the log itself:  empty ── Log::write_group ──▶ durable ── TreeLog::end ──▶ a commit frees its nodes
//! ```
//!
//! The log keeps these invariants. A superblock that refers to a log is written after its nodes and
//! its data (invariant 1). After each write the names in the log agree with each other
//! (invariant 15), and all its items have the same length of an extent (invariant 21). The log
//! follows the commit whose superblock refers to it (invariant 16), and none of its nodes is used
//! again before another log is durable (invariant 17). Success takes a proof (invariant 22).
//!
//! | file | what it does |
//! |---|---|
//! | `queue` | groups, leaders, turns; what an fsync has to wait for |
//! | `gather` | which inodes must be logged, until the names are consistent |
//! | `items` | the items of one inode |
//! | `lead` | a group that two threads lead, one after the other |
//! | `tree_log` | the log on the devices |
//! | `nodes` | space for log nodes |
//! | `write` | merge, write, publish |

mod arena;
mod cost;
mod exists;
mod gather;
mod items;
mod lead;
mod nodes;
mod prepared;
mod queue;
mod ranges;
mod reason;
mod tree_log;
mod write;

pub(crate) use lead::Lead;
pub(crate) use prepared::PreparedLog;
pub(crate) use queue::{ClosedGroup, Log};
pub use reason::Reason;
