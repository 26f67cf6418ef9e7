//! The texts that the rules are about, and the faults that they find.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use walkdir::WalkDir;

/// Sources, documents and lists of floors, by their paths from the repository's root.
pub struct Repository {
    texts: BTreeMap<String, String>,
    /// The paths of all files, also of those whose text is not read.
    names: BTreeSet<String>,
}

impl Repository {
    /// Reads the documents in the root, and all files in directories of sources.
    pub fn load(root: &Path) -> io::Result<Self> {
        let beside = WalkDir::new(root).max_depth(1).into_iter();
        let below =
            ["crates", "docs", "fuzz", "packaging", "tests"].map(|name| WalkDir::new(root.join(name)).into_iter());
        let (mut texts, mut names) = (BTreeMap::new(), BTreeSet::new());
        for entry in beside.chain(below.into_iter().flat_map(|walk| walk.filter_entry(|e| e.file_name() != "target"))) {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type().is_dir() {
                continue;
            }
            let name = path.strip_prefix(root).map_err(io::Error::other)?.to_string_lossy().into_owned();
            if path.extension().is_some_and(|e| e == "rs" || e == "md") || path.ends_with("FLOORS") {
                texts.insert(name.clone(), fs::read_to_string(path)?);
            }
            names.insert(name);
        }
        Ok(Self { texts, names })
    }

    /// A repository for tests, of these paths and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Self { texts: texts.collect(), names: files.iter().map(|(name, _)| (*name).to_owned()).collect() }
    }

    /// The text of a file.
    pub fn text(&self, file: &str) -> Option<&str> {
        self.texts.get(file).map(String::as_str)
    }

    /// Paths and texts of all files whose names end in this way, in the order of their paths.
    pub fn files(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .filter(move |(name, _)| name.ends_with(ending))
            .map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The paths of all files, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The names of the directories under `crates/`.
    pub fn crates(&self) -> BTreeSet<&str> {
        self.texts.keys().filter_map(|file| file.strip_prefix("crates/")?.split('/').next()).collect()
    }
}

/// A violation of a rule, and its location.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fault {
    /// The path from the repository's root.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, in one line; details may follow in others, indented.
    pub message: String,
}

impl Fault {
    /// Makes the fault at a line of a file.
    pub fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
