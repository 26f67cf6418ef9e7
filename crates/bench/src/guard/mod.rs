//! The regression guard: compares the costs of fixed histories, in counters that are the same on
//! any machine, with those of a committed baseline.

mod figures;
pub mod histories;
mod mounted;
mod programs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::switch::Switch;
use figures::{Change, Figures, compare};
use histories::{Bed, HISTORIES, History};

/// The additional tolerance on a mount, where other processes interfere.
const ON_A_MOUNT: u64 = 2;

/// Count what fixed histories cost the engine and the server, and compare the counters with a
/// baseline.
#[derive(Debug, Args)]
pub struct Guard {
    /// The file of the baseline.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/guard.json"))]
    pub baseline: PathBuf,
    /// Write the counters as the new baseline.
    #[arg(long)]
    pub write: bool,
}

/// The counters, in two groups.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Baseline {
    /// Counters of the engine, on a volume in memory.
    library: Figures,
    /// Counters of the server, on a mount.
    mount: Figures,
}

/// Counts, and fails if a counter has grown.
pub fn run(what: &Guard) -> Result<()> {
    let before: Result<Baseline> = std::fs::read(&what.baseline).map_err(Failure::from).and_then(|bytes| {
        serde_json::from_slice(&bytes).map_err(|error| Failure::about(what.baseline.display(), &error))
    });
    let _switch = Switch::turn_on();
    let library = count_all()?;
    let mount = match mounted::missing() {
        None => Some(mounted::count_all(&std::env::temp_dir())?),
        Some(why) => {
            println!("nothing is counted on a mount: {why}");
            None
        }
    };
    if what.write {
        let mount = mount.unwrap_or(before.unwrap_or_default().mount);
        let text = serde_json::to_string_pretty(&Baseline { library, mount })
            .map_err(|error| Failure::about("the baseline", &error))?;
        return Ok(std::fs::write(&what.baseline, text + "\n")?);
    }
    let Baseline { library: library_before, mount: mount_before } = before?;
    let mut changes = compare(&library_before, &library, 0);
    show(&library);
    if let Some(mount) = mount {
        changes.extend(compare(&mount_before, &mount, ON_A_MOUNT));
        show(&mount);
    }
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

fn show(figures: &Figures) {
    for (history, counters) in figures {
        println!("{history}");
        for (counter, value) in counters {
            println!("  {counter:26} {value:>12}");
        }
    }
}

fn count_all() -> Result<Figures> {
    HISTORIES.iter().map(|history| Ok((history.name.to_owned(), count(history)?))).collect()
}

/// Returns the costs of a history, from the beginning of its counted part on.
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
    use ubtrfs_testkit::need::Need;
    use ubtrfs_testkit::require;

    use super::*;

    /// To accept other figures, run `ubtrfs-bench guard --write`, and say why in the commit.
    fn baseline() -> Baseline {
        serde_json::from_str(include_str!("../../guard.json")).unwrap()
    }

    fn worse(changes: Vec<Change>) -> Vec<Change> {
        changes.into_iter().filter(Change::is_worse).collect()
    }

    #[test]
    fn fixed_histories_cost_no_more_than_the_baseline_says() {
        let worse = worse(compare(&baseline().library, &count_all().unwrap(), 0));
        assert!(worse.is_empty(), "{worse:#?}");
    }

    #[test]
    fn fixed_histories_on_a_mount_cost_no_more_than_the_baseline_says() {
        require!(Need::Root, Need::FuseRing, Need::Ubtrfs);
        // Another process may call sync(2) meanwhile, which asks each mount. What costs more does
        // so every time.
        let attempt = || {
            let dir = tempfile::tempdir().unwrap();
            worse(compare(&baseline().mount, &mounted::count_all(dir.path()).unwrap(), ON_A_MOUNT))
        };
        let attempts: Vec<_> = std::iter::repeat_with(attempt).take(3).take_while(|worse| !worse.is_empty()).collect();
        assert!(attempts.len() < 3, "{attempts:#?}");
    }
}
