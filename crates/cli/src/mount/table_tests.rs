//! Tests that each row of the table of mount options obeys the rules, and that all that show the
//! options agree with it.

use std::collections::BTreeSet;

use clap::CommandFactory;
use ubtrfs_server::control::Report;

use super::near::{nearest, offered};
use super::option::{Argument, MountOption, Remount, Scope};
use super::option_table::{TABLE, find};
use super::options::apply;
use super::remount::wanted_flags;
use super::request::MountRequest;
use crate::args::Arguments;
use crate::failure::Failure;

const OPTIONS: &str = include_str!("../../../../docs/man/ubtrfs.5.md");
const MOUNT: &str = include_str!("../../../../docs/man/ubtrfs-mount.8.md");

fn said(failure: Failure) -> String {
    match failure {
        Failure::Sentence(sentence, _) => sentence,
        other @ Failure::Said(_) => panic!("{other:?}"),
    }
}

/// Returns a name that a user may type: `x-*` stands for any name with that prefix.
fn name_of(listed: &str) -> String {
    listed.replace('*', "anything")
}

/// Returns arguments that a row takes, and one that it refuses, if there is one.
fn arguments(row: &MountOption) -> (Vec<String>, Option<String>) {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match &row.argument {
        Argument::None(_) => (vec![], None),
        Argument::Text(..) | Argument::Remarked(_) | Argument::Refused(_) => (owned(&["text"]), None),
        Argument::Number(_, least, most, ..) => (vec![least.to_string(), most.to_string()], Some("x".into())),
        Argument::Size(least, ..) => (vec![format!("{least}"), "1G".into()], Some("x".into())),
        Argument::Octal(most, ..) => (vec!["0".into(), format!("{most:o}")], Some(format!("{:o}", most + 1))),
        Argument::Word(..) | Argument::Compression(_) => (owned(&row.words()), Some("nothing".into())),
        Argument::Words(..) => {
            let mut all = owned(&row.words());
            all.push(row.words().join(":"));
            (all, Some(format!("{}:nothing", row.words()[0])))
        }
    }
}

/// Returns all options that a row takes.
fn valid(row: &MountOption) -> Vec<String> {
    let (values, _) = arguments(row);
    let mut all: Vec<_> = row.opposites.iter().map(|name| (*name).to_owned()).collect();
    for name in row.names.iter().copied().map(name_of) {
        if row.takes(None) {
            all.push(name.clone());
        }
        all.extend(values.iter().map(|value| format!("{name}={value}")));
    }
    all
}

#[test]
fn each_option_is_read_with_valid_arguments_and_refused_with_others() {
    for row in TABLE {
        let is_refused = matches!(row.argument, Argument::Refused(_));
        for option in valid(row) {
            let found = find(&option).unwrap_or_else(|| panic!("{option} is not found"));
            assert!(std::ptr::eq(found.row, row), "{option} is another row's");
            let mut request = MountRequest::default();
            let applied = apply(&option, &mut request);
            assert_eq!(applied.is_err(), is_refused, "{option}");
            if let Err(failure) = applied {
                assert!(said(failure).contains(&format!("'{option}' is not possible: ")), "{option}");
            }
            assert!(!(row.is_ignored && request != MountRequest::default()), "{option} is not ignored");
        }
        for name in row.names.iter().copied().map(name_of) {
            if let (_, Some(wrong)) = arguments(row) {
                let option = format!("{name}={wrong}");
                let failure = apply(&option, &mut MountRequest::default()).expect_err(&option);
                assert!(said(failure).starts_with(&format!("mount option '{option}': ")), "{option}");
            }
            if !row.takes(Some("x")) && TABLE.iter().filter(|row| row.names.contains(&&*name)).count() == 1 {
                let option = format!("{name}=x");
                let failure = apply(&option, &mut MountRequest::default()).expect_err(&option);
                assert!(said(failure).starts_with(&format!("unknown mount option '{option}'")), "{option}");
            }
            if !row.takes(None) && TABLE.iter().filter(|row| row.names.contains(&&*name)).count() == 1 {
                let failure = apply(&name, &mut MountRequest::default()).expect_err(&name);
                assert!(said(failure).starts_with(&format!("unknown mount option '{name}'")), "{name}");
            }
        }
    }
}

#[test]
fn each_option_changes_a_request_unless_it_is_ignored_or_the_default() {
    const DEFAULTS: [&str; 6] = ["remount", "atime", "relatime", "nodev", "nosuid", "nodiscard"];
    for row in TABLE.iter().filter(|row| row.counts()) {
        let changes = valid(row).iter().any(|option| {
            let mut request = MountRequest::default();
            apply(option, &mut request).unwrap();
            request != MountRequest::default()
        });
        assert_eq!(changes, !DEFAULTS.contains(&row.names[0]), "{}", row.names[0]);
    }
}

#[test]
fn no_two_rows_take_the_same_option() {
    let mut seen = BTreeSet::new();
    for option in TABLE.iter().flat_map(MountOption::forms) {
        assert!(seen.insert(option.clone()), "{option}");
    }
}

#[test]
fn a_remount_does_with_each_option_what_its_row_says() {
    let remounts = |option: &str, present: &[&str], reported: &[&str]| {
        let owned = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        let report = Report { options: owned(reported), ..Report::default() };
        wanted_flags(std::iter::once(option), &owned(present), &report).map_err(said)
    };
    for row in TABLE {
        for option in valid(row) {
            let (with, without) = (remounts(&option, &[&option], &[&option]), remounts(&option, &[], &[]));
            let is_opposite = row.opposites.contains(&&*option);
            match row.remount {
                // Another program may have given the mount such an option.
                _ if matches!(row.argument, Argument::Refused(_)) => assert!(with.is_ok() && without.is_err()),
                Remount::Flag(flag) => assert_eq!(without.unwrap().contains(flag), !is_opposite, "{option}"),
                Remount::Unset(flag) => assert!(!without.unwrap().contains(flag), "{option}"),
                Remount::Threads | Remount::Compression | Remount::NewFiles | Remount::Nothing => {
                    assert!(with.is_ok() && without.is_ok(), "{option}");
                }
                Remount::Unless(others) => {
                    assert!(without.is_ok(), "{option}");
                    let refused = others.iter().all(|other| remounts(&option, &[], &[other]).is_err());
                    assert!(refused, "{option}");
                }
                Remount::Stays if is_opposite => {
                    assert!(without.is_ok(), "{option}");
                    assert!(remounts(&option, &[], row.names).is_err(), "{option}");
                }
                Remount::Stays => {
                    assert!(with.is_ok(), "{option}");
                    assert!(
                        without.unwrap_err().contains(&format!("'{option}' can't be had by a remount")),
                        "{option}"
                    );
                }
            }
        }
    }
}

#[test]
fn completions_offer_what_counts_and_only_what_is_taken() {
    let offered = offered();
    for option in offered.iter().filter(|option| !option.ends_with('=')) {
        let list = if option.starts_with("rescue=") { format!("ro,{option}") } else { option.clone() };
        assert!(MountRequest::parse(&[list]).is_ok(), "{option}");
    }
    for form in TABLE.iter().filter(|row| row.counts()).flat_map(MountOption::forms) {
        let name = form.split_inclusive('=').next().unwrap();
        assert!(offered.iter().any(|word| word.starts_with(name)), "{form}");
    }
}

#[test]
fn help_shows_all_options_that_count() {
    let mut command = Arguments::command();
    let mount = command.find_subcommand_mut("mount").unwrap();
    let (short, long) = (mount.render_help().to_string(), mount.render_long_help().to_string());
    let words = |help: &str| help.split([' ', '\n', ',']).map(str::to_owned).collect::<BTreeSet<_>>();
    let (short, long) = (words(&short), words(&long));
    for row in TABLE.iter().filter(|row| row.counts()) {
        for form in row.forms() {
            assert!(short.contains(&form) && long.contains(&form), "{form}");
        }
        assert!(!row.help.is_empty());
    }
}

/// Returns the first cells of the rows of the table with this heading in the manual.
fn listed(heading: &str) -> Vec<String> {
    let section = OPTIONS.split("\n## Mount options\n").nth(1).expect("a section");
    let table = section.split(&format!("\n| {heading} | |\n|---|---|\n")).nth(1).expect(heading);
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")).map(|row| row.split(" | ").next().unwrap());
    let words = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.map(str::to_owned).collect()
}

#[test]
fn the_manual_lists_the_options_of_the_table() {
    let forms = |filter: &dyn Fn(&&MountOption) -> bool| {
        let mut forms: Vec<_> = TABLE.iter().filter(filter).flat_map(MountOption::forms).collect();
        forms.sort();
        forms
    };
    for (heading, wanted) in [
        ("mount option", forms(&|row| row.counts())),
        ("ignored", forms(&|row| row.is_taken() && !row.counts())),
        ("refused", forms(&|row| !row.is_taken())),
    ] {
        let mut listed = listed(heading);
        listed.sort();
        assert_eq!(listed, wanted, "{heading}");
    }
}

/// Returns the section with this heading of the manual's page about mounts.
fn section(heading: &str) -> &'static str {
    let text = MOUNT.split(&format!("\n## {heading}\n")).nth(1).expect(heading);
    text.split("\n## ").next().expect(heading)
}

#[test]
fn the_manual_says_what_a_remount_and_a_further_mount_change() {
    let (remount, further) = (section("Remount"), section("Several mounts of a volume"));
    let is_named = |paragraph: &str, row: &MountOption| {
        row.names.iter().any(|name| ["`", "=", ","].iter().any(|end| paragraph.contains(&format!("`{name}{end}"))))
    };
    for row in TABLE.iter().filter(|row| row.counts() && row.names != ["remount"]) {
        let is_changed = !matches!(row.remount, Remount::Stays | Remount::Unless(_) | Remount::Nothing);
        let is_of_mount = row.scope != Scope::Volume;
        assert!(!is_changed || is_named(remount, row) || row.names == ["ro"], "{:?} at a remount", row.names);
        assert!(!is_of_mount || is_named(further, row), "{:?} of a further mount", row.names);
    }
}

#[test]
fn each_long_name_is_advised_for_a_slip() {
    for row in TABLE.iter().filter(|row| row.is_taken()) {
        for name in row.names.iter().filter(|name| name.len() > 7 && !name.ends_with('*')) {
            let slip = format!("{}q{}", &name[..3], &name[4..]);
            let option = if row.takes(None) { slip } else { format!("{slip}=1") };
            let advised = if row.takes(None) { (*name).to_owned() } else { format!("{name}=1") };
            assert_eq!(nearest(&option), Some(advised));
        }
    }
}
