//! The state of the listings of a directory that are in progress.

use ubtrfs_format::DirIndex;

/// Whether names have changed since the beginning of the first listing that may be in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Since {
    /// No listing is in progress.
    #[default]
    Nothing,
    /// No name has changed.
    Unchanged,
    /// A name has changed.
    Changed,
    /// All listings have ended, as far as is known, and no name has changed since they began.
    Ended,
}

/// The listings of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// One more than the index of the last entry of the listing that was begun last; 0 if none was.
    behind_end: u64,
    since: Since,
}

impl Listings {
    /// Records that a listing begins, which is to end at this entry.
    pub(crate) fn begin(&mut self, end: DirIndex) {
        self.behind_end = end.0.saturating_add(1);
        if self.since != Since::Changed {
            self.since = Since::Unchanged;
        }
    }

    /// Returns the end of the listing that was begun last.
    pub(crate) fn end(&self) -> Option<DirIndex> {
        self.behind_end.checked_sub(1).map(DirIndex)
    }

    /// Records that a name is added or removed.
    pub(crate) fn names_change(&mut self) {
        self.since = match self.since {
            Since::Nothing | Since::Ended => Since::Nothing,
            Since::Unchanged | Since::Changed => Since::Changed,
        };
    }

    /// Records that a listing has ended. Returns whether all listings that were begun before its
    /// end show the same names.
    pub(crate) fn is_ended_unchanged(&mut self) -> bool {
        if self.since == Since::Unchanged {
            self.since = Since::Ended;
        }
        self.since == Since::Ended
    }

    /// Records that all cached parts of the listings begun so far have been dropped.
    pub(crate) fn forget(&mut self) {
        self.since = Since::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: DirIndex = DirIndex(9);

    #[test]
    fn a_change_before_the_end_shows_at_every_end_until_all_is_forgotten() {
        let mut listings = Listings::default();
        listings.begin(END);
        listings.names_change();
        listings.begin(END);
        assert!(!listings.is_ended_unchanged() && !listings.is_ended_unchanged());
        listings.forget();
        listings.begin(END);
        assert!(listings.is_ended_unchanged());
    }

    #[test]
    fn ends_without_a_change_are_unchanged_and_a_change_between_listings_is_none() {
        let mut listings = Listings::default();
        for _ in 0..2 {
            listings.begin(END);
            listings.begin(END);
            assert!(listings.is_ended_unchanged() && listings.is_ended_unchanged());
            listings.names_change();
            // Every listing that ends now was begun before the change.
            assert!(!listings.is_ended_unchanged());
        }
        assert_eq!(listings.end(), Some(END));
    }
}
