//! Comparing the parity of rows with their data, during the scrub of the data.
//!
//! Parity has a meaning only where it was written together with data. In rows, or parts of rows,
//! that were never written it may be anything. So a sector of a row is compared only if a checksum
//! has proved some of its data, and no other data of it was wrong: a fault of the data is no fault
//! of the parity.

use ubtrfs_format::Logical;
use ubtrfs_format::items::STRIPE_LEN;

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange, Row};
use crate::fault_log::{Outcome, Place};
use crate::member::DeviceErrorKind;
use crate::parity;
use crate::scrub::VolumeScrub;
use crate::scrubbed::{ScrubScope, Scrubbed};

/// The parity part of a scrub: the current row, and the result of earlier rows.
#[derive(Debug, Default)]
pub struct ParityScrub {
    row: Option<OpenRow>,
    /// The result for the parity of all rows so far, in sectors.
    pub found: Scrubbed,
}

/// A row some of whose data has been scrubbed. Each bit stands for a sector of all stripes.
#[derive(Debug)]
struct OpenRow {
    start: Logical,
    right: u64,
    wrong: u64,
}

/// One stripe of parity, and how it is computed.
struct Parity<'a> {
    row: &'a Row,
    place: IoStripe,
    /// The factor of each stripe of the row.
    factors: Vec<u8>,
}

impl ParityScrub {
    /// Notes which sectors of a row's data are right. If the row is a new one, compares the row
    /// before it first.
    pub(crate) fn note(
        &mut self,
        scrub: &VolumeScrub,
        (row, scope): (&Row, ScrubScope),
        first: Logical,
        sectors: impl Iterator<Item = bool>,
    ) {
        if self.row.as_ref().is_none_or(|open| open.start != row.start) {
            self.end_row(scrub, scope);
            self.row = Some(OpenRow { start: row.start, right: 0, wrong: 0 });
        }
        let Some(open) = &mut self.row else { return };
        let within = (first.0 - row.start.0) % STRIPE_LEN;
        for (number, is_right) in (within / u64::from(scrub.identity.sector_size())..).zip(sectors) {
            let bit = 1_u64.checked_shl(number as u32).unwrap_or_default();
            if is_right {
                open.right |= bit;
            } else {
                open.wrong |= bit;
            }
        }
    }

    /// Compares the parity of the last row.
    pub fn end_row(&mut self, scrub: &VolumeScrub, scope: ScrubScope) {
        if let Some(open) = self.row.take()
            && let Some(row) = scrub.chunk_map.row(open.start)
        {
            let sector = scrub.identity.sector_size() as usize;
            let is_proven = |number: usize| open.right & !open.wrong & (1_u64 << number) != 0;
            let sectors: Vec<usize> = (0..STRIPE_LEN as usize / sector).filter(|number| is_proven(*number)).collect();
            let found = scrub.compare_parity(&row, scope, &sectors);
            self.found = self.found.plus(found);
        }
    }
}

impl VolumeScrub {
    /// Returns the row of a piece, if its parity is to be compared.
    pub(crate) fn row_to_compare(&self, piece: &MappedRange, start: Logical, scope: ScrubScope) -> Option<Row> {
        let row = if piece.writable { None } else { self.chunk_map.row(start) };
        row.filter(|row| row.stripes[row.data..].iter().any(|place| scope.covers(Some(*place))))
    }

    /// Compares the parity of these sectors of a row.
    fn compare_parity(&self, row: &Row, scope: ScrubScope, sectors: &[usize]) -> Scrubbed {
        let mut found = Scrubbed::default();
        let is_there = |place: &IoStripe| self.devices.member(place.devid).is_ok_and(|member| !member.is_missing());
        if !row.stripes[..row.data].iter().all(is_there) {
            return found;
        }
        for which in 0..row.parities() {
            let place = row.stripes[row.data + which];
            if is_there(&place) && scope.covers(Some(place)) {
                let parity = Parity { row, place, factors: parity::parity(row.data, row.parities(), which) };
                for run in sectors.chunk_by(|one, next| one + 1 == *next) {
                    self.compare_run(&parity, run, &mut found);
                }
            }
        }
        found
    }

    /// Compares adjacent sectors, or one by one if they can't be read together.
    fn compare_run(&self, parity: &Parity<'_>, run: &[usize], found: &mut Scrubbed) {
        let sector = self.identity.sector_size() as usize;
        let Some(first) = run.first() else { return };
        let read = |place: IoStripe, into: &mut Buffer| {
            let at = place.at.plus((first * sector) as u64);
            self.devices.member(place.devid).is_ok_and(|member| member.device.read_at(at, into).is_ok())
        };
        let mut sum = Buffer::zeroed(run.len() * sector);
        let mut stripe = Buffer::for_reading(run.len() * sector);
        let has_data =
            parity.row.stripes.iter().zip(&parity.factors).filter(|(_, factor)| **factor != 0).all(|(data, factor)| {
                let is_read = read(*data, &mut stripe);
                parity::add(&mut sum, &stripe, *factor);
                is_read
            });
        let is_read = has_data && read(parity.place, &mut stripe);
        if !is_read && run.len() > 1 {
            return run.iter().for_each(|number| self.compare_run(parity, std::slice::from_ref(number), found));
        }
        if !has_data {
            // The read error has been counted with the data.
            return;
        }
        found.bytes += stripe.len() as u64;
        if !is_read {
            found.read_errors += 1;
            return self.note_parity(parity, *first, DeviceErrorKind::Read, found);
        }
        for (number, (is, should)) in run.iter().zip(stripe.chunks(sector).zip(sum.chunks(sector))) {
            if is != should {
                found.checksum_errors += 1;
                self.note_parity(parity, *number, DeviceErrorKind::Corruption, found);
            }
        }
    }

    fn note_parity(&self, parity: &Parity<'_>, number: usize, kind: DeviceErrorKind, found: &mut Scrubbed) {
        found.uncorrectable += 1;
        let (row, place) = (parity.row.start, parity.place);
        let at = place.at.plus(number as u64 * u64::from(self.identity.sector_size()));
        let len = self.identity.sector_size().into();
        let sector = Place { devid: place.devid, physical: at, logical: row, len, copies: 1 };
        self.devices.note_bad_copy(sector, Outcome::BadParity, "parity", "");
        if let Ok(member) = self.devices.member(place.devid)
            && !member.lags()
        {
            member.note_error(kind);
        }
    }
}
