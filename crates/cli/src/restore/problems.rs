//! What could not be copied.

/// Problems that are kept to be listed.
const KEPT: usize = 10_000;

/// A bounded list of problems.
#[derive(Default)]
pub struct Problems {
    list: Vec<String>,
    count: u64,
}

impl Problems {
    /// Adds what is wrong at a path.
    pub fn add(&mut self, path: &str, what: impl std::fmt::Display) {
        self.count += 1;
        if self.list.len() < KEPT {
            self.list.push(format!("{path}: {what}"));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn list(&self) -> &[String] {
        &self.list
    }

    /// How many were not kept.
    pub fn not_listed(&self) -> u64 {
        self.count - self.list.len() as u64
    }
}
