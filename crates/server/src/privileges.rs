//! Who asks, where the request doesn't tell.

use ubtrfs_fuse::Caller;

/// Whether root asks, or `owner`. Nobody is taken for either who can't be seen, being in another pid namespace.
///
/// Where idmapped mounts are allowed, requests that create nothing name only the thread, which waits for the answer.
pub(crate) fn is_root_or(owner: u32, caller: &Caller<'_>) -> bool {
    if caller.pid == 0 {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    file_system_user(&status).is_some_and(|user| user == 0 || user == owner)
}

/// The last of the four numbers behind `Uid:`: real, effective, saved, file-system user.
fn file_system_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_the_file_system_user() {
        assert_eq!(file_system_user("Name:\tsh\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"), Some(4));
        assert_eq!(file_system_user("Name:\tUid:\n"), None);
        assert_eq!(file_system_user("Uid:\t1\n"), None);
    }
}
