//! Extents that a commit moves, while maps in memory may have their old addresses.

use std::collections::BTreeMap;

use ubtrfs_format::Logical;

use crate::piece::{ExtentPiece, Piece};

/// The old and new addresses of moved extents.
#[derive(Debug, Default)]
pub struct MovedExtents(BTreeMap<Logical, Logical>);

impl MovedExtents {
    /// The extents with these old and new addresses.
    pub fn new(extents: impl IntoIterator<Item = (Logical, Logical)>) -> Self {
        Self(extents.into_iter().collect())
    }

    /// Returns the new address of an extent.
    pub fn get(&self, start: Logical) -> Option<Logical> {
        self.0.get(&start).copied()
    }

    /// Returns a piece of an extent with the extent's new address.
    pub fn follow(&self, extent: ExtentPiece) -> ExtentPiece {
        let disk_bytenr = self.get(extent.disk_bytenr).unwrap_or(extent.disk_bytenr);
        ExtentPiece { disk_bytenr, ..extent }
    }

    /// Returns a piece with the new address of its extent, if that was moved.
    pub(crate) fn followed(&self, piece: &Piece) -> Option<Piece> {
        match piece {
            Piece::Extent(extent) if self.0.contains_key(&extent.disk_bytenr) => {
                Some(Piece::Extent(self.follow(*extent)))
            }
            _ => None,
        }
    }
}
