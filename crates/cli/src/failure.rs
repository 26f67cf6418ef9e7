//! How a command fails: it prints a sentence on the standard error stream and returns an exit
//! status.

use std::error::Error;
use std::io::{self, Write};

use ubtrfs_errors::sentence;

use crate::advice;
use crate::show::harmless;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The sentence for the user, and the exit status.
    Sentence(String, u8),
    /// Everything has been reported; only the exit status is left.
    Said(u8),
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// The exit status of most failures.
pub const FAILED: u8 = 1;
/// The exit status if a comparison or merge could not be made, as of diff(1), where status 1 means
/// that differences were found.
pub const TROUBLE: u8 = 2;

impl Failure {
    /// Returns a failure with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self::Sentence(sentence.into(), FAILED)
    }

    /// Returns a failure with the messages of an error and its causes, and what to do about it.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self::new(with_advice(error))
    }

    /// Returns a failure with the messages of an error about `subject`.
    pub fn about(subject: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::new(format!("{subject}: {}", with_advice(error)))
    }

    /// Returns the failure with another exit status.
    pub fn with_status(self, status: u8) -> Self {
        match self {
            Self::Sentence(sentence, _) => Self::Sentence(sentence, status),
            Self::Said(_) => Self::Said(status),
        }
    }

    /// Returns the failure with its sentence changed.
    pub fn map_sentence(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Sentence(sentence, status) => Self::Sentence(change(sentence), status),
            failure @ Self::Said(_) => failure,
        }
    }

    /// Returns the sentence for the user; an empty one if all was reported.
    pub fn sentence(&self) -> &str {
        if let Self::Sentence(sentence, _) = self { sentence } else { "" }
    }

    /// Returns the failure for an error that occurred while the output was written.
    pub fn output(error: &io::Error) -> Self {
        Self::about("standard output", error)
    }

    /// Prints the sentence, and returns the exit status.
    pub fn report(self) -> u8 {
        self.report_as("ubtrfs")
    }

    /// Prints the sentence after `begin`, and returns the exit status.
    pub fn report_as(self, begin: &str) -> u8 {
        match self {
            Self::Sentence(sentence, status) => {
                // The sentence may contain text of a mount's server or of a volume.
                let lines: Vec<String> = sentence.split('\n').map(harmless).collect();
                let _ = writeln!(io::stderr(), "{begin}: {}", lines.join("\n"));
                status
            }
            Self::Said(status) => status,
        }
    }
}

/// Returns the messages of an error and its causes, and what to do about it.
pub fn with_advice(error: &(dyn Error + 'static)) -> String {
    let said = sentence(error);
    match advice::about(error) {
        Some(advice) => format!("{said}; {advice}"),
        None => said,
    }
}

/// Calls `what` for each of several places. If it fails for one, the others are handled all the
/// same.
pub fn each<T>(places: impl IntoIterator<Item = T>, mut what: impl FnMut(T) -> Result<()>) -> Result<()> {
    let mut failed = None;
    for place in places {
        if let Err(failure) = what(place)
            && let Some(before) = failed.replace(failure)
        {
            let _ = Failure::report(before);
        }
    }
    failed.map_or(Ok(()), Err)
}
