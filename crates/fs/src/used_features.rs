//! The features of a volume that a mount has come to use: the next superblock names them.
//!
//! Its part in invariant 30: the features that compressed data needs are noted as it gets its
//! place.

use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_file::{ExtentPiece, InlinePiece, Piece};
use ubtrfs_format::items::Compression;
use ubtrfs_format::{CompatRo, Generation, Incompat, Superblock};
use ubtrfs_threads::atomic::AtomicBool;

/// The feature of a volume that readers of what an algorithm has packed need.
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
    /// Those that compressed data needs.
    compression: AtomicU64,
    /// A file was put under the protection of fs-verity.
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

    /// Whether the mount has put a file under the protection of fs-verity.
    pub(crate) fn has_verity(&self) -> bool {
        self.verity.load(Ordering::Acquire)
    }

    /// The features that compressed data needs which the mount has written.
    pub(crate) fn compression(&self) -> Incompat {
        Incompat(self.compression.load(Ordering::Relaxed))
    }

    /// Enters the features into the superblock of a commit.
    pub(crate) fn enter_into(&self, superblock: &mut Superblock) {
        // By invariant 30: what the commit refers to may be compressed.
        superblock.incompat = superblock.incompat.with(self.compression());
        if self.has_verity() {
            superblock.compat_ro = superblock.compat_ro.with(CompatRo::VERITY);
        }
    }

    /// Asserts that the superblock will name the feature that a piece needs which a transaction is
    /// about to make durable.
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
