//! A user repeats a call in the state in which it is the most expensive: memory stays within
//! `memory=` and a constant, and the last call costs what the first did (invariant 26).
//!
//! A counting allocator measures what the calls allocate and keep. The processor's time shows, with
//! a generous factor, work that needs no memory.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod calls;
mod counting;
mod measure;
