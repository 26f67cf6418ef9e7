//! Trees against a model, and blocks that somebody else wrote.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod commit;
mod common;
mod hostile;
mod model;
