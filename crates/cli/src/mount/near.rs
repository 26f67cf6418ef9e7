//! Names of mount options: those that resemble an unknown one, those that completions offer, and
//! those that `--help` shows.

use std::fmt::Write;

use super::option::{MountOption, Origin};
use super::option_table::TABLE;

/// Returns the words that completions offer: the options, with `=` at the end if the user has to
/// write an argument.
pub fn offered() -> Vec<String> {
    let is_offered = |row: &&MountOption| row.counts() || row.is_ignored && row.origin == Origin::Fstab;
    let of = |row: &MountOption| {
        let words = row.words();
        let mut all = Vec::new();
        for name in row.names.iter().filter(|name| !name.ends_with('*')) {
            if row.takes(None) {
                all.push((*name).to_owned());
            }
            if row.argument_name().is_some() && words.is_empty() {
                all.push(format!("{name}="));
            }
            all.extend(words.iter().map(|word| format!("{name}={word}")));
        }
        all.extend(row.opposites.iter().map(|name| (*name).to_owned()));
        all
    };
    TABLE.iter().filter(is_offered).flat_map(of).collect()
}

/// Returns the names of all options, with `=` if an argument may follow.
fn names() -> Vec<String> {
    let of = |form: String| match form.split_once('=') {
        Some((name, _)) => format!("{name}="),
        None => form,
    };
    TABLE.iter().filter(|row| row.is_taken()).flat_map(MountOption::forms).map(of).collect()
}

/// Returns the option that the user probably meant by an unknown one, as it would be written.
pub fn nearest(option: &str) -> Option<String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (format!("{name}="), value),
        None => (option.to_owned(), ""),
    };
    // One error is allowed in short names, two in others. An option with a value does not stand for
    // one without.
    let most = if name.len() < 6 { 1 } else { 2 };
    let distance = |known: &String| strsim::damerau_levenshtein(known, &name);
    let alike = names().into_iter().filter(|known| known.ends_with('=') == name.ends_with('='));
    let nearest = alike.min_by_key(distance).filter(|known| distance(known) <= most)?;
    Some(format!("{nearest}{value}"))
}

/// Lists the options that have an effect, in one paragraph.
pub fn short_help() -> String {
    let forms: Vec<_> = TABLE.iter().filter(|row| row.counts()).flat_map(MountOption::forms).collect();
    format!("Options, separated by commas: {}", forms.join(", "))
}

/// Lists the options that have an effect, each with its description.
pub fn long_help() -> String {
    let mut help = "Options, separated by commas:\n".to_owned();
    for row in TABLE.iter().filter(|row| row.counts()) {
        let _ = write!(help, "\n  {}\n          {}", row.forms().join(", "), row.help);
        if !row.words().is_empty() {
            let _ = write!(help, " (HOW: {})", row.words().join(", "));
        }
    }
    let taken = TABLE.iter().filter(|row| row.is_ignored).flat_map(MountOption::forms);
    let _ = write!(help, "\n\nAccepted without effect: {}", taken.collect::<Vec<_>>().join(", "));
    help
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("timeot=5", "timeout=5"),
            ("nofial", "nofail"),
        ] {
            assert_eq!(nearest(written).as_deref(), Some(meant));
        }
        for odd in ["foo", "foo=1", "quota", "ro=1", "subvol"] {
            assert_eq!(nearest(odd), None, "{odd}");
        }
    }
}
