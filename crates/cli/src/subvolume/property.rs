//! `ubtrfs property`: shows or sets whether a subvolume is read-only.

use crate::args::subvolume::{Property, PropertyCommand, PropertyGet, PropertyName, PropertySet};
use crate::failure::{Failure, Result};
use crate::json;
use crate::output::say;
use crate::place::Opening;
use crate::volume_at::open;

/// `ubtrfs property`
pub fn run(arguments: &Property) -> Result<()> {
    match &arguments.what {
        PropertyCommand::Get(arguments) => get(arguments),
        PropertyCommand::Set(arguments) => set(arguments),
    }
}

fn get(arguments: &PropertyGet) -> Result<()> {
    let PropertyGet { json, place, name, image, .. } = arguments;
    let PropertyName::Ro = name.unwrap_or(PropertyName::Ro);
    let named = open(place, image, Opening::READING)?;
    let read_only = named.volume.is_read_only(named.path())?;
    if *json {
        return json::print(&serde_json::json!({ "ro": read_only }));
    }
    say(&format!("ro={read_only}"));
    Ok(())
}

fn set(arguments: &PropertySet) -> Result<()> {
    let PropertySet { force, place, name, value, image, .. } = arguments;
    let PropertyName::Ro = name;
    let ((), _) = open(place, image, Opening::WRITING)?.change(|volume, paths| {
        if volume.was_received(&paths[0])? && !value && !force {
            return Err(Failure::new(
                "it was received: made writable, it is no base of another stream any more; -f does it all the same",
            ));
        }
        volume.set_read_only(&paths[0], *value)
    })?;
    Ok(())
}
