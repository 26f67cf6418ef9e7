//! What is counted of a file or a directory.

/// Bytes that a file or a directory uses.
#[derive(Clone, Copy, Default)]
pub struct Used {
    /// In extents.
    pub total: u64,
    /// In extents that others have, too, each time that they are used.
    pub shared: u64,
    /// Of what was asked for: how much space those take.
    pub set_shared: Option<u64>,
}

impl Used {
    /// In extents that nobody else has.
    pub fn exclusive(&self) -> u64 {
        self.total.saturating_sub(self.shared)
    }

    /// Adds what is below.
    pub fn add(&mut self, other: &Self) {
        // A damaged volume may have any number of bytes in an extent.
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }
}
