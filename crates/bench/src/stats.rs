//! Summaries of samples.

use crate::samples::Better;

/// A summary of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of samples.
    pub count: usize,
}

/// Returns median, minimum and maximum; `None` without samples.
pub fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
    Some(Summary { median, min, max, count: sorted.len() })
}

/// Returns by which factor `ours` is better than `theirs`, round by round. Above 1 is better,
/// whether the figure should be large or small.
pub fn ratios(ours: &[(u32, f64)], theirs: &[(u32, f64)], better: Better) -> Vec<f64> {
    let of_round = |round: u32| theirs.iter().find(|(other, _)| *other == round).map(|(_, value)| *value);
    let ratio = |&(round, ours): &(u32, f64)| {
        let theirs = of_round(round)?;
        let ratio = match better {
            Better::Higher => ours / theirs,
            Better::Lower => theirs / ours,
        };
        ratio.is_finite().then_some(ratio)
    };
    ours.iter().filter_map(ratio).collect()
}

/// The change of a figure from an old run to a new one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    /// The factor by which it got better (above 1) or worse (below).
    pub factor: f64,
    /// Whether that is more than noise.
    pub certain: bool,
}

/// The minimum number of samples to estimate noise.
const MIN_SAMPLES: usize = 3;

/// Compares the samples of two runs. Noise is the difference between the rounds of one run: a
/// change is significant if no sample of one run is within the range of the other's, and if the
/// medians differ by more than both ranges together and by at least 2 %.
pub fn moved(old: &[f64], new: &[f64], better: Better) -> Option<Move> {
    let (old, new) = (summary(old)?, summary(new)?);
    let factor = match better {
        Better::Higher => new.median / old.median,
        Better::Lower => old.median / new.median,
    };
    let apart = new.min > old.max || new.max < old.min;
    let far = (new.median - old.median).abs() > (old.max - old.min) + (new.max - new.min);
    let known = old.count >= MIN_SAMPLES && new.count >= MIN_SAMPLES;
    let certain = apart && far && known && (factor - 1.0).abs() >= 0.02;
    factor.is_finite().then_some(Move { factor, certain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0, count: 3 }));
        assert_eq!(summary(&[4.0, 1.0]), Some(Summary { median: 2.5, min: 1.0, max: 4.0, count: 2 }));
    }

    #[test]
    fn ratios_are_of_the_same_round_and_above_one_is_better() {
        let (ours, theirs) = ([(1, 10.0), (2, 30.0), (3, 1.0)], [(2, 10.0), (1, 20.0)]);
        assert_eq!(ratios(&ours, &theirs, Better::Higher), [0.5, 3.0]);
        assert_eq!(ratios(&ours, &theirs, Better::Lower), [2.0, 1.0 / 3.0]);
        assert_eq!(ratios(&[(1, 0.0)], &[(1, 1.0)], Better::Lower), [0.0; 0]);
    }

    #[test]
    fn only_ranges_that_are_apart_have_moved() {
        let old = [10.0, 11.0, 12.0];
        let of = |new: &[f64], better| moved(&old, new, better).unwrap();
        assert!(of(&[17.0, 18.0, 19.0], Better::Higher).certain);
        assert!(!of(&[13.0, 14.0, 15.0], Better::Higher).certain);
        assert!(!of(&[11.5, 14.0, 15.0], Better::Higher).certain);
        assert!(of(&[5.0, 5.5, 6.0], Better::Lower).certain);
        assert!((of(&[5.0, 5.5, 6.0], Better::Lower).factor - 2.0).abs() < 1e-9);
        assert!(!of(&[20.0, 20.0], Better::Higher).certain);
        assert!(!moved(&[1.0; 3], &[1.01; 3], Better::Higher).unwrap().certain);
        assert_eq!(moved(&old, &[], Better::Higher), None);
    }
}
