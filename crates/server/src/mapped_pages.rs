//! Makes dirty pages of mappings part of a sync.
//!
//! From Linux 6.18 on, sync(2) and syncfs(2) send SYNCFS. But sync(2) only wakes the kernel's
//! writeback of a FUSE mount and does not wait for it, so SYNCFS may arrive before the pages do.
//! (syncfs(2) and remounts have written them by then.) So the server has the kernel write dirty
//! pages before it commits: all of them at once, by a sync of the block device that is the mount's
//! source. No clean page is dropped by that.
//!
//! Such a sync needs a lock for which a remount or unmount may be waiting already, which in turn
//! waits for the sync(2) that is being served. If the sync does not succeed soon, the server has
//! the kernel write and drop the pages file by file instead.
//!
//! So a commit that answers SYNCFS begins only after the pages that were dirty when SYNCFS was sent
//! have been written.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_threads::mpsc::channel;
use ubtrfs_threads::{Mutex, OnceLock, Rank, thread};

/// The time in which the kernel writes all pages, unless something blocks it or there are many.
const TIME_TO_WRITE: Duration = Duration::from_secs(2);

type WriteAll = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// The function by which the kernel is made to write pages, and the threads that call it.
pub struct MappedPages {
    write_all: OnceLock<WriteAll>,
    /// The threads that call it; the kernel sends a SYNCFS from each of them.
    own: Mutex<HashSet<u32>>,
}

impl Default for MappedPages {
    fn default() -> Self {
        Self { write_all: OnceLock::default(), own: Mutex::with_default(Rank::MappedPages) }
    }
}

impl MappedPages {
    /// Sets the function that has the kernel write all dirty pages of the mount.
    pub fn set(&self, write_all: impl Fn() -> std::io::Result<()> + Send + Sync + 'static) {
        let _ = self.write_all.set(Box::new(write_all));
    }

    /// Returns whether a SYNCFS of this caller is the consequence of [`write`](Self::write).
    pub fn is_own(&self, caller: u32) -> bool {
        // The kernel gives the numbers of threads in the pid namespace of the process that has
        // mounted. Processes that have no number there are shown as zero, and none of them is one
        // of our threads.
        self.own.lock().contains(&caller)
    }

    /// Has the kernel write the dirty pages of mappings before the SYNCFS of `caller` is served. If
    /// that does not work otherwise, this calls `take_all`, which has the kernel write and drop the
    /// pages of each file.
    pub fn write(self: &Arc<Self>, caller: u32, take_all: impl FnOnce()) {
        if self.write_all.get().is_none() || is_in_sync(caller) == Some(false) {
            return;
        }
        let (done, is_done) = channel();
        let pages = Arc::clone(self);
        let started = thread::Builder::new().name("pages".into()).spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            pages.own.lock().insert(own);
            let written = pages.write_all.get().is_some_and(|write_all| write_all().is_ok());
            pages.own.lock().remove(&own);
            let _ = done.send(written);
        });
        if started.is_err() || is_done.recv_timeout(TIME_TO_WRITE) != Ok(true) {
            tracing::debug!("dirty pages are taken file by file");
            take_all();
        }
    }
}

/// Returns whether a thread of any process is in sync(2); `None` if that is unknown.
fn is_in_sync(thread: u32) -> Option<bool> {
    /// The number of the system call for the architecture's own programs, and 36 for programs of 32
    /// bits. In other programs 36 is no call that syncs.
    const SYNC: [i64; 2] = [if cfg!(any(target_arch = "x86_64")) { 162 } else { 81 }, 36];
    let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let number = call.split_whitespace().next()?.parse().ok()?;
    Some(SYNC.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_threads_ask_in_vain() {
        let (pages, asked) = (Arc::new(MappedPages::default()), Arc::new(Mutex::new(Rank::Stream, Vec::new())));
        let (inner, seen) = (Arc::downgrade(&pages), Arc::clone(&asked));
        pages.set(move || {
            let pages = inner.upgrade().unwrap();
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            // Processes of other pid namespaces are shown as zero.
            *seen.lock() = vec![pages.is_own(own), pages.is_own(own + 1), pages.is_own(0)];
            Ok(())
        });
        pages.write(0, || panic!("all is written"));
        assert_eq!(*asked.lock(), [true, false, false]);
        pages.write(std::process::id(), || panic!("its caller is in no sync(2)"));
    }

    #[test]
    fn pages_that_the_kernel_does_not_write_are_taken() {
        let pages = Arc::new(MappedPages::default());
        pages.set(|| Err(rustix::io::Errno::IO.into()));
        let mut taken = false;
        pages.write(0, || taken = true);
        assert!(taken);
    }

    #[test]
    fn the_call_that_a_thread_is_in_is_known_while_it_sleeps() {
        let (sender, numbers) = channel();
        let (end, ended) = channel::<()>();
        let thread = thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        let id = numbers.recv().unwrap();
        while is_in_sync(id).is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(is_in_sync(id), Some(false));
        drop(end);
        thread.join().unwrap();
        assert_eq!(is_in_sync(0), None);
    }
}
