//! Tests of what the check must find in damaged volumes, and must not find in sound ones.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
mod damage;
mod documents;
mod dropping;
mod fixtures;
mod hostile;
mod interrupted;
mod parity;
mod records;
mod start;
