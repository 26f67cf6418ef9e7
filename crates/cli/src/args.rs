//! The command line.

pub mod balance;
mod compression;
pub mod device;
pub mod edit;
pub mod filesystem;
mod image;
pub mod in_volume;
mod mkfs;
mod owner;
mod populate;
mod rescue;
pub mod scrub;
pub mod subvolume;
mod window;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use compression::{Compression, parse_compression_of_mkfs_btrfs};
pub use image::{Image, ImageCommand, ImageDump, ImageRestore};
use in_volume::InVolume;
pub use mkfs::{Mkfs, MkfsAlone};
use owner::parse_owner;
pub use populate::Populate;
pub use rescue::{History, Rescue, RescueCommand, Restore, SuperRecover, Undo, ZeroLog};
pub use window::Window;

use crate::mount::near::{long_help, short_help};

/// btrfs in user space: make, mount, check and read btrfs volumes.
#[derive(Debug, Parser)]
#[command(
    name = "ubtrfs",
    version,
    after_help = "Exit status: 0 success, 1 failure, 2 invalid command line. check, diff, merge, scrub and device stats have other statuses, too: see their help."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, for as long as the program runs")]
pub enum Command {
    Mkfs(Mkfs),
    Mount(Mount),
    Umount(Umount),
    Sync(Directory),
    Stats(Stats),
    Check(Check),
    Rescue(Rescue),
    Restore(Restore),
    Image(Image),
    Info(Info),
    History(History),
    Label(Label),
    Subvolume(subvolume::Subvolume),
    Property(subvolume::Property),
    #[command(visible_alias = "fi")]
    Filesystem(filesystem::FilesystemArguments),
    Balance(balance::BalanceArguments),
    Device(device::DeviceArguments),
    Replace(device::ReplaceArguments),
    #[command(hide = true)]
    Defragment(filesystem::Defragment),
    Scrub(scrub::ScrubArguments),
    Shell(Shell),
    Tree(Tree),
    Ls(Ls),
    /// Show the attributes of a file of a volume without mounting it.
    Stat(Stat),
    /// Write the content of a file of a volume to the standard output, without mounting it.
    Cat(Look),
    Diff(Diff),
    Merge(Merge),
    #[command(flatten)]
    Edit(edit::EditCommand),
    Apply(edit::Apply),
    Export(edit::Export),
    Import(edit::Import),
    #[command(hide = true)]
    Generate(Generate),
    #[command(hide = true)]
    AskAs(AskAs),
}

/// Send a request to the server of a mount as the user who has mounted it.
#[derive(Debug, Args)]
pub struct AskAs {
    /// The ids of the user and the group.
    #[arg(value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: (u32, u32),
    /// The request: `sync` or `stats`.
    pub name: String,
    /// The directory of the mount.
    pub directory: PathBuf,
}

/// Mount a volume on a directory.
#[derive(Debug, Args)]
pub struct Mount {
    /// Options, separated by commas.
    #[arg(short, long = "options", value_name = "OPTIONS", help = short_help(), long_help = long_help())]
    pub options: Vec<String>,
    /// Stay in the foreground, and log to the standard error stream.
    #[arg(short, long)]
    pub foreground: bool,
    /// Discard the content of this device of the volume, named by its number or path, and copy the
    /// content of the others to it. For devices that were each written without the other one.
    #[arg(long, value_name = "DEVICE")]
    pub discard_device: Vec<String>,
    /// Run as the server in the background.
    #[arg(long, hide = true)]
    pub server: bool,
    /// End the mount and remove its directory when this process has ended and nobody uses the mount
    /// any more.
    #[arg(long, value_name = "PID", hide = true)]
    pub tied_to: Option<u32>,
    /// Run as the process that aborts the connection when the server has ended.
    #[arg(long, hide = true)]
    pub watcher: bool,
    /// The devices (or image files) of the volume, then the directory to mount on. With the option
    /// remount the directory alone is enough.
    #[arg(required_unless_present = "watcher", num_args = 1.., value_names = ["DEVICE", "DIR"])]
    pub places: Vec<PathBuf>,
}

/// Unmount a volume, and return when all changes are durable and the device is free.
#[derive(Debug, Args)]
pub struct Umount {
    /// Only clear the mount of a dead server; if there is none, do nothing.
    #[arg(long)]
    pub dead: bool,
    /// Unmount even if programs use the mount, whose requests then fail, and wait only a few
    /// seconds for a device that is away.
    #[arg(long, short, conflicts_with = "dead")]
    pub force: bool,
    /// The directory of the mount.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Make all changes on a mounted volume durable.
#[derive(Debug, Args)]
pub struct Directory {
    /// Any directory or file of the mounted volume.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Show the counters of a mount.
#[derive(Debug, Args)]
pub struct Stats {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Show a line each second until the mount ends: requests, data, fsyncs, commits, memory.
    #[arg(short, long, conflicts_with = "json")]
    pub watch: bool,
    /// With --watch: end after this many lines.
    #[arg(long, value_name = "LINES", requires = "watch")]
    pub count: Option<u64>,
    /// Any directory or file of the mounted volume.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Check a volume that is not mounted. Exit status: 0 no fault, 1 faults were found, 2 the volume
/// could not be checked.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Check {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Do not verify data by its checksums.
    #[arg(long)]
    pub no_data: bool,
    /// Repair what follows from something else: names, link counts, sizes, references to extents,
    /// counters, free space, copies. Shows the plan first, and asks. All of it is one commit.
    #[arg(long)]
    pub repair: bool,
    /// With --repair: show the plan, and change nothing.
    #[arg(short = 'n', long, requires = "repair", conflicts_with = "yes")]
    pub dry_run: bool,
    /// With --repair: do not ask.
    #[arg(short, long, requires = "repair")]
    pub yes: bool,
    /// With --repair: also give up content and files of which nothing says what they were. The plan
    /// names them.
    #[arg(long, requires = "repair")]
    pub lose_content: bool,
    /// With --repair: give data without checksums those of what it is now. Needs --lose-content,
    /// since nobody knows whether the data is right.
    #[arg(long, requires_all = ["repair", "lose_content"])]
    pub recompute_checksums: bool,
    /// With --repair: keep all blocks that are overwritten in a new file. 'ubtrfs rescue undo FILE'
    /// puts them back.
    #[arg(long, value_name = "FILE", requires = "repair")]
    pub undo: Option<PathBuf>,
    #[command(flatten)]
    pub scope: CheckScope,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Where a check starts, and what it lists besides faults. The options are those of `btrfs check`.
#[derive(Debug, Default, Args)]
pub struct CheckScope {
    /// Use this copy of the superblock: 0, 1 or 2.
    #[arg(short, long = "super", value_name = "COPY", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub superblock: Option<u8>,
    /// Use the newest backup of the roots in the superblock that can be read.
    #[arg(short, long)]
    pub backup: bool,
    /// Use the root tree at this logical address.
    #[arg(short = 'r', long, value_name = "ADDRESS")]
    pub tree_root: Option<u64>,
    /// Use the chunk tree at this logical address.
    #[arg(long, value_name = "ADDRESS")]
    pub chunk_root: Option<u64>,
    /// List the extents of the subvolume with this id, and the subvolumes that share them.
    #[arg(short = 'E', long, value_name = "ID")]
    pub subvol_extents: Option<u64>,
    /// List what each quota group uses by its record and by the trees, even if the quota groups are
    /// marked as inconsistent.
    #[arg(short = 'Q', long)]
    pub qgroup_report: bool,
}

impl CheckScope {
    /// Returns whether the check starts at other roots than a mount would.
    pub fn starts_elsewhere(&self) -> bool {
        self.superblock.is_some() || self.backup || self.tree_root.is_some() || self.chunk_root.is_some()
    }
}

/// Show the label, ids, features, devices, block groups and subvolumes of a volume.
#[derive(Debug, Args)]
pub struct Info {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Show the label of a volume, or set it.
#[derive(Debug, Args)]
pub struct Label {
    /// The device or image of a volume that is not mounted, or a directory of a mounted volume.
    #[arg(value_name = "DEVICE|DIR")]
    pub place: PathBuf,
    /// The new label, at most 255 bytes; '' removes the label. On a mount only root and the user
    /// who has mounted the volume can change the label.
    #[arg(value_name = "LABEL")]
    pub new: Option<OsString>,
    /// Another device of the volume; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Run a command, or a shell, as root on an image, without being root. The command runs in a user
/// namespace with the caller's subordinate ids; there the image is mounted, and the mount is the
/// working directory.
#[derive(Debug, Args)]
pub struct Shell {
    /// The image.
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// The command and its arguments [default: $SHELL]. `$UBTRFS_MOUNT` names the mount.
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
    /// Mount options, separated by commas: see `ubtrfs mount --help`.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Option<OsString>,
    /// Use no subordinate ids: root is the only user in the namespace.
    #[arg(long)]
    pub single_id: bool,
    /// Run in the namespaces of the caller, which are made already.
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// Show the items of a volume's trees.
#[derive(Debug, Args)]
pub struct Tree {
    /// The tree, by its number or its name (root, extent, chunk, dev, fs, csum, uuid, free-space,
    /// block-group, log, …) [default: all trees].
    #[arg(short = 't', long = "tree", value_name = "ID")]
    pub id: Option<String>,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// The volume of ls, stat and cat.
#[derive(Debug, Args)]
pub struct PathInVolume {
    /// The subvolume that PATH begins in, by its path [default: the default subvolume].
    #[arg(long, value_name = "PATH", conflicts_with = "subvolid")]
    pub subvol: Option<String>,
    /// The subvolume that PATH begins in, by its number.
    #[arg(long, value_name = "ID")]
    pub subvolid: Option<u64>,
    /// Ignore the log of the volume: show the last commit.
    #[arg(long)]
    pub nologreplay: bool,
    /// Another device of the volume; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// The image, or all devices of the volume, then the path in the volume; or one argument
    /// IMAGE:PATH.
    #[arg(required = true, num_args = 1.., value_names = ["DEVICE", "PATH"])]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// List a directory of a volume without mounting it.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Ls {
    /// Print JSON, for programs: an array with the attributes and the complete path of each file.
    #[arg(long, conflicts_with = "long")]
    pub json: bool,
    /// Show mode, links, owner, group, size and time.
    #[arg(short)]
    pub long: bool,
    /// Show names that begin with a dot, too.
    #[arg(short)]
    pub all: bool,
    /// List subdirectories, too.
    #[arg(short = 'R')]
    pub recursive: bool,
    #[command(flatten)]
    pub place: PathInVolume,
}

/// The path of stat.
#[derive(Debug, Args)]
pub struct Stat {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: PathInVolume,
}

/// The path of cat.
#[derive(Debug, Args)]
pub struct Look {
    #[command(flatten)]
    pub place: PathInVolume,
}

/// Show which files differ between two subvolumes of a volume, mounted or not. Exit status: 0 there
/// is no difference, 1 there are differences, 2 the subvolumes could not be compared.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Diff {
    /// Show paths only.
    #[arg(long, conflicts_with_all = ["stat", "json"])]
    pub name_only: bool,
    /// Show how many bytes of content changed in each file, and a summary.
    #[arg(long, conflicts_with = "json")]
    pub stat: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Show what the commit with this number and later ones changed in one subvolume. Only what
    /// exists now is shown: not what was removed.
    #[arg(long, value_name = "GENERATION")]
    pub since: Option<u64>,
    /// Ignore the log of the volume: show the last commit.
    #[arg(long)]
    pub nologreplay: bool,
    /// Another device of the volume; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// The old subvolume: its directory on a mount, or IMAGE:PATH, with PATH from the top level of
    /// a volume that is not mounted. With --since it is the only subvolume.
    #[arg(value_name = "OLD")]
    pub old: InVolume,
    /// The new subvolume, of the same volume.
    #[arg(value_name = "NEW", required_unless_present = "since", conflicts_with = "since")]
    pub new: Option<InVolume>,
    #[command(flatten)]
    pub window: Window,
}

/// Merge the changes from one subvolume to another into a third: a three-way merge, file by file.
/// Merged content shares the extents of CHANGED. Exit status: 0 the changes were merged, 1 there
/// are conflicts, and nothing was changed, 2 the changes could not be merged.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Merge {
    /// On a conflict keep what TARGET has.
    #[arg(long, conflicts_with = "theirs")]
    pub ours: bool,
    /// On a conflict take what CHANGED has, and lose what TARGET has.
    #[arg(long)]
    pub theirs: bool,
    /// Only show what would change.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// A snapshot of the state that CHANGED and TARGET both come from: a directory of a mount, or
    /// IMAGE:PATH, with PATH from the top level of a volume that is not mounted.
    #[arg(value_name = "BASE")]
    pub base: InVolume,
    /// The subvolume with the changes. If programs write to it, name a snapshot of it instead.
    #[arg(value_name = "CHANGED")]
    pub changed: InVolume,
    /// The subvolume that gets the changes. A merge that fails in the middle leaves it half merged:
    /// make a snapshot of it before, or merge into a snapshot of it and run `subvolume reset` with
    /// that snapshot.
    #[arg(value_name = "TARGET")]
    pub target: InVolume,
    #[command(flatten)]
    pub image: subvolume::InImage,
}

/// Write manual pages and completions for shells, as `make install` puts them into PREFIX/share.
#[derive(Debug, Args)]
pub struct Generate {
    /// The directory below which the files are written.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn mkfs_takes_sizes() {
        let arguments = Arguments::try_parse_from(["ubtrfs", "mkfs", "--size", "8G", "-n", "32k", "image"]).unwrap();
        let Command::Mkfs(mkfs) = arguments.command else { panic!() };
        assert_eq!((mkfs.size, mkfs.nodesize), (Some(8 << 30), Some(32 << 10)));
    }

    #[test]
    fn mount_needs_a_device_and_a_directory() {
        assert!(Arguments::try_parse_from(["ubtrfs", "mount"]).is_err());
        let remount = ["ubtrfs", "mount", "-o", "remount,ro", "dir"];
        assert!(Arguments::try_parse_from(remount).is_ok());
        assert!(Arguments::try_parse_from(["ubtrfs", "mount", "-o", "ro", "device", "dir"]).is_ok());
    }
}
