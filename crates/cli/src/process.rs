//! Processes, according to `/proc`.

use std::os::fd::BorrowedFd;

use rustix::io::FdFlags;

/// Returns when a process started, in clock ticks of the kernel: the 22nd field of its `stat`. The
/// second field, the name in parentheses, may contain any characters.
pub fn started(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Marks all descriptors of this process close-on-exec, so that the programs that it executes do
/// not get the files, locks and pipes which it has inherited.
pub fn keep_descriptors() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|number| *number > 2) {
        // SAFETY: the descriptor is only marked. If it has been closed meanwhile, as the
        // directory's own, the call fails.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_started_once() {
        let own = super::started("self");
        assert!(own.is_some());
        assert_eq!(own, super::started(&std::process::id().to_string()));
        assert_eq!(super::started("0"), None);
    }
}
