//! Sources and documents use the terms of btrfs, the VFS, POSIX and databases.
//!
//! Each private word or phrase in [`WORDS`] has a standard term. The rule looks for them in
//! documents and in all of a source, as whole words and without regard to case; in a name each
//! part counts as a word (`write_out`, `WriteOut`). It does not apply to fenced blocks, to this
//! file, and to the `WriteOut` of FUSE's interface.

use crate::repository::{Fault, Repository};

/// Words that have no ordinary use here, each with the term to use instead. A `*` ends a prefix.
const WORDS: &[(&str, &str)] = &[
    ("write out", "writeback"),
    ("write outs", "writeback"),
    ("writeout", "writeback"),
    ("written out", "written back"),
    ("whoever", "the process, the caller, the inode that …"),
    ("word of", "logged; deleted name logged"),
    ("told", "logged, reported, notified"),
    ("untold", "pending (delayed references)"),
    ("unheard", "new"),
    ("one moment", "a point in time"),
    ("that moment", "that point in time"),
    ("sought", "searched; LookupResult"),
    ("withhold*", "exclude, pin"),
    ("withheld", "excluded, pinned"),
    ("patience", "timeout; non-blocking mode"),
    ("guise*", "ownership override"),
    ("seldom", "rarely"),
    ("anew", "again; rebuild, rewrite"),
    ("afresh", "again; rebuild, rewrite"),
    ("stragglers", "small trees to relocate"),
    ("come and go", "are added and removed"),
    ("comes and goes", "is added and removed"),
    ("leads to", "refers to, points to"),
    ("in one go", "at once, in one step"),
];

/// Files that name such words themselves.
const EXCEPT: [&str; 1] = ["crates/lint/src/words.rs"];

/// A name of FUSE's interface, which has such a word.
const NAMES_OF_FUSE: [&str; 1] = ["WriteOut"];

/// Lines with such words.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let sources = repository.files(".rs").filter(|(file, _)| file.starts_with("crates/") || file.starts_with("fuzz/"));
    let sources = sources.filter(|(file, _)| !EXCEPT.contains(file));
    let documents = repository.files(".md").flat_map(|(file, text)| in_file(file, text, true));
    sources.flat_map(|(file, text)| in_file(file, text, false)).chain(documents).collect()
}

/// Phrases that a line break divides are found at their first line.
fn in_file(file: &str, text: &str, has_fences: bool) -> Vec<Fault> {
    let mut words: Vec<(String, usize)> = Vec::new();
    let mut is_fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim_start().trim_start_matches('/').trim_start_matches('!').trim_start();
        is_fenced ^= has_fences && content.starts_with("```");
        if !is_fenced {
            words.extend(words_of(content).into_iter().map(|word| (word, number)));
        }
        // A phrase goes no further than a paragraph.
        if content.is_empty() {
            words.push((String::new(), number));
        }
    }
    let mut faults = Vec::new();
    for (phrase, term) in WORDS {
        let parts: Vec<&str> = phrase.split(' ').collect();
        for found in words.windows(parts.len()) {
            if found.iter().zip(&parts).all(|((word, _), part)| matches(word, part)) {
                let shown: Vec<&str> = found.iter().map(|(word, _)| word.as_str()).collect();
                faults.push(Fault::new(file, found[0].1, format!("'{}': the term is {term}", shown.join(" "))));
            }
        }
    }
    faults
}

fn matches(word: &str, part: &str) -> bool {
    part.strip_suffix('*').map_or(word == part, |prefix| word.starts_with(prefix))
}

/// Returns the words of a line in lower case; a name yields its parts. Punctuation separates the
/// words of different phrases, and yields an empty one.
fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for phrase in line.split(|c: char| !c.is_alphanumeric() && !" \t'_-".contains(c)) {
        let names = phrase.split([' ', '\t', '\'', '_', '-']);
        let names = names.filter(|name| !name.is_empty() && !NAMES_OF_FUSE.contains(name));
        words.extend(names.flat_map(parts_of));
        words.push(String::new());
    }
    words.pop();
    words
}

/// Returns the parts of a name in camel case; of any other name, the name itself.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_lower = false;
    for c in name.chars() {
        if parts.is_empty() || was_lower && c.is_uppercase() {
            parts.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(part) = parts.last_mut() {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with faults in a file of this name.
    fn found(file: &str, text: &str) -> Vec<usize> {
        faults(&Repository::of(&[(file, text)])).iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn private_words_are_found_in_comments_names_and_documents() {
        for line in [
            "// it is Told later",
            "const START_WRITE_OUT: u64 = 1;",
            "struct WriteOuts;",
            "let told = 1;",
            "/// Starts the write-out of a file.",
            "fn f() {} // withholding",
        ] {
            assert_eq!(found("crates/a/src/lib.rs", line), [1], "{line}");
            assert_eq!(found("docs/a.md", &format!("\n{line}")), [2], "{line}");
        }
    }

    #[test]
    fn a_phrase_may_be_divided_by_a_line_break_but_not_by_a_paragraph() {
        assert_eq!(found("crates/a/src/lib.rs", "/// that a block\n/// leads\n/// to"), [2]);
        assert_eq!(found("docs/a.md", "what it leads\n\nto"), [0_usize; 0]);
    }

    #[test]
    fn other_words_fences_and_other_files_are_not_looked_at() {
        for line in ["renewed", "stolder", "m::WriteOut { size: 1 }", "write!(out)", "lead to", "{word} of"] {
            assert!(found("crates/a/src/lib.rs", line).is_empty(), "{line}");
        }
        assert!(found("docs/a.md", "```\ntold\n```").is_empty());
        assert!(found("tests/a.rs", "// told").is_empty());
        assert!(found("crates/lint/src/words.rs", "// told").is_empty());
    }
}
