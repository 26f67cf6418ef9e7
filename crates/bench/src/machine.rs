//! The machine: its description, clocks and counters.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::process;

/// The kernel's switch for FUSE over `io_uring`.
pub const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Bytes of a sector in the kernel's counters.
const SECTOR: u64 = 512;

/// The conditions on which a result depends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -srvm`.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// Processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Whether the run was as root.
    pub root: bool,
    /// The directory of the images: the type of its file system, its mount options, its device.
    pub backing: String,
    /// The frequency governor; empty if there is none.
    pub governor: String,
    /// The value of [`RING_SWITCH`].
    pub fuse_uring: String,
    /// The commit that was measured, with `+` if files had been changed.
    pub commit: String,
    /// How this program was built; only `optimised` gives figures that count.
    pub build: String,
    /// Versions of programs.
    pub programs: BTreeMap<String, String>,
}

/// Returns the content of a small file, without white space at its ends; nothing if it can't be
/// read.
pub fn line(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim()))
}

impl Machine {
    /// Describes this machine, with images in `dir`.
    pub fn look(dir: &Path) -> Self {
        let names = rustix::system::uname();
        let part = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let kernel = [names.sysname(), names.release(), names.version(), names.machine()].map(part).join(" ");
        let cpuinfo = line("/proc/cpuinfo");
        let meminfo = line("/proc/meminfo");
        let memory = field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let versions = [
            ("fio", "--version"),
            ("mkfs.btrfs", "--version"),
            ("mkfs.xfs", "-V"),
            ("mkfs.ext4", "-V"),
            ("git", "--version"),
            ("tar", "--version"),
        ];
        let mut programs: BTreeMap<String, String> = versions
            .into_iter()
            .filter_map(|(name, option)| Some((name.to_owned(), process::version(name, option)?)))
            .collect();
        programs.insert("ubtrfs-bench".into(), env!("CARGO_PKG_VERSION").into());
        if let Ok(package) = process::run_words(&["dpkg-query", "-W", "-f", "${Version}", "dbench"]) {
            programs.insert("dbench".into(), package);
        }
        Self {
            kernel,
            processor: field(&cpuinfo, "model name").unwrap_or_default().into(),
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            memory: memory.unwrap_or_default() * 1024,
            root: rustix::process::geteuid().is_root(),
            backing: backing(dir),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            fuse_uring: line(RING_SWITCH),
            commit: commit(),
            build: if cfg!(debug_assertions) { "with assertions" } else { "optimised" }.into(),
            programs,
        }
    }
}

/// Returns whether FUSE over `io_uring` is allowed.
pub fn ring_allowed() -> bool {
    line(RING_SWITCH) == "Y"
}

fn commit() -> String {
    let git = |words: &[&str]| {
        // The tree that this program was built from, if it is still there.
        let all: Vec<&str> = ["git", "-C", env!("CARGO_MANIFEST_DIR")].iter().chain(words).copied().collect();
        process::run_words(&all).unwrap_or_default().trim().to_owned()
    };
    let changed = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { "+" };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        commit if commit.is_empty() => "unknown".into(),
        commit => commit + changed,
    }
}

/// Returns the line of `dir` in the mount table: type, options, source.
fn backing(dir: &Path) -> String {
    let printed =
        process::run_words(&["findmnt", "-n", "-o", "FSTYPE,OPTIONS,SOURCE", "-T", &dir.display().to_string()]);
    printed.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the device below a directory, by its number in `/sys/dev/block`. A partition is returned
/// as such, not as its disk.
pub fn disk_below(dir: &Path) -> Option<String> {
    let device = dir.metadata().ok()?.dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/sys/dev/block").join(&name).exists().then_some(name)
}

/// Returns the bytes written to a block device since the machine was booted; `name` comes from
/// [`disk_below`].
pub fn disk_written(name: &str) -> Option<u64> {
    written(&line(format!("/sys/dev/block/{name}/stat")))
}

/// Returns the bytes written to a loop device such as `/dev/loop3`.
pub fn loop_written(device: &Path) -> Option<u64> {
    written(&line(Path::new("/sys/block").join(device.file_name()?).join("stat")))
}

fn written(stat: &str) -> Option<u64> {
    Some(stat.split_whitespace().nth(6)?.parse::<u64>().ok()? * SECTOR)
}

/// Returns the processor time that a process has used, in seconds.
pub fn process_cpu(pid: u32) -> Option<f64> {
    cpu_of(&format!("/proc/{pid}/stat"), 11..13)
}

/// Returns the sum of fields of a `/proc/PID/stat` that are ticks, in seconds. Fields are counted
/// from behind the name.
fn cpu_of(stat: &str, which: Range<usize>) -> Option<f64> {
    let stat = std::fs::read_to_string(stat).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(which)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the bytes of memory that a process has: now, and at the most so far.
pub fn process_memory(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |name| field(&status, name)?.split(' ').next()?.parse::<u64>().ok().map(|kibibytes| kibibytes * 1024);
    Some((bytes("VmRSS")?, bytes("VmHWM")?))
}

/// Returns the processor time that all processors have worked, in seconds: for programs, the kernel
/// and interrupts of all processes.
pub fn machine_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, (idle, iowait,) irq, softirq
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    busy as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the processor time that this process and its ended children have used, in seconds.
pub fn own_cpu() -> f64 {
    // getrusage(2) has no safe wrapper here; the fields of our own `stat` have the same times in
    // ticks.
    cpu_of("/proc/self/stat", 11..15).unwrap_or_default()
}

/// How a thread has spent its time, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadTimes {
    /// The elapsed time.
    pub wall: f64,
    /// The time on a processor.
    pub cpu: f64,
    /// The time in which it was ready to run while all processors were busy.
    pub runnable: f64,
    /// How often it began to wait for anything other than a processor.
    pub sleeps: u64,
}

impl ThreadTimes {
    /// Returns what was used since an earlier time.
    pub fn since(self, before: Self) -> Self {
        Self {
            wall: self.wall - before.wall,
            cpu: self.cpu - before.cpu,
            runnable: self.runnable - before.runnable,
            sleeps: self.sleeps - before.sleeps,
        }
    }
}

/// Returns the times of this thread, from an arbitrary beginning.
pub fn thread_times() -> Result<ThreadTimes> {
    let missing = |what: &str| Failure::Impossible(format!("{what} lacks the times of threads"));
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let runnable = schedstat.split_whitespace().nth(1).and_then(|nanos| nanos.parse::<u64>().ok());
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let sleeps = field(&status, "voluntary_ctxt_switches").and_then(|text| text.parse().ok());
    let seconds = |clock| {
        let now = rustix::time::clock_gettime(clock);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    Ok(ThreadTimes {
        wall: seconds(ClockId::Monotonic),
        cpu: seconds(ClockId::ThreadCPUTime),
        runnable: runnable.ok_or_else(|| missing("/proc/thread-self/schedstat"))? as f64 / 1e9,
        sleeps: sleeps.ok_or_else(|| missing("/proc/thread-self/status"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run() {
        let before = own_cpu();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 60 {}
        assert!(own_cpu() > before);
        assert!(machine_cpu() > 0.0);
        assert!(process_cpu(std::process::id()).is_some());
        assert!(process_memory(std::process::id()).is_some_and(|(now, most)| now > 0 && most >= now));
    }

    #[test]
    fn threads_that_sleep_use_no_processor() {
        let before = thread_times().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = thread_times().unwrap().since(before);
        assert!(slept.sleeps >= 1 && slept.wall >= 0.05 && slept.cpu + slept.runnable < slept.wall, "{slept:?}");
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 30 {}
        assert!(thread_times().unwrap().since(before).cpu > slept.cpu);
    }

    #[test]
    fn counters_of_devices_are_read() {
        assert_eq!(written("1 2 3 4 5 6 7 8 9 10 11"), Some(7 * 512));
        assert_eq!(written(""), None);
    }

    #[test]
    fn the_machine_has_a_kernel() {
        let machine = Machine::look(Path::new("/"));
        assert!(machine.kernel.starts_with("Linux") && machine.cpus > 0 && machine.memory > 0);
    }
}
