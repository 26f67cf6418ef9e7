//! Whether a file is in the image or on the host.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::failure::Result;
use crate::place::{Place, not_in_an_image};

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
            Self::Host(path) => Err(not_in_an_image(path.display())),
        }
    }
}

impl From<Place> for Where {
    fn from(place: Place) -> Self {
        match place {
            Place::Image { path, .. } => Self::Inside(path),
            Place::Mounted(path) => Self::Host(path),
        }
    }
}

/// Finds out where what a word names is.
pub type Locate<'a> = dyn Fn(&OsStr) -> Where + 'a;
