//! Options of other programs in fstab, which are ignored; options without effect here, with the
//! message about them; and options that would change the meaning of a mount, with the reason why
//! they are refused.

/// Handled by mount(8), systemd or the kernel, or what we do anyway.
const WITHOUT_MEANING: [&str; 43] = [
    // mount(8), fstab(5), systemd.mount(5).
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "loud",
    "silent",
    "nomand",
    "iversion",
    "noiversion",
    // Times of access are as with relatime.
    "norelatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "default_permissions",
    // What the mount table shows where SELinux is on.
    "seclabel",
    // btrfs's performance hints, and options for what is always done.
    "acl",
    "autodefrag",
    "noautodefrag",
    "barrier",
    "nobarrier",
    "enospc_debug",
    "noenospc_debug",
    "fatal_errors=bug",
    "flushoncommit",
    "noflushoncommit",
    "noinode_cache",
    "rescan_uuid_tree",
    "space_cache",
    "space_cache=v2",
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "errors=remount-ro",
];

/// Names of options with a value that doesn't matter.
const WITH_ANY_VALUE: [&str; 5] = ["comment", "user", "metadata_ratio", "alloc_start", "uhelper"];

/// Options that are passed over with a word: people share lines of fstab with the kernel's driver,
/// and what they get is a volume that each of both can use.
const WITHOUT_EFFECT: [(&str, &str); 1] = [("loop", "images are mounted without it")];

/// What would mean something that we don't do.
const REFUSED: [(&str, &str); 16] = [
    ("noacl", "ACLs always count"),
    ("sync", "use commit= and fsync(2)"),
    ("dirsync", "use commit= and fsync(2)"),
    ("mand", "there are no mandatory locks"),
    ("nosymfollow", "it can't be had with FUSE"),
    ("nospace_cache", "a free-space tree is kept if the volume has one"),
    ("space_cache", "a free-space tree is kept if the volume has one"),
    ("clear_cache", "'ubtrfs check --repair' rebuilds the free-space tree"),
    ("inode_cache", "no kernel knows that any more"),
    ("errors", "after an error the mount turns read-only: only errors=remount-ro is possible"),
    ("fatal_errors", "after an error the mount turns read-only"),
    ("check_int", "use 'ubtrfs check'"),
    ("check_int_data", "use 'ubtrfs check'"),
    ("discard", "it is discard, discard=sync, discard=async or nodiscard"),
    ("bind", "mount(8) does that without a helper"),
    ("rbind", "mount(8) does that without a helper"),
];

/// Whether an option may be given and has no effect.
pub fn is_ignored(option: &str) -> bool {
    let name = option.split_once('=').map(|(name, _)| name);
    WITHOUT_MEANING.contains(&option)
        || name.is_some_and(|name| WITH_ANY_VALUE.contains(&name))
        || option.starts_with("x-")
        || option.starts_with("X-")
}

/// The message about an ignored option.
pub fn remark(option: &str) -> Option<&'static str> {
    find(&WITHOUT_EFFECT, option).filter(|_| !is_ignored(option))
}

/// Why an option is refused that is known.
pub fn refusal(option: &str) -> Option<&'static str> {
    find(&REFUSED, option)
}

fn find(list: &[(&str, &'static str)], option: &str) -> Option<&'static str> {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    list.iter().find(|(listed, _)| *listed == name).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_have_in_fstab_is_ignored_or_refused_with_a_reason() {
        for fine in
            ["defaults", "nofail", "x-systemd.automount", "X-mount.mkdir", "comment=a", "user=joe", "space_cache=v2"]
        {
            assert!(is_ignored(fine), "{fine}");
        }
        for passed_over in ["loop", "loop=/dev/loop7"] {
            assert!(remark(passed_over).is_some() && refusal(passed_over).is_none(), "{passed_over}");
        }
        for refused in ["errors=panic", "errors=continue", "space_cache=v1", "discard=maybe"] {
            assert!(!is_ignored(refused) && refusal(refused).is_some(), "{refused}");
        }
        assert_eq!(remark("space_cache=v2"), None);
        assert!(!is_ignored("nonsense") && refusal("nonsense").is_none());
    }
}
