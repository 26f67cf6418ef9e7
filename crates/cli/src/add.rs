//! `ubtrfs device add`: adds devices to a volume.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::args::Window;
use crate::args::device::DeviceAdd;
use crate::failure::{Failure, Result};
use crate::output::say_line;
use crate::place::with_more;
use crate::volume_at::devices::devices;

/// `ubtrfs device add`
pub fn run(arguments: &DeviceAdd) -> Result<()> {
    let [new @ .., place] = &*arguments.places else { return Ok(()) };
    refuse_twice(new)?;
    let places = with_more(place, &arguments.more);
    devices(&places, Window::default()).add(new, arguments.force, &mut |path, number| {
        let number = number.map_or_else(|| "a device".into(), |number| format!("device {number}"));
        say_line(&format!("{} is {number} of the volume", path.display()));
    })
}

/// Returns an error if one device is given twice, even by different names.
fn refuse_twice(new: &[PathBuf]) -> Result<()> {
    let mut known = BTreeSet::new();
    let mut is_new = |path: &&PathBuf| known.insert(std::fs::canonicalize(path).unwrap_or_else(|_| (*path).clone()));
    match new.iter().find(|path| !is_new(path)) {
        Some(path) => Err(Failure::new(format!("{} is given twice", path.display()))),
        None => Ok(()),
    }
}
