//! The usage of a file or a directory.

/// Bytes that a file or a directory uses.
#[derive(Clone, Copy, Default)]
pub struct Used {
    /// The bytes in extents.
    pub total: u64,
    /// The bytes in shared extents, counted each time that the files refer to them.
    pub shared: u64,
    /// For a path that the user gave: the space that the shared extents take.
    pub set_shared: Option<u64>,
}

impl Used {
    /// Returns the bytes in extents that are not shared.
    pub fn exclusive(&self) -> u64 {
        self.total.saturating_sub(self.shared)
    }

    /// Adds the usage of an entry.
    pub fn add(&mut self, other: &Self) {
        // In a damaged volume an extent may have any number of bytes.
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }
}
