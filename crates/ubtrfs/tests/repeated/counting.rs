//! An allocator that counts: the bytes that are live, the most that ever were, and how much was
//! asked for in all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

/// The system's allocator, counted.
struct Counting;

// SAFETY: all is done by the system's allocator, with the arguments as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps what `alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps what `alloc_zeroed` asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `at` came from the system's allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `at` came from the system's allocator, with this layout.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn add(bytes: usize) {
    let bytes = bytes as u64;
    CALLS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

/// Bytes that are live.
pub fn live() -> u64 {
    LIVE.load(Relaxed)
}

/// The most bytes that were live since the last call of [`reset_peak`].
pub fn peak() -> u64 {
    PEAK.load(Relaxed)
}

/// Begins a new peak.
pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}

/// How often memory was asked for, and how many bytes.
pub fn asked() -> (u64, u64) {
    (CALLS.load(Relaxed), BYTES.load(Relaxed))
}
