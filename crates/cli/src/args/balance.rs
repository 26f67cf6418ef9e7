//! Arguments of `ubtrfs balance`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Args, Subcommand};
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BlockGroupFlags, SINGLE};

use super::subvolume::InImage;
use crate::size::parse_size;

/// Move the content of chunks to other chunks, on a mount or in an image. This makes chunks with
/// much free space unallocated space, or converts chunks to another profile.
#[derive(Debug, Args)]
pub struct BalanceArguments {
    #[command(subcommand)]
    pub what: BalanceCommand,
}

#[derive(Debug, Subcommand)]
pub enum BalanceCommand {
    /// Balance chunks, and return when it is done. Without -d, -m and -s all chunks are emptied,
    /// one after the other.
    Start(Box<Start>),
    /// Show the progress of a balance.
    Status(Status),
    /// Pause a balance on a mount, after its present step.
    Pause(BalancePlace),
    /// Continue a balance that was paused or interrupted, and return when it is done.
    Resume(Resume),
    /// End a balance.
    Cancel(BalancePlace),
}

#[derive(Debug, Args)]
pub struct Start {
    /// Balance the data chunks that FILTERS select, or all of them without FILTERS.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub data: Option<Filters>,
    /// Balance the metadata chunks that FILTERS select, or all of them without FILTERS.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub metadata: Option<Filters>,
    /// Balance the system chunks that FILTERS select, or all of them without FILTERS [default:
    /// those that -m selects].
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub system: Option<Filters>,
    /// Allow a conversion to fewer copies of metadata.
    #[arg(short, long)]
    pub force: bool,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub place: BalancePlace,
}

#[derive(Debug, Args)]
pub struct Resume {
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub place: BalancePlace,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BalancePlace,
}

/// How a balance is done and shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct How {
    /// Move at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BalancePlace {
    /// A directory on a mounted volume, or an image or device that is not mounted.
    #[arg(value_name = "PLACE")]
    pub place: OsString,
    #[command(flatten)]
    pub image: InImage,
}

/// Which chunks of a type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filters(pub BalanceArgs);

/// The words of the command line, in which `-d`, `-m` and `-s` of a balance may have their filters
/// without `=` between, as btrfs-progs have them.
pub fn with_filters_apart(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_balance = false;
    words.enumerate().map(move |(place, word)| {
        is_balance |= place == 1 && word == "balance";
        match word.as_bytes() {
            [b'-', b'd' | b'm' | b's', first, ..] if is_balance && first.is_ascii_lowercase() => {
                let (flag, filters) = word.as_bytes().split_at(2);
                OsString::from_vec([flag, filters].join(&b'='))
            }
            _ => word,
        }
    })
}

impl std::str::FromStr for Filters {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut args = BalanceArgs::default();
        for filter in text.split(',').filter(|filter| !filter.is_empty()) {
            let (name, value) = filter.split_once('=').unwrap_or((filter, ""));
            add(&mut args, name, value).map_err(|problem| format!("{filter}: {problem}"))?;
        }
        if args.filters & BalanceFilters::SOFT != 0 && args.filters & BalanceFilters::CONVERT == 0 {
            return Err("soft is for conversions: convert=PROFILE".into());
        }
        if args.filters & BalanceFilters::DRANGE != 0 && args.filters & BalanceFilters::DEVID == 0 {
            return Err("drange is a range of a device: devid=N".into());
        }
        Ok(Self(args))
    }
}

fn add(args: &mut BalanceArgs, name: &str, value: &str) -> Result<(), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| "a number is missing".to_owned());
    let halves = |(least, most): (u64, u64)| least.min(u32::MAX.into()) | most.min(u32::MAX.into()) << 32;
    args.filters |= match name {
        "usage" if !value.contains("..") => {
            args.usage = number(value).and_then(share)?;
            BalanceFilters::USAGE
        }
        "usage" => {
            args.usage = halves(range(value, &|text| number(text).and_then(share), 100)?);
            BalanceFilters::USAGE_RANGE
        }
        "limit" if !value.contains("..") => {
            args.limit = number(value)?;
            BalanceFilters::LIMIT
        }
        "limit" => {
            args.limit = halves(range(value, &number, u32::MAX.into())?);
            BalanceFilters::LIMIT_RANGE
        }
        "stripes" => {
            args.stripes = halves(range(value, &number, u32::MAX.into())?);
            BalanceFilters::STRIPES_RANGE
        }
        "devid" => {
            args.devid = number(value)?;
            BalanceFilters::DEVID
        }
        "drange" => {
            args.device_range = range(value, &parse_size, u64::MAX)?;
            BalanceFilters::DRANGE
        }
        "vrange" => {
            args.range = range(value, &parse_size, u64::MAX)?;
            BalanceFilters::VRANGE
        }
        "profiles" => {
            args.profiles = value.split('|').map(profile).try_fold(0, |all, bits| bits.map(|bits| all | bits))?;
            BalanceFilters::PROFILES
        }
        "convert" => {
            args.target = profile(value)?;
            BalanceFilters::CONVERT
        }
        "soft" => BalanceFilters::SOFT,
        _ => return Err("there is no such filter".into()),
    };
    Ok(())
}

/// `FROM..TO`, of which one may be left out.
fn range(text: &str, number: &dyn Fn(&str) -> Result<u64, String>, most: u64) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("a range is written FROM..TO")?;
    let from = if from.is_empty() { 0 } else { number(from)? };
    let to = if to.is_empty() { most } else { number(to)? };
    if from <= to { Ok((from, to)) } else { Err("the range ends before it begins".into()) }
}

/// A share of a chunk.
fn share(percent: u64) -> Result<u64, String> {
    if percent <= 100 { Ok(percent) } else { Err("a share is at most 100 percent".into()) }
}

fn profile(name: &str) -> Result<u64, String> {
    Ok(match name {
        "single" => SINGLE,
        "dup" => BlockGroupFlags::DUP.0,
        "raid0" => BlockGroupFlags::RAID0.0,
        "raid1" => BlockGroupFlags::RAID1.0,
        "raid1c3" => BlockGroupFlags::RAID1C3.0,
        "raid1c4" => BlockGroupFlags::RAID1C4.0,
        "raid10" => BlockGroupFlags::RAID10.0,
        "raid5" => BlockGroupFlags::RAID5.0,
        "raid6" => BlockGroupFlags::RAID6.0,
        _ => return Err("there is no such profile".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_may_follow_their_flag() {
        let words = ["ubtrfs", "balance", "start", "-dusage=5", "-d=usage=6", "-m", "-f", "/mnt"];
        let apart = with_filters_apart(words.into_iter().map(OsString::from));
        let wanted = ["ubtrfs", "balance", "start", "-d=usage=5", "-d=usage=6", "-m", "-f", "/mnt"];
        assert!(apart.eq(wanted));
        let words = ["ubtrfs", "mount", "-dusage"];
        assert!(with_filters_apart(words.into_iter().map(OsString::from)).eq(words));
    }

    #[test]
    fn filters_are_read_as_btrfs_progs_read_them() {
        let read = |text: &str| text.parse::<Filters>().map(|filters| filters.0);
        for wrong in ["usage=101", "usage=5..1", "usage=5..200", "limit=3..2", "vrange=2G..1G"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let args = read("usage=50,limit=3,convert=single,soft").unwrap();
        let filters = BalanceFilters::USAGE | BalanceFilters::LIMIT | BalanceFilters::CONVERT | BalanceFilters::SOFT;
        assert_eq!((args.usage, args.limit, args.target, args.filters), (50, 3, SINGLE, filters));
        let args = read("devid=1,drange=1M..2G,vrange=..5,profiles=single|dup,usage=1..,stripes=1..2").unwrap();
        assert_eq!((args.devid, args.device_range, args.range), (1, (1 << 20, 2 << 30), (0, 5)));
        assert_eq!((args.usage, args.stripes), ((100 << 32) + 1, (2 << 32) + 1));
        assert_eq!(args.profiles, SINGLE | BlockGroupFlags::DUP.0);
        for wrong in ["usage", "usage=x", "soft", "drange=1..2", "convert=raid9", "speed=1", "vrange=5"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
