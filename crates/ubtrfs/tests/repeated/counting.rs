//! An allocator that counts the bytes that are live, their maximum, and all allocations.

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

// SAFETY: the system's allocator gets all calls, with unchanged arguments.
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

/// Returns the number of live bytes.
pub fn live() -> u64 {
    LIVE.load(Relaxed)
}

/// Returns the maximum of live bytes since the last call of [`reset_peak`].
pub fn peak() -> u64 {
    PEAK.load(Relaxed)
}

/// Sets the maximum to the bytes that are live now.
pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}

/// Returns the number of allocations, and their bytes.
pub fn asked() -> (u64, u64) {
    (CALLS.load(Relaxed), BYTES.load(Relaxed))
}
