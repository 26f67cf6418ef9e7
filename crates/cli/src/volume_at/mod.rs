//! A volume that a command names, mounted or not, and the operations on it. Only `open` and
//! `open_together` know which of the two it is. Commands use the traits, each of which has its file
//! here, with one implementation for mounts and one for images.

mod balances;
mod comparisons;
pub mod devices;
mod files;
mod on_mount;
mod search;
mod subvolumes;
pub mod table;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub use self::balances::Balances;
pub use self::comparisons::{Comparisons, WantedMerge};
pub use self::files::{BoxedNode, Files, Kind, Node};
use self::on_mount::OnMount;
pub use self::search::Search;
pub use self::subvolumes::Subvolumes;
use crate::args::subvolume::InImage;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::place::{Image, Opening, Place, is_same, neither, other_volumes, unless_on_mount};

/// A volume. Its paths are those that the user gave: in the host's tree for a mount, and from the
/// top level for an image.
pub trait VolumeAt: Balances + Comparisons + Files + Search + Subvolumes {
    /// Returns a path as the user gives it.
    fn shown(&self, path: &Path) -> String;

    /// Ends the use of the volume. Changes in an image are durable then.
    fn finish(self: Box<Self>) -> Result<Finished>;
}

/// A volume whose use has ended.
#[must_use]
pub struct Finished(Option<(PathBuf, Mounted)>);

impl Finished {
    /// Makes the changes on a mount durable.
    pub fn commit(self) -> Result<()> {
        self.0.map_or(Ok(()), |(path, on)| on.commit().map_err(|errno| about_mount(path.display(), errno)))
    }
}

/// A volume, and the paths that were given with it.
pub struct Named {
    pub volume: Box<dyn VolumeAt>,
    pub paths: Vec<PathBuf>,
}

impl Named {
    /// Changes the volume, and ends its use. If the change fails, an image stays as it was.
    pub fn change<T>(self, act: impl FnOnce(&dyn VolumeAt, &[PathBuf]) -> Result<T>) -> Result<(T, Finished)> {
        let done = act(&*self.volume, &self.paths)?;
        Ok((done, self.volume.finish()?))
    }

    /// Changes the volume step by step, and ends its use. The steps before a failure stay.
    pub fn change_in_steps<T>(self, act: impl FnOnce(&dyn VolumeAt, &[PathBuf]) -> Result<T>) -> Result<T> {
        let done = act(&*self.volume, &self.paths);
        let finished = self.volume.finish().map(drop);
        done.and_then(|done| finished.map(|()| done))
    }

    /// Returns the only path, or the first one.
    pub fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), |path| path)
    }
}

/// Opens the volume that a place is in. An image without a path means its top level.
pub fn open(word: &OsStr, how: &InImage, opening: Opening) -> Result<Named> {
    open_place(Place::of_volume(word), how, opening)
}

/// Opens the volume that a place is in, where the place may be a file: a file on a mounted volume
/// is meant itself, though it may hold an image.
pub fn open_file(word: &OsStr, how: &InImage, opening: Opening) -> Result<Named> {
    open_place(Place::of_file(word), how, opening)
}

/// Returns the volume that is mounted at a path.
pub fn mounted_at(path: &Path) -> impl VolumeAt + use<> {
    OnMount::new(path.to_owned())
}

fn open_place(place: Place, how: &InImage, opening: Opening) -> Result<Named> {
    Ok(match place {
        Place::Mounted(path) => Named { volume: Box::new(OnMount::new(path.clone())), paths: vec![path] },
        Place::Image { image, path } => {
            let opened = Image::open(&image, how, opening);
            let opened = opened.map_err(|failure| unless_on_mount(&image, how.window, failure))?;
            Named { volume: Box::new(opened), paths: vec![path] }
        }
    })
}

/// Opens the volume that several places are in.
pub fn open_together<'a>(words: impl IntoIterator<Item = &'a OsStr>, how: &InImage, opening: Opening) -> Result<Named> {
    let (mut on_host, mut images) = (Vec::new(), Vec::new());
    for word in words {
        match Place::of_file(word) {
            Place::Mounted(path) => on_host.push(path),
            Place::Image { image, path } => images.push((image, path)),
        }
    }
    let nowhere = on_host.iter().find(|path| !images.is_empty() && !path.is_dir());
    if let Some(path) = nowhere {
        return Err(neither(path));
    }
    match (on_host.first(), images.first()) {
        (Some(first), None) => Ok(Named { volume: Box::new(OnMount::new(first.clone())), paths: on_host }),
        (None, Some((image, _))) if images.iter().all(|(other, _)| is_same(image, other)) => {
            let volume = Box::new(Image::open(image, how, opening)?);
            Ok(Named { volume, paths: images.into_iter().map(|(_, path)| path).collect() })
        }
        (None, _) => Err(other_volumes()),
        _ => Err(Failure::new(
            "the subvolumes must be in the same volume, all on its mount, or all as IMAGE:PATH if it is not mounted",
        )),
    }
}

impl VolumeAt for OnMount {
    fn shown(&self, path: &Path) -> String {
        path.display().to_string()
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        Ok(Finished(self.into_opened()))
    }
}

impl VolumeAt for Image {
    fn shown(&self, path: &Path) -> String {
        format!("{}:{}", self.path().display(), path.display())
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        self.close().map(|()| Finished(None))
    }
}
