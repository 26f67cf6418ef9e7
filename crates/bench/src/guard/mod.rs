//! The regression guard: what fixed histories cost the engine, in counters that are the same on any
//! machine, beside those of a committed baseline.

pub mod histories;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};
use histories::{Bed, HISTORIES, History};

/// Parts in a hundred by which a counter may grow unnoticed.
const TOLERANCE: u64 = 2;

/// Count what fixed histories cost the engine, and compare with the baseline.
#[derive(Debug, Args)]
pub struct Guard {
    /// The baseline.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/guard.json"))]
    pub baseline: PathBuf,
    /// Make what was counted the baseline.
    #[arg(long)]
    pub write: bool,
}

/// Counters by their names, by the names of histories.
type Figures = BTreeMap<String, BTreeMap<String, u64>>;

/// A counter that is not what it was.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    history: String,
    counter: String,
    before: u64,
    now: u64,
}

impl Change {
    fn is_worse(&self) -> bool {
        self.now > self.before
    }
}

/// Counts, and fails if anything has grown.
pub fn run(what: &Guard) -> Result<()> {
    let now = count_all()?;
    if what.write {
        let text = serde_json::to_string_pretty(&now).map_err(|error| Failure::about("the baseline", &error))?;
        return Ok(std::fs::write(&what.baseline, text + "\n")?);
    }
    let before = serde_json::from_slice(&std::fs::read(&what.baseline)?)
        .map_err(|error| Failure::about(what.baseline.display(), &error))?;
    for (history, counters) in &now {
        println!("{history}");
        for (counter, value) in counters {
            println!("  {counter:12} {value:>12}");
        }
    }
    let changes = compare(&before, &now);
    for change in &changes {
        let Change { history, counter, before, now } = change;
        let word = if change.is_worse() { "WORSE" } else { "better" };
        println!("{word}: {history}: {counter} {before} -> {now}");
    }
    if changes.iter().any(Change::is_worse) {
        return Err(Failure::new(
            "counters have grown; if that is worth it, say why in the commit that writes a new baseline (--write)",
        ));
    }
    Ok(())
}

/// What has changed by more than the tolerance, or is in one of the two alone.
fn compare(before: &Figures, now: &Figures) -> Vec<Change> {
    let value = |figures: &Figures, history: &str, counter: &str| {
        figures.get(history).and_then(|counters| counters.get(counter)).copied().unwrap_or(0)
    };
    let mut changes = Vec::new();
    let names = |figures: &Figures| -> Vec<(String, String)> {
        let of = |(history, counters): (&String, &BTreeMap<String, u64>)| {
            counters.keys().map(|counter| (history.clone(), counter.clone())).collect::<Vec<_>>()
        };
        figures.iter().flat_map(of).collect()
    };
    let mut all = [names(before), names(now)].concat();
    all.sort();
    all.dedup();
    for (history, counter) in all {
        let (before, now) = (value(before, &history, &counter), value(now, &history, &counter));
        if before.abs_diff(now) > before * TOLERANCE / 100 {
            changes.push(Change { history, counter, before, now });
        }
    }
    changes
}

fn count_all() -> Result<Figures> {
    HISTORIES.iter().map(|history| Ok((history.name.to_owned(), count(history)?))).collect()
}

/// What a history costs from where it says that it begins.
fn count(history: &History) -> Result<BTreeMap<String, u64>> {
    let mut bed = Bed::new()?;
    let mut start = None;
    (history.run)(&mut bed, &mut |bed| start = Some(counters(bed)))?;
    let start = start.unwrap_or_default();
    Ok(counters(&bed).into_iter().map(|(name, end)| (name.to_owned(), end - start.get(name).unwrap_or(&0))).collect())
}

fn counters(bed: &Bed) -> BTreeMap<&'static str, u64> {
    let stats = bed.fs().stats();
    let devices = stats.volume.devices;
    BTreeMap::from([
        ("reads", devices.reads),
        ("read bytes", devices.read_bytes),
        ("writes", devices.writes),
        ("bytes", devices.written_bytes),
        ("barriers", devices.flushes),
        ("commits", stats.commits),
        ("log writes", stats.log_writes),
        ("log bytes", stats.log_bytes),
        ("node visits", stats.cache.hits + stats.cache.misses),
        ("nodes read", stats.cache.misses),
    ])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    /// To accept other figures: `ubtrfs-bench guard --write`, and say why in the commit.
    #[test]
    fn fixed_histories_cost_no_more_than_the_baseline_says() {
        let before = serde_json::from_str(include_str!("../../guard.json")).unwrap();
        let changes = compare(&before, &count_all().unwrap());
        let worse: Vec<_> = changes.iter().filter(|change| change.is_worse()).collect();
        assert!(worse.is_empty(), "{worse:#?}");
    }

    #[test]
    fn growth_is_noticed_and_noise_is_not() {
        let figures = |bytes: u64| -> Figures {
            BTreeMap::from([("one".to_owned(), BTreeMap::from([("bytes".to_owned(), bytes)]))])
        };
        assert!(compare(&figures(1000), &figures(1020)).is_empty());
        let grown = compare(&figures(1000), &figures(1021));
        assert!(grown.len() == 1 && grown[0].is_worse());
        assert!(!compare(&figures(1000), &figures(900))[0].is_worse());
        assert!(compare(&Figures::new(), &figures(1))[0].is_worse());
    }
}
