//! What freeing a file of very many extents costs others.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::latency::Latencies;

const SECTOR: u64 = 4096;
/// How long others are watched.
const WATCH: Duration = Duration::from_secs(20);

/// Makes a file of so many extents, by writing every other sector of it.
fn make(path: &Path, extents: u64) -> File {
    let file = File::create(path).expect("create");
    for number in 0..extents {
        file.write_all_at(&[7; SECTOR as usize], number * 2 * SECTOR).expect("write");
    }
    file.sync_all().expect("fsync");
    file
}

/// Works in a directory for a while, and says how long its calls took.
fn watch(dir: &Path) -> String {
    let names = ["create", "write", "stat", "fsync", "unlink"];
    let mut times: [Latencies; 5] = Default::default();
    let start = Instant::now();
    for number in 0.. {
        if start.elapsed() > WATCH {
            break;
        }
        let path = dir.join(format!("other{number}"));
        let file = times[0].time(|| File::create(&path).expect("create"));
        times[1].time(|| file.write_all_at(&[1; SECTOR as usize], 0).expect("write"));
        times[2].time(|| std::fs::symlink_metadata(&path).expect("stat"));
        if number % 10 == 0 {
            times[3].time(|| file.sync_all().expect("fsync"));
        }
        drop(file);
        times[4].time(|| std::fs::remove_file(&path).expect("unlink"));
    }
    let told = names.iter().zip(times).map(|(name, times)| format!("  {name:7}{}\n", times.told()));
    told.collect()
}

pub fn measure(dir: &Path, extents: u64) {
    let path = dir.join("large");
    let start = Instant::now();
    let file = make(&path, extents);
    println!("{extents} extents made in {:.1?}", start.elapsed());
    println!("with nothing to free:\n{}", watch(dir));
    std::fs::remove_file(&path).expect("unlink");
    let start = Instant::now();
    drop(file);
    println!("closed in {:?}\nwhile it is freed:\n{}", start.elapsed(), watch(dir));
}
