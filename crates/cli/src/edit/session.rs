//! The one commit of an edit, and what is said when it fails.

use std::path::Path;

use ubtrfs_image::{Error, Session};

use crate::args::Window;
use crate::device::open_for_writing;
use crate::failure::{Failure, Result};
use crate::place::unless_mounted;

/// Opens an image for an edit.
pub fn open(image: &Path, window: Window) -> Result<Session> {
    let opened =
        open_for_writing(&[image.to_owned()], window).map_err(|failure| unless_mounted(image, window, failure))?;
    Session::open(opened.devices).map_err(|error| Failure::about(image.display(), &error))
}

/// Makes an edit durable.
pub fn publish(session: Session) -> Result<()> {
    session.publish().map_err(|error| about(&error))
}

/// What an error says, and what to do about it.
pub fn about(error: &Error) -> Failure {
    let remedy = "; the image is as it was. An edit keeps what it replaces until its end, so smaller ones may fit; or \
                  make a larger image";
    Failure::of(error).map_sentence(|sentence| if error.is_full() { sentence + remedy } else { sentence })
}
