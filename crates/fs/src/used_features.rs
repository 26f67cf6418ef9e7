//! The features that a mount has begun to use, which the next superblock names.
//!
//! For invariant 30, the features that compressed data needs are recorded when it gets its
//! location.

use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_file::{ExtentPiece, InlinePiece, Piece};
use ubtrfs_format::items::Compression;
use ubtrfs_format::{CompatRo, Generation, Incompat, Superblock};
use ubtrfs_threads::atomic::AtomicBool;

/// Returns the feature that a reader of data compressed by this algorithm needs.
fn feature_of(algorithm: Compression) -> Incompat {
    match algorithm {
        Compression::None | Compression::Zlib => Incompat(0),
        Compression::Lzo => Incompat::COMPRESS_LZO,
        Compression::Zstd => Incompat::COMPRESS_ZSTD,
    }
}

/// The features that a mount has used.
#[derive(Default)]
pub(crate) struct UsedFeatures {
    /// The features that compressed data needs.
    compression: AtomicU64,
    /// Whether a file was protected by fs-verity.
    verity: AtomicBool,
}

impl UsedFeatures {
    /// Notes that data is compressed by an algorithm: the superblock that makes it durable names
    /// the feature (invariant 30).
    pub(crate) fn note_compressed(&self, algorithm: Compression) {
        let feature = feature_of(algorithm);
        if !self.compression().contains(feature) {
            self.compression.fetch_or(feature.0, Ordering::Relaxed);
        }
    }

    /// Notes that fs-verity protects a file: the next superblock names the feature.
    pub(crate) fn note_verity(&self) {
        self.verity.store(true, Ordering::Release);
    }

    /// Whether the mount has protected a file by fs-verity.
    pub(crate) fn has_verity(&self) -> bool {
        self.verity.load(Ordering::Acquire)
    }

    /// Returns the features that the compressed data needs which the mount has written.
    pub(crate) fn compression(&self) -> Incompat {
        Incompat(self.compression.load(Ordering::Relaxed))
    }

    /// Enters the features into the superblock of a commit.
    pub(crate) fn enter_into(&self, superblock: &mut Superblock) {
        // By invariant 30 the superblock names them, since the commit may refer to compressed data.
        superblock.incompat = superblock.incompat.with(self.compression());
        if self.has_verity() {
            superblock.compat_ro = superblock.compat_ro.with(CompatRo::VERITY);
        }
    }

    /// Asserts that the superblock will name the feature that a piece needs. A transaction is about
    /// to make the piece durable.
    pub(crate) fn assert_has(&self, piece: &Piece, transaction: Generation) {
        if let Piece::Extent(ExtentPiece { compression, generation, .. })
        | Piece::Inline(InlinePiece { compression, generation, .. }) = piece
            && *generation == transaction
        {
            assert!(
                self.compression().contains(feature_of(*compression)),
                "invariant 30: no feature of the superblock is for {compression:?}"
            );
        }
    }
}
