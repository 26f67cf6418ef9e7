//! Opening very many unnamed files, and closing them oldest first.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::latency::Latencies;

/// Files closed between two readings of the clock.
const PART: usize = 10_000;
/// Files that a process keeps for itself.
const SPARE: u64 = 50;

fn unnamed(dir: &Path) -> File {
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(dir).expect("open an unnamed file")
}

/// Files that a process may have open at the most.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20)
}

/// The part of a holder: opens files, says so, and closes the oldest ones as it is told to on its input.
pub fn hold(dir: &Path, count: usize) {
    let mut limits = getrlimit(Resource::Nofile);
    limits.current = limits.maximum;
    setrlimit(Resource::Nofile, limits).expect("raise the limit of open files");
    let mut files = (0..count).map(|_| unnamed(dir)).collect::<Vec<_>>().into_iter();
    let tell = |what: u128| {
        println!("{what}");
        std::io::stdout().flush().unwrap();
    };
    tell(0);
    for line in std::io::stdin().lock().lines() {
        let some: Vec<File> = files.by_ref().take(line.unwrap().parse().unwrap()).collect();
        let start = Instant::now();
        drop(some);
        tell(start.elapsed().as_nanos());
    }
}

struct Holder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    left: usize,
}

impl Holder {
    fn new(dir: &Path, count: usize) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        command.arg("hold").arg(dir).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a process");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut holder = Self { child, input, output, left: count };
        holder.answer();
        holder
    }

    fn answer(&mut self) -> Duration {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        Duration::from_nanos(line.trim().parse().expect("a time"))
    }

    fn close(&mut self, count: usize) -> Duration {
        self.left -= count;
        writeln!(self.input, "{count}").unwrap();
        self.answer()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Open files, held by other processes.
struct Held(Vec<Holder>);

impl Held {
    fn open(dir: &Path, count: usize) -> Self {
        let each = (limit() - SPARE) as usize;
        Self((0..count).step_by(each).map(|at| Holder::new(dir, each.min(count - at))).collect())
    }

    /// Closes the oldest ones.
    fn close(&mut self, mut count: usize) -> Duration {
        let mut time = Duration::ZERO;
        while let Some(first) = self.0.first_mut().filter(|_| count > 0) {
            let now = count.min(first.left);
            time += first.close(now);
            count -= now;
            if first.left == 0 {
                self.0.remove(0);
            }
        }
        time
    }
}

/// What was measured.
pub struct Measured {
    opening: Duration,
    /// Files open before, and the time in which some of them were closed.
    pub closing: Vec<(usize, usize, Duration)>,
    meanwhile: String,
}

impl Measured {
    pub fn print(self) {
        println!("opened in {:.2?}", self.opening);
        for (open, closed, time) in &self.closing {
            println!("{open:7} open: {:6.2} µs to close one", time.as_secs_f64() * 1e6 / *closed as f64);
        }
        let all: Duration = self.closing.iter().map(|(_, _, time)| *time).sum();
        println!("closed in {all:.2?}\nmeanwhile, on open unnamed files:\n{}", self.meanwhile);
    }
}

/// Opens and closes.
pub fn measure(dir: &Path, count: usize) -> Measured {
    let start = Instant::now();
    let mut held = Held::open(dir, count);
    let opening = start.elapsed();
    let (done, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let others = scope.spawn(|| use_others(dir, &ready, &done));
        ready.wait();
        let mut closing = Vec::new();
        let mut left = count;
        while left > 0 {
            let now = PART.min(left);
            closing.push((left, now, held.close(now)));
            left -= now;
        }
        done.store(true, Ordering::Relaxed);
        Measured { opening, closing, meanwhile: others.join().unwrap() }
    })
}

/// Works on unnamed files that stay open.
fn use_others(dir: &Path, ready: &Barrier, done: &AtomicBool) -> String {
    let files: Vec<File> = (0..100).map(|_| unnamed(dir)).collect();
    ready.wait();
    let (mut stat, mut read, mut write) = (Latencies::default(), Latencies::default(), Latencies::default());
    let mut buffer = [0; 4096];
    for (number, file) in files.iter().cycle().enumerate() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let byte = number as u8;
        write.time(|| file.write_all_at(&[byte; 4096], 0).expect("write"));
        read.time(|| file.read_exact_at(&mut buffer, 0).expect("read"));
        assert_eq!(buffer, [byte; 4096]);
        stat.time(|| file.metadata().expect("fstat"));
    }
    format!("  fstat {}\n  read  {}\n  write {}", stat.told(), read.told(), write.told())
}
