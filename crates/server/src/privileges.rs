//! Who asks, where the request doesn't tell.

use ubtrfs_fuse::Caller;

/// `CAP_FOWNER`: to be taken for the owner of everything.
const FILE_OWNER: u64 = 1 << 3;

/// Whether `owner` asks, or root with the power to do what only an owner may. Nobody is taken for either who can't be seen, being in another pid namespace.
///
/// Where idmapped mounts are allowed, requests that create nothing name only the thread, which waits for the answer.
pub(crate) fn owns(owner: u32, caller: &Caller<'_>) -> bool {
    if caller.pid == 0 {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    file_system_user(&status).is_some_and(|user| user == owner || user == 0 && capabilities(&status) & FILE_OWNER != 0)
}

/// The last of the four numbers behind `Uid:`: real, effective, saved, file-system user.
fn file_system_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(3)?.parse().ok()
}

/// The effective capabilities.
fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
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

    #[test]
    fn capabilities_are_hexadecimal() {
        assert_eq!(capabilities("CapPrm:\t1\nCapEff:\t000001ffffffffff\n") & FILE_OWNER, FILE_OWNER);
        assert_eq!(capabilities("CapEff:\t0000000000000007\n") & FILE_OWNER, 0);
        assert_eq!(capabilities("CapEff:\tnone\n"), 0);
    }
}
