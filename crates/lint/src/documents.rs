//! Documents name only files, types and functions that exist.
//!
//! The rule looks at code between backquotes, and at the targets of links, in the documents of the
//! root and of `docs`. It does not read the manual, `docs/man`, which has tests of its own, nor
//! `CHANGELOG.md`, which describes the past.
//!
//! - A path is that of a file or a directory of the repository, or of a module, with or without its
//!   crate: `docs/bench.md`, `volume/staleness`, `commit/sequence`. A path that begins with none of
//!   these is not looked at, since it may be outside of the repository.
//! - A name of a type, or one with `::`, occurs in the sources: each of its parts is a word there.
//! - The target of a link is a file or a directory.

use std::collections::BTreeSet;

use crate::repository::{Fault, Repository};

/// Directories in the root of the repository.
const ROOTS: [&str; 5] = ["crates", "docs", "fuzz", "packaging", "tests"];

/// Names of files, types and functions that do not exist.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let names = Names::of(repository);
    let documents = repository.files(".md").filter(|(file, _)| is_checked(file));
    documents.flat_map(|(file, text)| in_document(file, text, &names)).collect()
}

fn is_checked(file: &str) -> bool {
    let is_page = file.starts_with("docs/") && !file.starts_with("docs/man/");
    is_page || !file.contains('/') && file != "CHANGELOG.md"
}

/// What documents may name.
struct Names<'a> {
    /// Files and directories, from the root.
    paths: BTreeSet<&'a str>,
    /// Modules and directories of modules, with their crates in front: `fs/commit/sequence`.
    modules: BTreeSet<String>,
    /// The words of all sources.
    words: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(repository: &'a Repository) -> Self {
        let paths = repository.names().flat_map(with_directories).collect();
        let modules = repository.names().filter_map(module).collect::<Vec<_>>();
        let modules = modules.iter().flat_map(|module| with_directories(module)).map(str::to_owned).collect();
        let is_no_part = |letter: char| !letter.is_alphanumeric() && letter != '_';
        let words = repository.files(".rs").flat_map(|(_, text)| text.split(is_no_part)).collect();
        Self { paths, modules, words }
    }

    /// Returns whether a path begins like one of the repository, so that it is looked at.
    fn has_start(&self, path: &str) -> bool {
        let first = path.split('/').next().unwrap_or_default();
        // Build products are not in the repository.
        let is_module = || self.modules.iter().any(|module| module.split('/').any(|part| part == first));
        ROOTS.contains(&first) || first != "target" && is_module()
    }

    fn has_path(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        if self.paths.contains(path) || self.paths.contains(format!("{path}.rs").as_str()) {
            return true;
        }
        let end = format!("/{}", path.trim_end_matches(".rs"));
        self.modules.iter().any(|module| module == &end[1..] || module.ends_with(&end))
    }
}

/// A path and the directories that it is in.
fn with_directories(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end]).chain([path])
}

/// The name of the module in a file, with its crate.
fn module(file: &str) -> Option<String> {
    let path = file.strip_prefix("crates/")?.strip_suffix(".rs")?;
    let path = path.trim_end_matches("/mod");
    Some(path.replacen("/src/", "/", 1))
}

fn in_document(file: &str, text: &str, names: &Names) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (line, code) in spans(text) {
        if let Some(fault) = unknown(&code, names) {
            faults.push(Fault::new(file, line, fault));
        }
    }
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    for (line, target) in (1..).zip(text.lines()).flat_map(|(line, text)| links(text).map(move |link| (line, link))) {
        if !names.paths.contains(joined(directory, target).as_str()) {
            faults.push(Fault::new(file, line, format!("there is no file {target}, which is linked")));
        }
    }
    faults
}

/// Returns what is wrong with a piece of code.
fn unknown(code: &str, names: &Names) -> Option<String> {
    let is_path_part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c))
    };
    if code.contains('/') && code.trim_end_matches('/').split('/').all(is_path_part) {
        let is_unknown = names.has_start(code) && !names.has_path(code);
        return is_unknown.then(|| format!("there is no file or module {code}"));
    }
    let name = code.trim_end_matches("()");
    let parts: Vec<&str> = name.split("::").collect();
    let is_identifier = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_ascii_lowercase());
    if (parts.len() > 1 || is_type) && parts.iter().all(is_identifier) {
        let part = parts.iter().find(|part| !names.words.contains(*part))?;
        return Some(format!("no source has the name {part} of {name}"));
    }
    None
}

/// Returns the pieces of code between backquotes, with their lines. Fenced blocks are left out, and
/// a piece ends with its paragraph.
fn spans(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        if is_fenced || line.trim().is_empty() {
            open = None;
            continue;
        }
        for (place, part) in line.split('`').enumerate() {
            if place > 0 {
                match open.take() {
                    Some(span) => found.push(span),
                    None => open = Some((number, String::new())),
                }
            }
            if let Some((_, code)) = &mut open {
                if place == 0 && !code.is_empty() {
                    code.push(' ');
                }
                code.push_str(part.trim_start_matches(if place == 0 { ' ' } else { '\0' }));
            }
        }
    }
    found
}

/// The files that the links of a line name.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
}

/// Returns the path of a target that is relative to a directory.
fn joined(directory: &str, target: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [(&str, &str); 3] = [
        ("crates/fs/src/commit/sequence.rs", "struct Committer; impl Committer { fn commit(&self) {} }"),
        ("crates/fs/src/log/mod.rs", ""),
        ("docs/format.md", ""),
    ];

    /// The messages about a document of this text.
    fn found(file: &str, text: &str) -> Vec<String> {
        let files: Vec<_> = SOURCES.into_iter().chain([(file, text)]).collect();
        faults(&Repository::of(&files)).iter().map(|fault| format!("{} {}", fault.line, fault.message)).collect()
    }

    #[test]
    fn files_and_modules_that_are_there_may_be_named() {
        for name in [
            "commit/sequence",
            "fs/commit/sequence",
            "commit/sequence.rs",
            "crates/fs/src/commit/sequence.rs",
            "crates/fs",
            "fs/log",
            "docs/format.md",
            "docs/",
            "fs/commit/",
        ] {
            assert_eq!(found("ARCHITECTURE.md", &format!("see `{name}`")), [""; 0], "{name}");
        }
    }

    #[test]
    fn files_and_modules_that_are_not_there_are_found() {
        for name in ["commit/sequences", "docs/other.md", "crates/other", "log/queue.rs", "fs/sequence"] {
            let expected = format!("2 there is no file or module {name}");
            assert_eq!(found("docs/a.md", &format!("text\nsee `{name}`")), [expected], "{name}");
        }
    }

    #[test]
    fn types_and_functions_are_found_that_no_source_has() {
        assert_eq!(found("docs/a.md", "`Committer`, `Committer::commit`, `Committer::commit()`"), [""; 0]);
        assert_eq!(found("docs/a.md", "`Other`"), ["1 no source has the name Other of Other"]);
        assert_eq!(found("docs/a.md", "`Committer::\nother`"), [""; 0]);
        assert_eq!(found("docs/a.md", "a\n`Committer::other`"), ["2 no source has the name other of Committer::other"]);
    }

    #[test]
    fn other_code_is_not_looked_at() {
        for text in [
            "`/dev/fuse`",
            "`etc/fstab`",
            "`ro`",
            "`cp -a x/y :/z`",
            "`ENOSPC`",
            "`IMAGE:PATH`",
            "`mount -o ro`",
            "```\n`Other` docs/other.md\n```",
            "`commit/…`",
        ] {
            assert_eq!(found("docs/a.md", text), [""; 0], "{text}");
        }
        assert_eq!(found("docs/man/a.md", "`Other`"), [""; 0]);
        assert_eq!(found("CHANGELOG.md", "`Other`"), [""; 0]);
    }

    #[test]
    fn targets_of_links_are_there() {
        assert_eq!(found("docs/a.md", "[a](format.md) [b](../docs/format.md#c) [d](#e) [f](https://g/h)"), [""; 0]);
        assert_eq!(found("docs/a.md", "\n[a](docs/format.md)"), ["2 there is no file docs/format.md, which is linked"]);
    }
}
