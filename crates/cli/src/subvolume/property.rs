//! `ubtrfs property`: whether a subvolume is read-only.

use ubtrfs_format::{TreeId, Uuid};

use crate::args::subvolume::{InImage, Property, PropertyCommand, PropertyGet, PropertyName, PropertySet};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, check_subvolume};
use crate::output::say;
use crate::place::{Image, Place};

/// The offset of the id in the answer about a subvolume.
const RECEIVED_UUID: usize = 8 + 256 + 4 * 8 + 2 * 16;

/// `ubtrfs property`
pub fn run(arguments: &Property) -> Result<()> {
    match &arguments.what {
        PropertyCommand::Get(arguments) => get(arguments),
        PropertyCommand::Set(arguments) => set(arguments),
    }
}

fn get(arguments: &PropertyGet) -> Result<()> {
    let PropertyGet { place, name, image, .. } = arguments;
    let PropertyName::Ro = name.unwrap_or(PropertyName::Ro);
    let read_only = match Place::parse(place) {
        Place::Mounted(path) => {
            let opened = Mounted::open(&path)?;
            check_subvolume(&opened, &path)?;
            opened.is_read_only().map_err(|errno| about_mount(path.display(), errno))?
        }
        Place::Image { image: at, path } => {
            let (opened, id) = open(&at, image, &path, false)?;
            opened.fs.subvolumes().subvolume_info(id).map_err(|error| opened.failed(&error))?.read_only
        }
    };
    say(&format!("ro={read_only}"))
}

fn set(arguments: &PropertySet) -> Result<()> {
    let PropertySet { force, place, name, value, image, .. } = arguments;
    let PropertyName::Ro = name;
    let check = |was_received: bool| {
        if was_received && !value && !force {
            return Err(Failure::new(
                "it was received: made writable, it is no base of another stream any more; -f does it all the same",
            ));
        }
        Ok(())
    };
    match Place::parse(place) {
        Place::Mounted(path) => {
            let opened = Mounted::open(&path)?;
            check_subvolume(&opened, &path)?;
            check(was_received(&opened).map_err(|errno| about_mount(path.display(), errno))?)?;
            opened.set_read_only(*value).map_err(|errno| about_mount(path.display(), errno))
        }
        Place::Image { image: at, path } => {
            let (opened, id) = open(&at, image, &path, true)?;
            let info = opened.fs.subvolumes().subvolume_info(id).map_err(|error| opened.failed(&error))?;
            check(info.received_uuid != Uuid::NIL)?;
            opened.fs.subvolumes().set_subvolume_read_only(id, *value).map_err(|error| opened.failed(&error))?;
            opened.close()
        }
    }
}

fn open(image: &std::path::Path, how: &InImage, path: &[u8], writable: bool) -> Result<(Image, TreeId)> {
    let opened = Image::open(image, how, writable, false)?;
    let id = opened.subvolume(path)?;
    Ok((opened, id))
}

fn was_received(of: &Mounted) -> std::result::Result<bool, rustix::io::Errno> {
    let info = of.info()?;
    Ok(info[RECEIVED_UUID..RECEIVED_UUID + 16].iter().any(|byte| *byte != 0))
}
