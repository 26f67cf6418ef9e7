//! Whether a file is in the image or on the host.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// Where a file is.
#[derive(Clone, Debug)]
pub enum Where {
    /// Among the host's files.
    Host(PathBuf),
    /// In the image.
    Inside(PathBuf),
}

impl Where {
    /// The path in the image.
    pub fn inside(self) -> Result<PathBuf> {
        match self {
            Self::Inside(path) => Ok(path),
            Self::Host(path) => Err(Failure::new(format!(
                "{} is not in an image: write IMAGE:PATH, with an image or a device that exists",
                path.display()
            ))),
        }
    }
}

/// Finds out where what a word names is.
pub type Locate<'a> = dyn Fn(&OsStr) -> Where + 'a;
