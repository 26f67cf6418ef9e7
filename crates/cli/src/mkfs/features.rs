//! The table of features that mkfs.btrfs has names for: how each is turned on and off, which
//! kernels support it, and its names.

use std::fmt::Write;

use ubtrfs_mkfs::{MkfsOptions, Quotas};

use crate::failure::{Failure, Result};
use crate::output;

/// A feature of `-O`.
struct Feature {
    name: &'static str,
    /// A shorter name.
    alias: Option<&'static str>,
    about: &'static str,
    /// The first kernel that mounts it, and the first one without known bugs in it.
    compat: &'static str,
    safe: Option<&'static str>,
    /// The version of mkfs.btrfs in which it became the default.
    default: Option<&'static str>,
    has: fn(&MkfsOptions) -> bool,
    /// Turns it on or off.
    set: fn(&mut MkfsOptions, bool),
}

/// The features, in the order in which they are listed.
const FEATURES: [Feature; 10] = [
    Feature {
        name: "mixed-bg",
        alias: None,
        about: "data and metadata in the same block groups",
        compat: "2.6.37",
        safe: Some("2.6.37"),
        default: None,
        has: |options| options.mixed,
        set: |options, on| options.mixed = on,
    },
    Feature {
        name: "quota",
        alias: None,
        about: "qgroups count the space of subvolumes",
        compat: "3.4",
        safe: None,
        default: None,
        has: |options| options.quotas == Some(Quotas::Qgroups),
        set: |options, on| set_quotas(options, Quotas::Qgroups, on),
    },
    Feature {
        name: "extref",
        alias: None,
        about: "up to 65535 names of an inode in a directory",
        compat: "3.7",
        safe: Some("3.12"),
        default: Some("3.12"),
        has: |options| options.extended_iref,
        set: |options, on| options.extended_iref = on,
    },
    Feature {
        name: "raid56",
        alias: None,
        about: "the flag of volumes with RAID5 and RAID6 chunks",
        compat: "3.9",
        safe: None,
        default: None,
        has: |options| options.raid56,
        set: |options, on| options.raid56 = on,
    },
    Feature {
        name: "skinny-metadata",
        alias: None,
        about: "shorter extent items of tree blocks",
        compat: "3.10",
        safe: Some("3.18"),
        default: Some("3.18"),
        has: |options| options.skinny_metadata,
        set: |options, on| options.skinny_metadata = on,
    },
    Feature {
        name: "no-holes",
        alias: None,
        about: "no items for holes of files",
        compat: "3.14",
        safe: Some("4.0"),
        default: Some("5.15"),
        has: |options| options.no_holes,
        set: |options, on| options.no_holes = on,
    },
    Feature {
        name: "free-space-tree",
        alias: Some("fst"),
        about: "free space in a tree (space_cache=v2)",
        compat: "4.5",
        safe: Some("4.9"),
        default: Some("5.15"),
        has: |options| options.free_space_tree,
        set: |options, on| options.free_space_tree = on,
    },
    Feature {
        name: "raid1c34",
        alias: None,
        about: "the flag of volumes with RAID1C3 and RAID1C4 chunks",
        compat: "5.5",
        safe: None,
        default: None,
        has: |options| options.raid1c34,
        set: |options, on| options.raid1c34 = on,
    },
    Feature {
        name: "block-group-tree",
        alias: Some("bgt"),
        about: "block groups in a tree of their own: large volumes are mounted faster",
        compat: "6.1",
        safe: Some("6.6"),
        default: Some("6.19"),
        has: |options| options.block_group_tree,
        set: |options, on| options.block_group_tree = on,
    },
    Feature {
        name: "squota",
        alias: None,
        about: "simple quotas: what a subvolume allocates counts for it",
        compat: "6.7",
        safe: None,
        default: None,
        has: |options| options.quotas == Some(Quotas::Simple),
        set: |options, on| set_quotas(options, Quotas::Simple, on),
    },
];

/// Names that mkfs.btrfs knows, and why no volume gets these features.
const REFUSED: [(&str, &str); 3] = [
    ("zoned", "ubtrfs does not write to zoned devices"),
    ("raid-stripe-tree", "ubtrfs does not write RAID stripe trees"),
    ("extent-tree-v2", "the format of extent-tree-v2 is not final, and kernels do not mount it"),
];

/// The word that lists the features instead of making a volume.
const LIST: &str = "list-all";

fn set_quotas(options: &mut MkfsOptions, quotas: Quotas, on: bool) {
    if on {
        options.quotas = Some(quotas);
    } else if options.quotas == Some(quotas) {
        options.quotas = None;
    }
}

/// Whether the words request a list of all features.
pub fn asks_for_list(words: &[String]) -> bool {
    words.iter().any(|word| word == LIST)
}

/// Whether the words turn a feature on by one of its names, even if a later word turns it off.
pub fn ask_for(words: &[String], name: &str) -> bool {
    words.iter().any(|word| find(word).is_some_and(|feature| feature.name == name))
}

fn find(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name || feature.alias == Some(name))
}

/// Returns the words that completions offer.
pub fn offered() -> Vec<&'static str> {
    FEATURES.iter().map(|feature| feature.name).chain([LIST]).collect()
}

/// Prints the list of features.
pub fn list() {
    let mut shown = String::new();
    let _ = writeln!(shown, "Features of the format that -O takes:");
    for feature in &FEATURES {
        if let Some(alias) = feature.alias {
            let _ = writeln!(shown, "{alias:<19} - short for {}", feature.name);
        }
        let since = [("safe", feature.safe), ("default", feature.default)];
        let since =
            since.into_iter().filter_map(|(what, version)| version.map(|version| format!(", {what}={version}")));
        let (name, about, compat) = (feature.name, feature.about, feature.compat);
        let _ = writeln!(shown, "{name:<19} - {about} (compat={compat}{})", since.collect::<String>());
    }
    output::say(&shown);
}

/// Turns features on and off as the words say, in their order.
pub fn apply(words: &[String], options: &mut MkfsOptions) -> Result<()> {
    for word in words.iter().filter(|word| !word.is_empty()) {
        let (name, on) = word.strip_prefix('^').map_or((word.as_str(), true), |name| (name, false));
        if let Some(feature) = find(name) {
            (feature.set)(options, on);
        } else if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            if on {
                return Err(Failure::new(format!("-O {name}: {reason}")));
            }
        } else {
            return Err(Failure::new(format!("unknown feature '{name}': -O list-all lists all")));
        }
    }
    Ok(())
}

/// Returns the names of the features that a volume has, separated by commas.
pub fn names(options: &MkfsOptions) -> String {
    let has = FEATURES.iter().filter(|feature| (feature.has)(options));
    has.map(|feature| feature.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(words: &[&str]) -> MkfsOptions {
        let mut options = MkfsOptions::new(1 << 30);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        apply(&words, &mut options).unwrap();
        options
    }

    #[test]
    fn each_feature_is_turned_on_and_off() {
        for feature in &FEATURES {
            assert!((feature.has)(&with(&[feature.name])), "{}", feature.name);
            let off = format!("^{}", feature.name);
            assert!(!(feature.has)(&with(&[feature.name, &off])), "{off}");
            assert!((feature.has)(&with(&[&off, feature.alias.unwrap_or(feature.name)])), "the last word counts");
        }
        assert_eq!(with(&["quota", "^squota"]).quotas, Some(Quotas::Qgroups));
        assert_eq!(with(&["quota", "squota"]).quotas, Some(Quotas::Simple));
    }

    #[test]
    fn what_is_unknown_or_not_written_is_refused() {
        let refused = |word: &str| apply(&[word.to_owned()], &mut MkfsOptions::new(1 << 30)).unwrap_err();
        assert!(refused("zoned").sentence().contains("zoned devices"));
        assert!(refused("bogus").sentence().contains("unknown feature 'bogus'"));
        assert!(apply(&["^zoned".to_owned()], &mut MkfsOptions::new(1 << 30)).is_ok());
    }
}
