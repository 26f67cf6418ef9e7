//! The seeds that run, and for how long.

use std::time::{Duration, Instant};

/// Returns the seeds of a test, one after the other until its time is over. These are the seeds
/// that `UBTRFS_SEEDS` lists, however long they take, or else all from `first` on. The time is
/// `seconds`, or in a soak `share` of `UBTRFS_SCHEDULER_MINUTES` (120).
pub fn seeds(first: u64, seconds: u64, share: f64) -> Box<dyn Iterator<Item = u64>> {
    if let Ok(list) = std::env::var("UBTRFS_SEEDS")
        && std::env::var_os("UBTRFS_SOAK").is_none()
    {
        return Box::new(listed(&list).into_iter());
    }
    let time = if std::env::var_os("UBTRFS_SOAK").is_some() {
        let minutes = std::env::var("UBTRFS_SCHEDULER_MINUTES").ok().and_then(|minutes| minutes.parse().ok());
        Duration::from_secs(60 * minutes.unwrap_or(120)).mul_f64(share)
    } else {
        Duration::from_secs(seconds)
    };
    let begun = Instant::now();
    Box::new((first..).take_while(move |_| begun.elapsed() < time))
}

/// Returns the numbers of a list of numbers and ranges, such as `3,17,100-120`.
fn listed(list: &str) -> Vec<u64> {
    let number = |text: &str| text.trim().parse().unwrap_or_else(|_| panic!("UBTRFS_SEEDS: {text:?} is no number"));
    list.split(',')
        .flat_map(|part| match part.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(part)..=number(part),
        })
        .collect()
}
