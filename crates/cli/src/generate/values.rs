//! The values that completions offer for options that the command line takes as free text.

use clap::Command;
use clap::builder::PossibleValuesParser;

use crate::mkfs::offered_features;
use crate::mount::offered_options;

pub const PROFILES: [&str; 7] = ["single", "dup", "raid0", "raid1", "raid1c3", "raid1c4", "raid10"];
pub const CHECKSUMS: [&str; 4] = ["crc32c", "xxhash64", "sha256", "blake2b"];
pub const COMPRESSIONS: [&str; 3] = ["zlib", "lzo", "zstd"];

/// The functions for bash: mount options and features are lists in one word, which clap's function
/// does not support.
const OF_LISTS: &str = include_str!("lists.bash");

/// Returns the command line with the values that completions offer. It serves for completions only,
/// since it accepts no other values.
pub fn with_values(command: Command) -> Command {
    let of_mkfs: [(&str, &[&str]); 4] =
        [("data", &PROFILES), ("metadata", &PROFILES), ("csum", &CHECKSUMS), ("compress", &COMPRESSIONS)];
    let features = offered_features();
    command
        .mut_subcommand("mkfs", |mkfs| of_mkfs.iter().fold(mkfs, |mkfs, (option, values)| add(mkfs, option, values)))
        .mut_subcommand("mkfs", |mkfs| add(mkfs, "features", &features))
        .mut_subcommand("mount", |mount| add(mount, "options", &offered_options()))
        .mut_subcommand("shell", |shell| add(shell, "options", &offered_options()))
        .mut_subcommand("filesystem", |filesystem| {
            filesystem.mut_subcommand("defragment", |command| add(command, "compress", &COMPRESSIONS))
        })
}

/// Adds values to an option of a command.
fn add<T: AsRef<str>>(command: Command, option: &str, values: &[T]) -> Command {
    let values = PossibleValuesParser::new(values.iter().map(|value| value.as_ref().to_owned()));
    command.mut_arg(option, |option| option.value_parser(values))
}

/// Returns the functions for bash that clap's script lacks.
pub fn of_lists() -> String {
    OF_LISTS.replace("@options@", &offered_options().join(" ")).replace("@features@", &offered_features().join(" "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use ubtrfs::CompressionMode;
    use ubtrfs::mkfs::Profile;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn what_is_offered_is_taken() {
        with_values(Arguments::command()).debug_assert();
        assert!(PROFILES.iter().all(|name| Profile::of_name(name).is_some()));
        assert!(COMPRESSIONS.iter().all(|name| CompressionMode::parse(name, false).is_some()));
    }
}
