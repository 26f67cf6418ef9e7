//! The errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error about a file in the volume.
    #[error("{}", shown(path))]
    Inside {
        /// The path that it is about.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An extended attribute of something in the volume.
    #[error("{}: its attribute {name} can't be set", shown(path))]
    Attribute {
        /// The file that has it.
        path: PathBuf,
        /// Its name, without characters that control a terminal.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An error about a file outside of the volume.
    #[error("{}", shown(path))]
    Outside {
        /// The path that it is about.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The request can't be executed; the sentence says why.
    #[error("{0}")]
    Refused(String),
    /// What was asked for can't be done in this way, though perhaps in another one.
    #[error("{what}")]
    Blocked {
        /// What is in the way.
        what: String,
        /// The same by its kind.
        obstacle: Obstacle,
    },
    /// The volume as a whole.
    #[error(transparent)]
    Volume(#[from] ubtrfs::Error),
    /// An error of the devices when the edit ends.
    #[error("not all superblocks could be written: what was done may be in the volume, or not")]
    Superblocks(#[source] io::Error),
}

/// What is in the way of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The volume is damaged.
    Damage,
    /// Only what is no directory was to be copied.
    CopyOfDirectory,
    /// Only what is no directory was to be removed.
    RemovalOfDirectory,
    /// It may be the default subvolume, which is not removed.
    DefaultSubvolume,
    /// Nothing is moved to another subvolume.
    OtherSubvolume,
    /// The copy was to share all extents, and can't.
    Unshareable,
    /// Of several images none is for the platform.
    Platform {
        /// Those that there are images for.
        there: Vec<String>,
    },
    /// It is an archive of Docker's own form, and no OCI layout.
    DockerArchive,
}

impl Error {
    /// The error that a directory of the volume was found by a second path, so that a walk would
    /// never end.
    pub fn has_another_path(path: &Path) -> Self {
        let what = format!("{} is a directory that has another path, too: the volume is damaged", shown(path));
        Self::Blocked { what, obstacle: Obstacle::Damage }
    }

    /// Returns whether the volume has no space left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Inside { source, .. } | Self::Attribute { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Volume(error) => error.errno() == ubtrfs::Errno::NOSPC,
            _ => false,
        }
    }
}

/// Returns whether a character of an untrusted text controls a terminal, or changes the order or
/// the lines of what follows.
pub fn misleads(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Formats a path for messages. Names are untrusted, so characters that end a line or control a
/// terminal are escaped.
pub(crate) fn shown(path: &Path) -> String {
    harmless(&path.to_string_lossy())
}

/// Formats an untrusted text for messages: characters that mislead are escaped.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// An error about something in the volume.
pub(crate) fn inside(path: impl AsRef<Path>) -> impl FnOnce(ubtrfs::Error) -> Error {
    move |error| Error::Inside { path: path.as_ref().into(), source: error.into() }
}

/// An error about something outside of the volume.
pub(crate) fn outside<E: Into<io::Error>>(path: impl AsRef<Path>) -> impl FnOnce(E) -> Error {
    move |error| Error::Outside { path: path.as_ref().into(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_a_line_of_a_message() {
        let error = Error::Inside { path: "a\nb\u{1b}[2J\u{9b}x".into(), source: io::ErrorKind::NotFound.into() };
        assert_eq!(error.to_string(), "a\\nb\\u{1b}[2J\\u{9b}x");
    }
}
