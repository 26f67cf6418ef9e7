//! Finds shorter histories that fail, too.

use crate::Operation;

/// Leaves out operations as long as `fails` says that the rest still fails. Makes at most `tries`
/// attempts.
pub fn shrink(operations: &[Operation], tries: usize, fails: &mut dyn FnMut(&[Operation]) -> bool) -> Vec<Operation> {
    let mut kept = operations.to_vec();
    let mut left = tries;
    let mut step = kept.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < kept.len() {
            if left == 0 {
                return kept;
            }
            left -= 1;
            let mut shorter = kept.clone();
            shorter.drain(at..(at + step).min(kept.len()));
            if fails(&shorter) {
                kept = shorter;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operations_that_a_failure_needs_are_left() {
        let numbered = |handle| Operation::Close { handle };
        let all: Vec<Operation> = (0..50).map(numbered).collect();
        let mut fails = |some: &[Operation]| some.contains(&numbered(7)) && some.contains(&numbered(31));
        assert_eq!(shrink(&all, 1000, &mut fails), [numbered(7), numbered(31)]);
        assert_eq!(shrink(&all, 0, &mut fails), all);
    }
}
