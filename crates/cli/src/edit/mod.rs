//! `ubtrfs cp`, `mkdir`, `rm` and similar commands on an image, and `ubtrfs apply`. Each of them is
//! one commit, which happens as a whole or not at all.

mod act;
mod archive;
mod locate;
mod script;
mod session;
mod to_host;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use self::act::perform;
use self::locate::{Locate, Where};
use self::session::edit;
use crate::args::edit::{Cp, EditCommand, How};
use crate::args::subvolume::InImage;
use crate::failure::{Failure, Result};
use crate::place::{Image, Opening, Place, is_same, not_in_an_image};
use crate::problems::Problems;
use crate::report::{self, Progress};
pub use archive::{export, import};
pub use script::apply;

/// Carries out one editing command.
pub fn run(command: &EditCommand) -> Result<()> {
    let image = common_image(command)?;
    let locate = |word: &OsStr| Where::from(Place::parse(word));
    if let EditCommand::Cp(arguments) = command
        && let Some(Where::Host(to)) = arguments.places.last().map(|word| locate(word))
    {
        return copy_out(arguments, &image, &to, &locate);
    }
    let how = match command {
        EditCommand::Cp(arguments) if !arguments.devices.is_empty() => {
            return Err(Failure::new("--device is for files that are copied out of an image").with_status(2));
        }
        EditCommand::Cp(arguments) => arguments.how,
        _ => How::default(),
    };
    edit(&image, command.window(), how, |edited, job| perform(edited, command, &locate, job))
}

/// Returns the image that all places of a command are in.
fn common_image(command: &EditCommand) -> Result<PathBuf> {
    let mut common: Option<PathBuf> = None;
    for word in command.places() {
        if let Ok((image, _)) = Place::parse(word).in_image()
            && !is_same(common.get_or_insert(image.clone()), &image)
        {
            return Err(Failure::new(
                "only one image can be edited at a time: copy from one to another by way of a directory",
            ));
        }
    }
    common.ok_or_else(|| {
        let words: Vec<_> = command.places().into_iter().map(|word| word.display().to_string()).collect();
        not_in_an_image(match &*words {
            [word] => word.clone(),
            words => format!("none of {}", words.join(", ")),
        })
    })
}

fn copy_out(arguments: &Cp, image: &Path, to: &Path, locate: &Locate<'_>) -> Result<()> {
    if let Some(option) = arguments.dedupe.then_some("--dedupe").or(arguments.how.of_writing()) {
        return Err(Failure::new(format!("{option} is for files that are copied into an image")).with_status(2));
    }
    let how = InImage { devices: arguments.devices.clone(), window: arguments.window };
    let opened = Image::open(image, &how, Opening::READING_ON)?;
    let sources = &arguments.places[..arguments.places.len() - 1];
    let sources = sources.iter().map(|word| locate(word).inside()).collect::<Result<Vec<_>>>()?;
    let progress = Progress::new();
    let mut job = progress.job();
    let mut problems = Problems::default();
    let copied = to_host::copy(&opened, arguments, &sources, to, &mut job, &mut problems);
    problems.report(&mut std::io::stderr().lock());
    copied?;
    report::print(job.counts(), arguments.how.json)?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::Said(1)) }
}
