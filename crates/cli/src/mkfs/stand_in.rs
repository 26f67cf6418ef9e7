//! The command line of `mkfs.btrfs`: options may be repeated (the last one counts) and shortened,
//! by the rules of `getopt_long(3)`.

use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::{Mkfs, MkfsAlone, parse_compression_of_mkfs_btrfs};

/// Abbreviations of options of mkfs.btrfs that would be ambiguous here, because of options that
/// mkfs.btrfs does not have.
const SHORT_FORMS: [(&str, &[&str]); 4] =
    [("rootdir", &["ro", "roo", "root"]), ("device_uuid", &["de"]), ("byte_count", &["b"]), ("metadata", &["me"])];

fn command() -> Command {
    let version = concat!("(ubtrfs ", env!("CARGO_PKG_VERSION"), "), with the options of btrfs-progs v7.3");
    let command = MkfsAlone::command().name("mkfs.btrfs").bin_name("mkfs.btrfs").version(version);
    let command = command.infer_long_args(true).args_override_self(true);
    let add = |command: Command, (id, forms): (&str, &'static [&str])| {
        command.mut_arg(id, |option| option.aliases(forms.iter().copied()))
    };
    let command = SHORT_FORMS.into_iter().fold(command, add);
    command.mut_arg("compress", |option| option.value_parser(parse_compression_of_mkfs_btrfs))
}

/// Parses the arguments of the process.
pub fn parse() -> Result<Mkfs, clap::Error> {
    let mut arguments = MkfsAlone::from_arg_matches(&command().try_get_matches()?)?.mkfs;
    // In mkfs.btrfs a byte count of 0 means that none is given.
    arguments.byte_count = arguments.byte_count.filter(|bytes| *bytes > 0);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use clap::parser::ValueSource;

    use super::*;

    /// The options of mkfs.btrfs, each with the argument here that it sets, and a value.
    const OPTIONS: [(&str, &str, &str); 23] = [
        ("data", "data", "single"),
        ("metadata", "metadata", "single"),
        ("mixed", "mixed", ""),
        ("csum", "csum", "crc32c"),
        ("checksum", "csum", "crc32c"),
        ("nodesize", "nodesize", "16k"),
        ("sectorsize", "sectorsize", "4k"),
        ("features", "features", "bgt"),
        ("label", "label", "x"),
        ("uuid", "uuid", "11111111-2222-3333-4444-555555555555"),
        ("device-uuid", "device_uuid", "11111111-2222-3333-4444-555555555555"),
        ("byte-count", "byte_count", "1G"),
        ("rootdir", "rootdir", "tree"),
        ("compress", "compress", "zstd:"),
        ("subvol", "subvol", "ro:a"),
        ("inode-flags", "inode_flags", "nodatacow:a"),
        ("reflink", "reflink", ""),
        ("shrink", "shrink", ""),
        ("nodiscard", "nodiscard", ""),
        ("force", "force", ""),
        ("quiet", "quiet", ""),
        ("runtime-features", "runtime_features", "bgt"),
        ("verbose", "verbose", ""),
    ];

    #[test]
    fn short_forms_are_those_that_mkfs_btrfs_has() {
        let others = [("version", "version", ""), ("help", "help", "")];
        for (name, id, value) in OPTIONS {
            for end in 1..=name.len() {
                let form = &name[..end];
                let mut all = OPTIONS.iter().chain(&others);
                let is_other = |(other, other_id, _): &(&str, &str, &str)| other.starts_with(form) && *other_id != id;
                if all.any(is_other) {
                    continue;
                }
                let option = if value.is_empty() { format!("--{form}") } else { format!("--{form}={value}") };
                let matches = command().try_get_matches_from(["mkfs.btrfs", "-r", "tree", "image", &option]);
                let matches = matches.unwrap_or_else(|error| panic!("{option}: {error}"));
                assert_eq!(matches.value_source(id), Some(ValueSource::CommandLine), "{option}");
            }
        }
    }
}
