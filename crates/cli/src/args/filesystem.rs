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

/// Defragment files, show the use of space, or resize devices, on a mount or in an image.
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
    /// Show the size and the use of block groups, as of the last commit.
    Df(VolumePlace),
    /// Show the size and the use of block groups and devices, as of the last commit.
    Usage(VolumePlace),
    Resize(Resize),
}

/// Change the size of a device of a volume.
///
/// Data behind the new end is first moved elsewhere. A file that holds a device of a volume that is
/// not mounted gets the new size, too. Any other device must have the new size before the volume
/// gets larger.
#[derive(Debug, Args)]
pub struct Resize {
    /// Move at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The new size: SIZE, +SIZE or -SIZE relative to the present size, or max, the size of the
    /// whole device. DEVID is the number of the device [default: 1]. cancel instead of a size ends
    /// the resize that another process has begun on a mount.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    pub size: String,
    /// A directory of the mounted volume, or a device of one that is not mounted.
    #[arg(value_name = "DIR|DEVICE")]
    pub place: PathBuf,
    #[command(flatten)]
    pub image: InImage,
}

/// Rewrite fragmented files in fewer extents, or compress them.
///
/// Content and times stay the same. Extents that are shared with other files or snapshots are not
/// rewritten, unless --unshare is given. A PLACE is a path on a mounted volume, or IMAGE:PATH for a
/// volume that is not mounted.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Defragment {
    /// Defragment all files in directories, except those of other subvolumes and mounts.
    #[arg(short, long)]
    pub recursive: bool,
    /// Compress the files: zlib (if no algorithm is named), lzo or zstd. Data that is already
    /// compressed by this algorithm is not compressed again, unless it is fragmented or --level is
    /// given.
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
    /// The level of compression: 1 to 9 for zlib, -15 to 15 for zstd.
    #[arg(short = 'L', long, value_name = "LEVEL", requires = "compress", allow_hyphen_values = true)]
    pub level: Option<i8>,
    /// Rewrite compressed files without compression.
    #[arg(long, conflicts_with = "compress")]
    pub nocomp: bool,
    /// Rewrite shared extents, too. Each file then has its own copy, which takes more space.
    #[arg(long)]
    pub unshare: bool,
    /// Do not rewrite contiguous parts of at least this many bytes.
    #[arg(short = 't', long, value_name = "SIZE", value_parser = parse_size, default_value = "32M")]
    pub threshold: u64,
    /// Begin at this offset in each file, in bytes [default: 0].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "0", hide_default_value = true)]
    pub start: u64,
    /// Defragment this many bytes of each file [default: up to its end].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Make each file durable before the next one is defragmented.
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
/// For each file and directory: the bytes in extents, and how many of them nothing else refers to.
/// For each PLACE: the space of the extents that are shared, with each other or with files
/// elsewhere. Files within metadata count nothing.
#[derive(Debug, Args)]
pub struct Du {
    /// Show only the sum for each PLACE.
    #[arg(short, long)]
    pub summarize: bool,
    /// Print JSON, for programs.
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
    /// Show sizes in bytes.
    #[arg(long, conflicts_with_all = ["human_readable", "si", "kbytes", "mbytes", "gbytes", "tbytes"])]
    pub raw: bool,
    /// Show each size in the unit that fits [default].
    #[arg(long, alias = "iec")]
    pub human_readable: bool,
    /// Use units of powers of 1000 instead of 1024.
    #[arg(long, conflicts_with = "human_readable")]
    pub si: bool,
    /// Show sizes in KiB, or in kB with --si.
    #[arg(long, conflicts_with_all = ["human_readable", "mbytes", "gbytes", "tbytes"])]
    pub kbytes: bool,
    /// Show sizes in MiB, or in MB with --si.
    #[arg(long, conflicts_with_all = ["human_readable", "gbytes", "tbytes"])]
    pub mbytes: bool,
    /// Show sizes in GiB, or in GB with --si.
    #[arg(long, conflicts_with_all = ["human_readable", "tbytes"])]
    pub gbytes: bool,
    /// Show sizes in TiB, or in TB with --si.
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
