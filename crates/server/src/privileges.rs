//! What a caller may do, where the kernel leaves that to the server.
//!
//! What the kernel's driver refuses to a caller is refused here, whatever the request's number or
//! name (invariant 27). The kernel checks permissions of most requests before it sends them
//! (`default_permissions`). An ioctl that it does not know it passes on from any process that has
//! the file open, for reading too. So each request that the kernel's driver would ask a capability
//! or the owner for, and that FUSE passes on unchecked, is checked by the [`Powers`] of its caller.

use ubtrfs_fuse::Caller;
use ubtrfs_fuse::abi::UNKNOWN_ID;

/// What Linux calls the powers that some requests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    /// `CAP_DAC_OVERRIDE`: permissions of files don't count.
    Override = 1,
    /// `CAP_DAC_READ_SEARCH`: those to read files and to search directories don't count.
    ReadSearch = 2,
    /// `CAP_FOWNER`: to act as the owner of every file.
    FileOwner = 3,
    /// `CAP_FSETID`: set-id bits stay where this one writes.
    SetIdBits = 4,
    /// `CAP_LINUX_IMMUTABLE`: to make files immutable or append-only, and to end that.
    Immutable = 9,
    /// `CAP_SYS_ADMIN`: to do what concerns the whole volume.
    Administrator = 21,
}

/// A caller's ids and capabilities, in the user namespace of the mount. A caller in another pid
/// namespace is invisible and has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Powers {
    user: Option<u32>,
    groups: Vec<u32>,
    capabilities: u64,
}

impl Powers {
    /// The powers of a caller. It waits for its answer meanwhile, and so stays what it is.
    ///
    /// Where idmapped mounts are allowed, requests that create nothing name only the thread.
    pub(crate) fn of(caller: &Caller<'_>) -> Self {
        if caller.pid == 0 {
            return Self::default();
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
        let user = last_of_four(&status, "Uid:");
        if caller.uid != UNKNOWN_ID && user != Some(caller.uid) {
            // It acts in another user's name, as a file server in the kernel does: with that one's
            // rights, not with its own.
            return Self { user: Some(caller.uid), ..Self::default() };
        }
        let groups = last_of_four(&status, "Gid:").into_iter().chain(numbers(&status, "Groups:")).collect();
        let capabilities = if is_of_our_user_namespace(caller.pid) { capabilities(&status) } else { 0 };
        Self { user, groups, capabilities }
    }

    /// Whether it has a capability that counts on this mount.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u32 != 0
    }

    /// Whether it is `owner` or may do what only an owner may.
    pub(crate) fn owns(&self, owner: u32) -> bool {
        self.user == Some(owner) || self.has(Capability::FileOwner)
    }

    /// Whether it may do what concerns the whole volume. Who has mounted a volume without root has
    /// the image, and could change it anyway.
    pub(crate) fn administers(&self) -> bool {
        let mounter = rustix::process::geteuid();
        self.has(Capability::Administrator) || !mounter.is_root() && self.user == Some(mounter.as_raw())
    }

    /// User and group that a new file belongs to.
    pub(crate) fn ids(&self) -> Option<(u32, u32)> {
        Some((self.user?, *self.groups.first()?))
    }

    /// Whether it is this user.
    pub(crate) fn is_user(&self, user: u32) -> bool {
        self.user == Some(user)
    }

    /// Whether it is in this group.
    pub(crate) fn is_in_group(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }

    /// Whether it leaves set-group-id on a file of this group that the group may not execute.
    pub(crate) fn keeps_group_id(&self, group: u32) -> bool {
        self.is_in_group(group) || self.has(Capability::SetIdBits)
    }
}

/// The user of a process; `None` if it is not visible.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok().filter(|_| pid != 0)?;
    last_of_four(&status, "Uid:")
}

/// The umask of a process; what is usual if it is not visible.
pub(crate) fn umask(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o022)
}

/// Capabilities in a user namespace that a user made for himself are no capabilities here.
fn is_of_our_user_namespace(pid: u32) -> bool {
    let name = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let ids = |process: &str| std::fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
    let pid = pid.to_string();
    match name(&pid) {
        Some(theirs) => name("self") == Some(theirs),
        // A server that is not root's may not inspect a process with more capabilities. But only a
        // process with all capabilities here can make a namespace with the ids of this one.
        None => ids(&pid).is_some_and(|theirs| ids("self") == Some(theirs)),
    }
}

fn numbers(status: &str, head: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(head)).unwrap_or_default();
    line.split_whitespace().filter_map(|number| number.parse().ok())
}

/// The last of four ids: real, effective, saved, and that which counts for file systems.
fn last_of_four(status: &str, head: &str) -> Option<u32> {
    numbers(status, head).nth(3)
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
    fn the_last_of_the_ids_is_the_one_for_file_systems() {
        let status = "Name:\tsh\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        assert_eq!((last_of_four(status, "Uid:"), last_of_four(status, "Gid:")), (Some(4), Some(8)));
        assert_eq!(numbers(status, "Groups:").collect::<Vec<_>>(), [9, 10]);
        assert_eq!(last_of_four("Name:\tUid:\n", "Uid:"), None);
        assert_eq!(last_of_four("Uid:\t1\n", "Uid:"), None);
    }

    #[test]
    fn capabilities_are_hexadecimal() {
        let powers = |status| Powers { capabilities: capabilities(status), ..Powers::default() };
        let all = powers("CapPrm:\t1\nCapEff:\t000001ffffffffff\n");
        assert!(all.has(Capability::FileOwner) && all.has(Capability::Administrator) && all.owns(7));
        let some = powers("CapEff:\t0000000000000007\n");
        assert!(!some.has(Capability::FileOwner) && !some.owns(0));
        assert_eq!(capabilities("CapEff:\tnone\n"), 0);
    }

    #[test]
    fn who_is_not_seen_owns_nothing() {
        let nobody = Powers::default();
        assert!(!nobody.owns(0) && !nobody.owns(u32::MAX) && !nobody.keeps_group_id(0));
        assert!(!nobody.has(Capability::Immutable));
    }

    #[test]
    fn an_owner_without_capabilities_owns_its_files() {
        let owner = Powers { user: Some(7), groups: vec![8], capabilities: 0 };
        assert!(owner.owns(7) && !owner.owns(8) && owner.keeps_group_id(8) && !owner.keeps_group_id(7));
    }
}
