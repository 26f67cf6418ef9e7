//! How a command fails: a sentence on the standard error stream and an exit status.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use ubtrfs_tree::sentence;

use crate::advice;
use crate::show::harmless;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// What a person reads, and the exit status.
    Sentence(String, u8),
    /// Everything has been reported; only the exit status is left.
    Said(u8),
    /// The reader of our output went away (`EPIPE`): no failure of ours.
    OutputClosed,
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// The exit status of the failure.
const FAILED: u8 = 1;
/// The exit status of a comparison or merge that could not be made, as with diff(1): 1 says what
/// was found.
pub const TROUBLE: u8 = 2;

impl Failure {
    /// Fails with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self::Sentence(sentence.into(), FAILED)
    }

    /// Fails with what an error and its causes say, and what to do about it.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self::new(with_advice(error))
    }

    /// Fails with what an error says of `subject`.
    pub fn about(subject: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::new(format!("{subject}: {}", with_advice(error)))
    }

    /// The same with another exit status.
    pub fn with_status(self, status: u8) -> Self {
        match self {
            Self::Sentence(sentence, _) => Self::Sentence(sentence, status),
            Self::Said(_) => Self::Said(status),
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// The same with another sentence.
    pub fn map_sentence(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Sentence(sentence, status) => Self::Sentence(change(sentence), status),
            failure => failure,
        }
    }

    /// What a person reads; nothing where all has been said.
    pub fn sentence(&self) -> &str {
        if let Self::Sentence(sentence, _) = self { sentence } else { "" }
    }

    /// Fails because writing the output failed.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::about("standard output", error)
        }
    }

    /// Says it, and gives the exit status.
    pub fn report(self) -> ExitCode {
        self.report_as("ubtrfs")
    }

    /// The same, with another word before the sentence.
    pub fn report_as(self, begin: &str) -> ExitCode {
        match self {
            Self::Sentence(sentence, status) => {
                // It may repeat what a mount's server or a volume says.
                let lines: Vec<String> = sentence.split('\n').map(harmless).collect();
                let _ = writeln!(io::stderr(), "{begin}: {}", lines.join("\n"));
                status.into()
            }
            Self::Said(status) => status.into(),
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

/// What an error and its causes say, and what to do about it.
pub fn with_advice(error: &(dyn Error + 'static)) -> String {
    let said = sentence(error);
    match advice::about(error) {
        Some(advice) => format!("{said}; {advice}"),
        None => said,
    }
}

/// Does the same to each of several things; those that fail keep no other from its turn.
pub fn each<T>(places: impl IntoIterator<Item = T>, mut what: impl FnMut(T) -> Result<()>) -> Result<()> {
    let mut failed = None;
    for place in places {
        match what(place) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => {
                if let Some(before) = failed.replace(failure) {
                    let _ = Failure::report(before);
                }
            }
            Ok(()) => {}
        }
    }
    failed.map_or(Ok(()), Err)
}
