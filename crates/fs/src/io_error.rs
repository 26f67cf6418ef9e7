//! Converts errors of the engine to those of [`std::io`], so that `?` works in functions with both.

use std::io;

use crate::error::Error;

impl From<Error> for io::Error {
    /// A plain errno becomes the error of that number. Any other error gets the kind of its
    /// [`Error::errno`], and is kept as the cause.
    fn from(error: Error) -> Self {
        if let Error::Posix(errno) = error {
            return errno.into();
        }
        Self::new(Self::from(error.errno()).kind(), error)
    }
}
