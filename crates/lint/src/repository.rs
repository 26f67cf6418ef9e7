//! The texts that the rules are about, and the faults that they find.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use walkdir::WalkDir;

/// Sources, documents and lists of floors, by their paths from the repository's root.
pub struct Repository(BTreeMap<String, String>);

impl Repository {
    /// Reads the documents in the root, and all files in directories of sources.
    pub fn load(root: &Path) -> io::Result<Self> {
        let beside = WalkDir::new(root).max_depth(1).into_iter();
        let below = ["crates", "docs", "fuzz", "tests"].map(|name| WalkDir::new(root.join(name)).into_iter());
        let mut files = BTreeMap::new();
        for entry in beside.chain(below.into_iter().flat_map(|walk| walk.filter_entry(|e| e.file_name() != "target"))) {
            let entry = entry?;
            let path = entry.path();
            let read = path.extension().is_some_and(|e| e == "rs" || e == "md") || path.ends_with("FLOORS");
            if read && entry.file_type().is_file() {
                let name = path.strip_prefix(root).map_err(io::Error::other)?;
                files.insert(name.to_string_lossy().into_owned(), fs::read_to_string(path)?);
            }
        }
        Ok(Self(files))
    }

    /// A repository for tests, of these paths and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    /// The text of a file.
    pub fn text(&self, file: &str) -> Option<&str> {
        self.0.get(file).map(String::as_str)
    }

    /// Paths and texts of all files whose names end in this way, in the order of their paths.
    pub fn files(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter(move |(name, _)| name.ends_with(ending)).map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The names of the directories under `crates/`.
    pub fn crates(&self) -> BTreeSet<&str> {
        self.0.keys().filter_map(|file| file.strip_prefix("crates/")?.split('/').next()).collect()
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
    /// A fault at a place.
    pub fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
