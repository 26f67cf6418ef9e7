//! Trees against a model, and hostile blocks.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod commit;
mod common;
mod differences;
mod far_away;
mod hostile;
mod model;
