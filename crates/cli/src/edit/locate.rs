//! Distinguishes files of the image from files of the host.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::failure::Result;
use crate::place::{Place, not_in_an_image};

/// The place of a file.
#[derive(Clone, Debug)]
pub enum Where {
    /// A file of the host.
    Host(PathBuf),
    /// A file in the image.
    Inside(PathBuf),
}

impl Where {
    /// Returns the path in the image, or an error if the file is on the host.
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

/// A function that returns the place of the file that a word names.
pub type Locate<'a> = dyn Fn(&OsStr) -> Where + 'a;
