//! Measures the least time that a log write takes: two 16 KiB blocks, a barrier, the superblock's 4
//! KiB, a barrier.
//!
//! `cargo run --release -p ubtrfs-volume --example barrier_latency -- FILE [threads]` overwrites
//! FILE. A file that does not exist yet is made 64 MiB large, and its blocks are written before the
//! measurement.

use std::time::{Duration, Instant};

use ubtrfs_format::Physical;
use ubtrfs_volume::{Buffer, Device, DeviceWrite, Engine, Exclusive, FileDevice, OpenMode, SharedBuffer};

const ROUNDS: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let engine = if arguments.next().is_some() { Engine::Threads } else { Engine::Auto };
    if !std::path::Path::new(&path).exists() {
        std::fs::write(&path, vec![1; 64 << 20])?;
    }
    let device = FileDevice::open_with_engine(&path, OpenMode::ReadWrite, Exclusive::Yes, engine)?;
    println!("direct: {}, io_uring: {}", device.is_direct(), device.uses_io_uring());
    let block = Buffer::zeroed(16384).share();
    let superblock = Buffer::zeroed(4096).share();
    let write = |at, data: &SharedBuffer| DeviceWrite { at: Physical(at), data: data.clone() };
    let mut times = vec![Vec::new(); 4];
    let mut read = Buffer::for_reading(4096);
    for round in 0..ROUNDS as u64 {
        let at = (round * 32768) % (16 << 20);
        let mut clock = Instant::now();
        let mut lap = |times: &mut Vec<Duration>| {
            times.push(clock.elapsed());
            clock = Instant::now();
        };
        device.submit(vec![write((1 << 20) + at, &block), write((32 << 20) + at, &block)]).wait()?;
        lap(&mut times[0]);
        device.flush()?;
        lap(&mut times[1]);
        device.read_at(Physical(64 << 10), &mut read)?;
        lap(&mut times[2]);
        device.submit(vec![write(64 << 10, &superblock)]).wait()?;
        device.flush()?;
        lap(&mut times[3]);
    }
    for (what, times) in ["two blocks", "barrier", "superblock read", "superblock + barrier"].iter().zip(&mut times) {
        times.sort_unstable();
        println!("{what:22} median {:>9.1?}  99% {:>9.1?}", times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    }
    Ok(())
}
