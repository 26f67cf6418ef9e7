//! Counts the costs of histories on a mount.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::figures::Figures;
use super::programs::{HISTORIES, History};
use crate::cleanup::Yard;
use crate::failure::Result;
use crate::peers::{Conditions, GUARDED, Mounted};

/// Bytes of the volume, in a sparse file.
const VOLUME: u64 = 1 << 30;
/// These are not kinds of requests, or depend on how much memory the kernel has.
const NOT_COUNTED: [&str; 2] = ["forget", "postponed"];

/// Returns why nothing can be counted here.
pub fn missing() -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    if root { GUARDED.missing() } else { Some("needs root".into()) }
}

/// Returns the costs of each history, on fresh volumes in a directory.
pub fn count_all(dir: &Path) -> Result<Figures> {
    HISTORIES.iter().map(|history| Ok((history.name.to_owned(), count(history, dir)?))).collect()
}

fn count(history: &History, dir: &Path) -> Result<BTreeMap<String, u64>> {
    let yard = Yard::new(dir)?;
    let mut mounted = GUARDED.begin(yard.path(), VOLUME, Conditions::default())?;
    history.prepare.map_or(Ok(()), |prepare| prepare(mounted.directory()))?;
    if history.cold {
        mounted.unmount()?;
        mounted.mount()?;
    }
    let before = counters(&mounted)?;
    (history.run)(mounted.directory())?;
    let after = counters(&mounted)?;
    mounted.unmount()?;
    let grown = |(name, end): (String, u64)| {
        let grown = end - before.get(&name).unwrap_or(&0);
        (grown > 0).then_some((name, grown))
    };
    Ok(after.into_iter().filter_map(grown).collect())
}

/// Returns requests by kind, the paths of requests and answers between threads, and the device's
/// writes.
fn counters(mounted: &Mounted) -> Result<BTreeMap<String, u64>> {
    let report = mounted.report()?;
    let group = |name: &str| -> BTreeMap<String, u64> {
        let values = report.get(name).and_then(Value::as_object).into_iter().flatten();
        values.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
    };
    let hops = group("hops");
    let hop = |names: &[&str]| names.iter().filter_map(|name| hops.get(*name)).sum::<u64>();
    let ways = [
        ("served at once", hop(&["at_once", "reading"])),
        ("passed to another thread", hop(&["postponed", "not_tried"])),
        ("answered by another thread", hop(&["answered_elsewhere", "woken"])),
        ("slow jobs", hop(&["slow_jobs"])),
        ("callers read in /proc", report["callers_read"].as_u64().unwrap_or_default()),
        ("device writes", report["device_writes"].as_u64().unwrap_or_default()),
    ];
    let requests = group("requests").into_iter().filter(|(kind, _)| !NOT_COUNTED.contains(&&**kind));
    Ok(requests.chain(ways.map(|(name, value)| (name.to_owned(), value))).collect())
}
