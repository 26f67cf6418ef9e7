//! Looks up in `/proc` what FUSE does not say about a caller's open file.
//!
//! While the caller waits for its answer, the kernel shows the arguments of the system call that it
//! waits in, the descriptor among them. Another thread of the caller may give that number to
//! another open file meanwhile. Then the new open file counts if it is one of the same file, since
//! the caller could have used it as well.

mod durability;
mod id_map;
mod mount;
mod statmount;

pub use durability::copies_durably;
pub use id_map::IdMaps;
pub use mount::{Asked, CallerMount, mount_of};
pub(crate) use statmount::UNIQUE_ID;

/// The arguments in a line of `/proc/PID/syscall`.
fn arguments(line: &str) -> impl Iterator<Item = u64> {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    line.split_whitespace().skip(1).map_while(number)
}
