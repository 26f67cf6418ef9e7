//! Finds the shortest sequence that still shows a difference.

use super::call::{Actor, CallStep, View};

/// Removes steps from `steps`, and changes users to root and mounts to the plain one, as long as
/// `shows` says that the difference is still there. Calls `shows` at most `tries` times.
pub fn shrink(steps: &[CallStep], tries: usize, mut shows: impl FnMut(&[CallStep]) -> bool) -> Vec<CallStep> {
    let mut left = tries;
    let mut shows = |candidate: &[CallStep]| {
        left > 0 && {
            left -= 1;
            shows(candidate)
        }
    };
    let mut steps = steps.to_vec();
    let mut size = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < steps.len() {
            let end = (at + size).min(steps.len());
            let candidate: Vec<CallStep> = steps[..at].iter().chain(&steps[end..]).cloned().collect();
            if !candidate.is_empty() && shows(&candidate) {
                steps = candidate;
                has_shrunk = true;
            } else {
                at = end;
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !has_shrunk {
            break;
        }
    }
    for at in 0..steps.len() {
        let usual: [fn(&mut CallStep); 2] = [|step| step.actor = Actor::Root, |step| step.view = View::Plain];
        for change in usual {
            let mut candidate = steps.clone();
            change(&mut candidate[at]);
            if candidate != steps && shows(&candidate) {
                steps = candidate;
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::call::Call;
    use crate::differential::generate::sequence;

    #[test]
    fn what_a_difference_does_not_need_is_taken_away() {
        let mut steps = sequence(7);
        steps.insert(3, CallStep { actor: Actor::Owner, view: View::Idmapped, call: Call::Close { slot: 9 } });
        steps.insert(9, CallStep { actor: Actor::Other, view: View::Plain, call: Call::Close { slot: 8 } });
        let closes = |steps: &[CallStep], slot| steps.iter().any(|step| step.call == Call::Close { slot });
        let shrunk = shrink(&steps, 1000, |steps| closes(steps, 9) && closes(steps, 8));
        let wanted = [9, 8].map(|slot| CallStep { actor: Actor::Root, view: View::Plain, call: Call::Close { slot } });
        assert_eq!(shrunk, wanted);
    }
}
