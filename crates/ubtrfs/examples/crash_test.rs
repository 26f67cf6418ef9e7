//! Tests a promise of a program against crashes. A device in memory records what is written to it,
//! and reproduces every state that a crash at any time could leave. The promise of this example is
//! that files are there once they were fsynced.
//!
//! `cargo run --example crash_test --features testing`

use std::error::Error;
use std::sync::Arc;

use ubtrfs::mkfs::{self, MkfsOptions};
use ubtrfs::testing::{RecordingDevice, random_fates};
use ubtrfs::volume::{Device, MemoryDevice};
use ubtrfs::{Dir, Filesystem, Options};

const SIZE: usize = 128 << 20;
const FILES: usize = 10;
/// Crashes that are examined at each event of the device.
const CRASHES: u64 = 3;

fn open(device: Arc<dyn Device>) -> ubtrfs::Result<Arc<Filesystem>> {
    // Only the test commits.
    Filesystem::open_devices(vec![device], Options { background_commits: false, ..Options::default() })
}

/// Writes and fsyncs files, and checks after crashes at all times that the files are there that
/// must be. Returns the number of crashes.
pub fn run() -> Result<usize, Box<dyn Error>> {
    let empty = MemoryDevice::new(SIZE);
    mkfs::make(&[&empty], &MkfsOptions::new(SIZE as u64))?;
    let device = Arc::new(RecordingDevice::new(empty.to_bytes().into()));

    let fs = open(device.clone())?;
    let root = Dir::root(&fs);
    // For each file, how many events the device had seen when its fsync returned.
    let mut synced_at = Vec::new();
    for number in 0..FILES {
        let file = root.create(format!("file{number}"))?;
        file.write_all_at(format!("content {number}").as_bytes(), 0)?;
        file.sync_all()?;
        synced_at.push(device.len());
    }

    let mut crashes = 0;
    for event in 0..=device.len() {
        for seed in 0..CRASHES {
            // Writes that no barrier has made durable may be there, missing or torn.
            let left = device.crash_state(event, &mut random_fates(CRASHES * event as u64 + seed));
            // Opening replays the log.
            let fs = open(Arc::new(left))?;
            let root = Dir::root(&fs);
            for number in (0..FILES).filter(|number| synced_at[*number] <= event) {
                let content = root.read(format!("file{number}"))?;
                if content != format!("content {number}").as_bytes() {
                    return Err(format!("a crash at event {event} has lost file{number}").into());
                }
            }
            crashes += 1;
        }
    }
    Ok(crashes)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("{} crashes, and nothing that was fsynced is lost", run()?);
    Ok(())
}
