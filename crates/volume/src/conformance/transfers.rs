//! Checks of reads, writes, barriers and discards.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use ubtrfs_errors::sentence;
use ubtrfs_format::Physical;
use ubtrfs_random::Rng;
use ubtrfs_threads::thread;

use super::trial::{SECTOR, Trial, Verdict, fails, read, same, wait, write_of};
use crate::buffer::Buffer;
use crate::{Device, DeviceWrite};

/// How many threads use the device at once.
const THREADS: u64 = 4;

/// The address of the last sector: a range of two sectors from there overflows.
const LAST_SECTOR: u64 = u64::MAX - (SECTOR - 1);

pub(super) fn read_bounds(trial: &mut Trial) -> Verdict {
    let (device, size) = (trial.device(), trial.device().size());
    for at in [0, 1, size - 1, size] {
        read(device, &(at..at))?;
    }
    read(device, &(size - 1..size))?;
    for (at, len) in [(size - 1, 2), (size, 1), (size + 1, 0), (size + SECTOR, 4096), (LAST_SECTOR, 8192)] {
        let result = device.read_at(Physical(at), &mut vec![0; len]);
        fails(&format!("a read of {len} bytes at {at} of {size}"), &[ErrorKind::UnexpectedEof], result)?;
    }
    Ok(())
}

pub(super) fn reads(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let content = trial.fill(&area)?;
    trial.expect(&area, &content)?;
    for most in [2, 600, 3 * SECTOR, area.end - area.start] {
        for _ in 0..30 {
            let len = 1 + trial.random.below(most);
            let at = trial.random.below(area.end - area.start - len + 1);
            let range = area.start + at..area.start + at + len;
            trial.expect(&range, &content[at as usize..(at + len) as usize])?;
        }
    }
    Ok(())
}

pub(super) fn writes(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let mut content = trial.fill(&area)?;
    for round in 0..16 {
        // Some of the writes are neighbours, in and out of order; others are apart.
        let mut batch: Vec<DeviceWrite> = Vec::new();
        let mut at = area.start;
        while at < area.end {
            let len = (1 + trial.random.below(if round % 8 == 0 { 200 } else { 4 })) * SECTOR;
            let end = (at + len).min(area.end);
            if trial.random.below(3) > 0 {
                let bytes = trial.noise(end - at);
                content[(at - area.start) as usize..(end - area.start) as usize].copy_from_slice(&bytes);
                batch.push(write_of(at, &bytes));
            }
            at = end;
        }
        for index in 1..if round % 2 == 0 { 0 } else { batch.len() } {
            let other = trial.random.below(index as u64 + 1) as usize;
            batch.swap(index, other);
        }
        let device = trial.device();
        let ticket = if round % 5 == 0 { device.submit_urgently(batch) } else { device.submit(batch) };
        if ticket.is_done() {
            trial.expect(&area, &content).map_err(|how| format!("a ticket is done too early: {how}"))?;
        }
        wait(ticket)?;
        trial.expect(&area, &content)?;
    }
    // A write of the last sector, from memory that is not aligned.
    let last = trial.device().size() / SECTOR * SECTOR - SECTOR;
    let bytes = trial.noise(SECTOR + 1);
    let data = crate::SharedBuffer::from(bytes.clone()).slice(1..bytes.len());
    wait(trial.device().submit(vec![DeviceWrite { at: Physical(last), data }]))?;
    trial.expect(&(last..last + SECTOR), &bytes[1..])
}

pub(super) fn write_rules(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let content = trial.fill(&area)?;
    let size = trial.device().size();
    let end = size / SECTOR * SECTOR;
    let bad = [
        (area.start + 1, SECTOR, ErrorKind::InvalidInput),
        (area.start + 512, 512, ErrorKind::InvalidInput),
        (area.start + SECTOR, SECTOR + 1, ErrorKind::InvalidInput),
        (end, SECTOR, ErrorKind::UnexpectedEof),
        (end - SECTOR, 2 * SECTOR, ErrorKind::UnexpectedEof),
        (end + (1 << 30), SECTOR, ErrorKind::UnexpectedEof),
        (LAST_SECTOR, 2 * SECTOR, ErrorKind::UnexpectedEof),
    ];
    for (at, len, kind) in bad {
        let good = write_of(area.start + 4 * SECTOR, &trial.noise(SECTOR));
        let zeroes = write_of(area.start + 16 * SECTOR, &vec![0; 128 << 10]);
        let batch = vec![good, zeroes, write_of(at, &trial.noise(len))];
        let what = format!("a write of {len} bytes at {at} of {size}");
        let error = trial.device().submit(batch).wait().err().ok_or_else(|| format!("{what} succeeds"))?;
        if (error.at, error.len as u64) != (Physical(at), len) {
            return Err(format!("{what} fails as one of {} bytes at {}", error.len, error.at));
        }
        fails::<()>(&what, &[kind], Err(error.source))?;
        trial.expect(&area, &content).map_err(|how| format!("{what} was refused, but {how}"))?;
    }
    wait(trial.device().submit(Vec::new()))?;
    wait(trial.device().submit(vec![write_of(area.start, &[]), write_of(end, &[])]))?;
    trial.expect(&area, &content)
}

pub(super) fn overlaps(trial: &mut Trial) -> Verdict {
    for _ in 0..20 {
        let whole = trial.sectors(32);
        let older = trial.fill(&whole)?;
        let (one, other) = (trial.noise(whole.end - whole.start), trial.noise(whole.end - whole.start));
        let ticket = trial.device().submit(vec![write_of(whole.start, &one), write_of(whole.start, &other)]);
        wait(ticket)?;
        let found = trial.read(&whole)?;
        let sectors = found.chunks(SECTOR as usize).zip(one.chunks(SECTOR as usize).zip(other.chunks(SECTOR as usize)));
        for (number, (sector, (one, other))) in sectors.enumerate() {
            if sector != one && sector != other {
                let is_old = sector == &older[number * SECTOR as usize..][..SECTOR as usize];
                let how = if is_old { "not written" } else { "a mixture" };
                return Err(format!("sector {number} of {whole:?} is {how} after two writes of one batch"));
            }
        }
        // Among writes that were waited for, the last one counts.
        let last = trial.fill(&whole)?;
        trial.expect(&whole, &last)?;
    }
    Ok(())
}

pub(super) fn dropped_tickets(trial: &mut Trial) -> Verdict {
    for _ in 0..4 {
        let range = trial.sectors(64);
        let content = trial.noise(range.end - range.start);
        drop(trial.device().submit(vec![write_of(range.start, &content)]));
        let pause = trial.subject.timeout / 1000;
        let is_there = |_: &u32| {
            let found = trial.expect(&range, &content).is_ok();
            if !found {
                thread::sleep(pause);
            }
            found
        };
        if (0..1000).find(is_there).is_none() {
            return Err(format!("{range:?} is not written, as nobody waited for it"));
        }
    }
    Ok(())
}

/// Checks that a crash leaves these bytes.
fn outlives(trial: &Trial, range: &Range<u64>, content: &[u8]) -> Verdict {
    let Some(after_crash) = &trial.subject.after_crash else { return Ok(()) };
    same(range, &read(&*after_crash(), range)?, content)
}

pub(super) fn flush(trial: &mut Trial) -> Verdict {
    let failed = |error: std::io::Error| format!("a flush fails: {}", sentence(&error));
    for _ in 0..10 {
        let (range, later) = (trial.sectors(16), trial.sectors(16));
        let content = trial.fill(&range)?;
        trial.device().flush().map_err(failed)?;
        outlives(trial, &range, &content)?;
        // The bytes stay durable whatever is written elsewhere.
        if later.end <= range.start || range.end <= later.start {
            trial.fill(&later)?;
            outlives(trial, &range, &content)?;
        }
    }
    Ok(())
}

pub(super) fn fua(trial: &mut Trial) -> Verdict {
    for _ in 0..10 {
        let range = trial.sectors(16);
        let content = trial.noise(range.end - range.start);
        wait(trial.device().submit_fua(vec![write_of(range.start, &content)]))?;
        trial.expect(&range, &content)?;
        outlives(trial, &range, &content)?;
    }
    Ok(())
}

pub(super) fn discards(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let mut content = trial.fill(&area)?;
    for _ in 0..10 {
        let range = trial.sectors(40);
        let (from, to) = ((range.start - area.start) as usize, (range.end - area.start) as usize);
        match trial.device().discard(Physical(range.start), range.end - range.start) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return trial.expect(&area, &content).map_err(|how| format!("nothing is discarded, but {how}"));
            }
            done => done.map_err(|error| format!("a discard of {range:?}: {}", sentence(&error)))?,
        }
        let mut found = trial.read(&area)?;
        found[from..to].copy_from_slice(&content[from..to]);
        same(&area, &found, &content).map_err(|how| format!("a discard of {range:?}: {how}"))?;
        content[from..to].copy_from_slice(&trial.fill(&range)?);
        trial.expect(&area, &content)?;
    }
    let (device, size) = (trial.device(), trial.device().size());
    for at in [area.start, size] {
        device
            .discard(Physical(at), 0)
            .map_err(|error| format!("an empty discard at {at} of {size}: {}", sentence(&error)))?;
    }
    let end = size / SECTOR * SECTOR;
    for (at, len) in [(end - SECTOR, 2 * SECTOR), (end + SECTOR, SECTOR), (LAST_SECTOR, 2 * SECTOR)] {
        let what = format!("a discard of {len} bytes at {at} of {size}");
        fails(&what, &[ErrorKind::UnexpectedEof], device.discard(Physical(at), len))?;
    }
    trial.expect(&area, &content)
}

pub(super) fn data_ranges(trial: &mut Trial) -> Verdict {
    let is_data = |ranges: &[Range<u64>], at| ranges.iter().any(|range| range.contains(&at));
    if !trial.device().is_read_only() {
        let (written, discarded) = (trial.sectors(8), trial.sectors(64));
        // A device that can't discard changes nothing.
        let _ = trial.device().discard(Physical(discarded.start), discarded.end - discarded.start);
        trial.fill(&written)?;
    }
    let found = trial.device().data_ranges().map_err(|error| format!("data ranges: {}", sentence(&error)))?;
    let Some(ranges) = found else { return Ok(()) };
    let mut last = 0;
    for range in &ranges {
        if range.start < last || range.is_empty() || range.end > trial.device().size() {
            return Err(format!("{ranges:?} are no ranges in order"));
        }
        last = range.end;
    }
    for at in (trial.area.start..trial.area.end).step_by(SECTOR as usize) {
        let sector = at..at + SECTOR;
        if !is_data(&ranges, at)
            && !is_data(&ranges, at + SECTOR - 1)
            && trial.read(&sector)?.iter().any(|byte| *byte != 0)
        {
            return Err(format!("{sector:?} is not in {ranges:?}, but has content"));
        }
    }
    Ok(())
}

pub(super) fn file_to_read(trial: &mut Trial) -> Verdict {
    let device = trial.device();
    let size = device.size();
    let odd =
        [(trial.area.start + 1, 4096), (trial.area.start, 100), (size / SECTOR * SECTOR, 4096), (LAST_SECTOR, 8192)];
    if let Some((at, len)) = odd.into_iter().find(|(at, len)| device.file_to_read(Physical(*at), *len).is_some()) {
        return Err(format!("a file is offered for {len} bytes at {at} of {size}"));
    }
    for _ in 0..10 {
        let range = trial.sectors(16);
        if !trial.device().is_read_only() {
            trial.fill(&range)?;
        }
        let len = (range.end - range.start) as usize;
        let Some(file) = trial.device().file_to_read(Physical(range.start), len) else { continue };
        let mut bytes = Buffer::for_reading(len);
        file.read_exact_at(&mut bytes, range.start)
            .map_err(|error| format!("the file at {range:?}: {}", sentence(&error)))?;
        trial.expect(&range, &bytes).map_err(|how| format!("the file shows something else: {how}"))?;
    }
    Ok(())
}

pub(super) fn threads(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let content = trial.fill(&area)?;
    let seed = trial.random.next_u64();
    let device = trial.device();
    let results: Vec<Verdict> = thread::scope(|scope| {
        let worker = |number| {
            let (area, content) = (area.clone(), content.clone());
            scope.spawn(move || work(device, &area, content, number, seed))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        let ended = |worker: thread::ScopedJoinHandle<'_, Verdict>| {
            worker.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        };
        workers.into_iter().map(ended).collect()
    });
    results.into_iter().collect()
}

/// Runs one of several threads. It writes and discards sectors of its own, which lie between those
/// of the others.
fn work(device: &dyn Device, area: &Range<u64>, mut content: Vec<u8>, number: u64, seed: u64) -> Verdict {
    let mut random = Rng::new(seed.wrapping_add(number));
    let sectors = (area.end - area.start) / SECTOR / THREADS;
    for _ in 0..100 {
        let own = |sector: u64| area.start + (sector * THREADS + number) * SECTOR;
        let place = |at: u64| (at - area.start) as usize..(at - area.start + SECTOR) as usize;
        match random.below(8) {
            0..4 => {
                let (first, count) = (random.below(sectors), 1 + random.below(8));
                let mut batch = Vec::new();
                for at in (first..sectors.min(first + count)).map(own) {
                    let bytes = random.noise(SECTOR as usize);
                    content[place(at)].copy_from_slice(&bytes);
                    batch.push(write_of(at, &bytes));
                }
                wait(device.submit(batch))?;
            }
            4..6 => {
                let at = own(random.below(sectors));
                let skip = random.below(SECTOR);
                let range = at + skip..at + skip + 1 + random.below(SECTOR - skip);
                let expected = &content[(range.start - area.start) as usize..(range.end - area.start) as usize];
                same(&range, &read(device, &range)?, expected)?;
            }
            6 => {
                let at = own(random.below(sectors));
                if device.discard(Physical(at), SECTOR).is_ok() {
                    let bytes = random.noise(SECTOR as usize);
                    content[place(at)].copy_from_slice(&bytes);
                    wait(device.submit(vec![write_of(at, &bytes)]))?;
                }
            }
            _ => device.flush().map_err(|error| format!("a flush fails: {}", sentence(&error)))?,
        }
    }
    for sector in 0..sectors {
        let at = area.start + (sector * THREADS + number) * SECTOR;
        let expected = &content[(at - area.start) as usize..(at - area.start + SECTOR) as usize];
        same(&(at..at + SECTOR), &read(device, &(at..at + SECTOR))?, expected)?;
    }
    Ok(())
}
