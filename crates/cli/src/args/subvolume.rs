//! Arguments of `ubtrfs subvolume` and `ubtrfs property`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::in_volume::InVolume;
use super::window::Window;

/// Make, list and delete subvolumes and snapshots, on a mount or in an image.
///
/// A PLACE is a path on a mounted volume, or IMAGE:PATH for a volume that is not mounted, with PATH
/// from its top level.
#[derive(Debug, Args)]
pub struct Subvolume {
    #[command(subcommand)]
    pub what: SubvolumeCommand,
}

#[derive(Debug, Subcommand)]
pub enum SubvolumeCommand {
    Create(Create),
    Snapshot(Snapshot),
    Delete(Delete),
    Reset(Reset),
    List(List),
    Show(Show),
    GetDefault(GetDefault),
    SetDefault(SetDefault),
    FindNew(FindNew),
    Sync(SyncDeleted),
}

/// The image of a place.
#[derive(Clone, Debug, Default, Args)]
pub struct InImage {
    /// Another device of a volume that is not mounted; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Make empty subvolumes.
#[derive(Debug, Args)]
pub struct Create {
    /// Make missing directories above, too.
    #[arg(short, long)]
    pub parents: bool,
    /// The subvolumes to make.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// Make a snapshot of a subvolume.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// Make the snapshot read-only.
    #[arg(short, long)]
    pub read_only: bool,
    /// The subvolume.
    #[arg(value_name = "SOURCE")]
    pub source: InVolume,
    /// The snapshot to make, or a directory in which it is made with the name of the source.
    #[arg(value_name = "DEST")]
    pub dest: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// Delete subvolumes with everything in them. Their space becomes free in the background.
#[derive(Debug, Args)]
pub struct Delete {
    /// Return when all deletions are durable.
    #[arg(short = 'c', long)]
    pub commit_after: bool,
    /// Make each deletion durable before the next.
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    pub commit_each: bool,
    /// Delete the subvolume with this number, of the volume at PLACE.
    #[arg(short = 'i', long, value_name = "ID")]
    pub subvolid: Option<u64>,
    /// The subvolumes to delete.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// Put a snapshot of SOURCE in place of the subvolume TARGET, in one step.
///
/// At any time and after any crash, the name shows the old content or the new content; when the
/// command returns, the new content is durable. Programs can continue to use open files of the old
/// subvolume.
#[derive(Debug, Args)]
pub struct Reset {
    /// The subvolume to replace, whose content is discarded.
    #[arg(value_name = "TARGET")]
    pub target: InVolume,
    /// The subvolume or snapshot with the new content.
    #[arg(value_name = "SOURCE")]
    pub source: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// List the subvolumes of a volume.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct List {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// List only subvolumes directly in the subvolume of PLACE.
    #[arg(short = 'o')]
    pub below: bool,
    /// Show the subvolume that each is in.
    #[arg(short = 'p')]
    pub parent: bool,
    /// Show the generation in which each was made.
    #[arg(short = 'c')]
    pub creation: bool,
    /// Show the generation, which is always shown.
    #[arg(short = 'g')]
    pub generation: bool,
    /// Show UUIDs.
    #[arg(short = 'u')]
    pub uuid: bool,
    /// Show the UUID of the subvolume that each is a snapshot of.
    #[arg(short = 'q')]
    pub parent_uuid: bool,
    /// Show the UUID of the subvolume that each was received from.
    #[arg(short = 'R')]
    pub received_uuid: bool,
    /// List only snapshots, with the times at which they were made.
    #[arg(short = 's')]
    pub snapshots: bool,
    /// List only read-only subvolumes.
    #[arg(short = 'r')]
    pub read_only: bool,
    /// List only deleted subvolumes that still take space.
    #[arg(short = 'd')]
    pub deleted: bool,
    /// Print a table.
    #[arg(short = 't')]
    pub table: bool,
    /// List only subvolumes whose generation is at least (+), at most (-) or exactly VALUE.
    #[arg(short = 'G', value_name = "[+|-]VALUE", allow_hyphen_values = true)]
    pub with_generation: Option<Bound>,
    /// The same for the generation in which they were made.
    #[arg(short = 'C', value_name = "[+|-]VALUE", allow_hyphen_values = true)]
    pub with_creation: Option<Bound>,
    /// Sort by these keys: rootid, gen, ogen, path. A - before a key sorts in descending order.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',', allow_hyphen_values = true)]
    pub sort: Vec<SortKey>,
    /// Any place on the volume, or its image.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// A condition on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    AtLeast(u64),
    AtMost(u64),
    Exactly(u64),
}

impl Bound {
    /// Whether a number is within.
    pub fn admits(self, number: u64) -> bool {
        match self {
            Self::AtLeast(least) => number >= least,
            Self::AtMost(most) => number <= most,
            Self::Exactly(only) => number == only,
        }
    }
}

impl std::str::FromStr for Bound {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(least), _) => Self::AtLeast(least.parse()?),
            (_, Some(most)) => Self::AtMost(most.parse()?),
            _ => Self::Exactly(text.parse()?),
        })
    }
}

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    pub by: SortedBy,
    pub descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortedBy {
    Id,
    Generation,
    Creation,
    Path,
}

impl std::str::FromStr for SortKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let descending = text.starts_with('-');
        let by = match text.trim_start_matches(['+', '-']) {
            "rootid" => SortedBy::Id,
            "gen" => SortedBy::Generation,
            "ogen" => SortedBy::Creation,
            "path" => SortedBy::Path,
            _ => return Err(format!("'{text}' is none of rootid, gen, ogen, path")),
        };
        Ok(Self { by, descending })
    }
}

/// Show the details of a subvolume.
#[derive(Debug, Args)]
pub struct Show {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Show the subvolume with this number, of the volume at PLACE.
    #[arg(short = 'r', long, value_name = "ID", conflicts_with = "uuid")]
    pub rootid: Option<u64>,
    /// Show the subvolume with this UUID, of the volume at PLACE.
    #[arg(short = 'u', long, value_name = "UUID")]
    pub uuid: Option<String>,
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// Show the default subvolume, which is mounted if no other one is requested.
#[derive(Debug, Args)]
pub struct GetDefault {
    /// Print JSON, for programs: as by list.
    #[arg(long)]
    pub json: bool,
    /// Any place on the volume, or its image.
    #[arg(value_name = "PLACE")]
    pub place: OsString,
    #[command(flatten)]
    pub image: InImage,
}

/// Set the default subvolume, which is mounted if no other one is requested.
#[derive(Debug, Args)]
pub struct SetDefault {
    /// The subvolume; or its number, followed by any place on the volume.
    #[arg(required = true, num_args = 1..=2, value_names = ["PLACE|ID", "PLACE"])]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// List the extents of files that a commit or later ones wrote, as far as they still exist.
///
/// The last line has the number of the subvolume's last commit. The next time, begin with the
/// number after it.
#[derive(Debug, Args)]
pub struct FindNew {
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    /// The number of the first commit whose extents are listed.
    #[arg(value_name = "GENERATION")]
    pub generation: u64,
    #[command(flatten)]
    pub image: InImage,
}

/// Wait until the space of deleted subvolumes has become free.
#[derive(Debug, Args)]
pub struct SyncDeleted {
    /// Check once in this many seconds.
    #[arg(short = 's', value_name = "SECONDS", default_value = "1")]
    pub seconds: u64,
    /// Any place on the volume, or its image.
    #[arg(value_name = "PLACE")]
    pub place: OsString,
    /// The numbers of the subvolumes [default: all that are deleted now].
    #[arg(value_name = "ID")]
    pub ids: Vec<u64>,
    #[command(flatten)]
    pub image: InImage,
}

/// Show or change properties of subvolumes: whether they are read-only.
#[derive(Debug, Args)]
pub struct Property {
    #[command(subcommand)]
    pub what: PropertyCommand,
}

#[derive(Debug, Subcommand)]
pub enum PropertyCommand {
    Get(PropertyGet),
    Set(PropertySet),
}

/// The properties that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PropertyName {
    /// Whether a subvolume is read-only.
    Ro,
}

/// Show a property.
#[derive(Debug, Args)]
pub struct PropertyGet {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The kind of object; only subvolumes have properties.
    #[arg(short = 't', value_name = "TYPE", value_parser = ["s", "subvol", "subvolume"])]
    pub kind: Option<String>,
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    /// The property [default: all].
    #[arg(value_name = "NAME")]
    pub name: Option<PropertyName>,
    #[command(flatten)]
    pub image: InImage,
}

/// Change a property.
#[derive(Debug, Args)]
pub struct PropertySet {
    /// Make a received subvolume writable. It can't be the base of another stream afterwards.
    #[arg(short)]
    pub force: bool,
    /// The kind of object; only subvolumes have properties.
    #[arg(short = 't', value_name = "TYPE", value_parser = ["s", "subvol", "subvolume"])]
    pub kind: Option<String>,
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    /// The property.
    #[arg(value_name = "NAME")]
    pub name: PropertyName,
    /// The new value.
    #[arg(value_name = "true|false", action = clap::ArgAction::Set)]
    pub value: bool,
    #[command(flatten)]
    pub image: InImage,
}
