//! Finds out whether there can be rings, and for which processors.

use std::io;

/// The kernel's switch for FUSE over `io_uring`.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// The most rings, since each takes a thread.
const MAX_PROCESSORS: usize = 512;

/// Why requests don't come over rings.
#[derive(Debug, thiserror::Error)]
pub enum NoRing {
    /// The kernel's FUSE does not support them.
    #[error("the kernel's FUSE knows no io_uring (Linux 6.14 and later may)")]
    Kernel,
    /// The kernel's switch is off.
    #[error("the kernel's switch for it, {file}, is off")]
    Switch {
        /// Its file.
        file: &'static str,
    },
    /// There is no telling for how many processors rings are needed, or there are too many.
    #[error("the number of processors can't be reported, or is too large")]
    Processors,
    /// The kernel or a sandbox refuses rings or their memory.
    #[error("io_uring")]
    Refused(#[from] io::Error),
}

impl NoRing {
    /// Why the kernel did not offer rings at INIT.
    pub fn not_offered() -> Self {
        match std::fs::read_to_string(SWITCH) {
            Ok(value) if value.trim() != "Y" => Self::Switch { file: SWITCH },
            // This includes that the switch was turned on after the mount.
            _ => Self::Kernel,
        }
    }
}

/// Returns whether each processor for which the kernel wants a queue is online, in the order of the
/// queues.
pub fn processors() -> Result<Vec<bool>, NoRing> {
    let read = |path| std::fs::read_to_string(path).ok().and_then(|text| parse(text.trim()));
    let possible = read(POSSIBLE).ok_or(NoRing::Processors)?;
    let online = read(ONLINE).unwrap_or_else(|| possible.clone());
    // Queues are numbered like processors. If the numbers of processors have gaps, the last
    // processors have no queue.
    Ok((0..possible.len()).map(|number| online.contains(&number)).collect())
}

/// Numbers in a list like `0-3,8`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= usize::from(u16::MAX) {
            return None;
        }
        numbers.extend(first..=last);
    }
    (numbers.len() <= MAX_PROCESSORS).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-1"), Some(vec![0, 1]));
        assert_eq!(parse("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        for bad in ["", "a", "1-", "3-1", "0-99999999999", "0-511,513"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(!processors().unwrap_or_default().is_empty());
    }
}
