//! Subvolumes of one volume, on its mount or in its image.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ubtrfs_format::TreeId;

use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, check_subvolume};
use crate::place::Place;

/// Subvolumes of one volume.
pub enum Together {
    /// On the mount that has this directory: their numbers.
    Mounted(PathBuf, Vec<TreeId>),
    /// In an image: their paths.
    Image(PathBuf, Vec<Vec<u8>>),
}

impl Together {
    /// Reads the names of places, and looks for those on a mount. What programs have written there
    /// is the server's then, also what was written to mappings.
    pub fn find<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Result<Self> {
        let (mut directories, mut images) = (Vec::new(), Vec::new());
        for word in words {
            match place(word)? {
                Place::Mounted(path) => directories.push(path),
                Place::Image { image, path } => images.push((image, path)),
            }
        }
        match (directories.first(), images.first()) {
            (Some(first), None) => Self::on_mount(first, &directories),
            (None, Some((image, _))) if images.iter().all(|(other, _)| is_same_file(image, other)) => {
                let image = image.clone();
                Ok(Self::Image(image, images.into_iter().map(|(_, path)| path).collect()))
            }
            (None, _) => Err(other_volumes()),
            _ => Err(Failure::new(
                "the subvolumes must be in the same volume, all on its mount, or all as IMAGE:PATH if it is not mounted",
            )),
        }
    }

    fn on_mount(first: &Path, directories: &[PathBuf]) -> Result<Self> {
        let (mut ids, mut device) = (Vec::new(), None);
        for path in directories {
            let opened = Mounted::open(path)?;
            check_subvolume(&opened, path)?;
            ids.push(opened.subvolume().map_err(|errno| about_mount(path.display(), errno))?);
            let of = opened.device().map_err(|errno| about_mount(path.display(), errno))?;
            if *device.get_or_insert(of) != of {
                return Err(other_volumes());
            }
            // Nothing of a read-only mount is dirty.
            let _ = opened.write_back();
        }
        Ok(Self::Mounted(first.into(), ids))
    }
}

fn other_volumes() -> Failure {
    Failure::new("the subvolumes must be in the same volume")
}

/// A place by its name. One that has a colon and is nowhere is meant to be in an image.
fn place(word: &OsStr) -> Result<Place> {
    let place = Place::parse(word);
    if let Place::Mounted(path) = &place
        && !path.is_dir()
    {
        let word = word.display();
        let exists = if path.exists() { "" } else { " with an image or a device that exists" };
        return Err(Failure::new(format!("{word} is neither a directory of a mounted volume nor IMAGE:PATH{exists}")));
    }
    Ok(place)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
