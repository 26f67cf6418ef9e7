//! Structures as bytes, made and found.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod real_volumes;
mod roundtrip;
