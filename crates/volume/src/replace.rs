//! Replacing a device of the volume, as the kernel's driver does it.
//!
//! ```text
//! none ── DeviceReplacement::begin ──▶ copying ── DeviceReplacement::finish ──▶ finishing
//!  ▲                                      │                                         │
//!  │         DeviceReplacement::end       │       Superblocks::write: the target    │
//!  └──────────────────────────────────────┘       has the source's number and id    ▼
//!                                                 from here on                   swapped
//! ```
//!
//! From the beginning on the *target* gets all writes that the *source* gets, at the same places,
//! and superblocks that call it device 0. Older content is copied. The trees do not change, since
//! the target takes over the source's number and id with the superblocks of one commit, which the
//! target gets first.
//!
//! A target that fails a write or a flush is given up, and gets no more superblocks: its older one
//! shows that it lacks something (invariant 34).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Logical, NodeExpectation, Physical, SUPERBLOCK_SIZE};
use ubtrfs_threads::{Mutex, Rank};

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange};
use crate::device::{Device, DeviceWrite};
use crate::error::{Error, Result};
use crate::member::{DeviceErrorKind, Member};
use crate::membership::{new_item, wipe};
use crate::proof::Proof;
use crate::read::{VolumeReader, copies_of};
use crate::replacing::{Replacing, TARGET};
use crate::shared_state::SharedState;
use crate::superblock_order::missed;
use crate::superblocks::Superblocks;

/// How often, and how long each time, to wait for writes in flight to data without checksums.
const ATTEMPTS: u32 = 50;
const MOMENT: Duration = Duration::from_millis(10);

/// Counts of what was copied to the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes.
    pub bytes: u64,
    /// Sectors and blocks of which no copy was right.
    pub unreadable: u64,
}

impl Copied {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, unreadable: self.unreadable + other.unreadable }
    }
}

/// Replaces a device of a volume.
#[derive(Debug)]
pub struct DeviceReplacement {
    shared: SharedState,
    superblocks: Arc<Superblocks>,
    reader: Arc<VolumeReader>,
    /// A device that was to replace another one when the volume was last written.
    found_target: Mutex<Option<Arc<Member>>>,
}

impl DeviceReplacement {
    pub(crate) fn new(shared: SharedState, superblocks: Arc<Superblocks>, reader: Arc<VolumeReader>) -> Self {
        let found_target = Mutex::with_default(Rank::FoundTarget);
        Self { shared, superblocks, reader, found_target }
    }

    /// Notes a device that was to replace another one when the volume was last written.
    pub(crate) fn found(&self, target: Option<Arc<Member>>) {
        *self.found_target.lock() = target;
    }

    /// Begins to replace a device: from now on the target gets what the source gets. What is on the
    /// target is wiped. The commit of this generation or a later one must record the replacement.
    pub fn begin(&self, source: DeviceId, device: Arc<dyn Device>, avoids_source: bool) -> Result<()> {
        let _under_way = self.superblocks.begin()?;
        let item = *self.shared.devices.member(source)?.item.lock();
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if device.size() < item.total_bytes {
            return Err(Error::SmallDevice { have: device.size(), need: item.total_bytes });
        }
        wipe(&*device)?;
        let uuid = new_item(&self.shared.identity, TARGET, 0).uuid;
        let item = DevItem { devid: TARGET, uuid, ..item };
        let target = Member::new(device, item, Buffer::zeroed(SUPERBLOCK_SIZE));
        self.set_target(source, Arc::new(target), avoids_source)
    }

    /// Resumes the replacement that another mount began, if its target is among the devices.
    /// Returns whether the target has everything that was copied, or `None` if it is not there.
    pub fn resume(&self, source: DeviceId, avoids_source: bool) -> Result<Option<bool>> {
        let Some(target) = self.found_target.lock().take() else { return Ok(None) };
        let need = self.shared.devices.member(source)?.item.lock().total_bytes;
        if target.device.size() < need {
            return Err(Error::SmallDevice { have: target.device.size(), need });
        }
        let counts = self.superblocks.current();
        let has_all = target.primary.lock().superblock().is_some_and(|own| missed(&counts, &own) == 0);
        self.set_target(source, target, avoids_source)?;
        Ok(Some(has_all))
    }

    fn set_target(&self, source: DeviceId, target: Arc<Member>, avoids_source: bool) -> Result<()> {
        // The next commit at the latest has what was submitted before.
        self.shared.devices.change(|set| {
            if set.replacing.is_some() {
                return Err(Error::BadRequest("two replacements at a time"));
            }
            set.member(source)?;
            set.replacing = Some(Arc::new(Replacing::new(source, target, avoids_source)));
            Ok(())
        })
    }

    /// Returns the number of the device that is being replaced, and whether the target still gets
    /// all that it gets.
    pub fn state(&self) -> Option<(DeviceId, bool)> {
        self.shared.devices.set().replacing.as_ref().map(|replacing| (replacing.source, replacing.is_alive()))
    }

    /// Has the superblocks of the commit of this generation put the target into the source's place.
    pub fn finish(&self, generation: Generation) {
        if let Some(replacing) = &self.shared.devices.set().replacing {
            replacing.swap_by(generation);
        }
    }

    /// Releases the target, if it has not taken the source's place: it no longer belongs to the
    /// volume.
    pub fn end(&self) {
        self.shared.devices.drop_target();
    }

    /// Copies to the target the copies of a tree block that the source has in this range.
    pub fn copy_node(
        &self,
        at: Logical,
        level: Option<u8>,
        generation: Generation,
        range: &Range<u64>,
    ) -> Result<Copied> {
        let _under_way = self.superblocks.begin()?;
        let expected = NodeExpectation {
            bytenr: at,
            level,
            generation: Some(generation),
            owner: None,
            first_key: None,
            fsid: self.shared.identity.metadata_fsid(),
        };
        let mut copied = Copied::default();
        let pieces = self.shared.chunk_map.pieces(at, self.shared.identity.node_size().into())?;
        let places: Vec<_> = pieces.iter().map(|piece| (piece, self.places_of_source(piece, range))).collect();
        if places.iter().all(|(_, places)| places.is_empty()) {
            return Ok(copied);
        }
        let read = self.reader.read_node(&expected);
        let mut done = 0;
        for (piece, places) in places {
            let len = piece.len as usize;
            copied.bytes += match &read {
                Ok(block) => self.put(&places, 0, Buffer::from(&block[done..done + len]))?,
                Err(_) => self.copy_unproven(&places, 0, piece.len)?,
            };
            done += len;
        }
        copied.unreadable += u64::from(read.is_err());
        Ok(copied)
    }

    /// Copies to the target the data that the source has in this range, in whole sectors. Where no
    /// copy is right, the target gets what the source has, if that can be read.
    pub fn copy_data(&self, at: Logical, len: u64, sums: Option<&[u8]>, range: &Range<u64>) -> Result<Copied> {
        let _under_way = self.superblocks.begin()?;
        let sector = u64::from(self.shared.identity.sector_size());
        let sum_size = self.shared.identity.checksum().size();
        let mut copied = Copied::default();
        let mut done = 0;
        let pieces = self.shared.chunk_map.pieces(at, len)?;
        for piece in pieces {
            let (start, first) = (at.plus(done), (done / sector) as usize);
            done += piece.len;
            let places = self.places_of_source(&piece, range);
            if places.is_empty() {
                continue;
            }
            let Some(sums) = sums else {
                let found = self.copy_without_sums(start, &piece, range)?;
                copied = copied.plus(found);
                continue;
            };
            let sums_of =
                |from: usize, count: usize| sums.get((first + from) * sum_size..(first + from + count) * sum_size);
            let sectors = (piece.len / sector) as usize;
            let mut bytes = Buffer::for_reading(piece.len as usize);
            if self.reader.read_data(start, &mut bytes, sums_of(0, sectors)).is_ok() {
                copied.bytes += self.put(&places, 0, bytes)?;
                continue;
            }
            for number in 0..sectors {
                let within = number as u64 * sector;
                let mut bytes = Buffer::for_reading(sector as usize);
                if self.reader.read_data(start.plus(within), &mut bytes, sums_of(number, 1)).is_ok() {
                    copied.bytes += self.put(&places, within, bytes)?;
                } else {
                    copied.unreadable += 1;
                    copied.bytes += self.copy_unproven(&places, within, sector)?;
                }
            }
        }
        Ok(copied)
    }

    /// Copies data that may be overwritten in place. Nobody writes until the target has it.
    fn copy_without_sums(&self, at: Logical, piece: &MappedRange, range: &Range<u64>) -> Result<Copied> {
        let sector = u64::from(self.shared.identity.sector_size());
        let mut attempts = 0;
        let _alone = loop {
            let alone = self.shared.devices.exclude_submissions();
            if !self.shared.access.in_flight().touches(at, piece.len) {
                break alone;
            }
            drop(alone);
            if attempts == ATTEMPTS {
                return Err(Error::Busy { at });
            }
            attempts += 1;
            ubtrfs_threads::thread::sleep(MOMENT);
        };
        let places = self.places_of_source(piece, range);
        let mut copied = Copied::default();
        let mut whole = Buffer::for_reading(piece.len as usize);
        if self.read_unproven(at, &mut whole)? {
            copied.bytes = self.put(&places, 0, whole)?;
            return Ok(copied);
        }
        for within in (0..piece.len).step_by(sector as usize) {
            let mut bytes = Buffer::for_reading(sector as usize);
            if self.read_unproven(at.plus(within), &mut bytes)? {
                copied.bytes += self.put(&places, within, bytes)?;
            } else {
                copied.unreadable += 1;
            }
        }
        Ok(copied)
    }

    /// Reads data without checksums from the first current device that can be read. Returns whether
    /// there is one.
    fn read_unproven(&self, at: Logical, bytes: &mut [u8]) -> Result<bool> {
        let pieces = match self.reader.pieces_to_read(at, bytes.len() as u64, Proof::Nothing) {
            Ok(pieces) => pieces,
            Err(Error::NoCurrentCopy { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let copies = copies_of(&pieces);
        for copy in 0..copies {
            match self.reader.read_copy(&pieces, copy, bytes) {
                Ok(()) => return Ok(true),
                Err(error) => self.reader.note_bad_copy(&pieces, copy, &error),
            }
        }
        Ok(false)
    }

    /// Copies the source's content, right or wrong, if it can be read.
    fn copy_unproven(&self, places: &[Physical], within: u64, len: u64) -> Result<u64> {
        let Some(source) = self.state().and_then(|(source, _)| self.shared.devices.member(source).ok()) else {
            return Ok(0);
        };
        let mut copied = 0;
        for at in places {
            let mut bytes = Buffer::for_reading(len as usize);
            if source.device.read_at(at.plus(within), &mut bytes).is_ok() {
                copied += self.put(&[*at], within, bytes)?;
            }
        }
        Ok(copied)
    }

    /// Returns the addresses, within a range of the source, at which it has a piece.
    fn places_of_source(&self, piece: &MappedRange, range: &Range<u64>) -> Vec<Physical> {
        let Some((source, _)) = self.state() else { return Vec::new() };
        let is_there = |place: &&IoStripe| place.devid == source && range.contains(&place.at.0);
        piece.copies.iter().filter(is_there).map(|place| place.at).collect()
    }

    /// Writes these bytes to the target, `within` bytes behind each of these places, and waits. A
    /// target that fails is given up: [`Error::NoTarget`].
    fn put(&self, places: &[Physical], within: u64, bytes: Buffer) -> Result<u64> {
        let set = self.shared.devices.set();
        let replacing = set.replacing.as_ref().filter(|replacing| replacing.is_alive()).ok_or(Error::NoTarget)?;
        let data = bytes.share();
        let writes = places.iter().map(|at| DeviceWrite { at: at.plus(within), data: data.clone() });
        if let Err(error) = replacing.target.device.submit(writes.collect()).wait() {
            let error = Error::writing(TARGET, error, None);
            self.shared.devices.tolerate(&replacing.target, DeviceErrorKind::Write, error)?;
            return Err(Error::NoTarget);
        }
        Ok(places.len() as u64 * data.len() as u64)
    }
}
