//! Work on independent items by several threads.

/// Returns the results of `work` on all items, in their order. At most `threads` threads work on
/// them, the calling one among them.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.clamp(1, items.len().max(1));
    let share = |first: usize| items.iter().skip(first).step_by(threads).map(&work).collect::<Vec<R>>();
    let mut shares: Vec<std::vec::IntoIter<R>> = std::thread::scope(|scope| {
        let share = &share;
        let others: Vec<_> = (1..threads).map(|first| scope.spawn(move || share(first))).collect();
        let mut shares = vec![share(0).into_iter()];
        for other in others {
            match other.join() {
                Ok(done) => shares.push(done.into_iter()),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        shares
    });
    let count = shares.len();
    (0..items.len()).filter_map(|index| shares[index % count].next()).collect()
}

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn results_are_in_the_order_of_the_items_whatever_the_threads() {
        let items: Vec<u32> = (0..50).collect();
        for threads in [0, 1, 3, 8, 200] {
            assert_eq!(each(&items, threads, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
        assert!(each(&[] as &[u32], 4, |item| *item).is_empty());
    }
}
