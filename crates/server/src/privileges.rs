//! Finds out what a caller may do, where the kernel leaves that to the server.
//!
//! The server refuses to a caller what the kernel's driver would refuse, whatever the request's
//! number or name (invariant 27). The kernel checks permissions of most requests before it sends
//! them (`default_permissions`). But it passes on an ioctl that it does not know from any process
//! that has the file open, even for reading only. So the server checks each request for which the
//! kernel's driver requires a capability or the owner, and which FUSE passes on unchecked, by the
//! [`Powers`] of its caller.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_fuse::abi::UNKNOWN_ID;
use ubtrfs_fuse::caller_file::IdMaps;
use ubtrfs_fuse::{Caller, Errno};

/// The capabilities of Linux that some requests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    /// `CAP_DAC_OVERRIDE`: permissions of files don't apply.
    Override = 1,
    /// `CAP_DAC_READ_SEARCH`: permissions to read files and to search directories don't apply.
    ReadSearch = 2,
    /// `CAP_FOWNER`: to act as the owner of every file.
    FileOwner = 3,
    /// `CAP_FSETID`: set-id bits stay when this process writes.
    SetIdBits = 4,
    /// `CAP_LINUX_IMMUTABLE`: to make files immutable or append-only, and to end that.
    Immutable = 9,
    /// `CAP_SYS_ADMIN`: to do what concerns the whole volume.
    Administrator = 21,
}

/// A caller's ids and capabilities, in the user namespace of the mount. A caller in another pid
/// namespace is invisible, and counts as having none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Powers {
    user: Option<u32>,
    groups: Vec<u32>,
    capabilities: u64,
    /// Its capabilities in a user namespace of its own.
    inside: Inside,
    /// How the mount through which it calls shows ids.
    ids: IdMaps,
}

/// Capabilities in another user namespace. They apply to inodes whose ids are mapped into that
/// namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Inside {
    capabilities: u64,
    users: Vec<Range<u32>>,
    groups: Vec<Range<u32>>,
}

impl Inside {
    fn of(pid: u32, status: &str) -> Self {
        let ids = |name: &str| mapped(&file_of(pid, name).unwrap_or_default());
        Self { capabilities: capabilities(status), users: ids("uid_map"), groups: ids("gid_map") }
    }

    fn has(&self, capability: Capability, user: u32) -> bool {
        self.capabilities & 1 << capability as u32 != 0 && self.users.iter().any(|ids| ids.contains(&user))
    }

    fn has_group(&self, group: u32) -> bool {
        self.groups.iter().any(|ids| ids.contains(&group))
    }
}

/// The ids of our user namespace that a map of `/proc` contains.
fn mapped(map: &str) -> Vec<Range<u32>> {
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().skip(1).map(str::parse);
        let (first, count): (u32, u32) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(first..first.saturating_add(count))
    };
    map.lines().filter_map(range).collect()
}

impl Powers {
    /// The powers of a caller. They don't change meanwhile, since the caller waits for its answer.
    ///
    /// Where idmapped mounts are allowed, requests that create nothing have only the thread's
    /// number.
    pub(crate) fn of(caller: &Caller<'_>) -> Self {
        if caller.pid == 0 {
            return Self::default();
        }
        let status = file_of(caller.pid, "status").unwrap_or_default();
        let user = last_of_four(&status, "Uid:");
        if caller.uid != UNKNOWN_ID && user != Some(caller.uid) {
            // The caller acts in the name of another user, as a file server in the kernel does: it
            // has the rights of that user, not its own.
            return Self { user: Some(caller.uid), ..Self::default() };
        }
        let groups = last_of_four(&status, "Gid:").into_iter().chain(numbers(&status, "Groups:")).collect();
        let (capabilities, inside) = if is_of_our_user_namespace(caller.pid) {
            (capabilities(&status), Inside::default())
        } else {
            (0, Inside::of(caller.pid, &status))
        };
        Self { user, groups, capabilities, inside, ids: IdMaps::default() }
    }

    /// The powers of a caller through a mount that shows ids by these maps.
    pub(crate) fn on(caller: &Caller<'_>, ids: IdMaps) -> Self {
        Self { ids, ..Self::of(caller) }
    }

    /// Returns whether it has a capability that applies to the whole mount.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u32 != 0
    }

    /// Returns whether the mount through which it calls can show these ids.
    pub(crate) fn sees(&self, user: u32, group: u32) -> bool {
        self.ids.shown_user(user).is_some() && self.ids.shown_group(group).is_some()
    }

    /// Returns whether it has a capability that applies to an inode of these ids.
    pub(crate) fn has_for(&self, capability: Capability, user: u32, group: u32) -> bool {
        let (Some(user), Some(group)) = (self.ids.shown_user(user), self.ids.shown_group(group)) else { return false };
        self.has(capability) || self.inside.has(capability, user) && self.inside.has_group(group)
    }

    /// Returns whether it is the user `owner`, or may do what only an owner may.
    pub(crate) fn owns(&self, owner: u32) -> bool {
        let Some(shown) = self.ids.shown_user(owner) else { return false };
        self.is_user(owner) || self.has(Capability::FileOwner) || self.inside.has(Capability::FileOwner, shown)
    }

    /// Returns whether it may do what concerns the whole volume. That includes a user who has
    /// mounted without being root: he has the image, and could change it anyway.
    pub(crate) fn administers(&self) -> bool {
        let mounter = rustix::process::geteuid();
        self.has(Capability::Administrator) || !mounter.is_root() && self.user == Some(mounter.as_raw())
    }

    /// The user and group of a new file. `EPERM` if the caller is not visible, `EOVERFLOW` if there
    /// are no ids that the mount would show as the caller's.
    pub(crate) fn ids(&self) -> Result<(u32, u32), Errno> {
        let (user, group) = self.user.zip(self.groups.first().copied()).ok_or(Errno::PERM)?;
        self.ids.user(user).zip(self.ids.group(group)).ok_or(Errno::OVERFLOW)
    }

    /// Returns whether the mount through which it calls is idmapped.
    pub(crate) fn is_idmapped(&self) -> bool {
        self.ids.is_mapped()
    }

    /// Returns whether it is this user.
    pub(crate) fn is_user(&self, user: u32) -> bool {
        self.user.is_some() && self.user == self.ids.shown_user(user)
    }

    /// Returns whether it is in this group.
    pub(crate) fn is_in_group(&self, group: u32) -> bool {
        self.ids.shown_group(group).is_some_and(|shown| self.groups.contains(&shown))
    }

    /// Returns whether it may keep set-group-id on a file of this group that the group may not
    /// execute.
    pub(crate) fn keeps_group_id(&self, group: u32) -> bool {
        self.is_in_group(group) || self.has(Capability::SetIdBits)
    }
}

/// How many files of callers in `/proc` were read. Each read takes some 30 µs, more than most
/// requests.
static READ: AtomicU64 = AtomicU64::new(0);

/// How many files of callers in `/proc` this process has read.
pub(crate) fn files_read() -> u64 {
    READ.load(Ordering::Relaxed)
}

/// Reads a file of a process in `/proc`; `None` if the process is not visible.
fn file_of(pid: u32, name: &str) -> Option<String> {
    READ.fetch_add(1, Ordering::Relaxed);
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok()
}

/// The user of a process for file systems; `None` if the process is not visible.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = file_of(pid, "status").filter(|_| pid != 0)?;
    last_of_four(&status, "Uid:")
}

/// The umask of a process; 022 if the process is not visible.
pub(crate) fn umask(pid: u32) -> u32 {
    let status = file_of(pid, "status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o022)
}

/// Returns whether a process is in our user namespace. Its capabilities in another one, which any
/// user can make, don't apply here.
fn is_of_our_user_namespace(pid: u32) -> bool {
    let name = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let ids = |process: &str| std::fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
    let pid = pid.to_string();
    match name(&pid) {
        Some(theirs) => name("self") == Some(theirs),
        // A server that does not run as root may not inspect a process with more capabilities. But
        // only a process with all capabilities here can make another namespace with the same id
        // map.
        None => ids(&pid).is_some_and(|theirs| ids("self") == Some(theirs)),
    }
}

fn numbers(status: &str, head: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(head)).unwrap_or_default();
    line.split_whitespace().filter_map(|number| number.parse().ok())
}

/// The last of four ids: real, effective, saved, and the one for file systems.
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
        let owner = Powers { user: Some(7), groups: vec![8], ..Powers::default() };
        assert!(owner.owns(7) && !owner.owns(8) && owner.keeps_group_id(8) && !owner.keeps_group_id(7));
    }

    /// Invariant 40.
    #[test]
    fn through_an_idmapped_mount_the_ids_count_that_it_shows() {
        let map = || ["0 5000 100"].into_iter();
        let ids = IdMaps::parse(map(), map()).expect("a map");
        let seven = Powers { user: Some(5007), groups: vec![5008], ids: ids.clone(), ..Powers::default() };
        assert!(seven.owns(7) && !seven.owns(5007) && seven.is_in_group(8) && !seven.is_in_group(5008));
        assert_eq!(seven.ids(), Ok((7, 8)));
        let other = Powers { user: Some(7), groups: vec![8], ids: ids.clone(), ..Powers::default() };
        assert!(!other.owns(7) && other.ids() == Err(Errno::OVERFLOW));
        let root = Powers { user: Some(0), groups: vec![0], capabilities: u64::MAX, ids, ..Powers::default() };
        assert!(root.owns(7) && root.has_for(Capability::Override, 7, 8));
        assert!(root.sees(7, 8) && !root.sees(200, 8) && !root.sees(7, 200));
        assert!(!root.owns(200) && !root.has_for(Capability::Override, 7, 200), "it shows nobody in their place");
    }

    #[test]
    fn capabilities_of_another_user_namespace_count_for_the_ids_that_it_has() {
        let inside =
            Inside { capabilities: u64::MAX, users: mapped("0 1000 1\n1 2000 2\n"), groups: mapped("0 1000 1") };
        let root_there = Powers { user: Some(1000), groups: vec![1000], inside, ..Powers::default() };
        assert!(root_there.owns(2001) && !root_there.owns(2002) && !root_there.owns(0));
        assert!(root_there.has_for(Capability::Override, 2000, 1000));
        assert!(!root_there.has_for(Capability::Override, 2000, 2000), "the group is not there");
        assert!(!root_there.has(Capability::FileOwner) && !root_there.administers());
        assert_eq!(mapped("odd"), []);
    }
}
