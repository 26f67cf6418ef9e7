//! `ubtrfs stats --watch`: shows the activity of a mount, second by second.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ubtrfs_server::control::Report;

use crate::control::{failure, report};
use crate::failure::Result;
use crate::output::{is_lost, say};
use crate::size::show_size;

const INTERVAL: Duration = Duration::from_secs(1);
/// Lines after which the names of the columns are shown again.
const PAGE: u64 = 20;

/// Shows a line each second until the mount ends, or `count` lines.
pub fn watch(path: &Path, count: Option<u64>) -> Result<()> {
    let mut before = report(path).map_err(|errno| failure(path, errno))?;
    let mut since = Instant::now();
    for number in 0..count.unwrap_or(u64::MAX) {
        thread::sleep(INTERVAL.saturating_sub(since.elapsed()));
        let now = match report(path) {
            Ok(now) if now.pid == before.pid && now.pid_started == before.pid_started => now,
            // The mount has ended: another mount, or none, is at the path now.
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::NODATA | Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT) => {
                return Ok(());
            }
            Err(errno) => return Err(failure(path, errno)),
        };
        let elapsed = since.elapsed();
        since = Instant::now();
        let head = if number % PAGE == 0 { head() } else { String::new() };
        let text = head + &line(&before, &now, elapsed, resident(now.pid));
        say(&text);
        if is_lost() {
            break;
        }
        before = now;
    }
    Ok(())
}

fn head() -> String {
    format!(
        "{:>10} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>8} {:>10} {:>10}\n",
        "requests/s",
        "read MB/s",
        "write MB/s",
        "fsyncs/s",
        "p50 ms",
        "p99 ms",
        "most ms",
        "commits",
        "dirty",
        "memory"
    )
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn line(before: &Report, now: &Report, elapsed: Duration, resident: Option<u64>) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let requests = |report: &Report| {
        report.requests.iter().filter(|(kind, _)| *kind != "postponed").map(|(_, count)| count).sum::<u64>()
    };
    let fsyncs = difference(&before.fsync_micros, &now.fsync_micros);
    let millis = |hundredths| {
        percentile(&fsyncs, hundredths).map_or_else(|| "-".into(), |micros| format!("{:.2}", micros as f64 / 1000.0))
    };
    format!(
        "{:>10.0} {:>9.1} {:>10.1} {:>8.0} {:>9} {:>9} {:>9} {:>8} {:>10} {:>10}\n",
        rate(requests(now), requests(before)),
        rate(now.bytes_read, before.bytes_read) / 1e6,
        rate(now.bytes_written, before.bytes_written) / 1e6,
        rate(now.fsyncs, before.fsyncs),
        millis(50),
        millis(99),
        millis(100),
        now.commits.saturating_sub(before.commits),
        show_size(now.dirty_bytes),
        resident.map_or_else(|| "-".into(), show_size),
    )
}

/// Returns the increase from one histogram to the next.
fn difference(before: &BTreeMap<u64, u64>, now: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let more = |(bound, count): (&u64, &u64)| (*bound, count.saturating_sub(before.get(bound).copied().unwrap_or(0)));
    now.iter().map(more).filter(|(_, count)| *count > 0).collect()
}

/// Returns a percentile: the bound below which so many hundredths of all values are.
fn percentile(counts: &BTreeMap<u64, u64>, hundredths: u64) -> Option<u64> {
    let wanted = (counts.values().sum::<u64>() * hundredths).div_ceil(100);
    let mut seen = 0;
    counts.iter().find_map(|(bound, count)| {
        seen += count;
        (seen >= wanted).then_some(*bound)
    })
}

/// Returns the bytes of memory that a process uses, if it is visible from here.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_came_between() {
        let before = BTreeMap::from([(100, 5), (200, 1)]);
        let now = BTreeMap::from([(100, 5), (200, 99), (400, 2)]);
        let between = difference(&before, &now);
        assert_eq!(between, BTreeMap::from([(200, 98), (400, 2)]));
        let found = [50, 98, 99, 100].map(|hundredths| percentile(&between, hundredths));
        assert_eq!(found, [Some(200), Some(200), Some(400), Some(400)]);
        assert_eq!(percentile(&BTreeMap::new(), 50), None);
    }
}
