//! The device of the crash tests. It records every write and barrier in order, and makes the images
//! that a crash could leave. Several devices may share a timeline. A barrier of one of them then
//! orders only its own writes, as each device has a queue of its own.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ubtrfs_format::Physical;
use ubtrfs_random::Rng;
use ubtrfs_threads::{Mutex, Rank};

use crate::buffer::ALIGNMENT;
use crate::device::{
    CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, check_range, check_writes,
};
use crate::error::WriteError;
use crate::overlay_device::{Image, OverlayDevice};
use crate::page::{Page, pages_of};

/// What happened to a recording device.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was submitted.
    Write(RecordedWrite),
    /// The writes with these event numbers were waited for and have completed.
    Completed(Range<usize>),
    /// A barrier: every write that had completed is durable.
    Flush,
    /// A range was discarded.
    Discard {
        /// Where.
        at: Physical,
        /// Bytes.
        len: u64,
    },
}

/// A write of a recording device.
#[derive(Clone, Debug)]
pub struct RecordedWrite {
    /// Where.
    pub at: Physical,
    pages: Vec<Arc<Page>>,
}

impl RecordedWrite {
    /// Returns the size of the write in bytes.
    pub fn size(&self) -> usize {
        self.pages.len() * ALIGNMENT
    }
}

/// A write or discard that no barrier has made durable, and that a crash may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenWrite {
    /// The number of its event.
    pub event: usize,
    /// The device, by its place among those of one timeline.
    pub device: usize,
    /// Where.
    pub at: Physical,
    /// 4 KiB sectors: each is written or not. A discard counts as one.
    pub sectors: usize,
}

/// What a crash leaves of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Lost,
    /// Everything.
    Whole,
    /// The sectors that are `true`; those beyond the list's end are lost.
    Torn(Vec<bool>),
}

/// A device in memory that records all operations on it, in order.
#[derive(Debug)]
pub struct RecordingDevice {
    recording: Arc<Mutex<Recording>>,
    /// Its place among the devices of one timeline.
    number: usize,
    size: u64,
    counters: CounterCells,
}

#[derive(Debug)]
struct Recording {
    /// What each device held before the first event.
    start: Vec<Image>,
    /// After the last.
    current: Vec<Image>,
    /// What happened, each to the device of this number.
    events: Vec<(usize, Event)>,
    /// How many events a caller has counted: no event is inserted before these any more.
    counted: usize,
    /// How often the history was forgotten.
    histories: u64,
}

impl Recording {
    fn new(start: Vec<Image>) -> Self {
        Self { current: start.clone(), start, events: Vec::new(), counted: 0, histories: 0 }
    }
}

impl RecordingDevice {
    /// A device that holds what `base` holds.
    pub fn new(base: Arc<[u8]>) -> Self {
        Self::alone(Image::new(base))
    }

    /// A device that holds what `image` holds.
    pub fn on(image: &OverlayDevice) -> Self {
        Self::alone(image.image())
    }

    fn alone(start: Image) -> Self {
        let size = start.size();
        let recording = Arc::new(Mutex::new(Rank::RecordingDevice, Recording::new(vec![start])));
        Self { recording, number: 0, size, counters: CounterCells::default() }
    }

    /// Devices of one timeline, one for each image, with its content. What the methods of one of
    /// them return of events is about all of them.
    pub fn together(images: &[OverlayDevice]) -> Vec<Self> {
        let start: Vec<Image> = images.iter().map(OverlayDevice::image).collect();
        let sizes: Vec<u64> = start.iter().map(Image::size).collect();
        let recording = Arc::new(Mutex::new(Rank::RecordingDevice, Recording::new(start)));
        let device = |(number, size)| Self {
            recording: Arc::clone(&recording),
            number,
            size,
            counters: CounterCells::default(),
        };
        sizes.into_iter().enumerate().map(device).collect()
    }

    /// Returns its place among the devices of one timeline.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns how many devices the timeline has.
    pub fn devices(&self) -> usize {
        self.recording.lock().start.len()
    }

    /// Returns all events so far, each with the number of its device.
    pub fn events(&self) -> Vec<(usize, Event)> {
        self.recording.lock().events.clone()
    }

    /// Returns how many events there are so far.
    pub fn len(&self) -> usize {
        let mut recording = self.recording.lock();
        recording.counted = recording.events.len();
        recording.counted
    }

    /// Returns whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current content, as running programs see it.
    pub fn current(&self) -> OverlayDevice {
        OverlayDevice::from_image(self.recording.lock().current[self.number].clone())
    }

    /// Returns the current content of all devices of the timeline.
    pub fn all_current(&self) -> Vec<OverlayDevice> {
        self.recording.lock().current.iter().cloned().map(OverlayDevice::from_image).collect()
    }

    /// Makes the current content the start, and forgets all events, which bounds the memory of long
    /// runs.
    pub fn forget_history(&self) {
        let mut recording = self.recording.lock();
        let recording = &mut *recording;
        recording.start.clone_from(&recording.current);
        recording.events.clear();
        recording.counted = 0;
        recording.histories += 1;
    }

    /// Returns what a crash may leave after the first `at_event` events. A write certainly stays if
    /// it was waited for and a barrier followed. For every other write, `chooser` decides what is
    /// left; any subset of sectors is possible. (So is any order: if two open writes hit the same
    /// sector, losing the later one is the same as its coming first.)
    pub fn crash_state(&self, at_event: usize, chooser: &mut dyn FnMut(&OpenWrite) -> Fate) -> OverlayDevice {
        self.crash_states(at_event, chooser).swap_remove(self.number)
    }

    /// As [`Self::crash_state`], for all devices of the timeline. A barrier of one device does not
    /// affect writes to the others.
    pub fn crash_states(&self, at_event: usize, chooser: &mut dyn FnMut(&OpenWrite) -> Fate) -> Vec<OverlayDevice> {
        let recording = self.recording.lock();
        let events = &recording.events[..at_event.min(recording.events.len())];
        let is_durable = durable(events, recording.start.len());
        let mut images = recording.start.clone();
        for (event, ((device, what), durable)) in events.iter().zip(is_durable).enumerate() {
            let device = *device;
            let mut fate = |at, sectors| {
                if durable { Fate::Whole } else { chooser(&OpenWrite { event, device, at, sectors }) }
            };
            match what {
                Event::Write(write) => {
                    let fate = fate(write.at, write.pages.len());
                    let first = write.at.0 / ALIGNMENT as u64;
                    for (index, page) in write.pages.iter().enumerate() {
                        let is_kept = match &fate {
                            Fate::Lost => false,
                            Fate::Whole => true,
                            Fate::Torn(kept) => kept.get(index).copied().unwrap_or(false),
                        };
                        if is_kept {
                            images[device].set(first + index as u64, Arc::clone(page));
                        }
                    }
                }
                Event::Discard { at, len } => {
                    if fate(*at, 1) != Fate::Lost {
                        images[device].clear(at.0, *len);
                    }
                }
                Event::Completed(_) | Event::Flush => {}
            }
        }
        images.into_iter().map(OverlayDevice::from_image).collect()
    }
}

/// For each event, whether it is a write or discard that a barrier of its device has made durable.
fn durable(events: &[(usize, Event)], devices: usize) -> Vec<bool> {
    let mut durable = vec![false; events.len()];
    let mut flushed = vec![false; devices];
    for (number, (device, event)) in events.iter().enumerate().rev() {
        match event {
            Event::Flush => flushed[*device] = true,
            Event::Completed(writes) if flushed[*device] => durable[writes.clone()].fill(true),
            // A discard is synchronous: it had completed.
            Event::Discard { .. } if flushed[*device] => durable[number] = true,
            Event::Write(_) | Event::Completed(_) | Event::Discard { .. } => {}
        }
    }
    durable
}

/// Returns a chooser for [`RecordingDevice::crash_state`] that one seed determines. Sometimes it
/// loses or keeps all open writes; mostly it decides for each one.
pub fn random_fates(seed: u64) -> impl FnMut(&OpenWrite) -> Fate {
    let mut random = Rng::new(seed);
    let temper = random.below(8);
    move |write| match (temper, random.below(4)) {
        (0, _) | (2.., 0) => Fate::Lost,
        (1, _) | (2.., 1) => Fate::Whole,
        (_, 2) => {
            let kept = random.below(write.sectors as u64 + 1) as usize;
            Fate::Torn(vec![true; kept])
        }
        _ => Fate::Torn((0..write.sectors).map(|_| random.below(2) == 0).collect()),
    }
}

impl Device for RecordingDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        self.recording.lock().current[self.number].read(at.0, buf);
        self.counters.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        let mut recording = self.recording.lock();
        let first = recording.events.len();
        let mut pages = Vec::new();
        for write in writes {
            self.counters.write(write.data.len());
            let recorded = RecordedWrite { at: write.at, pages: pages_of(&write.data).collect() };
            pages.extend((write.at.0 / ALIGNMENT as u64..).zip(recorded.pages.iter().cloned()));
            recording.events.push((self.number, Event::Write(recorded)));
        }
        let writes = first..recording.events.len();
        let (history, is_known) = (recording.histories, AtomicBool::new(false));
        let (recording, device) = (Arc::clone(&self.recording), self.number);
        DeviceTicket::new(RecordingTicket { recording, device, history, writes, pages, is_known })
    }

    fn flush(&self) -> io::Result<()> {
        let mut recording = self.recording.lock();
        // Several devices are flushed by as many threads. The order of events must not depend on
        // these threads, so that one seed gives one history.
        let is_later = |(device, event): &(usize, Event)| *device > self.number && matches!(event, Event::Flush);
        let counted = recording.counted;
        let place = recording.events[counted..].iter().rposition(|event| !is_later(event)).map_or(0, |last| last + 1);
        recording.events.insert(counted + place, (self.number, Event::Flush));
        self.counters.flush();
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        let mut recording = self.recording.lock();
        recording.current[self.number].clear(at.0, len);
        recording.events.push((self.number, Event::Discard { at, len }));
        self.counters.discard();
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}

/// The ticket of recorded writes. A write counts as completed only when its submitter has asked: an
/// earlier flush does not make it durable, and an earlier read finds the old content.
#[derive(Debug)]
struct RecordingTicket {
    recording: Arc<Mutex<Recording>>,
    /// The number of the device.
    device: usize,
    /// How often the history had been forgotten when the writes were submitted.
    history: u64,
    writes: Range<usize>,
    /// The written pages, by their numbers.
    pages: Vec<(u64, Arc<Page>)>,
    is_known: AtomicBool,
}

impl RecordingTicket {
    fn complete(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) && !self.writes.is_empty() {
            let mut recording = self.recording.lock();
            self.take_place(&mut recording);
            if self.history == recording.histories {
                recording.events.push((self.device, Event::Completed(self.writes.clone())));
            }
        }
    }

    fn take_place(&self, recording: &mut Recording) {
        let is_forgotten = self.history != recording.histories;
        for (number, page) in &self.pages {
            recording.current[self.device].set(*number, Arc::clone(page));
            if is_forgotten {
                recording.start[self.device].set(*number, Arc::clone(page));
            }
        }
    }
}

impl Drop for RecordingTicket {
    /// Writes complete whether or not they are waited for.
    fn drop(&mut self) {
        if !*self.is_known.get_mut() {
            self.take_place(&mut self.recording.lock());
        }
    }
}

impl PendingWrites for RecordingTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.complete();
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.complete();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedBuffer;

    const PAGE: u64 = ALIGNMENT as u64;

    fn device() -> RecordingDevice {
        RecordingDevice::new(vec![0; 16 * ALIGNMENT].into())
    }

    fn write(device: &RecordingDevice, page: u64, bytes: &[u8]) -> DeviceTicket {
        let data: Vec<u8> = bytes.iter().flat_map(|byte| vec![*byte; ALIGNMENT]).collect();
        device.submit(vec![DeviceWrite { at: Physical(page * PAGE), data: SharedBuffer::from(data) }])
    }

    fn pages(device: &OverlayDevice, count: usize) -> Vec<u8> {
        device.to_bytes().chunks(ALIGNMENT).take(count).map(|page| page[0]).collect()
    }

    fn lost(device: &RecordingDevice) -> Vec<u8> {
        pages(&device.crash_state(device.len(), &mut |_| Fate::Lost), 4)
    }

    #[test]
    fn only_writes_that_were_waited_for_before_a_barrier_are_durable() {
        let device = device();
        let ticket = write(&device, 0, &[1]);
        device.flush().unwrap();
        assert_eq!(lost(&device), [0, 0, 0, 0], "nobody had waited");
        ticket.wait().unwrap();
        assert_eq!(lost(&device), [0, 0, 0, 0], "no barrier since");
        device.flush().unwrap();
        let later = write(&device, 1, &[2]);
        assert_eq!(lost(&device), [1, 0, 0, 0]);
        assert!(later.is_done());
        device.flush().unwrap();
        assert_eq!(lost(&device), [1, 2, 0, 0]);
        assert_eq!(pages(&device.crash_state(2, &mut |_| Fate::Whole), 2), [1, 0], "earlier states can be had as well");
        assert_eq!(pages(&device.crash_state(0, &mut |_| Fate::Whole), 2), [0, 0]);
    }

    #[test]
    fn open_writes_are_torn_as_chosen() {
        let device = device();
        write(&device, 0, &[1, 2, 3, 4]).wait().unwrap();
        write(&device, 1, &[5, 6]).wait().unwrap();
        let mut asked = Vec::new();
        let mut choose = |open: &OpenWrite| {
            asked.push((open.event, open.at.0 / PAGE, open.sectors));
            if open.event == 0 { Fate::Torn(vec![true, false, true]) } else { Fate::Torn(vec![true]) }
        };
        assert_eq!(pages(&device.crash_state(device.len(), &mut choose), 4), [1, 5, 3, 0]);
        assert_eq!(asked, [(0, 0, 4), (2, 1, 2)]);
        assert_eq!(pages(&device.current(), 4), [1, 5, 6, 4]);
    }

    #[test]
    fn a_discard_is_open_until_a_barrier() {
        let device = device();
        write(&device, 0, &[1, 1, 1, 1]).wait().unwrap();
        device.flush().unwrap();
        device.discard(Physical(PAGE), 2 * PAGE).unwrap();
        assert_eq!(lost(&device), [1, 1, 1, 1]);
        assert_eq!(pages(&device.current(), 4), [1, 0, 0, 1]);
        device.flush().unwrap();
        assert_eq!(lost(&device), [1, 0, 0, 1]);
    }

    #[test]
    fn forgetting_keeps_the_content() {
        let device = device();
        write(&device, 0, &[1]).wait().unwrap();
        let late = write(&device, 1, &[2]);
        device.forget_history();
        late.wait().unwrap();
        assert!(device.is_empty());
        assert_eq!(lost(&device), [1, 2, 0, 0]);
    }

    #[test]
    fn a_barrier_orders_the_writes_of_its_own_device_only() {
        let images = [0; 2].map(|_| OverlayDevice::new(vec![0; 16 * ALIGNMENT].into()));
        let devices = RecordingDevice::together(&images);
        let [one, other] = &devices[..] else { panic!("two were asked for") };
        write(one, 0, &[1]).wait().unwrap();
        write(other, 0, &[2]).wait().unwrap();
        let lost = |event| -> Vec<u8> {
            one.crash_states(event, &mut |_| Fate::Lost).iter().map(|device| pages(device, 1)[0]).collect()
        };
        other.flush().unwrap();
        assert_eq!(lost(5), [0, 2], "each has a queue of its own");
        one.flush().unwrap();
        assert_eq!((lost(5), lost(6)), (vec![1, 0], vec![1, 2]), "flushes at once are in order of the devices");
        assert_eq!(one.len(), 6);
        other.flush().unwrap();
        one.flush().unwrap();
        assert_eq!(lost(one.len()), lost(6), "what has been counted stays");
        let mut asked = Vec::new();
        one.crash_states(4, &mut |write| {
            asked.push((write.event, write.device));
            Fate::Whole
        });
        assert_eq!(asked, [(0, 0), (2, 1)]);
        let current: Vec<u8> = other.all_current().iter().map(|device| pages(device, 1)[0]).collect();
        assert_eq!((current, other.number()), (vec![1, 2], 1));
    }

    #[test]
    fn one_seed_gives_one_state_and_seeds_differ() {
        let device = device();
        for page in 0..8 {
            write(&device, page, &[page as u8 + 1, page as u8 + 100]).wait().unwrap();
        }
        let state = |seed| pages(&device.crash_state(device.len(), &mut random_fates(seed)), 16);
        assert_eq!(state(7), state(7));
        let different: std::collections::HashSet<_> = (0..100).map(state).collect();
        assert!(different.len() > 50, "{}", different.len());
        assert!(different.contains(&vec![0; 16]) && different.contains(&pages(&device.current(), 16)));
    }
}
