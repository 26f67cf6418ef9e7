//! One user repeats a call where that is worst: memory stays within `memory=` and a constant, and
//! the last call costs what the first did (invariant 26).
//!
//! A counting allocator says what the calls take, and what they ask for. What they compute without
//! asking for memory shows in the time of the processor, with a generous factor.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod calls;
mod counting;
mod measure;
