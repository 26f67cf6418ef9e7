//! `ubtrfs label`: shows or sets the label of a volume.

use std::os::unix::ffi::OsStrExt;

use crate::args;
use crate::failure::{Failure, Result};
use crate::ioctls::LABEL_SIZE;
use crate::output::say;
use crate::place::with_more;
use crate::show;
use crate::volume_at::devices::devices;

/// `ubtrfs label`
pub fn run(arguments: &args::Label) -> Result<()> {
    let new = arguments.new.as_ref().map(|label| label.as_bytes());
    if let Some(label) = new
        && (label.len() >= LABEL_SIZE || label.contains(&b'\n'))
    {
        return Err(Failure::new("a label has at most 255 bytes, and no line break"));
    }
    let volume = devices(&with_more(&arguments.place, &arguments.devices), arguments.window);
    match new {
        None => {
            say(&(show::bytes(&volume.label()?) + "\n"));
            Ok(())
        }
        Some(label) => volume.set_label(label),
    }
}
