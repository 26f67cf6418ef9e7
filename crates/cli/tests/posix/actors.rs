//! The actors. Credentials belong to threads, so each action runs in a thread of its own.

use rustix::fs::Mode;
use rustix::process::{Gid, Uid, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, unshare_unsafe,
};

/// The owner of most objects of the tables.
pub const OWNER: u32 = 1000;
/// The group of most objects of the tables.
pub const GROUP: u32 = 1000;
/// Another group, of which the owner is a member.
pub const SECOND_GROUP: u32 = 2000;

/// A user that acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    Root,
    /// User 0 without root's capabilities, who is an ordinary user.
    PowerlessRoot,
    Owner,
    /// A member of the file's group by its primary group.
    Member,
    /// A member of the file's group by a supplementary one.
    Supplementary,
    Other,
}

impl Actor {
    pub const ALL: [Self; 6] =
        [Self::Root, Self::PowerlessRoot, Self::Owner, Self::Member, Self::Supplementary, Self::Other];

    fn ids(self) -> (u32, u32, Vec<u32>) {
        match self {
            Self::Root | Self::PowerlessRoot => (0, 0, vec![]),
            Self::Owner => (OWNER, GROUP, vec![SECOND_GROUP]),
            Self::Member => (1001, GROUP, vec![]),
            Self::Supplementary => (1002, 1002, vec![7, GROUP, 9]),
            Self::Other => (1003, 1003, vec![SECOND_GROUP]),
        }
    }

    /// Runs `act` as this actor, with a umask of 022.
    pub fn does<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        self.does_with_umask(0o022, act)
    }

    /// Runs `act` as this actor, with this umask.
    pub fn does_with_umask<T: Send>(self, mask: u32, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let acting = scope.spawn(move || {
                // SAFETY: from here on the thread has its own umask and working directory, which
                // are not shared.
                unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
                self.become_it();
                umask(Mode::from_raw_mode(mask));
                act()
            });
            acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn become_it(self) {
        let (user, group, groups) = self.ids();
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        if self == Self::PowerlessRoot {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
        }
    }
}

#[test]
fn credentials_stay_in_their_thread() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let user = Actor::Owner.does(|| std::fs::read_to_string("/proc/thread-self/status").unwrap());
    assert!(user.lines().any(|line| line == "Uid:\t1000\t1000\t1000\t1000"), "{user}");
    assert!(rustix::process::geteuid().is_root());
    let powers = Actor::PowerlessRoot.does(|| std::fs::read_to_string("/proc/thread-self/status").unwrap());
    assert!(powers.lines().any(|line| line == "CapEff:\t0000000000000000"), "{powers}");
}
