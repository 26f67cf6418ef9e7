//! `ubtrfs cp`, `mkdir`, `rm` and their like on an image, and `ubtrfs apply`: each is one commit,
//! which happens whole or not at all.

mod act;
mod archive;
mod script;
mod to_host;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use ubtrfs_image::{Error, Session};

use self::act::perform;
use crate::args::Window;
use crate::args::edit::{Cp, EditCommand};
use crate::args::subvolume::InImage;
use crate::device::open_for_writing;
use crate::failure::{Failure, Result};
use crate::place::{Image, Place, is_same, unless_mounted};
pub use archive::{export, import};
pub use script::apply;

/// Where a file is.
#[derive(Clone, Debug)]
enum Where {
    /// Among the host's files.
    Host(PathBuf),
    /// In the image.
    Inside(PathBuf),
}

impl Where {
    /// The path in the image.
    fn inside(self) -> Result<PathBuf> {
        match self {
            Self::Inside(path) => Ok(path),
            Self::Host(path) => Err(Failure::new(format!(
                "{} is not in an image: write IMAGE:PATH, with an image or a device that exists",
                path.display()
            ))),
        }
    }
}

/// Finds out where what a word names is.
type Locate<'a> = dyn Fn(&OsStr) -> Where + 'a;

/// One edit.
pub fn run(command: &EditCommand) -> Result<()> {
    let image = common_image(command)?;
    let locate = |word: &OsStr| match Place::parse(word) {
        Place::Image { path, .. } => Where::Inside(OsString::from_vec(path).into()),
        Place::Mounted(path) => Where::Host(path),
    };
    if let EditCommand::Cp(arguments) = command
        && let Some(Where::Host(to)) = arguments.places.last().map(|word| locate(word))
    {
        return copy_out(arguments, &image, &to, &locate);
    }
    let session = open(&image, command.window())?;
    perform(session.fs(), command, &locate)?;
    publish(session)
}

/// Opens an image for an edit.
fn open(image: &Path, window: Window) -> Result<Session> {
    let opened = open_for_writing(&[image.to_owned()], window).map_err(|failure| unless_mounted(image, failure))?;
    Session::open(opened.devices).map_err(|error| Failure::about(image.display(), &error))
}

fn publish(session: Session) -> Result<()> {
    session.publish().map_err(|error| about(&error))
}

/// What an error says, and what to do about it.
fn about(error: &Error) -> Failure {
    let failure = Failure::of(error);
    let is_full = match error {
        Error::Inside { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
        Error::Volume(error) => error.errno() == ubtrfs::Errno::NOSPC,
        _ => false,
    };
    match failure {
        Failure::Sentence(sentence, status) if is_full => Failure::Sentence(
            format!(
                "{sentence}; the image is as it was. An edit keeps what it replaces until its end, so smaller ones may \
                 fit; or make a larger image"
            ),
            status,
        ),
        failure => failure,
    }
}

/// The image that a command is about.
fn common_image(command: &EditCommand) -> Result<PathBuf> {
    let mut common: Option<PathBuf> = None;
    for word in command.places() {
        if let Place::Image { image, .. } = Place::parse(word)
            && !is_same(common.get_or_insert(image.clone()), &image)
        {
            return Err(Failure::new(
                "only one image can be edited at a time: copy from one to another by way of a directory",
            ));
        }
    }
    common.ok_or_else(|| {
        let words: Vec<_> = command.places().into_iter().map(|word| word.display().to_string()).collect();
        Failure::new(format!(
            "none of {} is in an image: write IMAGE:PATH, with an image or a device that exists",
            words.join(", ")
        ))
    })
}

fn copy_out(arguments: &Cp, image: &Path, to: &Path, locate: &Locate<'_>) -> Result<()> {
    let how = InImage { devices: Vec::new(), window: arguments.window };
    let opened = Image::open(image, &how, false, false)?;
    let sources = &arguments.places[..arguments.places.len() - 1];
    let sources = sources.iter().map(|word| locate(word).inside()).collect::<Result<Vec<_>>>()?;
    to_host::copy(&opened.fs, arguments, &sources, to)
}
