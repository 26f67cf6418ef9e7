//! The content of files: what is dirty in memory, where the rest is, and how it is read.
//!
//! A byte of a file is looked up from the top: [`dirty::DirtyData`] (not yet submitted), the
//! [`layout::Layout`]s of the open and the frozen transaction (written back, but in no tree yet),
//! and the committed tree ([`committed::CommittedExtents`]). [`resolve::Stack`] stacks the layouts
//! over the tree, [`extent_reader::ExtentReader`] reads what they point to, verifies and
//! decompresses it.

pub(crate) mod committed;
pub(crate) mod compress;
pub(crate) mod csums;
pub(crate) mod decompress;
pub(crate) mod dirty;
pub(crate) mod error;
pub(crate) mod extent_reader;
pub(crate) mod fragments;
pub(crate) mod layout;
mod lzo;
pub(crate) mod moved;
pub(crate) mod piece;
pub(crate) mod resolve;
pub(crate) mod seek;
pub(crate) mod sum_map;
pub(crate) mod verity;

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
pub(crate) mod test_tree;
