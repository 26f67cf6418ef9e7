//! The memory that a transaction's changes take, in bytes (invariant 26: changes of every kind are
//! bounded by `memory=`).
//!
//! Each inode has an [`Account`] with its transaction. It is settled when the inode's write lock is
//! released, from lengths and sums that each container maintains, so nothing is counted twice. The
//! transaction itself adds what belongs to no inode (extents with their checksums).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A changed inode, without the contents of its batch: it is in the table, in the transaction's
/// list and, once more, in the edits of its commit.
pub const INODE: usize = 1400;
/// A changed entry of a directory, found by name and by number, without the name.
pub const ENTRY: usize = 230;
/// A changed name of an inode, without the name.
pub const REFERENCE: usize = 80;
/// A changed xattr, without name and value.
pub const XATTR: usize = 130;
/// A piece of a file's map, with the memory that its commit needs: an item, and the changed
/// references to its extent.
pub const PIECE: usize = 450;
/// An extent with other references that gets or loses one: the commit rewrites the extent's item
/// with all of them.
pub const SHARED: usize = 700;
/// A committed piece that is deleted: the commit removes a reference.
pub const DISPLACED: usize = SHARED;
/// A new extent, without its checksums.
pub const EXTENT: usize = 130;
/// An extent in flight that an inode refers to, without its data.
pub const ORDERED: usize = 40;
/// A name in a list, without its bytes.
pub const LISTED: usize = 48;

/// Bytes that a transaction holds.
#[derive(Debug, Default)]
pub struct TransactionMemory {
    changes: AtomicU64,
    dirty: AtomicU64,
}

impl TransactionMemory {
    /// Returns the bytes of changes without dirty data.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of dirty data.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Adds bytes that belong to no inode.
    #[inline]
    pub fn add(&self, bytes: usize) {
        self.changes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds the difference between the old size of something and its size now.
    #[inline]
    pub fn replace(&self, before: usize, now: usize) {
        settle(&self.changes, before as u64, now as u64);
    }
}

/// One inode's part of its transaction's memory. Dropping it subtracts that part.
#[derive(Debug, Default)]
pub struct Account {
    memory: Option<Arc<TransactionMemory>>,
    changes: u64,
    dirty: u64,
}

impl Account {
    /// An empty account.
    pub fn with(memory: &Arc<TransactionMemory>) -> Self {
        Self { memory: Some(memory.clone()), changes: 0, dirty: 0 }
    }

    /// Sets what the inode holds now.
    #[inline]
    pub fn settle(&mut self, changes: usize, dirty: usize) {
        let Some(memory) = &self.memory else { return };
        let (changes, dirty) = (changes as u64, dirty as u64);
        settle(&memory.changes, std::mem::replace(&mut self.changes, changes), changes);
        settle(&memory.dirty, std::mem::replace(&mut self.dirty, dirty), dirty);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle(0, 0);
    }
}

#[inline]
fn settle(total: &AtomicU64, before: u64, now: u64) {
    if now > before {
        total.fetch_add(now - before, Ordering::Relaxed);
    } else if now < before {
        let old = total.fetch_sub(before - now, Ordering::Relaxed);
        debug_assert!(old >= before - now, "invariant 26: more is subtracted from a transaction's memory than it held");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 26: the settled bytes are those that are held, and all are subtracted when the
    /// inodes are dropped.
    #[test]
    fn accounts_add_up_and_subtract_their_bytes_on_drop() {
        let memory = Arc::new(TransactionMemory::default());
        let (mut one, mut other) = (Account::with(&memory), Account::with(&memory));
        one.settle(1000, 4096);
        other.settle(10, 0);
        one.settle(300, 8192);
        memory.replace(0, 7);
        assert_eq!((memory.changes(), memory.dirty()), (317, 8192));
        drop(one);
        memory.replace(7, 2);
        assert_eq!((memory.changes(), memory.dirty()), (12, 0));
        drop(other);
        assert_eq!((memory.changes(), memory.dirty()), (2, 0));
        Account::default().settle(5, 5);
    }
}
