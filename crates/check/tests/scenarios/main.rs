//! Tests of what the check must find in damaged volumes, and must not find in sound ones.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
mod damage;
mod dropping;
mod fixtures;
mod hostile;
mod parity;
