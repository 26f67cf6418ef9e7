//! Memory for device I/O: aligned so that `O_DIRECT` can use it, recycled so that a commit
//! allocates little.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use ubtrfs_threads::Rank;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::counted_lock::{CountedMutex, LockCounters};

/// Alignment of buffers in bytes. Addresses and lengths of device writes are multiples of it, too.
pub const ALIGNMENT: usize = 4096;

/// Buffers of more pages than this are not recycled.
const POOLED_PAGES: usize = 256;
/// The most bytes that the pool keeps.
const POOL_BYTES: usize = 8 << 20;

#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Returned buffers by the binary logarithm of their page count.
struct Pool {
    classes: [Vec<Vec<Page>>; POOLED_PAGES.ilog2() as usize + 1],
    bytes: usize,
}

static POOL: CountedMutex<Pool> =
    CountedMutex::new(Rank::BufferPool, Pool { classes: [const { Vec::new() }; 9], bytes: 0 });

/// Heap memory aligned to 4096 bytes; it returns to a small pool when dropped.
pub struct Buffer {
    pages: Vec<Page>,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::for_reading(len);
        buffer.fill(0);
        buffer
    }

    /// A buffer of `len` bytes whose content is not specified: zeros, or what an earlier user of
    /// the memory left. It is for reads, which fill it entirely.
    pub fn for_reading(len: usize) -> Self {
        let pages = pages_of(len);
        Self { pages: recycled(pages).unwrap_or_else(|| zeroed_pages(pages)), len }
    }

    /// Returns how often the lock of the pool was taken. All volumes of the process share the pool.
    pub fn pool_counters() -> LockCounters {
        POOL.counters()
    }

    /// Makes the buffer immutable and cheap to clone and slice.
    pub fn share(self) -> SharedBuffer {
        let range = 0..self.len;
        SharedBuffer { owner: Arc::new(Owner::Aligned(self)), range }
    }
}

/// Returns how many pages a buffer of `len` bytes gets. The count is rounded up to a power of two,
/// so that the pool has pages of few sizes.
fn pages_of(len: usize) -> usize {
    let pages = len.div_ceil(ALIGNMENT).max(1);
    if pages > POOLED_PAGES { pages } else { pages.next_power_of_two() }
}

/// Takes that many pages from the pool, if it has them. They still hold what an earlier user left.
fn recycled(pages: usize) -> Option<Vec<Page>> {
    if pages > POOLED_PAGES {
        return None;
    }
    let mut pool = POOL.lock();
    let recycled = pool.classes.get_mut(pages.ilog2() as usize).and_then(Vec::pop)?;
    pool.bytes = pool.bytes.saturating_sub(pages * ALIGNMENT);
    Some(recycled)
}

fn zeroed_pages(count: usize) -> Vec<Page> {
    Page::new_vec_zeroed(count).unwrap_or_else(|_| vec![Page([0; ALIGNMENT]); count])
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        if pages.is_empty() || !pages.len().is_power_of_two() {
            return;
        }
        let mut pool = POOL.lock();
        if pool.bytes + pages.len() * ALIGNMENT <= POOL_BYTES {
            let bytes = pages.len() * ALIGNMENT;
            if let Some(class) = pool.classes.get_mut(pages.len().ilog2() as usize) {
                class.push(pages);
                pool.bytes += bytes;
            }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl From<&[u8]> for Buffer {
    /// A copy of the bytes. New memory is not zeroed first if the bytes fill it.
    fn from(bytes: &[u8]) -> Self {
        let (len, pages) = (bytes.len(), pages_of(bytes.len()));
        let (whole, rest) = bytes.as_chunks();
        let pages = match recycled(pages) {
            None if rest.is_empty() && whole.len() == pages => {
                return Self { pages: whole.iter().map(|bytes| Page(*bytes)).collect(), len };
            }
            None => zeroed_pages(pages),
            Some(pages) => pages,
        };
        let mut buffer = Self { pages, len };
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[derive(Debug)]
enum Owner {
    Aligned(Buffer),
    Plain(Vec<u8>),
}

impl Deref for Owner {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Aligned(buffer) => buffer,
            Self::Plain(bytes) => bytes,
        }
    }
}

impl Clone for Owner {
    /// Copies the bytes to aligned memory.
    fn clone(&self) -> Self {
        Self::Aligned(Buffer::from(&**self))
    }
}

/// A part of an immutable buffer that several users share. A write keeps the buffer alive until it
/// is done.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    owner: Arc<Owner>,
    range: Range<usize>,
}

impl SharedBuffer {
    /// A part of this part.
    ///
    /// # Panics
    /// When `range` reaches beyond the end: as in slicing, the caller is responsible for its
    /// arithmetic.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "a slice beyond the end of its buffer");
        Self { owner: Arc::clone(&self.owner), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// Returns the bytes for writing. If any part of the buffer is shared, this copies the whole
    /// buffer first, since the memory of a write in flight must not change.
    pub fn to_mut(&mut self) -> &mut [u8] {
        let whole = match Arc::make_mut(&mut self.owner) {
            Owner::Aligned(buffer) => &mut **buffer,
            Owner::Plain(bytes) => bytes,
        };
        &mut whole[self.range.clone()]
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.owner[self.range.clone()]
    }
}

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for SharedBuffer {
    /// Takes the memory as it is. If it is not aligned, a direct write copies it.
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(Owner::Plain(bytes)), range }
    }
}

impl From<Buffer> for SharedBuffer {
    fn from(buffer: Buffer) -> Self {
        buffer.share()
    }
}

/// Returns whether the address and length of memory are aligned for direct I/O.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) && bytes.len().is_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero_even_when_recycled() {
        for len in [1, 4096, 5000, 16384, 65536, 3 << 20] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
            buffer.fill(0xff);
            drop(buffer);
            assert!(Buffer::zeroed(len).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn copies_have_the_bytes_whatever_memory_they_get() {
        for len in [0, 1, 4096, 5000, 12288, 16384, 2 << 20] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for _ in 0..2 {
                let copy = Buffer::from(&bytes[..]);
                assert_eq!(&copy[..], bytes);
                assert_eq!(copy.as_ptr() as usize % ALIGNMENT, 0);
            }
        }
    }

    #[test]
    fn slices_of_slices_see_the_right_bytes() {
        let shared: SharedBuffer = (0..100).collect::<Vec<u8>>().into();
        let inner = shared.slice(10..50).slice(5..10);
        assert_eq!(&*inner, &[15, 16, 17, 18, 19]);
        assert!(is_aligned(&Buffer::zeroed(8192).share().slice(4096..8192)));
    }

    #[test]
    fn what_others_hold_is_copied_before_it_changes() {
        for mut shared in [Buffer::zeroed(8192).share(), SharedBuffer::from(vec![0; 8192])] {
            let place = shared.as_ptr();
            shared.to_mut()[4096] = 1;
            assert_eq!(shared.as_ptr(), place, "nobody else held it");
            let mut half = shared.slice(4096..8192);
            half.to_mut()[0] = 2;
            assert_eq!((half.len(), half[0], shared[4096]), (4096, 2, 1));
            assert!(is_aligned(&half));
        }
    }

    #[test]
    #[should_panic(expected = "beyond the end")]
    fn a_slice_may_not_grow() {
        let _ = Buffer::zeroed(10).share().slice(0..5).slice(0..6);
    }
}
