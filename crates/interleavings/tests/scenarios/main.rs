//! What holds however threads are interleaved.

#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod any_interleaving_keeps_promises;
mod faults_put_back_are_found;
