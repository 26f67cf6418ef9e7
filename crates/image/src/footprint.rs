//! What an image file takes of the host's space, and giving back what an edit has taken in vain.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs::format::Physical;
use ubtrfs::volume::Device;

/// What a device is written by.
const BLOCK: u64 = 4096;

/// A device, and what of it took space at some time.
#[derive(Debug)]
pub(crate) struct Footprint {
    device: Arc<dyn Device>,
    /// `None` if it is not known.
    before: Option<Vec<Range<u64>>>,
}

impl Footprint {
    /// What a device takes now.
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        let mut footprint = Self { device: Arc::clone(device), before: None };
        footprint.look_again();
        footprint
    }

    /// Takes what it takes by now as what it took.
    pub(crate) fn look_again(&mut self) {
        self.before = self.device.data_ranges().unwrap_or_default();
    }

    /// Something may refer by now to what has been written.
    pub(crate) fn forget(&mut self) {
        self.before = None;
    }

    /// Makes a hole again of what was one. Who calls it knows that nothing refers to what has been
    /// written there.
    pub(crate) fn restore(self) -> io::Result<()> {
        let Some(before) = self.before else { return Ok(()) };
        let now = self.device.data_ranges()?.unwrap_or_default();
        for Range { start, end } in without(now, &before) {
            let (start, end) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
            if start < end {
                self.device.discard(Physical(start), end - start)?;
            }
        }
        Ok(())
    }
}

/// The parts of some ranges that are in no other one. All are in order.
fn without(ranges: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut left, mut next) = (Vec::new(), 0);
    for range in ranges {
        let mut at = range.start;
        while next < others.len() && others[next].end <= at {
            next += 1;
        }
        for other in others[next..].iter().take_while(|other| other.start < range.end) {
            left.extend(Some(at..other.start).filter(|part| !part.is_empty()));
            at = at.max(other.end);
        }
        left.extend(Some(at..range.end).filter(|part| !part.is_empty()));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_is_left_out() {
        let others = [10..20, 30..40, 50..60];
        #[allow(clippy::type_complexity, clippy::single_range_in_vec_init, reason = "ranges are what is tested")]
        let cases: [(&[Range<u64>], &[Range<u64>]); 5] = [
            (&[0..100], &[0..10, 20..30, 40..50, 60..100]),
            (&[12..15, 18..32, 55..70], &[20..30, 60..70]),
            (&[10..20, 30..40], &[]),
            (&[0..10, 20..30], &[0..10, 20..30]),
            (&[5..35, 35..45], &[5..10, 20..30, 40..45]),
        ];
        for (ranges, expected) in cases {
            assert_eq!(without(ranges.to_vec(), &others), expected, "{ranges:?}");
        }
        let one = 1..2;
        assert_eq!(without(Vec::from([one.clone()]), &[]), [one]);
    }
}
