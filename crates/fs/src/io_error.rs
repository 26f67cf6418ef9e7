//! Errors of the engine as those of [`std::io`], so that `?` works where both occur.

use std::io;

use crate::error::Error;

impl From<Error> for io::Error {
    /// A plain errno becomes the error of that number. The kind of any other is that of
    /// [`Error::errno`], and the error itself is kept as the cause.
    fn from(error: Error) -> Self {
        if let Error::Posix(errno) = error {
            return errno.into();
        }
        Self::new(Self::from(error.errno()).kind(), error)
    }
}
