//! The tests of `mounted`, over rings.

#![allow(missing_docs, clippy::unwrap_used, clippy::wildcard_imports)]

#[path = "../mounted/facts.rs"]
mod facts;
#[path = "../mounted/files.rs"]
mod files;
#[path = "../mounted/harness.rs"]
mod harness;
#[path = "../mounted/listings.rs"]
mod listings;
#[path = "../mounted/memfs.rs"]
mod memfs;
#[path = "../mounted/mounting.rs"]
mod mounting;
#[path = "../mounted/trial.rs"]
mod trial;
