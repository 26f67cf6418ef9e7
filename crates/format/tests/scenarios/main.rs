//! Structures as bytes: those that we make, and those of real volumes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod real_volumes;
mod roundtrip;
