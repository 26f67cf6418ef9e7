//! Checks of a device's size, of its failures, and of its end.

use std::io::ErrorKind;

use ubtrfs_errors::sentence;
use ubtrfs_format::Physical;

use super::trial::{SECTOR, Trial, Verdict, fails, read, same, wait, write_of};

pub(super) fn size(trial: &mut Trial) -> Verdict {
    let device = trial.device();
    let size = device.size();
    if let Ok(found) = device.find_size()
        && (found != size || device.size() != size)
    {
        return Err(format!("{size} bytes become {found}, and {} are shown", device.size()));
    }
    if trial.subject.is_away && device.size() == 0 {
        return Err("a device that is away loses its size".to_owned());
    }
    Ok(())
}

pub(super) fn read_only(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let content = trial.read(&area)?;
    let write = write_of(area.start, &trial.noise(SECTOR));
    let refused = trial.device().submit(vec![write]).wait();
    fails("a write", &[ErrorKind::ReadOnlyFilesystem], refused.map_err(|error| error.source))?;
    let refused = trial.device().discard(Physical(area.start), SECTOR);
    fails("a discard", &[ErrorKind::ReadOnlyFilesystem], refused)?;
    trial.device().flush().map_err(|error| format!("a flush fails: {}", sentence(&error)))?;
    trial.expect(&area, &content)
}

pub(super) fn comparing(trial: &mut Trial) -> Verdict {
    for _ in 0..4 {
        // A comparison sees what was written, read and read ahead before it began.
        let range = trial.sectors(16);
        let older = trial.fill(&range)?;
        trial.expect(&range, &older)?;
        let mut content = older;
        if let Some(behind) = trial.behind() {
            content = trial.noise(range.end - range.start);
            wait(behind.submit(vec![write_of(range.start, &content)]))?;
        }
        trial.device().begin_comparing();
        let shown = trial.expect(&range, &content);
        // It sees what is written while it runs. It goes on when another comparison ends.
        trial.device().begin_comparing();
        trial.device().end_comparing();
        let mut content = trial.fill(&range)?;
        if let Some(behind) = trial.behind() {
            content = trial.noise(range.end - range.start);
            wait(behind.submit(vec![write_of(range.start, &content)]))?;
        }
        let shown = shown.and(trial.expect(&range, &content));
        trial.device().end_comparing();
        shown?;
    }
    Ok(())
}

pub(super) fn counters(trial: &mut Trial) -> Verdict {
    let mut before = trial.device().counters();
    for _ in 0..20 {
        let range = trial.sectors(16);
        trial.fill(&range)?;
        trial.read(&range)?;
        let after = trial.device().counters();
        let grown = after.reads >= before.reads
            && after.read_bytes >= before.read_bytes
            && after.writes > before.writes
            && after.flushes >= before.flushes
            && after.discards >= before.discards;
        if !grown || after.written_bytes - before.written_bytes < range.end - range.start {
            return Err(format!("{before:?} became {after:?} by a write and a read of {range:?}"));
        }
        before = after;
    }
    Ok(())
}

pub(super) fn resizes(trial: &mut Trial) -> Verdict {
    let Some(set_size) = trial.subject.set_size.take() else { return Ok(()) };
    let old = trial.device().size();
    let find = |trial: &Trial, size: u64| match trial.device().find_size() {
        Ok(found) if found == size && trial.device().size() == size => Ok(()),
        found => Err(format!("{size} bytes are found as {found:?}, and shown as {}", trial.device().size())),
    };
    let new = old.next_multiple_of(SECTOR) + 64 * SECTOR;
    set_size(new);
    find(trial, new)?;
    let range = new - 8 * SECTOR..new;
    let content = trial.fill(&range)?;
    trial.expect(&range, &content)?;
    read_beyond(trial, new)?;
    set_size(old);
    // The read fails even before `find_size` has found the smaller size.
    let result = trial.device().read_at(Physical(range.start), &mut [0; 4096]);
    fails("a read of what is no more there", &[ErrorKind::UnexpectedEof], result)?;
    find(trial, old)?;
    read_beyond(trial, old)?;
    let refused = trial.device().submit(vec![write_of(range.start, &content)]).wait();
    fails("a write to what is no more there", &[ErrorKind::UnexpectedEof], refused.map_err(|error| error.source))
}

fn read_beyond(trial: &Trial, size: u64) -> Verdict {
    read(trial.device(), &(size - 1..size))?;
    let result = trial.device().read_at(Physical(size), &mut [0]);
    fails("a read beyond the end", &[ErrorKind::UnexpectedEof], result)
}

pub(super) fn failures(trial: &mut Trial) -> Verdict {
    let area = trial.area.clone();
    let older = if trial.subject.is_away { Vec::new() } else { trial.fill(&area)? };
    if let Some(fail) = &trial.subject.fail {
        fail();
    }
    let (size, content) = (trial.device().size(), trial.noise(area.end - area.start));
    for _ in 0..2 {
        if trial.device().submit(vec![write_of(area.start, &content)]).wait().is_ok() {
            return Err("a write that fails is reported as done".to_owned());
        }
        if trial.device().flush().is_ok() {
            return Err("a flush that fails is reported as done".to_owned());
        }
        if trial.subject.is_away && trial.device().read_at(Physical(area.start), &mut [0; 4096]).is_ok() {
            return Err("a device that is away is read".to_owned());
        }
    }
    if trial.device().size() != size {
        return Err("the size is another one after a failure".to_owned());
    }
    let Some(heal) = &trial.subject.heal else { return Ok(()) };
    heal();
    trial.device().take_writes_again();
    let found = trial.read(&area)?;
    for (number, sector) in found.chunks(SECTOR as usize).enumerate() {
        let part = number * SECTOR as usize..(number + 1) * SECTOR as usize;
        if sector != &older[part.clone()] && sector != &content[part] {
            return Err(format!("sector {number} is neither as before a write that failed nor as after it"));
        }
    }
    if let Some(behind) = trial.behind() {
        same(&area, &found, &read(&*behind, &area)?).map_err(|how| format!("what failed is shown: {how}"))?;
    }
    let content = trial.fill(&area)?;
    trial.device().flush().map_err(|error| format!("a flush after a failure: {}", sentence(&error)))?;
    trial.expect(&area, &content)
}

pub(super) fn release(trial: &mut Trial) -> Verdict {
    // A device that can't be healed can't be read any more, so there is nothing to compare.
    if trial.subject.fail.is_some() && trial.subject.heal.is_none() {
        trial.device().release();
        return Ok(());
    }
    let area = trial.area.clone();
    let content = trial.read(&area)?;
    trial.device().stop_waiting();
    trial.expect(&area, &content)?;
    trial.device().release();
    trial.device().release();
    trial.expect(&area, &content)
}
