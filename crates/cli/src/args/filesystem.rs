//! Arguments of `ubtrfs filesystem`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ubtrfs::{Compression, CompressionMode};

use super::device::VolumePlace;
use super::in_volume::FileInVolume;
use super::subvolume::InImage;
use crate::size::{Unit, parse_size};

/// Work on the files of a volume, or look at its space, on a mount or in an image.
#[derive(Debug, Args)]
pub struct FilesystemArguments {
    #[command(subcommand)]
    pub what: FilesystemCommand,
}

#[derive(Debug, Subcommand)]
pub enum FilesystemCommand {
    #[command(visible_alias = "defrag")]
    Defragment(Defragment),
    Du(Du),
    /// Show how block groups are used, as of the last commit.
    Df(VolumePlace),
    /// Show how block groups and devices are used, as of the last commit.
    Usage(VolumePlace),
    Resize(Resize),
}

/// Give a device of a volume another size.
///
/// What is behind its new end is moved before. A file that holds a device of a volume that is not
/// mounted gets the size, too; a device elsewhere must have it before the volume gets larger.
#[derive(Debug, Args)]
pub struct Resize {
    /// Move at most this many bytes in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// The size, +SIZE or -SIZE, or max: all that there is; of the device with this number, or of
    /// the first one. cancel: end what another process has begun on a mount.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    pub size: String,
    /// A directory of the mounted volume, or a device of one that is not mounted.
    #[arg(value_name = "DIR|DEVICE")]
    pub place: PathBuf,
    #[command(flatten)]
    pub image: InImage,
}

/// Rewrite fragmented files in fewer pieces, or compress them.
///
/// Content and times stay. Extents that are shared with other files or snapshots stay as they are,
/// unless --unshare says otherwise. A PLACE is a path on a mounted volume, or IMAGE:PATH for a
/// volume that is not mounted.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Defragment {
    /// All files in directories, but for other subvolumes and mounts.
    #[arg(short, long)]
    pub recursive: bool,
    /// Compress the files: zlib (if it is left out), lzo or zstd. What is compressed so already is
    /// left alone, unless --level is given.
    #[arg(
        short,
        long,
        value_name = "ALGORITHM",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "zlib",
        value_parser = parse_algorithm
    )]
    pub compress: Option<Compression>,
    /// How hard to compress: 1 to 9 for zlib, -15 to 15 for zstd.
    #[arg(short = 'L', long, value_name = "LEVEL", requires = "compress", allow_hyphen_values = true)]
    pub level: Option<i8>,
    /// Rewrite compressed files without compression.
    #[arg(long, conflicts_with = "compress")]
    pub nocomp: bool,
    /// Rewrite shared extents, too: each file has its own copy then, which takes more space.
    #[arg(long)]
    pub unshare: bool,
    /// Leave alone what lies in one place with at least this many bytes.
    #[arg(short = 't', long, value_name = "SIZE", value_parser = parse_size, default_value = "32M")]
    pub threshold: u64,
    /// Begin here in each file.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "0", hide_default_value = true)]
    pub start: u64,
    /// So much of each file [default: all of it].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Return when each file is durable.
    #[arg(short, long)]
    pub flush: bool,
    /// Show the names of the files.
    #[arg(short, long)]
    pub verbose: bool,
    /// Files, or with --recursive directories.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<FileInVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// Show how much space files use, and how much of it they share.
///
/// For each file and directory: bytes in extents, how many of them nobody else has, and for each
/// PLACE how much space those take that are shared, with each other or with files elsewhere. Files
/// that are small enough to be in the metadata count nothing.
#[derive(Debug, Args)]
pub struct Du {
    /// Show only a sum for each PLACE.
    #[arg(short, long)]
    pub summarize: bool,
    /// For programs.
    #[arg(long, conflicts_with_all = ["raw", "human_readable", "si", "kbytes", "mbytes", "gbytes", "tbytes"])]
    pub json: bool,
    #[command(flatten)]
    pub units: Units,
    /// Files or directories: paths on a mounted volume, or IMAGE:PATH for a volume that is not
    /// mounted.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<FileInVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// How sizes are shown.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Units {
    /// Sizes are numbers of bytes.
    #[arg(long, conflicts_with_all = ["human_readable", "si", "kbytes", "mbytes", "gbytes", "tbytes"])]
    pub raw: bool,
    /// Sizes have the unit that fits [default].
    #[arg(long, alias = "iec")]
    pub human_readable: bool,
    /// Units are powers of 1000 instead of 1024.
    #[arg(long, conflicts_with = "human_readable")]
    pub si: bool,
    /// Sizes are in KiB, or in kB with --si.
    #[arg(long, conflicts_with_all = ["human_readable", "mbytes", "gbytes", "tbytes"])]
    pub kbytes: bool,
    /// In MiB or MB.
    #[arg(long, conflicts_with_all = ["human_readable", "gbytes", "tbytes"])]
    pub mbytes: bool,
    /// In GiB or GB.
    #[arg(long, conflicts_with_all = ["human_readable", "tbytes"])]
    pub gbytes: bool,
    /// In TiB or TB.
    #[arg(long, conflicts_with = "human_readable")]
    pub tbytes: bool,
}

impl Units {
    /// The unit that was asked for.
    pub fn unit(&self) -> Unit {
        let powers = [(self.raw, 0), (self.kbytes, 1), (self.mbytes, 2), (self.gbytes, 3), (self.tbytes, 4)];
        let power = powers.iter().find(|(is_asked, _)| *is_asked).map(|(_, power)| *power);
        Unit { is_decimal: self.si, power }
    }
}

fn parse_algorithm(name: &str) -> Result<Compression, String> {
    match CompressionMode::parse(name, false) {
        Some(Some(CompressionMode { algorithm, level: 0, .. })) => Ok(algorithm),
        _ => Err("zlib, lzo or zstd, with its level as --level".into()),
    }
}

/// Arguments in which an algorithm that follows `-c` at once, as btrfs-progs have it, is written as
/// the parser takes it: after an equals sign.
pub fn with_algorithms_apart(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<_> = arguments.collect();
    let is_defragment = |word: &OsString| matches!(word.as_bytes(), b"defragment" | b"defrag");
    if all.iter().take(3).any(is_defragment) {
        let options = all.iter_mut().skip(1).take_while(|word| word.as_bytes() != b"--");
        options.for_each(|word| *word = with_algorithm_apart(word));
    }
    all
}

fn with_algorithm_apart(word: &OsString) -> OsString {
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'c');
    if let Some(at) = at
        && at > 0
        && bytes[0] == b'-'
        && bytes[1..at].iter().all(|byte| b"rfv".contains(byte))
        && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
        && bytes[at + 1..].iter().any(|byte| !b"rfv".contains(byte))
    {
        return OsString::from_vec([&bytes[..=at], b"=", &bytes[at + 1..]].concat());
    }
    word.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_may_follow_at_once() {
        for (given, read) in [
            ("-czstd", "-c=zstd"),
            ("-rczstd", "-rc=zstd"),
            ("-c", "-c"),
            ("-cv", "-cv"),
            ("-crf", "-crf"),
            ("-c=lzo", "-c=lzo"),
            ("--compress=lzo", "--compress=lzo"),
            ("--recursive", "--recursive"),
            ("etc/czech", "etc/czech"),
        ] {
            let words = ["ubtrfs", "filesystem", "defragment", given].map(OsString::from);
            assert_eq!(with_algorithms_apart(words.into_iter()).last().unwrap(), read);
        }
        let others = ["ubtrfs", "ls", "-czstd"].map(OsString::from);
        assert_eq!(with_algorithms_apart(others.clone().into_iter()), others);
    }
}
