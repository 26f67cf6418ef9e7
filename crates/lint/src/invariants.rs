//! Each invariant is stated, asserted and tested, by its number.
//!
//! The invariants are the rows `| N | … |` of a table in `ARCHITECTURE.md`. `docs/invariants.md`
//! has the same rows, and the tests in their last column exist. For each invariant, `grep -rn
//! 'invariant N' crates` has to find exactly these words in:
//!
//! - a rule: in the head (`//!`) of a source;
//! - an assertion: in the message of an `assert!`, or in a statement that gives an `Err`, or in the
//!   comment directly above that. A statement ends with a line that ends in `;`, `{` or `}`, or is
//!   blank. A `debug_assert!` counts only if the row in `docs/invariants.md` says "in debug
//!   builds", and why the installed program doesn't have it;
//! - a test: anywhere in a directory `tests`, a file `…tests.rs`, a module for tests, or a crate
//!   that only tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::parse;
use crate::repository::{Fault, Repository};

const TABLE: &str = "ARCHITECTURE.md";
const DETAILS: &str = "docs/invariants.md";
const CRATES_OF_TESTS: [&str; 3] = ["check", "simulator", "testkit"];
const DEBUG_ONLY: &str = "in debug builds";
const ASSERTS: [&str; 3] = ["assert!(", "assert_eq!(", "assert_ne!("];
const ERRORS: [&str; 3] = ["return Err(", "Err(", ".ok_or"];

/// The three places in which an invariant has to be named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Rule,
    Assertion,
    DebugAssertion,
    Test,
}

/// Invariants that are named in fewer places than the rule requires.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let mut named = BTreeSet::new();
    for (file, text) in repository.files(".rs").filter(|(file, _)| file.starts_with("crates/")) {
        read(file, text, &mut named);
    }
    let parts = [(Part::Rule, "head of a source"), (Part::Assertion, "assertion"), (Part::Test, "test")];
    let mut faults = Vec::new();
    let details = repository.text(DETAILS).unwrap_or_default();
    let rows_of_details = numbers(details);
    for (number, line) in numbers(repository.text(TABLE).unwrap_or_default()) {
        let row = rows_of_details.get(&number).and_then(|line| details.lines().nth(line - 1)).unwrap_or_default();
        let is_named = |part| named.contains(&(number, part));
        let is_enough = |part| {
            is_named(part) || part == Part::Assertion && row.contains(DEBUG_ONLY) && is_named(Part::DebugAssertion)
        };
        let missing = parts.iter().filter(|(part, _)| !is_enough(*part));
        faults.extend(missing.map(|(_, part)| Fault::new(TABLE, line, format!("no {part} names invariant {number}"))));
    }
    faults.extend(only_in_one_table(repository));
    faults.extend(gaps(repository));
    faults.extend(unknown_tests(repository));
    faults
}

/// Numbers that are left out: the invariants are numbered from the first one on.
fn gaps(repository: &Repository) -> Vec<Fault> {
    let all = numbers(repository.text(TABLE).unwrap_or_default());
    let Some(first) = all.keys().next().copied() else { return Vec::new() };
    let missing = (first..).zip(&all).find(|(expected, (number, _))| expected != *number);
    let fault =
        missing.map(|(expected, (_, line))| Fault::new(TABLE, *line, format!("there is no invariant {expected}")));
    fault.into_iter().collect()
}

/// Invariants that only one of the tables has.
fn only_in_one_table(repository: &Repository) -> Vec<Fault> {
    let [table, details] = [TABLE, DETAILS].map(|file| numbers(repository.text(file).unwrap_or_default()));
    let missing = |from: &BTreeMap<u32, usize>, file: &'static str, other: &BTreeMap<u32, usize>, name: &str| {
        let only = from.iter().filter(|(number, _)| !other.contains_key(number));
        only.map(|(number, line)| Fault::new(file, *line, format!("{name} lacks invariant {number}")))
            .collect::<Vec<_>>()
    };
    [missing(&table, TABLE, &details, DETAILS), missing(&details, DETAILS, &table, TABLE)].concat()
}

/// Tests in the last column of `docs/invariants.md` that exist neither as a function nor as a file.
fn unknown_tests(repository: &Repository) -> Vec<Fault> {
    let text = repository.text(DETAILS).unwrap_or_default();
    let rows = numbers(text).into_values();
    let sources: Vec<_> = repository.files(".rs").collect();
    let is_there = |name: &str| {
        let (file, function) = (format!("/{name}.rs"), format!("fn {name}("));
        sources.iter().any(|(path, text)| path.ends_with(&file) || text.contains(&function))
    };
    let mut faults = Vec::new();
    for line in rows {
        let row = text.lines().nth(line - 1).unwrap_or_default().trim_end_matches([' ', '|']);
        let tests = row.rsplit('|').next().unwrap_or_default().split('`').skip(1).step_by(2);
        let is_name = |name: &&str| {
            name.contains('_')
                && name.chars().all(|letter| letter == '_' || letter.is_ascii_lowercase() || letter.is_ascii_digit())
        };
        for name in tests.filter(is_name).filter(|name| !is_there(name)) {
            faults.push(Fault::new(DETAILS, line, format!("there is no test {name}")));
        }
    }
    faults
}

/// Returns the numbers of the invariants, and the lines of their rows.
fn numbers(table: &str) -> BTreeMap<u32, usize> {
    let number = |row: &str| row.strip_prefix('|')?.split('|').next()?.trim().parse().ok();
    (1..).zip(table.lines()).filter_map(|(line, row)| Some((number(row)?, line))).collect()
}

fn read(file: &str, text: &str, named: &mut BTreeSet<(u32, Part)>) {
    let mut add = |text: &str, part| named.extend(in_text(text).map(|number| (number, part)));
    let parts: Vec<&str> = file.split('/').collect();
    if parts.contains(&"tests") || file.ends_with("tests.rs") || CRATES_OF_TESTS.contains(&parts[1]) {
        return add(text, Part::Test);
    }
    if !text.contains("invariant ") {
        return;
    }
    let tests = parse::lines_of_tests(text);
    let mut statement = String::new();
    for (number, line) in (1..).zip(text.lines()).map(|(number, line)| (number, line.trim())) {
        if tests.iter().any(|lines| lines.contains(&number)) {
            add(line, Part::Test);
        } else if line.starts_with("//!") {
            add(line, Part::Rule);
        } else {
            statement += line;
            statement.push('\n');
            if line.is_empty() || !line.starts_with("//") && line.ends_with([';', '{', '}']) {
                if let Some((part, text)) = assertion_of(&statement) {
                    add(&text, part);
                }
                statement.clear();
            }
        }
    }
}

/// Returns the kind of assertion that a statement is, and the text in which it names an invariant:
/// that of its message, and of the comment above it if it returns an error.
fn assertion_of(statement: &str) -> Option<(Part, String)> {
    let code: String = statement.lines().filter(|line| !line.starts_with("//")).flat_map(|line| [line, "\n"]).collect();
    if code.contains("debug_assert") {
        Some((Part::DebugAssertion, code))
    } else if ASSERTS.iter().any(|word| code.contains(word)) {
        Some((Part::Assertion, code))
    } else if ERRORS.iter().any(|word| code.contains(word)) {
        Some((Part::Assertion, statement.to_owned()))
    } else {
        None
    }
}

/// Returns the numbers of the invariants that a text names.
fn in_text(text: &str) -> impl Iterator<Item = u32> {
    let after = text.split("invariant ").skip(1);
    after.filter_map(|rest| rest.split(|next: char| !next.is_ascii_digit()).next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the places that lack invariant 901 in a repository with this file.
    fn missing(file: &str, text: &str) -> Vec<&'static str> {
        let table = "# Invariants\n\n| | rule |\n|---|---|\n| 901 | it holds |\n";
        let found = faults(&Repository::of(&[(TABLE, table), (DETAILS, table), (file, text)]));
        assert!(found.iter().all(|fault| fault.line == 5 && fault.message.ends_with("names invariant 901")));
        let parts = ["head of a source", "assertion", "test"];
        parts
            .into_iter()
            .filter(|part| found.iter().any(|fault| fault.message.starts_with(&format!("no {part}"))))
            .collect()
    }

    const SOURCE: &str = "crates/a/src/b.rs";

    #[test]
    fn tests_in_the_table_are_there() {
        let table = "| 901 | it holds | asserted | `a_test`, `b_test`, `Type`, `word`, `some_file` |\n";
        let source = "//! (invariant 901)\nfn f() { assert!(true, \"invariant 901\"); }\n";
        let test = "// invariant 901\nfn a_test() {}\n";
        let files = [(TABLE, table), (DETAILS, table), (SOURCE, source), ("crates/a/tests/some_file.rs", test)];
        let messages: Vec<_> = faults(&Repository::of(&files)).into_iter().map(|fault| fault.message).collect();
        assert_eq!(messages, ["there is no test b_test"]);
    }

    #[test]
    fn both_tables_have_all_invariants() {
        let row = |number: u32| format!("| {number} | it holds |\n");
        let parts = "//! (invariant 901, invariant 902)\nfn f() { assert!(true, \"invariant 901, invariant 902\"); }\n";
        let files = [(TABLE, &*row(901)), (DETAILS, &*row(902)), (SOURCE, parts), ("crates/a/tests/b.rs", parts)];
        let messages: Vec<_> = faults(&Repository::of(&files)).into_iter().map(|fault| fault.message).collect();
        assert_eq!(messages, ["docs/invariants.md lacks invariant 901", "ARCHITECTURE.md lacks invariant 902"]);
    }

    #[test]
    fn invariants_are_numbered_without_gaps() {
        let table = "| 901 | a | a |\n| 902 | b | b |\n| 904 | c | c |\n";
        let found = faults(&Repository::of(&[(TABLE, table), (DETAILS, table)]));
        assert!(found.contains(&Fault::new(TABLE, 3, "there is no invariant 903")), "{found:?}");
    }

    #[test]
    fn all_of_an_invariant_may_be_missing() {
        assert_eq!(missing(SOURCE, "fn f() {}"), ["head of a source", "assertion", "test"]);
    }

    #[test]
    fn heads_state_rules() {
        assert_eq!(missing(SOURCE, "//! By it (invariant 901).\n"), ["assertion", "test"]);
        let others = "//! invariant 9010, invariants 901 and 902, Invariant 901\n/// invariant 901\nfn f() {}";
        assert_eq!(missing(SOURCE, others), ["head of a source", "assertion", "test"]);
    }

    #[test]
    fn assertions_name_what_they_assert() {
        let asserted = ["head of a source", "test"];
        assert_eq!(missing(SOURCE, "fn f() {\n    assert!(a, \"invariant 901\");\n}"), asserted);
        assert_eq!(
            missing(SOURCE, "fn f() {\n    assert!(\n        a,\n        \"invariant 901\"\n    );\n}"),
            asserted
        );
        assert_eq!(missing(SOURCE, "fn f() {\n    // See invariant 901:\n    // so.\n    return Err(a);\n}"), asserted);
        assert_eq!(missing(SOURCE, "fn f() {\n    g().ok_or(Error::A) // invariant 901\n}"), asserted);
    }

    #[test]
    fn only_comments_directly_above_an_assertion_count() {
        let apart = "fn f() {\n    // invariant 901\n    let a = b;\n    return Err(a);\n    // return Err(a): invariant 901\n    g();\n}";
        assert_eq!(missing(SOURCE, apart), ["head of a source", "assertion", "test"]);
        assert_eq!(missing(SOURCE, "// invariant 901\n\nreturn Err(a);"), ["head of a source", "assertion", "test"]);
    }

    #[test]
    fn assertions_name_invariants_in_their_messages() {
        let none = ["head of a source", "assertion", "test"];
        assert_eq!(missing(SOURCE, "fn f() {\n    // invariant 901\n    assert!(a);\n}"), none);
        assert_eq!(missing(SOURCE, "fn f() {\n    // invariant 901\n    let a = g(Error::A);\n}"), none);
    }

    #[test]
    fn debug_assertions_count_where_the_table_says_so() {
        let source = "//! invariants\nfn f() {\n    debug_assert!(a, \"invariant 901\");\n}";
        assert_eq!(missing(SOURCE, source), ["head of a source", "assertion", "test"]);
        let table = "| 901 | it holds | asserted in debug builds: it costs much |\n";
        let found = faults(&Repository::of(&[(TABLE, table), (DETAILS, table), (SOURCE, source)]));
        assert!(found.iter().all(|fault| !fault.message.contains("no assertion")), "{found:?}");
    }

    #[test]
    fn tests_are_tests_wherever_they_stand() {
        let tested = ["head of a source", "assertion"];
        assert_eq!(
            missing(SOURCE, "#[cfg(test)]\nmod tests {\n    /// Shows invariant 901.\n    fn f() {}\n}"),
            tested
        );
        for file in ["crates/a/tests/b.rs", "crates/a/src/b/tests.rs", "crates/simulator/src/b.rs"] {
            assert_eq!(missing(file, "//! invariant 901"), tested, "{file}");
        }
    }
}
