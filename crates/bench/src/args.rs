//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ubtrfs_mkfs::Profile as ChunkProfile;

use crate::failure::Result;
use crate::guard::Guard;
use crate::peers::{self, Conditions, Layout, Peer};
use crate::runner::RunPlan;
use crate::touches::Touches;
use crate::workloads::{self, Scale};

/// Run the same workloads on ubtrfs, the kernel's file systems, and the bound of FUSE.
#[derive(Debug, Parser)]
#[command(name = "ubtrfs-bench", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Run),
    Report(Report),
    Profile(Profile),
    Guard(Guard),
    Touches(Touches),
    /// Show workloads and peers.
    List,
    /// Serve the peer `null`.
    #[command(hide = true)]
    Null {
        backing: PathBuf,
        directory: PathBuf,
    },
    /// Hold open files, as a process of its own.
    #[command(hide = true)]
    Hold {
        directory: PathBuf,
        count: usize,
    },
}

/// Measure workloads on peers, and write the results to a file.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Run {
    /// Workloads (see `list`), or single cases such as dbench-16 [default: those of --quick, --full
    /// or neither].
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// The peers to compare (see `list`), separated by commas [default: depends on the other
    /// options].
    #[arg(long, value_delimiter = ',', value_name = "PEER,…")]
    pub peers: Vec<String>,
    /// Run few cases, for at most a quarter of an hour.
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// Run all workloads on all peers, which takes about a day.
    #[arg(long)]
    pub full: bool,
    /// Run for seconds, to see that it works.
    #[arg(long, hide = true, conflicts_with_all = ["quick", "full"])]
    pub tiny: bool,
    /// The number of rounds; a round measures each case once on each peer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write the blocks of the images before, and use them again, so that no allocation in the file
    /// system below is measured.
    #[arg(long)]
    pub written: bool,
    /// The profile of data and metadata: single, dup, raid0, raid1, raid1c3, raid1c4 or raid10
    /// [default: single].
    #[arg(long, value_name = "P", value_parser = parse_profile)]
    pub profile: Option<ChunkProfile>,
    /// The number of devices of a volume, each as large as a single one would be [default: 1 with
    /// single and dup, 4 with raid1c4, else 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub devices: Option<u32>,
    /// Limit the reads and the writes of each device to this many 10^6 bytes per second; for peers
    /// on a loop device (as root), and the library.
    #[arg(long, value_name = "MB/s", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub throttle: Option<u64>,
    /// The directory for the images, which take up to 20 GiB.
    #[arg(long, value_name = "D", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The file for the results.
    #[arg(long, short, value_name = "FILE", default_value = "bench.json")]
    pub out: PathBuf,
    /// Draw plots (SVG and PNG) into this directory at the end.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// Draw a flame graph of the server during a workload (perf is needed).
#[derive(Debug, Args)]
pub struct Profile {
    /// The workload, or one of its cases, such as dbench-16.
    #[arg(value_name = "WORKLOAD")]
    pub workload: String,
    /// The peer whose server is profiled.
    #[arg(long, default_value = "ubtrfs")]
    pub peer: String,
    /// The directory for the images.
    #[arg(long, value_name = "D", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The file for the flame graph.
    #[arg(long, short, value_name = "FILE", default_value = "profile.svg")]
    pub out: PathBuf,
}

/// Show a result file, or the differences of two beyond the noise.
#[derive(Debug, Args)]
pub struct Report {
    /// The result file, or two, of which the first is the older one.
    #[arg(required = true, num_args = 1..=2, value_names = ["OLD", "NEW"])]
    pub results: Vec<PathBuf>,
    /// Show all figures of one result file, not only the most important ones.
    #[arg(long)]
    pub all: bool,
    /// Print one result file as Markdown, for docs/bench.md.
    #[arg(long)]
    pub markdown: bool,
    /// Put one result file as Markdown into this page, between its marks.
    #[arg(long, value_name = "PAGE")]
    pub into: Option<PathBuf>,
    /// Draw plots (SVG and PNG) of the last named result file into this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

impl Run {
    fn scale(&self) -> Scale {
        match (self.tiny, self.quick, self.full) {
            (true, ..) => Scale::Tiny,
            (_, true, _) => Scale::Quick,
            (.., true) => Scale::Full,
            _ => Scale::Usual,
        }
    }

    fn layout(&self) -> Layout {
        let profile = self.profile.unwrap_or(ChunkProfile::Single);
        let usual = if matches!(profile, ChunkProfile::Single | ChunkProfile::Dup) { 1 } else { 3 };
        let usual = if profile == ChunkProfile::Raid1c4 { 4 } else { usual };
        Layout { devices: self.devices.map_or(usual, |devices| devices as usize), profile }
    }

    /// Returns the plan of the run.
    pub fn plan(&self) -> Result<RunPlan> {
        let scale = self.scale();
        let cases = if self.workloads.is_empty() {
            let wanted = workloads::ALL.iter().filter(|workload| workload.from <= scale);
            wanted.flat_map(|workload| (workload.cases)(scale)).collect()
        } else {
            let mut cases = Vec::new();
            for name in &self.workloads {
                cases.extend(workloads::named(name, scale)?);
            }
            cases
        };
        let layout = self.layout();
        let usual: &[&str] = match scale {
            _ if layout.devices > 1 && self.throttle.is_some() => &["ubtrfs-loop", "btrfs-direct", "library"],
            _ if layout.devices > 1 => &["ubtrfs", "ubtrfs-loop", "btrfs-direct", "btrfs"],
            _ if self.throttle.is_some() => &["ubtrfs-loop", "btrfs-direct", "xfs-direct", "ext4-direct"],
            Scale::Tiny | Scale::Quick => &["ubtrfs", "btrfs-direct", "btrfs", "null"],
            Scale::Usual => &["ubtrfs", "ubtrfs-loop", "btrfs-direct", "btrfs", "xfs", "ext4", "null", "library"],
            Scale::Full => &peers::ALL.map(|peer| peer.name),
        };
        let asked: Vec<&str> =
            if self.peers.is_empty() { usual.to_vec() } else { self.peers.iter().map(String::as_str).collect() };
        Ok(RunPlan {
            cases,
            peers: asked.into_iter().map(Peer::named).collect::<Result<_>>()?,
            rounds: self.rounds,
            scale,
            conditions: Conditions {
                written: self.written,
                layout,
                throttle: self.throttle.map(|megabytes| megabytes * 1_000_000),
                delay: None,
            },
            dir: self.dir.clone(),
            out: self.out.clone(),
        })
    }
}

fn parse_profile(name: &str) -> std::result::Result<ChunkProfile, String> {
    ChunkProfile::of_name(name).ok_or_else(|| "there is no such profile".into())
}

/// Shows workloads and peers.
pub fn list() {
    println!("workloads");
    for workload in &workloads::ALL {
        println!("  {:14} {}", workload.name, workload.about);
    }
    println!("peers");
    for peer in peers::ALL {
        let missing = peer.missing().map_or(String::new(), |why| format!(" (not here: {why})"));
        println!("  {:14} {}{missing}", peer.name, peer.about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(words: &[&str]) -> Result<RunPlan> {
        let all = ["ubtrfs-bench", "run"].iter().chain(words);
        match Arguments::try_parse_from(all).unwrap().command {
            Command::Run(run) => run.plan(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn quick_is_as_in_the_manual() {
        let plan = plan(&["--quick"]).unwrap();
        let peers: Vec<&str> = plan.peers.iter().map(|peer| peer.name).collect();
        let cases: Vec<&str> = plan.cases.iter().map(|case| case.facts.name.as_str()).collect();
        assert_eq!((peers, plan.rounds), (vec!["ubtrfs", "btrfs-direct", "btrfs", "null"], 3));
        assert_eq!(cases[..6], ["dbench-1", "dbench-16", "fio-seq-1", "fio-seq-16", "fio-rand-1", "fio-rand-16"]);
        assert_eq!(cases[6..], ["storm-2000", "storm-mv-2000", "unlinked-20000"]);
    }

    #[test]
    fn unknown_workloads_are_named() {
        assert!(plan(&["nothing"]).is_err_and(|failure| failure.to_string().contains("nothing")));
        assert!(plan(&["--peers", "ubtrfs,zfs"]).is_err_and(|failure| failure.to_string().contains("zfs")));
        assert_eq!(plan(&["dbench-16", "--quick"]).unwrap().cases.len(), 1);
        let throttled = plan(&["--throttle", "200"]).unwrap();
        assert_eq!((throttled.peers[0].name, throttled.conditions.throttle), ("ubtrfs-loop", Some(200_000_000)));
        let several = plan(&["dbench", "--profile", "raid1", "--throttle", "200"]).unwrap();
        assert_eq!((several.conditions.layout.devices, several.peers.len()), (3, 3));
        let plan = plan(&["storm", "--peers", "xfs,null", "--rounds", "2"]).unwrap();
        assert_eq!((plan.cases.len(), plan.peers.len(), plan.rounds), (2, 2, 2));
    }
}
