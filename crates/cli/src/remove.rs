//! `ubtrfs device remove`: removes devices from a volume that is mounted or not.

use serde::Serialize;
use ubtrfs_server::vacate_ioctls::CANCEL;

use crate::args::device::DeviceRemove;
use crate::failure::{Failure, Result};
use crate::json::as_json;
use crate::output::say;
use crate::place::with_more;
use crate::volume_at::devices::devices;

/// A device that was removed.
#[derive(Debug, Serialize)]
struct Removed {
    /// Its number; 0 if that is not known.
    device: u64,
    /// The name that the user gave.
    name: String,
}

/// `ubtrfs device remove`
pub fn run(arguments: &DeviceRemove) -> Result<()> {
    let [old @ .., place] = &*arguments.places else { return Ok(()) };
    let names = old.iter().map(|path| path.to_str().ok_or_else(|| Failure::new("the name of the device is no UTF-8")));
    let names = names.collect::<Result<Vec<&str>>>()?;
    let volume = devices(&with_more(place, &arguments.image.devices), arguments.image.window);
    if names == [CANCEL] {
        return volume.cancel_removal();
    }
    let mut removed = Vec::new();
    let done = volume.remove(&names, arguments.limit, &mut |number, name| {
        removed.push(Removed { device: number.map_or(0, |number| number.0), name: name.to_owned() });
    });
    say_removed(arguments, &removed)?;
    done
}

fn say_removed(arguments: &DeviceRemove, removed: &[Removed]) -> Result<()> {
    if arguments.json {
        say(&as_json(&removed)?);
        return Ok(());
    }
    for Removed { name, .. } in removed {
        say(&format!("{name} is no device of the volume any more\n"));
    }
    Ok(())
}
