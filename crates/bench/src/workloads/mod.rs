//! The workloads.

mod case;
mod compress;
mod dbench;
mod fio;
mod growth;
mod images;
mod io;
mod large;
mod latency;
mod maintenance;
mod mix;
mod network;
mod scale;
mod scaling;
mod snapshots;
mod storm;
mod throttled;
mod tree;
pub mod unlinked;

use crate::failure::{Failure, Result};

pub use case::{Case, Scale};

/// A workload.
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    /// The smallest scale at which it runs by default.
    pub from: Scale,
    /// Its cases at a scale.
    pub cases: fn(Scale) -> Vec<Case>,
}

const fn workload(name: &'static str, about: &'static str, from: Scale, cases: fn(Scale) -> Vec<Case>) -> Workload {
    Workload { name, about, from, cases }
}

/// All workloads, those of the headlines first.
pub const ALL: [Workload; 20] = [
    workload("dbench", "a file server's clients", Scale::Quick, dbench::cases),
    workload("fio-seq", "64 KiB sequential writes, fsync after each", Scale::Quick, fio::sequential),
    workload("fio-rand", "4 KiB random writes, fsync after 16", Scale::Quick, fio::random),
    workload("storm", "renames by one process", Scale::Tiny, storm::cases),
    workload("storm-mv", "renames by one mv each", Scale::Quick, storm::cases_mv),
    workload("unlinked", "O_TMPFILE files opened, and closed oldest first", Scale::Tiny, unlinked::cases),
    workload("growth", "how cost grows with sizes and numbers, by decades", Scale::Usual, growth::cases),
    workload("scale", "how cost grows with the space that is allocated", Scale::Usual, scale::cases),
    workload("latency", "operations while commits run, and while none does", Scale::Usual, latency::cases),
    workload("io", "reading and writing, in order and at random", Scale::Usual, io::cases),
    workload("tree", "a source tree: tar, git checkout, rm -rf", Scale::Usual, tree::cases),
    workload("large-file", "operations while a file of many extents is freed", Scale::Usual, large::cases),
    workload("snapshots", "snapshots made, many, beside others, and deleted", Scale::Usual, snapshots::cases),
    workload("compress", "sources, pages and noise, compressed", Scale::Usual, compress::cases),
    workload("images", "images of many files, without a mount", Scale::Usual, images::cases),
    workload("maintenance", "scrub, balance, replacement, and a device that was away", Scale::Full, maintenance::cases),
    workload("scaling", "threads, each in a directory of its own", Scale::Full, scaling::cases),
    workload("throttled", "random writers with fsyncs on a device of 200 MB/s", Scale::Full, throttled::cases),
    workload("network", "programs on a server whose answers come late", Scale::Full, network::cases),
    workload("volume", "mount time and memory with very many files", Scale::Full, growth::volume_cases),
];

/// Returns the cases of a workload, or the one case of that name.
pub fn named(name: &str, scale: Scale) -> Result<Vec<Case>> {
    if let Some(workload) = ALL.iter().find(|workload| workload.name == name) {
        return Ok((workload.cases)(scale));
    }
    let mut all = ALL.iter().flat_map(|workload| (workload.cases)(scale));
    let found = all.find(|case| case.facts.name == name);
    let found = found.ok_or_else(|| Failure::new(format!("there is no workload {name}; see `ubtrfs-bench list`")))?;
    Ok(vec![found])
}
