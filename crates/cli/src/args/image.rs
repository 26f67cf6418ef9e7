//! Arguments of `ubtrfs image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::window::Window;

/// Make dumps of a volume's metadata for reports of faults, in the format of btrfs-image, and
/// restore volumes from such dumps.
#[derive(Debug, Args)]
pub struct Image {
    #[command(subcommand)]
    pub what: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    Dump(ImageDump),
    Restore(ImageRestore),
}

/// Write the metadata of a volume that is not mounted to a file, without data of files. The volume
/// may be damaged.
#[derive(Debug, Args)]
pub struct ImageDump {
    /// Replace names of files, subvolumes and extended attributes, targets of symbolic links and
    /// the label by random characters.
    #[arg(short = 's', long, visible_alias = "sanitise")]
    pub sanitize: bool,
    /// Compress with this level of zlib, from 0 (not at all) to 9.
    #[arg(short, long = "compress", value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(0..=9), default_value_t = 3)]
    pub compress: u32,
    /// How many threads compress [default: one for each CPU].
    #[arg(short, long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub threads: Option<u32>,
    /// Replace FILE if it exists.
    #[arg(short, long)]
    pub force: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// All devices of the volume, then the file to write.
    #[arg(required = true, num_args = 2.., value_names = ["DEVICE", "FILE"])]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Make sparse images of a volume from a dump of its metadata.
#[derive(Debug, Args)]
pub struct ImageRestore {
    /// How many threads decompress [default: one for each CPU].
    #[arg(short, long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub threads: Option<u32>,
    /// Replace images that exist.
    #[arg(short, long)]
    pub force: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The dump, of `ubtrfs image dump` or of btrfs-image.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The images to make: one for each device of the volume, in the order of their numbers. With
    /// one name alone, the image of the first device gets it, and the others get it with a dot and
    /// the number of their device.
    #[arg(required = true, value_name = "TARGET")]
    pub targets: Vec<PathBuf>,
}
