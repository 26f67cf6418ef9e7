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
    /// More devices of a volume that is not mounted.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Make empty subvolumes.
#[derive(Debug, Args)]
pub struct Create {
    /// Make directories above it, too, where there are none.
    #[arg(short, long)]
    pub parents: bool,
    /// What is to be made.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// Make a snapshot of a subvolume.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// Nothing can be changed in it.
    #[arg(short, long)]
    pub read_only: bool,
    /// The subvolume.
    #[arg(value_name = "SOURCE")]
    pub source: InVolume,
    /// What is to be made, or the directory in which it gets the name of the source.
    #[arg(value_name = "DEST")]
    pub dest: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// Delete subvolumes with all that is in them. Their space comes back in the background.
#[derive(Debug, Args)]
pub struct Delete {
    /// Return when the deletions are durable.
    #[arg(short = 'c', long)]
    pub commit_after: bool,
    /// Make each deletion durable before the next.
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    pub commit_each: bool,
    /// Delete the subvolume with this number of the volume at PLACE.
    #[arg(short = 'i', long, value_name = "ID")]
    pub subvolid: Option<u64>,
    /// The subvolumes.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// Put a snapshot of SOURCE in place of the subvolume TARGET, in one step.
///
/// The name shows the old content or the new one at any time, and after any crash; when the command
/// returns, the new one is durable. Programs that have files of the old one open go on with it.
#[derive(Debug, Args)]
pub struct Reset {
    /// The subvolume whose content is given up.
    #[arg(value_name = "TARGET")]
    pub target: InVolume,
    /// The subvolume or snapshot whose content it gets.
    #[arg(value_name = "SOURCE")]
    pub source: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// List the subvolumes of a volume.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct List {
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// Only those directly in the subvolume of PLACE.
    #[arg(short = 'o')]
    pub below: bool,
    /// Show the subvolume that each is in.
    #[arg(short = 'p')]
    pub parent: bool,
    /// Show the generation in which each was made.
    #[arg(short = 'c')]
    pub creation: bool,
    /// Show the generation (it is always shown).
    #[arg(short = 'g')]
    pub generation: bool,
    /// Show ids.
    #[arg(short = 'u')]
    pub uuid: bool,
    /// Show the ids of the subvolumes that they are snapshots of.
    #[arg(short = 'q')]
    pub parent_uuid: bool,
    /// Show the ids of the subvolumes that they were received from.
    #[arg(short = 'R')]
    pub received_uuid: bool,
    /// Only snapshots, with the times at which they were made.
    #[arg(short = 's')]
    pub snapshots: bool,
    /// Only those that are read-only.
    #[arg(short = 'r')]
    pub read_only: bool,
    /// Only those that were deleted and still take space.
    #[arg(short = 'd')]
    pub deleted: bool,
    /// As a table.
    #[arg(short = 't')]
    pub table: bool,
    /// Only those whose generation is at least (+), at most (-) or exactly VALUE.
    #[arg(short = 'G', value_name = "[+|-]VALUE", allow_hyphen_values = true)]
    pub with_generation: Option<Bound>,
    /// The same of the generation in which they were made.
    #[arg(short = 'C', value_name = "[+|-]VALUE", allow_hyphen_values = true)]
    pub with_creation: Option<Bound>,
    /// Sort by these of rootid, gen, ogen, path; - before one: descending.
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

/// Show what is known of a subvolume.
#[derive(Debug, Args)]
pub struct Show {
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// The subvolume with this number of the volume at PLACE.
    #[arg(short = 'r', long, value_name = "ID", conflicts_with = "uuid")]
    pub rootid: Option<u64>,
    /// The subvolume with this id of the volume at PLACE.
    #[arg(short = 'u', long, value_name = "UUID")]
    pub uuid: Option<String>,
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    #[command(flatten)]
    pub image: InImage,
}

/// Show the subvolume that is mounted if none is asked for.
#[derive(Debug, Args)]
pub struct GetDefault {
    /// For programs: as list shows it.
    #[arg(long)]
    pub json: bool,
    /// Any place on the volume, or its image.
    #[arg(value_name = "PLACE")]
    pub place: OsString,
    #[command(flatten)]
    pub image: InImage,
}

/// Choose the subvolume that is mounted if none is asked for.
#[derive(Debug, Args)]
pub struct SetDefault {
    /// The subvolume; or its number, followed by any place on the volume.
    #[arg(required = true, num_args = 1..=2, value_names = ["PLACE|ID", "PLACE"])]
    pub places: Vec<InVolume>,
    #[command(flatten)]
    pub image: InImage,
}

/// List the extents of files that were written since a commit, as far as they are still there.
///
/// The last line shows the number to begin with the next time.
#[derive(Debug, Args)]
pub struct FindNew {
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    /// The first commit that counts.
    #[arg(value_name = "GENERATION")]
    pub generation: u64,
    #[command(flatten)]
    pub image: InImage,
}

/// Wait until the space of deleted subvolumes has come back.
#[derive(Debug, Args)]
pub struct SyncDeleted {
    /// Look every so many seconds.
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
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// The kind of object; there are properties of subvolumes only.
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
    /// Make a received subvolume writable, though it can't be the base of another stream then.
    #[arg(short)]
    pub force: bool,
    /// The kind of object; there are properties of subvolumes only.
    #[arg(short = 't', value_name = "TYPE", value_parser = ["s", "subvol", "subvolume"])]
    pub kind: Option<String>,
    /// The subvolume.
    #[arg(value_name = "PLACE")]
    pub place: InVolume,
    /// The property.
    #[arg(value_name = "NAME")]
    pub name: PropertyName,
    /// Its value.
    #[arg(value_name = "true|false", action = clap::ArgAction::Set)]
    pub value: bool,
    #[command(flatten)]
    pub image: InImage,
}
