//! Reads the text of an answer.

/// Returns the words of `ours` that differ from those of `theirs`, each with the word before it;
/// none if the numbers of words differ.
pub(super) fn differing_words<'a>(ours: &'a str, theirs: &str) -> Vec<(&'a str, &'a str)> {
    let (our, their): (Vec<&str>, Vec<&str>) = (ours.split(' ').collect(), theirs.split(' ').collect());
    if our.len() != their.len() {
        return Vec::new();
    }
    (1..our.len()).filter(|at| our[*at] != their[*at]).map(|at| (our[at - 1], our[at])).collect()
}

/// Returns whether an answer is an errno.
pub(super) fn is_error(answer: &str) -> bool {
    answer.starts_with("errno ")
        || answer.starts_with('E') && answer.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}
