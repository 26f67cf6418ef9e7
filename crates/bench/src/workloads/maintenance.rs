//! Maintenance of whole, mounted volumes: scrub, balance, the replacement of a device, and bringing
//! up a device that was away.

use std::time::Instant;

use super::case::{Case, Scale};
use super::io::{prepare, write};
use crate::calls::Calls;
use crate::failure::{Failure, Result};
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

const AWAY: &str = "while it was away";

/// Returns all cases.
pub fn cases(scale: Scale) -> Vec<Case> {
    let size = scale.pick(64 << 20, 1 << 30, 2 << 30, 3 << 30);
    let case = |name: &str, title: &str, run: fn(&mut Mounted, u64) -> Result<()>| {
        let measure = move |mounted: &mut Mounted, measured: &mut Measured| {
            prepare(mounted, size)?;
            time(mounted, measured, size, |mounted| run(mounted, scale.volume()))
        };
        case(name, title, measure)
    };
    let balance =
        |mounted: &mut Mounted, _| mounted.maintain(&["balance", "start"], &["balance", "start", "--full-balance"]);
    vec![
        case("scrub", "scrub of all devices", |mounted, _| {
            mounted.maintain(&["scrub", "start"], &["scrub", "start", "-B"])
        }),
        case("balance", "balance of all chunks", balance),
        case("replace", "replacement of a device", Mounted::replace_first),
        self::case("resilver", "a device that was away gets what it has missed", move |mounted, measured| {
            away(mounted, measured, size)
        }),
    ]
}

fn case(name: &str, title: &str, run: impl Fn(&mut Mounted, &mut Measured) -> Result<()> + 'static) -> Case {
    Case::new("maintenance", name.into(), title.into(), "bandwidth", run).programs(&["btrfs"]).with_subvolumes()
}

/// Measures the bytes of files per second.
fn time(
    mounted: &mut Mounted,
    measured: &mut Measured,
    bytes: u64,
    run: impl FnOnce(&mut Mounted) -> Result<()>,
) -> Result<()> {
    let start = Instant::now();
    run(mounted)?;
    let seconds = start.elapsed().as_secs_f64();
    measured.add("bandwidth", bytes as f64 / seconds / f64::from(1 << 20), "MiB/s", Better::Higher);
    measured.add("time", seconds, "s", Better::Lower);
    Ok(())
}

/// Writes a quarter of the files while one of the devices is away, and measures how it is brought
/// up.
fn away(mounted: &mut Mounted, measured: &mut Measured, size: u64) -> Result<()> {
    if !mounted.is_pair() {
        return Err(Failure::Impossible("only of a pair (--profile raid1 --devices 2)".into()));
    }
    let missed = size / 4;
    prepare(mounted, size - missed)?;
    // Makes chunks for these files now, since one device alone gets no mirrored chunks.
    write(mounted, "room", missed * 2)?;
    mounted.sync()?;
    write(mounted, "behind", missed / 2)?;
    {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        calls.unlink(&root, "room")?;
        calls.close(root);
    }
    mounted.sync()?;
    mounted.unmount()?;
    mounted.mount_degraded()?;
    write(mounted, AWAY, missed)?;
    mounted.unmount()?;
    mounted.forget_cached()?;
    time(mounted, measured, missed, |mounted| {
        mounted.mount()?;
        mounted.bring_up()
    })
}
