//! Finds the first difference of two records of a sequence.

use super::answers::is_error;
use super::call::CallStep;
use super::known::{self, Known};
use super::seen::SET_BEFORE;
use super::side::Record;
use crate::diff::{Options, diff};
use crate::walk::{Time, Tree};

/// How many characters of an answer distinguish the kinds of differences.
const SHOWN: usize = 160;

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The call at which it shows; `None` if it shows in the state after all of them.
    pub at: Option<usize>,
    /// What ubtrfs has.
    pub ours: String,
    /// What the kernel has.
    pub theirs: String,
    /// Whether it showed only after a remount.
    pub is_after_remount: bool,
}

impl Difference {
    /// Returns the kind of the difference: the call, and both answers.
    pub fn kind(&self, steps: &[CallStep]) -> String {
        let call = self.at.map_or("state".into(), |at| steps[at].call.name());
        // In a line about the state, the difference is at the end, behind the path.
        let short = |text: &str| {
            let skipped = if self.at.is_none() { text.chars().count().saturating_sub(SHOWN) } else { 0 };
            text.chars().skip(skipped).take(SHOWN).collect::<String>()
        };
        let when = if self.is_after_remount { " after a remount" } else { "" };
        let (ours, theirs) = where_they_differ(&self.ours, &self.theirs);
        format!("{call}{when}: ours {}, the kernel's {}", short(&ours), short(&theirs))
    }
}

/// Returns the words of two answers that differ, each with the word before it, which says what it
/// is; the whole answers if they have different numbers of words.
fn where_they_differ(ours: &str, theirs: &str) -> (String, String) {
    let (our, their): (Vec<&str>, Vec<&str>) = (ours.split(' ').collect(), theirs.split(' ').collect());
    if our.len() != their.len() || our.len() < 4 {
        return (ours.into(), theirs.into());
    }
    let differing: Vec<usize> = (0..our.len()).filter(|at| our[*at] != their[*at]).collect();
    let words = |all: &[&str]| -> String {
        let parts = differing.iter().map(|at| all[at.saturating_sub(1)..=*at].join(" "));
        parts.collect::<Vec<_>>().join(" ")
    };
    (words(&our), words(&their))
}

/// The result of a comparison.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The first difference that is not known.
    pub difference: Option<Difference>,
    /// The known differences before it.
    pub known: Vec<&'static Known>,
    /// Whether a known difference left different states, so that nothing after it was compared.
    pub is_cut: bool,
}

/// Compares two records of `steps`. `checks_opens` says whether the kernel asks ubtrfs about each
/// open(2).
pub fn compare(steps: &[CallStep], ours: &Record, theirs: &Record, checks_opens: bool) -> Comparison {
    let mut comparison = Comparison { difference: None, known: Vec::new(), is_cut: false };
    for (at, (step, (our, their))) in steps.iter().zip(ours.answers.iter().zip(&theirs.answers)).enumerate() {
        if our == their {
            continue;
        }
        let Some(known) = known::of(&steps[..at], step, (our, their), checks_opens) else {
            comparison.difference =
                Some(Difference { at: Some(at), ours: our.clone(), theirs: their.clone(), is_after_remount: false });
            return comparison;
        };
        comparison.known.push(known);
        let is_refused = is_error(our) && is_error(their);
        if !step.call.only_looks() && !is_refused {
            comparison.is_cut = true;
            return comparison;
        }
    }
    comparison.difference = of_trees(steps, &ours.tree, &theirs.tree, false);
    comparison
}

/// Compares the trees after `steps`.
pub fn of_trees(steps: &[CallStep], ours: &Tree, theirs: &Tree, is_after_remount: bool) -> Option<Difference> {
    const OPTIONS: Options = Options {
        ino: false,
        mtime: true,
        ctime: false,
        atime: true,
        btime: false,
        data: true,
        dir_size: true,
        dir_nlink: true,
        flags: true,
    };
    let (mut ours, mut theirs) = (without_the_present(ours), without_the_present(theirs));
    // If neither side can read something, that is no difference.
    if ours.anomalies == theirs.anomalies {
        (ours.anomalies, theirs.anomalies) = (Vec::new(), Vec::new());
    }
    known::even_placeholders(&mut ours, &mut theirs);
    let found = diff(&ours, &theirs, OPTIONS);
    let found: Vec<String> = found.into_iter().filter(|line| !known::is_known_state(steps, line)).collect();
    let first = found.first()?;
    // The line has both sides, as left and right.
    Some(Difference { at: None, ours: first.clone(), theirs: format!("of {}", found.len()), is_after_remount })
}

/// Returns the tree with one value for all times that no call has set.
fn without_the_present(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    let set = |time: Option<Time>| time.map(|time| if time.0 < SET_BEFORE { time } else { (SET_BEFORE, 0) });
    for entry in tree.entries.values_mut() {
        (entry.mtime, entry.atime) = (set(entry.mtime), set(entry.atime));
    }
    tree
}
