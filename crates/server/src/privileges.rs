//! What a caller may do, where the kernel leaves that to the server.
//!
//! Invariant 27: what the kernel's driver refuses to a caller is refused here, whatever the
//! request's number or name. The kernel checks permissions of most requests before it sends them
//! (`default_permissions`). An ioctl that it does not know it passes on from any process that has
//! the file open, for reading too. So each request that the kernel's driver would ask a capability
//! or the owner for, and that FUSE passes on unchecked, is checked by the [`Powers`] of its caller.

use ubtrfs_fuse::Caller;
use ubtrfs_fuse::abi::UNTOLD_ID;

/// What Linux calls the powers that some requests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    /// `CAP_FOWNER`: to be taken for the owner of everything.
    FileOwner = 3,
    /// `CAP_FSETID`: set-id bits stay where this one writes.
    SetIdBits = 4,
    /// `CAP_LINUX_IMMUTABLE`: to make files immutable or append-only, and to end that.
    Immutable = 9,
    /// `CAP_SYS_ADMIN`: to do what concerns the whole volume.
    Administrator = 21,
}

/// Who a caller is and what it is capable of, in the user namespace of the mount. Nobody is anybody
/// who can't be seen, being in another pid namespace.
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
        if caller.uid != UNTOLD_ID && user != Some(caller.uid) {
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

    /// Whether it leaves set-group-id on a file of this group that the group may not execute.
    pub(crate) fn keeps_group_id(&self, group: u32) -> bool {
        self.groups.contains(&group) || self.has(Capability::SetIdBits)
    }
}

/// Capabilities in a user namespace that a user made for himself are no capabilities here.
fn is_of_our_user_namespace(pid: u32) -> bool {
    let name = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let ids = |process: &str| std::fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
    let pid = pid.to_string();
    match name(&pid) {
        Some(theirs) => name("self") == Some(theirs),
        // A server that is not root's may not ask who has more powers than it has. But nobody makes
        // a namespace with the ids of this one without having all powers here.
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
    fn an_owner_without_capabilities_owns_what_is_its_own() {
        let owner = Powers { user: Some(7), groups: vec![8], capabilities: 0 };
        assert!(owner.owns(7) && !owner.owns(8) && owner.keeps_group_id(8) && !owner.keeps_group_id(7));
    }
}
