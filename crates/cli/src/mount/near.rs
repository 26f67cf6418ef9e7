//! The names of mount options: those that are nearly what was written, and what completions offer.

/// The options that mean something here, with `=` if they have a value.
const NAMES: [&str; 61] = [
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
    "timeout=",
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

/// The values of options that have a few.
const VALUES: [(&str, &[&str]); 7] = [
    ("compress=", &["zlib", "lzo", "zstd", "no"]),
    ("compress-force=", &["zlib", "lzo", "zstd", "no"]),
    ("transport=", &["auto", "ring", "dev"]),
    ("check_open=", &["auto", "always", "never"]),
    ("discard=", &["sync", "async"]),
    (
        "rescue=",
        &[
            "usebackuproot",
            "nologreplay",
            "ignorebadroots",
            "ignoredatacsums",
            "ignoremetacsums",
            "ignoresuperflags",
            "all",
        ],
    ),
    // Of others, in an fstab; to mount(8) and this command, what changes a mount.
    ("", &["defaults", "noauto", "nofail", "remount", "user", "users", "_netdev"]),
];

/// The words that completions offer: options, those without a value of their own with `=` at the
/// end.
pub fn offered() -> Vec<String> {
    let has_values = |name: &&str| VALUES.iter().any(|(known, _)| *known == *name);
    let names = NAMES.iter().filter(|name| !has_values(name)).map(|name| (*name).to_owned());
    let with = |(name, values): &(&str, &[&str])| -> Vec<String> {
        values.iter().map(|value| format!("{name}{value}")).collect()
    };
    names.chain(VALUES.iter().flat_map(with)).collect()
}

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

    #[test]
    fn what_is_offered_is_taken() {
        let offered = offered();
        for option in offered.iter().filter(|option| !option.ends_with('=') && *option != "remount") {
            let list = if option.starts_with("rescue=") { format!("ro,{option}") } else { option.clone() };
            assert!(MountRequest::parse(&[list]).is_ok(), "{option}");
        }
        // The manual names no option that is not offered.
        let manual = include_str!("../../../../docs/man/ubtrfs.5.md");
        let section = manual.split("\n## Mount options\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
        let rows =
            section.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split(" | ").next());
        let mut count = 0;
        for option in rows.flat_map(|row| row.split('`')).filter(|word| !word.trim_matches([',', ' ']).is_empty()) {
            let name = option.split_inclusive('=').next().unwrap();
            assert!(offered.iter().any(|word| word.starts_with(name)), "{option}");
            count += 1;
        }
        assert!(count > 40, "{count}");
    }
}
