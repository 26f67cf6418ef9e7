//! Opens very many files without names, and closes them, the oldest first.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::case::{Case, Scale};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::histogram::Histogram;
use crate::meter::metered;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

/// The number of files in the original report.
const COUNT: usize = 193_519;
/// How many times the clock is read while files are closed.
const PARTS: usize = 20;
/// Descriptors that a process needs for itself.
const SPARE: u64 = 50;
/// Unnamed files that stay open, and are used while the others are closed.
const OTHERS: usize = 100;

pub fn cases(scale: Scale) -> Vec<Case> {
    let count = scale.pick(500, 20_000, COUNT, COUNT);
    let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, count);
    let title = format!("{count} O_TMPFILE files opened, and closed oldest first");
    vec![Case::new("unlinked", format!("unlinked-{count}"), title, "time", run).in_process()]
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, count: usize) -> Result<()> {
    let calls = Calls::of(mounted);
    let ((opening, closing), usage) = metered(mounted, || {
        let start = Instant::now();
        let mut held = Held::open(&calls, count)?;
        let opening = start.elapsed();
        let closing = close(&calls, &mut held, count, measured)?;
        Ok((opening, closing))
    })?;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    measured.add("open", millis(opening), "ms", Better::Lower);
    measured.add("close", millis(closing), "ms", Better::Lower);
    measured.add("time", millis(opening + closing), "ms", Better::Lower);
    usage.per_operation(measured, count as f64);
    Ok(())
}

/// Closes all files, the oldest first, while another thread uses other unnamed files.
fn close(calls: &Calls, held: &mut Held, count: usize, measured: &mut Measured) -> Result<Duration> {
    let (done, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let others = scope.spawn(|| use_others(calls, &ready, &done));
        ready.wait();
        let closed = (|| {
            let mut all = Duration::ZERO;
            let mut left = count;
            while left > 0 {
                let now = count.div_ceil(PARTS).min(left);
                let time = held.close(now)?;
                measured.point("close one", "files open", left as f64, time.as_secs_f64() * 1e6 / now as f64);
                all += time;
                left -= now;
                cleanup::check()?;
            }
            Ok(all)
        })();
        done.store(true, Ordering::Relaxed);
        let times = others.join().map_err(|_| Failure::new("a thread panicked"))??;
        for (name, times) in ["fstat", "read", "write"].iter().zip(times) {
            measured.histograms.insert(format!("{name} while closing"), times);
        }
        closed
    })
}

/// Works on unnamed files that stay open, by fstat, read and write.
fn use_others(calls: &Calls, ready: &Barrier, done: &AtomicBool) -> Result<[Histogram; 3]> {
    let files = (|| {
        let root = calls.root()?;
        let files: Result<Vec<Handle>> = (0..OTHERS).map(|_| calls.unnamed(&root)).collect();
        calls.close(root);
        files
    })();
    ready.wait();
    let files = files?;
    let [mut stat, mut read, mut write] = [(); 3].map(|()| Histogram::default());
    let mut buffer = [0; 4096];
    for (number, file) in files.iter().cycle().enumerate() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let byte = number as u8;
        write.time(|| calls.write(file, 0, &[byte; 4096]))?;
        read.time(|| calls.read(file, 0, &mut buffer))?;
        if buffer != [byte; 4096] {
            return Err(Failure::new("what was read is not what was written"));
        }
        stat.time(|| calls.attributes(file))?;
        // This is light use, not a load.
        std::thread::sleep(Duration::from_micros(500));
    }
    for file in files {
        calls.close(file);
    }
    Ok([stat, read, write])
}

/// Open files without names.
pub struct Held(Holders);

/// The holders of the files.
enum Holders {
    /// This process, in the engine.
    Here(Calls, std::vec::IntoIter<Handle>),
    /// Other processes, as many as the limit of open files requires.
    Elsewhere(Vec<Holder>),
}

impl Held {
    /// Opens `count` files.
    pub fn open(calls: &Calls, count: usize) -> Result<Self> {
        let Calls::Kernel(dir) = calls else {
            let root = calls.root()?;
            let files: Result<Vec<Handle>> = (0..count).map(|_| calls.unnamed(&root)).collect();
            calls.close(root);
            return Ok(Self(Holders::Here(calls.clone(), files?.into_iter())));
        };
        let each = (raise_limit()?.saturating_sub(SPARE)).max(1) as usize;
        let holders: Result<_> = (0..count).step_by(each).map(|at| Holder::new(dir, each.min(count - at))).collect();
        Ok(Self(Holders::Elsewhere(holders?)))
    }

    /// Closes the oldest files. Returns how long that took.
    pub fn close(&mut self, mut count: usize) -> Result<Duration> {
        match &mut self.0 {
            Holders::Here(calls, files) => {
                let some: Vec<Handle> = files.take(count).collect();
                let start = Instant::now();
                for file in some {
                    calls.close(file);
                }
                Ok(start.elapsed())
            }
            Holders::Elsewhere(holders) => {
                let mut time = Duration::ZERO;
                while let Some(first) = holders.first_mut().filter(|_| count > 0) {
                    let now = count.min(first.left);
                    time += first.close(now)?;
                    count -= now;
                    if first.left == 0 {
                        holders.remove(0);
                    }
                }
                Ok(time)
            }
        }
    }
}

/// Raises the limit of open files as far as possible. Returns the limit.
fn raise_limit() -> Result<u64> {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let limit = getrlimit(Resource::Nofile);
    // Only root may go beyond the hard limit.
    if let Some(most) = most
        && setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).is_ok()
    {
        return Ok(most);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(limit.maximum.unwrap_or(1 << 20))
}

/// Runs a holder: opens files, reports that, and closes the oldest ones on commands from its input.
pub fn hold(dir: &Path, count: usize) -> Result<()> {
    raise_limit()?;
    let calls = Calls::Kernel(dir.into());
    let root = calls.root()?;
    let files: Result<Vec<Handle>> = (0..count).map(|_| calls.unnamed(&root)).collect();
    let mut files = files?.into_iter();
    let report = |what: u128| {
        println!("{what}");
        std::io::stdout().flush()
    };
    report(0)?;
    for line in std::io::stdin().lock().lines() {
        let count = line?.parse().map_err(|error| Failure::about("how many", &error))?;
        let some: Vec<Handle> = files.by_ref().take(count).collect();
        let start = Instant::now();
        drop(some);
        report(start.elapsed().as_nanos())?;
    }
    Ok(())
}

struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    left: usize,
}

impl Holder {
    fn new(dir: &Path, count: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("hold").arg(dir).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| Failure::new("no pipe"))?;
        let mut holder = Self { child, input, output: BufReader::new(output), left: count };
        holder.answer()?;
        Ok(holder)
    }

    fn answer(&mut self) -> Result<Duration> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let nanos = line.trim().parse().map_err(|_| Failure::new("who holds open files has failed"))?;
        Ok(Duration::from_nanos(nanos))
    }

    fn close(&mut self, count: usize) -> Result<Duration> {
        self.left -= count;
        if let Some(input) = &mut self.input {
            writeln!(input, "{count}")?;
        }
        self.answer()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The process ends when its input does.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
