//! What FUSE does not tell of a caller's open file, looked up in `/proc`.
//!
//! The caller waits for its answer, and the kernel shows the arguments of the system call that it
//! waits in, the descriptor among them. Another thread of the caller may give that number to
//! another open file meanwhile; then that one counts if it is of the same file, since the caller
//! could have used it as well.

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
