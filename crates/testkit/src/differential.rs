//! The same system calls on ubtrfs and on the kernel's btrfs: the answers, and the state afterwards
//! and after a remount, must be the same, except for a [list](known) of intended differences.
//!
//! A seed makes a [sequence](generate) of [calls](call) by several [users](actors) through several
//! [mounts](views) of one volume. Processes of each [side] make the calls; [`compare`] finds the
//! first difference; [`shrink`] removes the calls that the difference does not need. A [`campaign`]
//! runs many sequences, each in a directory of its own, and reports each kind of difference once,
//! with the shortest sequence that shows it, which can be run again.

pub mod actors;
mod answers;
pub mod call;
pub mod caller;
pub mod campaign;
pub mod compare;
pub mod generate;
pub mod known;
pub mod process;
mod seen;
pub mod shrink;
pub mod side;
mod sys;
pub mod views;
