//! Changes a thread to the credentials of an actor, and defines the ids of the user namespace and
//! of the idmapped mount.

use super::call::Actor;
use super::sys;

/// The numbers of the capabilities for which file systems ask; an [`Actor::Capable`] has one of
/// them.
pub const CAPABILITIES: [u8; 9] = [
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    3,  // CAP_FOWNER
    4,  // CAP_FSETID
    9,  // CAP_LINUX_IMMUTABLE
    21, // CAP_SYS_ADMIN
    27, // CAP_MKNOD
    31, // CAP_SETFCAP
];

/// The users of the user namespace: the first inside, the first outside, and how many.
pub const SPACE_USERS: &str = "0 1000 2\n";
/// The groups of the user namespace.
pub const SPACE_GROUPS: &str = "0 1000 1\n1 2000 1\n";

/// The ids of the idmapped mount: the first on disk, the first that the mount shows, and how many.
/// It exchanges 0 and 1000, and lacks 1002.
pub const MOUNT_IDS: &str = "0 1000 1\n1000 0 1\n1001 1001 1\n1003 1003 1\n2000 2000 1\n";

/// Changes this thread to the actor's credentials.
pub fn become_actor(actor: Actor) {
    match actor {
        Actor::Root | Actor::SpaceRoot => sys::become_user(0, 0, &[], u64::MAX),
        Actor::Powerless => sys::become_user(0, 0, &[], 0),
        Actor::Owner => sys::become_user(1000, 1000, &[2000], 0),
        Actor::Member => sys::become_user(1001, 1000, &[], 0),
        Actor::Supplementary => sys::become_user(1003, 1003, &[7, 1000], 0),
        Actor::Other => sys::become_user(1002, 1002, &[], 0),
        Actor::Capable(capability) => sys::become_user(1002, 1002, &[], 1 << capability),
        Actor::SpaceUser => sys::become_user(1, 1, &[], 0),
    }
}
