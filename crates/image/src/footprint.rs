//! Tracks the space that an image file takes on the host, and frees the space that a failed edit
//! has taken.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs::format::Physical;
use ubtrfs::volume::Device;

/// The unit in bytes in which a device is written.
const BLOCK: u64 = 4096;

/// A device, and the ranges of it that took space at some time.
#[derive(Debug)]
pub(crate) struct Footprint {
    device: Arc<dyn Device>,
    /// The ranges of that time in bytes; `None` if they are not known.
    before: Option<Vec<Range<u64>>>,
}

impl Footprint {
    /// Returns a device with the ranges that it has now.
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        let mut footprint = Self { device: Arc::clone(device), before: None };
        footprint.look_again();
        footprint
    }

    /// Replaces the ranges by those that the device has now.
    pub(crate) fn look_again(&mut self) {
        self.before = self.device.data_ranges().unwrap_or_default();
    }

    /// Forgets the ranges, since something may refer to what has been written.
    pub(crate) fn forget(&mut self) {
        self.before = None;
    }

    /// Punches holes where there were holes before. The caller knows that nothing refers to what
    /// has been written there.
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

/// Returns the parts of `ranges` that are not in `others`. Both are in order.
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
