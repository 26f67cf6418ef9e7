//! Arguments of the commands that edit an image.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ubtrfs_image::{ModeChange, Platform};

use super::compression::{Compression, parse_compression};
use super::in_volume::InVolume;
use super::owner::{Owners, parse_owner, parse_owners};
use super::window::Window;
use crate::size::{MIN_MEMORY, parse_size};

/// What can be done to an image, on the command line and in a script.
#[derive(Debug, Subcommand)]
pub enum EditCommand {
    Cp(Cp),
    Mkdir(Mkdir),
    Rm(Rm),
    Mv(Mv),
    Ln(Ln),
    Mknod(Mknod),
    Chmod(Chmod),
    Chown(Chown),
    Setfattr(Setfattr),
    Truncate(Truncate),
    Put(Put),
}

/// Copy files into an image, out of it, or within it, without a mount.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Cp {
    /// Keep everything: owners, permissions, times, extended attributes, links. Includes -r.
    #[arg(short, long)]
    pub archive: bool,
    /// Copy directories with everything in them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Share extents in copies within the image. auto: where that is possible; always: fail where
    /// it is not possible; never: copy the data.
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always",
        default_value = "auto"
    )]
    pub reflink: When,
    /// Store data that several of the copied files have only once: equal blocks share extents.
    #[arg(long)]
    pub dedupe: bool,
    #[command(flatten)]
    pub how: How,
    /// Owner and group of files that are made in an image without -a, by their numbers [default:
    /// the user].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, conflicts_with = "archive")]
    pub owner: Option<(u32, u32)>,
    /// The files to copy, then the destination: files of the host, or IMAGE:PATH, with PATH from
    /// the top level.
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DEST"])]
    pub places: Vec<OsString>,
    /// Another device of the volume that files are copied out of; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Tar,
    Composefs,
}

/// Whether extents are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    Auto,
    Always,
    Never,
}

/// Make directories in an image.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// Make missing directories above, too, and accept directories that exist.
    #[arg(short, long)]
    pub parents: bool,
    /// Permissions, as of mkdir(1) [default: 0755].
    #[arg(short, long, value_name = "MODE")]
    pub mode: Option<ModeChange>,
    /// Owner and group, by their numbers [default: the user].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// The directories to make.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Remove files of an image.
#[derive(Debug, Args)]
pub struct Rm {
    /// Remove directories with everything in them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Ignore files that do not exist.
    #[arg(short, long)]
    pub force: bool,
    /// The files to remove.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Rename or move files of an image.
#[derive(Debug, Args)]
pub struct Mv {
    /// The files to move, then the new name, or the directory for them; all as IMAGE:PATH.
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DEST"])]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Give a file of an image another name, or make a symbolic link.
#[derive(Debug, Args)]
pub struct Ln {
    /// Make a symbolic link, whose text is TARGET.
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace an existing file.
    #[arg(short, long)]
    pub force: bool,
    /// Owner and group of a symbolic link, by their numbers [default: the user].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, requires = "symbolic")]
    pub owner: Option<(u32, u32)>,
    /// The file, as IMAGE:PATH; with -s the text of the symbolic link.
    #[arg(value_name = "TARGET")]
    pub target: InVolume,
    /// The new name, or the directory for it.
    #[arg(value_name = "IMAGE:PATH")]
    pub place: InVolume,
    #[command(flatten)]
    pub window: Window,
}

/// Make a device node or a FIFO in an image.
#[derive(Debug, Args)]
pub struct Mknod {
    /// Permissions, as of mknod(1) [default: 0644].
    #[arg(short, long, value_name = "MODE")]
    pub mode: Option<ModeChange>,
    /// Owner and group, by their numbers [default: the user].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// The node to make.
    #[arg(value_name = "IMAGE:PATH")]
    pub place: InVolume,
    /// The type: b for a block device, c for a character device, p for a FIFO.
    #[arg(value_name = "TYPE", value_parser = ["b", "c", "p"])]
    pub kind: String,
    /// The major number of a device.
    #[arg(value_name = "MAJOR", value_parser = clap::value_parser!(u64).range(..4096))]
    pub major: Option<u64>,
    /// The minor number of a device.
    #[arg(value_name = "MINOR", value_parser = clap::value_parser!(u64).range(..1 << 20), requires = "major")]
    pub minor: Option<u64>,
    #[command(flatten)]
    pub window: Window,
}

/// Change permissions of files of an image.
#[derive(Debug, Args)]
pub struct Chmod {
    /// Change directories with everything in them.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// The new permissions: octal, or symbolic such as u+s,go=rx.
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    pub mode: ModeChange,
    /// The files to change.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Change owner and group of files of an image. Set-id bits and capabilities stay.
#[derive(Debug, Args)]
pub struct Chown {
    /// Change directories with everything in them; no symbolic link is followed.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Change a symbolic link itself instead of its target.
    #[arg(long)]
    pub no_dereference: bool,
    /// The new owner and group, as UID:GID, UID or :GID. These are numbers, since a name may mean
    /// another user in an image.
    #[arg(value_name = "OWNER", value_parser = parse_owners)]
    pub owner: Owners,
    /// The files to change.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Set or remove an extended attribute of files of an image.
#[derive(Debug, Args)]
pub struct Setfattr {
    /// The attribute to set, such as user.note or security.selinux.
    #[arg(short, long, value_name = "NAME", required_unless_present = "remove", conflicts_with = "remove")]
    pub name: Option<OsString>,
    /// The value: text, or 0x and hexadecimal digits [default: empty].
    #[arg(short, long, value_name = "VALUE", requires = "name")]
    pub value: Option<OsString>,
    /// The attribute to remove.
    #[arg(short = 'x', long, value_name = "NAME")]
    pub remove: Option<OsString>,
    /// Change a symbolic link itself instead of its target.
    #[arg(long)]
    pub no_dereference: bool,
    /// The files to change.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Set the size of files of an image. Files that do not exist are made.
#[derive(Debug, Args)]
pub struct Truncate {
    /// The new size, in bytes; bytes that are added are a hole.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// The files to change.
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Write the standard input to a file of an image, as its new content.
#[derive(Debug, Args)]
pub struct Put {
    /// Permissions, as of chmod [default: 0644 for a new file].
    #[arg(short, long, value_name = "MODE")]
    pub mode: Option<ModeChange>,
    /// Owner and group of a new file, by their numbers [default: the user].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// The file, which is made if it does not exist.
    #[arg(value_name = "IMAGE:PATH")]
    pub place: InVolume,
    #[command(flatten)]
    pub window: Window,
}

/// Memory for caches and what is not written yet, unless it is given.
pub const MEMORY: usize = 64 << 20;

/// The same by an option, no less than a mount takes.
pub fn parse_memory(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        bytes if bytes < MIN_MEMORY => Err("at least 16M are needed".into()),
        bytes => usize::try_from(bytes).map_err(|_| format!("'{text}' is too much")),
    }
}

/// How an edit is made.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct How {
    /// Commit each time that this many bytes have been written, instead of once at the end.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub commit_every: Option<u64>,
    /// Bytes of memory for caches and for changes that are not written yet, at least 16M [default:
    /// 64M].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<usize>,
    /// Compress data that is written: zlib, lzo or zstd, with or without :LEVEL, or no.
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_compression)]
    pub compress: Option<Compression>,
    /// Print JSON, for programs: what was done.
    #[arg(long)]
    pub json: bool,
}

impl How {
    /// The first option that is given of those about how an image is written.
    pub fn of_writing(&self) -> Option<&'static str> {
        let given = [
            ("--commit-every", self.commit_every.is_some()),
            ("--memory", self.memory.is_some()),
            ("--compress", self.compress.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

/// Run the edits of a script on an image, in one commit by default: all of them or none.
#[derive(Debug, Args)]
pub struct Apply {
    /// The image.
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// A file with one command on each line, such as `mkdir -p :/etc/conf.d`; `-` is the standard
    /// input.
    #[arg(value_name = "SCRIPT")]
    pub script: PathBuf,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub window: Window,
}

/// Write files of an image to the standard output as a tar archive in the pax format.
#[derive(Debug, Args)]
pub struct Export {
    /// The directory whose content is written, or a file, with PATH from the top level [default:
    /// the top level].
    #[arg(value_name = "IMAGE[:PATH]")]
    pub place: InVolume,
    /// The format: a tar archive, or the text of composefs-dump(5), which has no content of files
    /// of more than 64 bytes.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "tar")]
    pub format: Format,
    /// In the text of composefs-dump(5), give files whose content it does not have their fs-verity
    /// digest.
    #[arg(long)]
    pub digests: bool,
    /// Print JSON on the standard error stream, for programs: what was done.
    #[arg(long)]
    pub json: bool,
    /// Another device of the volume; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Read tar archives into a directory of an image, in one commit by default.
#[derive(Debug, Args)]
pub struct Import {
    /// Read the archives as layers of an OCI image, the lowest first: an entry .wh.NAME removes
    /// NAME of the layers below.
    #[arg(long)]
    pub oci_layer: bool,
    /// If an OCI layout has images for several platforms, take the image for OS/ARCHITECTURE
    /// [default: the platform of this program].
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    pub platform: Option<Platform>,
    /// Store data that several of the files have only once: equal blocks share extents.
    #[arg(long)]
    pub dedupe: bool,
    #[command(flatten)]
    pub how: How,
    /// The directory, which is made if it does not exist [default: the top level].
    #[arg(value_name = "IMAGE[:PATH]")]
    pub place: OsString,
    /// The archives, or images in OCI layouts: oci:DIR or oci-archive:FILE, with or without :NAME
    /// [default: the standard input].
    #[arg(value_name = "ARCHIVE|oci:DIR")]
    pub archives: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

impl EditCommand {
    /// The part of the device that the volume is in.
    pub fn window(&self) -> Window {
        match self {
            Self::Cp(Cp { window, .. })
            | Self::Mkdir(Mkdir { window, .. })
            | Self::Rm(Rm { window, .. })
            | Self::Mv(Mv { window, .. })
            | Self::Ln(Ln { window, .. })
            | Self::Mknod(Mknod { window, .. })
            | Self::Chmod(Chmod { window, .. })
            | Self::Chown(Chown { window, .. })
            | Self::Setfattr(Setfattr { window, .. })
            | Self::Truncate(Truncate { window, .. })
            | Self::Put(Put { window, .. }) => *window,
        }
    }

    /// All places that it names.
    pub fn places(&self) -> Vec<&OsStr> {
        match self {
            Self::Cp(Cp { places, .. }) => places.iter().map(AsRef::as_ref).collect(),
            Self::Mkdir(Mkdir { places, .. })
            | Self::Rm(Rm { places, .. })
            | Self::Mv(Mv { places, .. })
            | Self::Chmod(Chmod { places, .. })
            | Self::Chown(Chown { places, .. })
            | Self::Setfattr(Setfattr { places, .. })
            | Self::Truncate(Truncate { places, .. }) => places.iter().map(|place| &**place).collect(),
            Self::Ln(Ln { symbolic: false, target, place, .. }) => vec![target, place],
            Self::Ln(Ln { place, .. }) | Self::Mknod(Mknod { place, .. }) | Self::Put(Put { place, .. }) => vec![place],
        }
    }
}
