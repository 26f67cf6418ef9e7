//! Compares the parity of rows (RAID5 and RAID6) with their data.
//!
//! If nothing was written in a row, its parity may be anything. So only those sectors of a row are
//! compared for which a csum has proved some data, and no other data was wrong. P is the sum of the
//! data, and Q is the sum with the powers of 2 in the field of 2^8 elements, by Horner's rule. This
//! computation is independent of the engine's.

use std::collections::BTreeSet;

use ubtrfs_format::items::{ChunkItem, STRIPE_LEN};
use ubtrfs_format::{Logical, Physical};
use ubtrfs_volume::Buffer;

use crate::fault::{FaultKind, Location};
use crate::media::{Media, data_stripes};
use crate::ranges::RangeSet;
use crate::report::Faults;

/// Compares the parity of all rows.
pub(crate) struct ParityCheck<'a> {
    pub(crate) media: &'a Media,
    /// Addresses with a csum, including wrong ones.
    pub(crate) proven: &'a RangeSet,
    /// Sectors that are wrong or can't be read.
    pub(crate) wrong: &'a BTreeSet<u64>,
    pub(crate) sector_size: u64,
}

impl ParityCheck<'_> {
    pub(crate) fn judge(&self, faults: &mut Faults) {
        for (start, chunk) in self.media.chunks_with_parity() {
            let row_len = data_stripes(chunk) * STRIPE_LEN;
            let mut next = 0;
            for (from, to) in self.proven.within(start, start.saturating_add(chunk.length)) {
                let (first, last) = ((from - start) / row_len, (to - 1 - start) / row_len);
                (first.max(next)..=last).for_each(|row| self.row(start, chunk, row, faults));
                next = last + 1;
            }
        }
    }

    /// The sectors of each stripe of a row that are to be compared, as bits.
    fn sectors(&self, row_start: u64, data: u64) -> u64 {
        let (mut right, mut wrong) = (0_u64, 0_u64);
        for column in (0..data).map(|column| row_start.saturating_add(column * STRIPE_LEN)) {
            let end = column.saturating_add(STRIPE_LEN);
            let bit = |at: u64| 1 << ((at - column) / self.sector_size);
            for (from, to) in self.proven.within(column, end) {
                right |= (from..to).step_by(self.sector_size as usize).fold(0, |bits, at| bits | bit(at));
            }
            wrong |= self.wrong.range(column..end).fold(0, |bits, at| bits | bit(*at));
        }
        right & !wrong
    }

    fn row(&self, start: u64, chunk: &ChunkItem, row: u64, faults: &mut Faults) {
        let (data, stripes) = (data_stripes(chunk), chunk.stripes.len() as u64);
        let row_start = start + row * data * STRIPE_LEN;
        let sectors = self.sectors(row_start, data);
        if sectors == 0 {
            return;
        }
        let place = |role: u64| {
            let stripe = chunk.stripes.get(((row + role) % stripes) as usize)?;
            Some((stripe.devid.0, stripe.offset.plus(row * STRIPE_LEN)))
        };
        let read = |role: u64, into: &mut Buffer| {
            let (device, at) = place(role)?;
            self.media.device(device)?.read_at(at, into).ok()
        };
        let [mut p, mut q, mut stripe] = [(); 3].map(|()| Buffer::zeroed(STRIPE_LEN as usize));
        for role in (0..data).rev() {
            if read(role, &mut stripe).is_none() {
                // Data that can't be read has been reported already.
                return;
            }
            for ((p, q), byte) in p.iter_mut().zip(q.iter_mut()).zip(stripe.iter()) {
                *p ^= byte;
                *q = (*q << 1) ^ (if *q & 0x80 == 0 { 0 } else { 0x1d }) ^ byte;
            }
        }
        for (role, should) in (data..stripes).zip([p, q]) {
            let Some((device, Physical(at))) = place(role).filter(|(device, _)| self.media.device(*device).is_some())
            else {
                continue;
            };
            let is_read = read(role, &mut stripe).is_some();
            let sector = self.sector_size as usize;
            let pairs = stripe.chunks(sector).zip(should.chunks(sector)).enumerate();
            let is_wrong = |(number, (is, should)): &(usize, (&[u8], &[u8]))| {
                sectors >> number & 1 == 1 && (!is_read || is != should)
            };
            let wrong: Vec<usize> = pairs.filter(is_wrong).map(|(number, _)| number).collect();
            for run in wrong.chunk_by(|one, next| one + 1 == *next) {
                let physical = at.saturating_add((run[0] * sector) as u64);
                let length = (run.len() * sector) as u64;
                faults.add(FaultKind::BadParity { device, physical, length }, Location::at(Logical(row_start)));
            }
        }
    }
}
