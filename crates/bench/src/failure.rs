//! Failures as sentences.

use std::error::Error;
use std::fmt;

use ubtrfs_errors::sentence;

/// The reason why something could not be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It failed.
    Failed(String),
    /// This machine, this user or this build can't do it.
    Impossible(String),
    /// A signal requested the end.
    Interrupted,
}

/// The result of most functions of this crate.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes the failure for this reason.
    pub fn new(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }

    /// Makes the failure of `what` by an error.
    pub fn about(what: impl fmt::Display, error: &dyn Error) -> Self {
        Self::Failed(format!("{what}: {}", sentence(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) | Self::Impossible(why) => formatter.write_str(why),
            Self::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(sentence(&error))
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Failed(errno.to_string())
    }
}

impl From<ubtrfs::Error> for Failure {
    fn from(error: ubtrfs::Error) -> Self {
        Self::Failed(error.chain())
    }
}
