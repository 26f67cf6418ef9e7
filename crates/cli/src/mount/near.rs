//! Mount options that are nearly what was written.

/// The options that mean something here, with `=` if they have a value.
const NAMES: [&str; 60] = [
    "ro",
    "rw",
    "allow_other",
    "noallow_other",
    "noatime",
    "skip_balance",
    "strictatime",
    "nostrictatime",
    "relatime",
    "norecovery",
    "nodatacow",
    "nodatasum",
    "datacow",
    "datasum",
    "atime",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "noexec",
    "nologreplay",
    "usebackuproot",
    "degraded",
    "fakeroot",
    "single_user",
    "user_subvol_rm_allowed",
    "nouser_subvol_rm_allowed",
    "treelog",
    "notreelog",
    "discard",
    "nodiscard",
    "compress",
    "compress=",
    "compress-force",
    "compress-force=",
    "fsname=",
    "subvol=",
    "subvolid=",
    "commit=",
    "memory=",
    "max_inline=",
    "threads=",
    "thread_pool=",
    "transport=",
    "check_open=",
    "discard=",
    "rescue=",
    "device=",
    "partition=",
    "generation=",
    "offset=",
    "sizelimit=",
    "uid=",
    "gid=",
    "umask=",
    "context=",
    "fscontext=",
    "defcontext=",
    "rootcontext=",
];

/// The option that an unknown one is a slip of, as it would be written.
pub fn nearest(option: &str) -> Option<String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (format!("{name}="), value),
        None => (option.to_owned(), ""),
    };
    // One slip in short names, two in others; an option with a value for one without is none.
    let most = if name.len() < 6 { 1 } else { 2 };
    let distance = |known: &str| strsim::damerau_levenshtein(known, &name);
    let alike = NAMES.iter().filter(|known| known.ends_with('=') == name.ends_with('='));
    let nearest = alike.min_by_key(|known| distance(known)).filter(|known| distance(known) <= most)?;
    Some(format!("{nearest}{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::options::MountRequest;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        for (written, meant) in [
            ("compres=zstd", "compress=zstd"),
            ("compress_force=lzo", "compress-force=lzo"),
            ("subvl=@home", "subvol=@home"),
            ("sudvolid=5", "subvolid=5"),
            ("noatme", "noatime"),
            ("usebackuprot", "usebackuproot"),
            ("or", "ro"),
            ("nosiud", "nosuid"),
            ("partiton=2", "partition=2"),
        ] {
            assert_eq!(nearest(written).as_deref(), Some(meant));
        }
        for odd in ["foo", "foo=1", "quota", "ro=1", "subvol"] {
            assert_eq!(nearest(odd), None, "{odd}");
        }
    }

    #[test]
    fn what_is_proposed_exists() {
        for name in NAMES {
            assert!(MountRequest::knows(&format!("{name}{}", if name.ends_with('=') { "1" } else { "" })), "{name}");
        }
    }
}
