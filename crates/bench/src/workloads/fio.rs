//! fio: jobs that write and fsync a file each.

use std::time::Duration;

use serde_json::Value;

use super::case::{Case, Scale};
use crate::failure::{Failure, Result};
use crate::meter::{Usage, metered};
use crate::peers::Mounted;
use crate::process::{run, tool};
use crate::samples::{Better, Measured};

/// Bytes of all files of a run together.
const TOTAL: u64 = 2 << 30;

/// The parameters of fio.
#[derive(Debug, Clone)]
pub struct Job {
    /// `--rw`
    pub kind: &'static str,
    /// `--bs`
    pub block: &'static str,
    /// `--fsync`: the number of writes after which it fsyncs; 0 for never.
    pub fsync: u32,
    /// `--numjobs`
    pub jobs: u32,
    /// The seconds that it runs.
    pub seconds: u32,
    /// Bytes of all files together.
    pub size: u64,
    /// Further options.
    pub more: &'static [&'static str],
}

fn cases(scale: Scale, workload: &'static str, of: &Job, what: &str) -> Vec<Case> {
    let jobs: &[u32] = scale.pick(&[1], &[1, 16], &[1, 4, 16], &[1, 4, 16, 64]);
    let seconds = scale.pick(1, 5, 10, 30);
    let case = |&jobs: &u32| {
        let job = Job { jobs, seconds, ..of.clone() };
        let title = format!("{what}, {jobs} job{}", if jobs == 1 { "" } else { "s" });
        let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, &job);
        Case::new(workload, format!("{workload}-{jobs}"), title, "bandwidth", run).programs(&["fio"])
    };
    jobs.iter().map(case).collect()
}

/// Returns cases with sequential writes of 64 KiB, and an fsync after each.
pub fn sequential(scale: Scale) -> Vec<Case> {
    let job = Job { kind: "write", block: "64k", fsync: 1, jobs: 1, seconds: 0, size: TOTAL, more: &[] };
    cases(scale, "fio-seq", &job, "fio write, 64 KiB, fsync=1")
}

/// Returns cases with random writes of 4 KiB, and an fsync after 16 of them.
pub fn random(scale: Scale) -> Vec<Case> {
    let job = Job { kind: "randwrite", block: "4k", fsync: 16, jobs: 1, seconds: 0, size: TOTAL, more: &[] };
    cases(scale, "fio-rand", &job, "fio randwrite, 4 KiB, fsync=16")
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, job: &Job) -> Result<()> {
    let (printed, usage) = fio(mounted, job)?;
    let figures = Figures::of(&printed, "write")?;
    figures.add(measured);
    usage.per_operation(measured, figures.operations);
    usage.amplification(measured, figures.bytes);
    Ok(())
}

/// Runs fio in a mount.
pub fn fio(mounted: &Mounted, job: &Job) -> Result<(Value, Usage)> {
    let size = job.size / u64::from(job.jobs);
    let mut fio = tool("fio")?;
    fio.args(["--name=job", "--ioengine=psync", "--direct=0", "--fallocate=none", "--group_reporting"])
        .args(["--output-format=json", "--time_based", "--randseed=1", "--randrepeat=1"])
        .arg(format!("--rw={}", job.kind))
        .arg(format!("--bs={}", job.block))
        .arg(format!("--fsync={}", job.fsync))
        .arg(format!("--numjobs={}", job.jobs))
        .arg(format!("--size={size}"))
        .arg(format!("--runtime={}", job.seconds))
        .arg(format!("--directory={}", mounted.directory().display()))
        .args(job.more);
    let limit = Duration::from_secs(u64::from(job.seconds) * 3 + 300);
    let (printed, usage) = metered(mounted, || run(&mut fio, limit))?;
    // Warnings may come before the report.
    let report = printed.find('{').map_or("", |at| &printed[at..]);
    let report =
        serde_json::from_str(report).map_err(|error| Failure::about(format!("fio printed {printed}"), &error))?;
    Ok((report, usage))
}

/// The important figures of fio's report.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Number of reads or writes.
    pub operations: f64,
    /// Bytes read or written.
    pub bytes: f64,
    /// Times of fsync in microseconds (mean, 99 %, 99.9 %, longest), or those of reads or writes if
    /// there is no fsync.
    pub times: [f64; 4],
    /// The operation whose times they are.
    pub of: &'static str,
}

impl Figures {
    /// Takes the figures from the report; `side` is "read" or "write".
    pub fn of(report: &Value, side: &str) -> Result<Self> {
        let job = &report["jobs"][0];
        let number =
            |value: &Value| value.as_f64().ok_or_else(|| Failure::new(format!("fio's report lacks figures: {job}")));
        if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
            return Err(Failure::new(format!("fio failed with error {error}")));
        }
        let of_fsync = job["sync"]["lat_ns"]["N"].as_f64().is_some_and(|count| count > 0.0);
        let (times, of) =
            if of_fsync { (&job["sync"]["lat_ns"], "fsync") } else { (&job[side]["clat_ns"], side_name(side)) };
        let at = |name: &str| times["percentile"][name].as_f64().unwrap_or_default() / 1e3;
        let done = &job[side];
        Ok(Self {
            bandwidth: number(&done["bw_bytes"])?,
            operations: number(&done["total_ios"])?,
            bytes: number(&done["io_bytes"])?,
            times: [number(&times["mean"])? / 1e3, at("99.000000"), at("99.900000"), number(&times["max"])? / 1e3],
            of,
        })
    }

    /// Adds the figures to a result.
    pub fn add(&self, measured: &mut Measured) {
        measured.add("bandwidth", self.bandwidth / f64::from(1 << 20), "MiB/s", Better::Higher);
        for (name, time) in ["average", "99 %", "99.9 %", "longest"].iter().zip(self.times) {
            measured.add(format!("{} {name}", self.of), time, "µs", Better::Lower);
        }
    }
}

fn side_name(side: &str) -> &'static str {
    if side == "read" { "read" } else { "write" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reports_are_read() {
        let report = serde_json::json!({"jobs": [{
            "error": 0,
            "write": {"bw_bytes": 1000, "total_ios": 5, "io_bytes": 5000},
            "sync": {"lat_ns": {"N": 5, "mean": 2000.0, "max": 9000, "percentile": {"99.000000": 8000, "99.900000": 9000}}},
        }]});
        let figures = Figures::of(&report, "write").unwrap();
        let times = [2.0, 8.0, 9.0, 9.0];
        assert_eq!(figures, Figures { bandwidth: 1000.0, operations: 5.0, bytes: 5000.0, times, of: "fsync" });
        assert!(Figures::of(&report, "read").is_err());
        assert!(Figures::of(&serde_json::json!({"jobs": [{"error": 28}]}), "write").is_err());
    }
}
