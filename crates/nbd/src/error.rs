//! The errors before an export can be used, and when it can't be used any more.

use std::io;
use std::path::PathBuf;

pub use ubtrfs_errors::BoxError;

/// Why an export can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URI has nothing that can be connected to.
    #[error("{0}")]
    Uri(String),
    /// Nobody answers at the address.
    #[error("no connection to {address}")]
    Connect {
        /// The host and port, or the socket.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection ended, or did not answer in time.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// What answers is no NBD server, or an ancient one.
    #[error("{0}")]
    NotNbd(&'static str),
    /// The server sent something that the protocol does not allow.
    #[error("the server breaks the protocol: {0}")]
    Protocol(String),
    /// The server has no export of this name.
    #[error("the server has no export '{name}'{}{}", listed(exports), remark(said))]
    NoExport {
        /// The name that was asked for.
        name: String,
        /// The names that it has, as far as it tells.
        exports: Vec<String>,
        /// What it said.
        said: String,
    },
    /// The server refuses an option of the handshake.
    #[error("the server refuses {what}{}", remark(said))]
    Refused {
        /// What it refuses.
        what: &'static str,
        /// What it said.
        said: String,
    },
    /// The server wants TLS.
    #[error("the server requires TLS: use the URI with nbds:// or nbds+unix://")]
    TlsRequired,
    /// The server has no TLS.
    #[error("the server offers no TLS{}", remark(said))]
    NoTls {
        /// What it said.
        said: String,
    },
    /// TLS failed: certificates, names, algorithms.
    #[error("TLS")]
    Tls(#[source] BoxError),
    /// A certificate or a key can't be used.
    #[error("TLS: {}", path.display())]
    TlsFile {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: BoxError,
    },
    /// The export is not for writing.
    #[error("the export is read-only")]
    ReadOnly,
    /// The export can't be used yet.
    #[error("the server that came back {0}")]
    NotYet(String),
    /// The export can't be used.
    #[error("{0}")]
    Unusable(String),
}

impl Error {
    /// The error of the socket, if there was one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Connect { source, .. } | Self::Broken(source) => Some(source),
            _ => None,
        }
    }

    /// Returns whether the next attempt may succeed, since the error concerns the connection, or a
    /// server that is about to start or to end, or is not fully set up yet.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Uri(_) | Self::Unusable(_) | Self::ReadOnly)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        // A socket returns this when its time limit is over.
        if error.kind() == io::ErrorKind::WouldBlock {
            return Self::Broken(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        Self::Broken(error)
    }
}

fn listed(exports: &[String]) -> String {
    if exports.is_empty() {
        return String::new();
    }
    let names: Vec<String> = exports.iter().map(|name| format!("'{name}'")).collect();
    format!("; it has: {}", names.join(", "))
}

fn remark(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" (it says: {said})") }
}
