//! Comments and documents end at 100 columns.
//!
//! The rule does not apply to rows of tables, to fenced blocks, and to a line that can't be broken
//! because it is a single word or a single link.

use crate::comments;
use crate::repository::{Fault, Repository};

const COLUMNS: usize = 100;

/// Lines that are too long.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let sources = repository.files(".rs").filter(|(file, _)| file.starts_with("crates/") || file.starts_with("fuzz/"));
    let documents = repository.files(".md").flat_map(|(file, text)| in_document(file, text));
    sources.flat_map(|(file, text)| in_source(file, text)).chain(documents).collect()
}

fn in_document(file: &str, text: &str) -> Vec<Fault> {
    let mut fence = Fence::default();
    (1..).zip(text.lines()).filter_map(|(number, line)| fence.fault(file, number, line, line)).collect()
}

fn in_source(file: &str, text: &str) -> Vec<Fault> {
    let columns = match comments::columns(text) {
        Ok(columns) => columns,
        Err(line) => return vec![Fault::new(file, line, "this can't be read as Rust")],
    };
    let mut fence = Fence::default();
    let mut faults = Vec::new();
    for ((number, line), column) in (1..).zip(text.lines()).zip(columns) {
        let Some(column) = column else {
            fence = Fence::default();
            continue;
        };
        let comment: String = line.chars().skip(column).collect();
        let comment = comment.trim_start_matches('/').trim_start_matches('!');
        faults.extend(fence.fault(file, number, line, comment));
    }
    faults
}

/// Whether the lines that follow stand between fences.
#[derive(Default)]
struct Fence(bool);

impl Fence {
    /// Returns what is wrong with a line, of which `text` is the prose.
    fn fault(&mut self, file: &str, number: usize, line: &str, text: &str) -> Option<Fault> {
        let text = text.trim();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        self.0 ^= is_fence;
        let width = line.chars().count();
        let fault = width > COLUMNS && !is_fence && !self.0 && !text.starts_with('|') && can_be_broken(text);
        fault.then(|| Fault::new(file, number, format!("{width} columns, more than {COLUMNS}")))
    }
}

/// Returns whether a text is more than one word or one link, apart from the mark of a list before
/// it.
fn can_be_broken(text: &str) -> bool {
    let text = text.trim_start_matches(['-', '*', '>', '#', ' ']);
    let is_link = text.starts_with('[')
        && text.ends_with([')', '.'])
        && text.matches("](").count() == 1
        && text.split_once("](").is_some_and(|(_, target)| !target.contains(' '));
    let is_definition =
        text.starts_with('[') && text.split_once("]: ").is_some_and(|(_, target)| !target.contains(' '));
    text.contains(' ') && !is_link && !is_definition
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with faults in a file of this name.
    fn found(file: &str, text: &str) -> Vec<usize> {
        faults(&Repository::of(&[(file, text)])).iter().map(|fault| fault.line).collect()
    }

    fn words(columns: usize) -> String {
        "é ".repeat(columns / 2) + &"x".repeat(columns % 2)
    }

    #[test]
    fn characters_count_not_bytes() {
        assert!(found("README.md", &format!("{}x", words(99))).is_empty());
        assert_eq!(found("README.md", &format!("\n{}x", words(100))), [2]);
    }

    #[test]
    fn what_cannot_be_broken_may_be_long() {
        let (long, url) = (words(110), "u".repeat(110));
        for text in [
            format!("| {long} |"),
            format!("```\n{long}\n```"),
            format!("- {url}"),
            format!("[two words]({url})"),
            format!("[name]: {url}"),
        ] {
            assert!(found("docs/a.md", &text).is_empty(), "{text}");
        }
        assert_eq!(found("docs/a.md", &format!("```\n```\nsee {url}")), [3]);
        assert_eq!(found("docs/a.md", &format!("[a]({url}) and [b]({url})")), [1]);
    }

    #[test]
    fn comments_of_every_kind_are_looked_at() {
        let long = words(98);
        for text in [format!("// {long}"), format!("//! {long}"), format!("fn a() {{}} // {}", words(88))] {
            assert_eq!(found("crates/a/src/lib.rs", &text), [1], "{text}");
        }
        assert_eq!(found("fuzz/a.rs", &format!("/// {long}\nfn a() {{}}")), [1]);
    }

    #[test]
    fn code_is_not_looked_at() {
        let code = format!("const A: &str = \"// {}\";", words(98));
        assert!(found("crates/a/src/lib.rs", &code).is_empty());
        assert!(found("crates/a/src/lib.rs", &format!("/// | {} |\nfn a() {{}}", words(98))).is_empty());
        assert!(found("docs/a.rs", &format!("// {}", words(98))).is_empty());
    }
}
