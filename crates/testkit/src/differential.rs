//! The same system calls on ubtrfs and on the kernel's btrfs: what each returns, and what is there
//! afterwards and after a remount, must be the same, but for a [list](known) of differences that
//! are meant.
//!
//! A seed makes a [sequence](generate) of [calls](call) by several [users](actors) through several
//! [mounts](views) of one volume. Processes of each [side] make them; [`compare`] finds where the
//! answers part; [`shrink`] takes away what a difference does not need. A [`campaign`] runs many
//! sequences, each in a directory of its own, and reports each kind of difference once, with the
//! shortest sequence that shows it, which can be run again.

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
