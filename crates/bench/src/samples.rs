//! The content of a result file: the measurements, and all that is needed to repeat them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::histogram::Histogram;
use crate::machine::Machine;

/// The version of the file's format.
pub const FORM: u32 = 2;

/// Whether a figure should be large or small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Larger is better, as with throughput.
    Higher,
    /// Smaller is better, as with time.
    Lower,
}

/// A figure with its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The value.
    pub value: f64,
    /// The unit.
    pub unit: String,
    /// Whether it should be large or small.
    pub better: Better,
}

/// A curve: how a figure grows with something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The quantity with which it grows.
    pub along: String,
    /// The unit of the figure.
    pub unit: String,
    /// The points: the quantity, and the figure.
    pub points: Vec<(f64, f64)>,
}

/// The result of one run of a workload on one peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Figures by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Curves by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Series>,
    /// Times of operations by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
}

impl Measured {
    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &str, better: Better) {
        self.metrics.insert(name.into(), Metric { value, unit: unit.into(), better });
    }

    /// Returns whether all values can have been measured, since a file may contain anything.
    fn is_sound(&self) -> bool {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        self.metrics.values().all(|metric| sound(metric.value))
            && self.series.values().flat_map(|series| &series.points).all(|(at, value)| sound(*at) && sound(*value))
    }

    /// Adds a point to a curve of times in microseconds.
    pub fn point(&mut self, name: &str, along: &str, at: f64, micros: f64) {
        let new = || Series { along: along.into(), unit: "µs".into(), points: Vec::new() };
        self.series.entry(name.into()).or_insert_with(new).points.push((at, micros));
    }
}

/// A run of a workload on a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The case, see [`CaseFacts::name`].
    pub case: String,
    /// The peer.
    pub peer: String,
    /// The number of the round, from 1.
    pub round: u32,
    /// Its result.
    pub measured: Measured,
}

/// The description of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseFacts {
    /// Its name, such as `dbench-16`.
    pub name: String,
    /// The workload that it belongs to, such as `dbench`.
    pub workload: String,
    /// Its description.
    pub title: String,
    /// The figure that matters most.
    pub headline: String,
    /// Other figures that the table shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
}

/// The description of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFacts {
    /// Its name.
    pub name: String,
    /// Its description.
    pub about: String,
    /// How its volumes were made and mounted, and what they report about themselves.
    pub facts: BTreeMap<String, String>,
}

/// A result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORM`].
    pub form: u32,
    /// The time of the beginning, as in `2026-01-31 12:00 UTC`.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// `quick`, `usual` or `full`.
    pub scale: String,
    /// Rounds.
    pub rounds: u32,
    /// The machine.
    pub machine: Machine,
    /// Peers in the order in which they were given.
    pub peers: Vec<PeerFacts>,
    /// Cases in the order in which they ran.
    pub cases: Vec<CaseFacts>,
    /// All measurements.
    pub samples: Vec<Sample>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

impl Results {
    /// Reads a result file.
    pub fn load(path: &Path) -> Result<Self> {
        let failed = |error: &dyn std::error::Error| Failure::about(path.display(), error);
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let results: Self = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if results.form != FORM {
            return Err(Failure::new(format!("{}: form {}, not {FORM}", path.display(), results.form)));
        }
        match results.samples.iter().find(|sample| !sample.measured.is_sound()) {
            Some(Sample { case, peer, .. }) => {
                Err(Failure::new(format!("{}: {case} on {peer} has figures that can't be", path.display())))
            }
            None => Ok(results),
        }
    }

    /// Writes a result file. The old file stays until the new one is complete.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |error: &dyn std::error::Error| Failure::about(path.display(), error);
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        let new = path.with_extension("json.new");
        std::fs::write(&new, text + "\n").and_then(|()| std::fs::rename(&new, path)).map_err(|error| failed(&error))
    }

    /// Returns the samples of a case on a peer, in the order of their rounds.
    pub fn of<'a>(&'a self, case: &'a str, peer: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.case == case && sample.peer == peer)
    }

    /// Returns the names of the figures of a case's samples, each once, in their order.
    pub fn names<'a>(&'a self, case: &'a str, of: impl Fn(&'a Measured) -> Vec<&'a String>) -> BTreeSet<&'a String> {
        let samples = self.samples.iter().filter(move |sample| sample.case == case);
        samples.flat_map(|sample| of(&sample.measured)).collect()
    }

    /// Returns a figure of a case on a peer, round by round.
    pub fn values(&self, case: &str, peer: &str, metric: &str) -> Vec<(u32, f64)> {
        let value = |sample: &Sample| Some((sample.round, sample.measured.metrics.get(metric)?.value));
        self.of(case, peer).filter_map(value).collect()
    }

    /// Returns the unit of a figure, and whether it should be large or small.
    pub fn kind(&self, case: &str, metric: &str) -> Option<(&str, Better)> {
        let mut found = self.samples.iter().filter(|sample| sample.case == case);
        let metric = found.find_map(|sample| sample.measured.metrics.get(metric))?;
        Some((&metric.unit, metric.better))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a run of one case, one curve and one operation on four peers, in as many rounds as
    /// there are values.
    pub fn example(values: &[f64]) -> Results {
        let case = |name: &str, workload: &str, title: &str, headline: &str| CaseFacts {
            name: name.into(),
            workload: workload.into(),
            title: title.into(),
            headline: headline.into(),
            steps: Vec::new(),
        };
        let mut results = Results {
            form: FORM,
            date: "2026-01-31 12:00 UTC".into(),
            command: vec!["run".into()],
            scale: "tiny".into(),
            rounds: values.len() as u32,
            machine: Machine::default(),
            peers: Vec::new(),
            cases: vec![
                case("dbench-1", "dbench", "dbench -t 1 1", "throughput"),
                case("growth-file", "growth", "by bytes of a file", "fsync grows"),
                case("latency", "latency", "operations", "fsync 99.9 % during commits"),
            ],
            samples: Vec::new(),
            skipped: vec!["nothing: for a reason".into()],
        };
        for (factor, peer) in [(1.0, "ubtrfs"), (0.5, "btrfs"), (0.8, "btrfs-direct"), (2.0, "null")] {
            results.peers.push(PeerFacts { name: peer.into(), ..PeerFacts::default() });
            for (round, value) in (1..).zip(values) {
                let mut one = Measured::default();
                one.add("throughput", value * factor, "MB/s", Better::Higher);
                let mut other = Measured::default();
                for at in [10.0, 100.0, 1000.0] {
                    other.point("fsync", "bytes of the file", at, value * factor + at.log10());
                }
                let mut times = Measured::default();
                for name in ["fsync alone", "fsync during commits"] {
                    let mut histogram = Histogram::default();
                    histogram.add(std::time::Duration::from_micros(*value as u64));
                    times.histograms.insert(name.into(), histogram);
                }
                for (case, measured) in [("dbench-1", one), ("growth-file", other), ("latency", times)] {
                    results.samples.push(Sample { case: case.into(), peer: peer.into(), round, measured });
                }
            }
        }
        results
    }

    #[test]
    fn results_are_read_back_from_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.json");
        let results = example(&[1.5, 2.5]);
        results.save(&path).unwrap();
        assert_eq!(Results::load(&path).unwrap(), results);
        assert_eq!(results.values("dbench-1", "btrfs", "throughput"), [(1, 0.75), (2, 1.25)]);
        std::fs::write(&path, "{}").unwrap();
        assert!(Results::load(&path).is_err());
        example(&[-1.0]).save(&path).unwrap();
        assert!(Results::load(&path).is_err_and(|failure| failure.to_string().contains("can't be")));
        Results { form: FORM + 1, ..results }.save(&path).unwrap();
        assert!(Results::load(&path).is_err_and(|failure| failure.to_string().contains("form")));
    }
}
