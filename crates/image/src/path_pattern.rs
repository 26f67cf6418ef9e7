//! Shell patterns of paths, which are matched name by name. Each directory knows how much of a
//! pattern its path has matched, so that a deep path need not be matched from its beginning for
//! each name.

use glob::{MatchOptions, Pattern, PatternError};

const HOW: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// A shell pattern of one name.
#[derive(Clone, Debug)]
pub(crate) struct NamePattern(Pattern);

impl NamePattern {
    pub(crate) fn new(pattern: &str) -> Result<Self, PatternError> {
        Pattern::new(pattern).map(Self)
    }

    /// Returns whether a name matches. Invalid UTF-8 in a name is replaced as in messages.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        self.0.matches_with(&String::from_utf8_lossy(name), HOW)
    }
}

/// A part of a pattern of paths.
#[derive(Clone, Debug)]
enum Part {
    Name(NamePattern),
    /// `**`, which matches any number of names, but at least one at the end of a pattern.
    Names,
}

/// A shell pattern of paths from the top of a tree.
#[derive(Clone, Debug)]
pub(crate) struct PathPattern(Vec<Part>);

/// How much of a pattern the path of a directory has matched: the parts that the next name may
/// match, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matched(Vec<usize>);

impl PathPattern {
    /// Parses a pattern, with slashes between names.
    pub(crate) fn new(pattern: &str) -> Result<Self, PatternError> {
        let part = |name| if name == "**" { Ok(Part::Names) } else { NamePattern::new(name).map(Part::Name) };
        pattern.split('/').map(part).collect::<Result<_, _>>().map(Self)
    }

    /// The state at the top of a tree.
    pub(crate) fn begin(&self) -> Matched {
        let mut matched = Matched::default();
        self.add(&mut matched, 0);
        matched
    }

    /// The state for a name in a directory, and whether the whole pattern matches its path.
    pub(crate) fn step(&self, above: &Matched, name: &[u8]) -> (Matched, bool) {
        let (mut matched, mut is_whole) = (Matched::default(), false);
        for at in &above.0 {
            let is_last = at + 1 == self.0.len();
            match &self.0[*at] {
                Part::Names => {
                    self.add(&mut matched, *at);
                    is_whole |= is_last;
                }
                Part::Name(pattern) if pattern.matches(name) => {
                    self.add(&mut matched, at + 1);
                    is_whole |= is_last;
                }
                Part::Name(_) => {}
            }
        }
        (matched, is_whole)
    }

    /// Adds a part that may match next, and the one behind it if it may match no name.
    fn add(&self, matched: &mut Matched, mut at: usize) {
        while at < self.0.len() && !matched.0.contains(&at) {
            matched.0.push(at);
            if !matches!(self.0[at], Part::Names) || at + 1 == self.0.len() {
                break;
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern = PathPattern::new(pattern).unwrap();
        let (mut matched, mut is_whole) = (pattern.begin(), false);
        for name in path.split('/') {
            (matched, is_whole) = pattern.step(&matched, name.as_bytes());
        }
        is_whole
    }

    proptest::proptest! {
        /// Matching name by name gives the same result as matching the whole path.
        #[test]
        fn names_match_as_the_whole_path_does(
            pattern in "(a|b|\\*|\\*\\*|a\\*|\\?b)(/(a|b|\\*|\\*\\*|a\\*|\\?b)){0,4}",
            path in "(a|b|ab|bb)(/(a|b|ab|bb)){0,6}",
        ) {
            let whole = Pattern::new(&pattern).unwrap().matches_with(&path, HOW);
            proptest::prop_assert_eq!(matches(&pattern, &path), whole, "{} {}", pattern, path);
        }
    }

    #[test]
    fn deep_paths_take_time_by_their_length() {
        let pattern = PathPattern::new("/**/b/**/c".trim_start_matches('/')).unwrap();
        let mut matched = pattern.begin();
        for _ in 0..30_000 {
            let is_whole;
            (matched, is_whole) = pattern.step(&matched, b"a");
            assert!(!is_whole && matched.0.len() <= 2);
        }
    }
}
