//! The content of files: dirty data in memory, the location of other data, and how it is read.
//!
//! A byte of a file is looked up from the top: in [`DirtyData`] (not submitted yet), in the
//! [`Layout`]s of the open and the frozen transaction (written back, but in no tree yet), and in
//! the committed tree ([`CommittedExtents`]). A [`Stack`] combines the layouts and the tree. An
//! [`ExtentReader`] reads the extents to which they refer, verifies and decompresses them.

#![allow(clippy::missing_panics_doc, reason = "a panic is an invariant of this crate that does not hold")]

pub mod change_memory;
mod committed;
mod compress;
mod compression_mode;
mod csum_edits;
mod csums;
mod decompress;
mod dirty;
mod error;
mod extent_reader;
mod fragments;
mod layout;
mod lzo;
mod moved;
mod piece;
mod resolve;
mod seek;
mod sum_map;
mod verity;

#[cfg(test)]
mod fixture_tests;

pub use committed::{CommittedExtents, PieceSource, Unborn, checked_piece};
pub use compress::{CompressionMethod, Packer, seems_compressible};
pub use compression_mode::CompressionMode;
pub use csum_edits::{AdjacentSums, CsumEdits};
pub use csums::{ChecksumTree, Checksums, NoChecksums, sum_runs};
pub use dirty::{DirtyData, DirtyRun};
pub use error::{DataError, ExtentProblem, PackedPlace, Result, UnpackProblem};
pub use extent_reader::{DataSource, ExtentReader, ReadContext};
pub use fragments::{DefragmentPolicy, DefragmentRun, Fragments, Recompression};
pub use layout::Layout;
pub use moved::MovedExtents;
pub use piece::{ExtentPiece, InlinePiece, MAX_PACKED, Mapped, Piece, extents_of};
pub use resolve::{Pieces, Stack};
pub use seek::Seek;
pub use sum_map::SumMap;
pub use verity::{Verity, VerityBuilder, VerityDigest, VerityItems, VerityParameters, VeritySource};
