//! Rebuilding content that can't be read, or is wrong, from the other stripes of its row (RAID5 and
//! RAID6).
//!
//! Every combination of stripes that gives the content is tried until a checksum is right. So a
//! second stripe of the row may be wrong without it being known which one. Content without a
//! checksum is rebuilt only from devices that have everything that was written (invariant 34), and
//! by the first combination.

use ubtrfs_format::Logical;

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange, Row};
use crate::member::DeviceErrorKind;
use crate::parity;
use crate::proof::Proof;
use crate::read::VolumeReader;

/// The most combinations that are tried for a block. If a block lies in several rows, as blocks of
/// hostile volumes may, the numbers of combinations multiply.
const MAX_TRIES: usize = 1 << 10;

/// A stripe of a row.
enum Stripe {
    Unread,
    Unreadable,
    Read(Buffer),
}

/// A stretch of a row. Each of its stripes is read at most once.
struct RowReader<'a> {
    reader: &'a VolumeReader,
    row: Row,
    len: usize,
    stripes: Vec<Stripe>,
    /// How the result will be verified.
    proof: Proof,
}

impl RowReader<'_> {
    fn stripe(&mut self, number: usize) -> Option<&Buffer> {
        let place = self.row.stripes.get(number)?;
        let stripe = self.stripes.get_mut(number)?;
        if let Stripe::Unread = stripe {
            let read = self.reader.read_stripe(*place, self.len, self.proof);
            *stripe = read.map_or(Stripe::Unreadable, Stripe::Read);
        }
        if let Stripe::Read(bytes) = stripe { Some(bytes) } else { None }
    }

    /// Returns how many combinations there are.
    fn combinations(&self) -> usize {
        parity::count(self.row.data, self.row.parities())
    }

    /// Fills `sum` by a combination. Returns false if one of its stripes can't be read.
    fn combine(&mut self, factors: &[u8], sum: &mut [u8]) -> bool {
        sum.fill(0);
        factors.iter().enumerate().filter(|(_, factor)| **factor != 0).all(|(number, factor)| {
            let stripe = self.stripe(number);
            stripe.is_some_and(|stripe| {
                parity::add(sum, stripe, *factor);
                true
            })
        })
    }

    fn rebuild(&mut self, number: usize, sum: &mut [u8]) -> bool {
        let Row { data, wanted, .. } = self.row;
        self.combine(&parity::combination(data, self.row.parities(), wanted, number), sum)
    }
}

/// A piece of a range, and all sources of its content: its copies, then combinations of other
/// stripes.
struct Source<'a> {
    piece: MappedRange,
    row: Option<RowReader<'a>>,
}

impl Source<'_> {
    fn choices(&self) -> usize {
        self.piece.copies.len() + self.row.as_ref().map_or(0, RowReader::combinations)
    }

    fn fill(&mut self, reader: &VolumeReader, choice: usize, part: &mut [u8]) -> bool {
        let copies = self.piece.copies.len();
        if choice < copies {
            return reader.read_copy(std::slice::from_ref(&self.piece), choice, part).is_ok();
        }
        self.row.as_mut().is_some_and(|row| row.rebuild(choice - copies, part))
    }
}

impl VolumeReader {
    /// Fills `buf` with the right content of a range, computed from the other stripes of rows with
    /// parity. Returns whether that was possible. The copies themselves have been tried before.
    pub(crate) fn rebuild(&self, at: Logical, buf: &mut [u8], proof: Proof, is_right: impl Fn(&[u8]) -> bool) -> bool {
        let Ok(pieces) = self.pieces_to_read(at, buf.len() as u64, proof) else { return false };
        if pieces.iter().all(|piece| piece.writable) {
            return false;
        }
        let is_one = pieces.len() == 1;
        let mut start = at;
        let source = |mut piece: MappedRange| {
            let row = self.chunk_map.row(start);
            let (len, count) = (piece.len as usize, row.as_ref().map_or(0, |row| row.stripes.len()));
            start = start.plus(piece.len);
            if is_one {
                piece.copies.clear();
            }
            let stripes = std::iter::repeat_with(|| Stripe::Unread).take(count).collect();
            let row = row.map(|row| RowReader { reader: self, row, len, stripes, proof });
            Source { piece, row }
        };
        let mut sources: Vec<Source<'_>> = pieces.into_iter().map(source).collect();
        let all = sources.iter().fold(1_usize, |all, source| all.saturating_mul(source.choices()));
        (0..all.min(MAX_TRIES)).any(|number| {
            let (mut left, mut rest) = (number, &mut *buf);
            let is_filled = sources.iter_mut().all(|source| {
                let choices = source.choices();
                let (part, after) = std::mem::take(&mut rest).split_at_mut(source.piece.len as usize);
                rest = after;
                let choice = left % choices;
                left /= choices;
                source.fill(self, choice, part)
            });
            is_filled && is_right(buf)
        })
    }

    fn read_stripe(&self, place: IoStripe, len: usize, proof: Proof) -> Option<Buffer> {
        let member = self.devices.member(place.devid).ok().filter(|member| proof.suffices_for(member))?;
        let mut stripe = Buffer::for_reading(len);
        let reading = member.begin_read();
        let read = member.device.read_at(place.at, &mut stripe);
        drop(reading);
        if read.is_err() && !member.lags() {
            member.note_error(DeviceErrorKind::Read);
        }
        read.is_ok().then_some(stripe)
    }
}
