//! Devices that are named for a volume, but are away or hold nothing of it. Without `degraded` each
//! of them is reported as an error. With `degraded` the volume does without them, and nothing is
//! written to them.
//!
//! All devices are examined before any is opened for writing. The first device says which volume is
//! meant, as for the kernel's driver; if the first one has no good superblock, all others have to
//! agree. A device that somebody else uses, or that we have no permission for, is not left out:
//! others would write to it, or it would become outdated, without need.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ubtrfs_format::{Superblock, Uuid};
use ubtrfs_volume::{Error, OpenMode, OpenOptions, Volume};

use crate::about_volume::about_volume_within;
use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::looking::{NotOpened, find_part, is_of_seed, look, superblock_on, within};
use crate::show::harmless;

/// The devices that are used, and those that are not.
#[derive(Debug)]
pub struct Chosen {
    /// The devices that are used, in their order.
    pub paths: Vec<PathBuf>,
    /// The other devices, and why they are not used.
    pub left_out: Vec<LeftOut>,
}

/// A device that the volume does without.
#[derive(Debug)]
pub struct LeftOut {
    /// Its name.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl LeftOut {
    fn new(path: &Path, why: &Failure) -> Self {
        let (sentence, about) = (why.sentence(), format!("{}: ", path.display()));
        Self { path: path.to_owned(), why: sentence.strip_prefix(&about).unwrap_or(sentence).to_owned() }
    }

    /// Reports the device in the log of a server.
    pub fn warn(&self) {
        tracing::warn!("{} is left out: {}", self.path.display(), self.why);
    }

    /// Reports the device on the standard error stream.
    pub fn say(&self) {
        let _ = writeln!(io::stderr(), "ubtrfs: {} is left out: {}", self.path.display(), harmless(&self.why));
    }
}

/// What an examination of a device has shown.
enum Seen {
    /// A superblock by which a volume can be opened.
    Superblock(Box<Superblock>),
    /// It holds nothing by which a volume can be opened.
    Unusable(Failure),
    /// It could not be opened here; the error is reported when it is opened for use.
    Unknown,
}

impl Seen {
    fn superblock(&self) -> Option<&Superblock> {
        if let Self::Superblock(superblock) = self { Some(superblock) } else { None }
    }
}

/// Chooses the devices by which a volume can be opened in this mode. Exports of servers that do not
/// answer within `timeout` are away.
///
/// # Errors
///
/// If none is left, or they are several volumes and nothing says which one is meant.
pub fn choose(paths: &[PathBuf], window: Window, mode: OpenMode, timeout: Option<Duration>) -> Result<Chosen> {
    let options = OpenOptions { read_only: mode == OpenMode::ReadOnly };
    let seen = look_at_all(paths, |path| look_at(path, window, options, timeout));
    let meant = meant(paths, window, &seen)?;
    let mut chosen = Chosen { paths: Vec::new(), left_out: Vec::new() };
    let mut failures = Vec::new();
    for (path, seen) in paths.iter().zip(seen) {
        let why = match seen {
            Seen::Superblock(own) => match meant {
                Some(meant) if !is_of_seed(&own) && id(&own) != meant => {
                    Failure::new(format!("{}: it is of another volume, {}", path.display(), own.fsid))
                }
                _ => {
                    chosen.paths.push(path.clone());
                    continue;
                }
            },
            Seen::Unusable(failure) => failure,
            Seen::Unknown => {
                chosen.paths.push(path.clone());
                continue;
            }
        };
        chosen.left_out.push(LeftOut::new(path, &why));
        failures.push(why);
    }
    if chosen.paths.is_empty() { Err(all_of(&failures)) } else { Ok(chosen) }
}

/// Returns the ids of a volume: the one that users see, and the one that its blocks carry.
fn id(superblock: &Superblock) -> (Uuid, Uuid) {
    (superblock.fsid, superblock.metadata_fsid())
}

/// Returns the ids of the volume that is meant; `None` if no device shows them.
fn meant(paths: &[PathBuf], window: Window, seen: &[Seen]) -> Result<Option<(Uuid, Uuid)>> {
    let all = || seen.iter().filter_map(Seen::superblock);
    let own = || all().filter(|found| !is_of_seed(found));
    let first = seen.first().and_then(Seen::superblock).filter(|first| !is_of_seed(first));
    let Some(meant) = first.or_else(|| own().next()) else { return Ok(all().next().map(id)) };
    let Some(other) = own().find(|other| id(other) != id(meant)) else { return Ok(Some(id(meant))) };
    // If a device of the volume is missing, a device of another volume may stand in its place. If
    // none is missing, the user may have meant the other volume.
    let there = all().filter(|found| is_of_seed(found) || id(found) == id(meant)).count() as u64;
    let newest = own().filter(|found| id(found) == id(meant)).max_by_key(|found| found.generation);
    if first.is_none() || newest.is_some_and(|newest| newest.num_devices <= there) {
        let error = Error::ForeignDevice { expected: meant.fsid, found: other.fsid };
        return Err(about_volume_within(paths, window, &error));
    }
    Ok(Some(id(meant)))
}

fn look_at(path: &Path, window: Window, options: OpenOptions, timeout: Option<Duration>) -> Seen {
    let looked = find_part(path, window, timeout)
        .and_then(|part| within(path, look(path, timeout)?, part).map_err(NotOpened::Away));
    match looked {
        Ok(device) => match Volume::superblock_to_open(&*device, options) {
            Ok(superblock) => Seen::Superblock(Box::new(superblock)),
            // A device without btrfs is no reason to advise that something else be done with it.
            Err(error @ Error::NotBtrfs) => Seen::Unusable(Failure::about(path.display(), &error)),
            Err(error) => Seen::Unusable(about_volume_within(&[path.to_owned()], window, &error)),
        },
        Err(NotOpened::Away(failure)) => Seen::Unusable(failure),
        Err(NotOpened::Refused(_)) => Seen::Unknown,
    }
}

/// Looks at all of them at the same time, since several servers may take long to answer.
fn look_at_all<T: Send>(paths: &[PathBuf], look_at: impl Fn(&Path) -> T + Sync) -> Vec<T> {
    let look_at = &look_at;
    std::thread::scope(|scope| {
        let looking: Vec<_> = paths
            .iter()
            .map(|path| (path, std::thread::Builder::new().spawn_scoped(scope, move || look_at(path))))
            .collect();
        let ended = looking.into_iter().map(|(path, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread could be started for it.
            Err(_) => look_at(path),
        });
        ended.collect()
    })
}

/// Returns the mode in which each of the devices is opened: devices of seeds are only read, if the
/// volume was made from them.
pub fn modes_of(paths: &[PathBuf], window: Window, mode: OpenMode) -> Vec<OpenMode> {
    if mode == OpenMode::ReadOnly || paths.len() < 2 {
        return vec![mode; paths.len()];
    }
    let seeds = look_at_all(paths, |path| superblock_on(path, window).as_ref().is_some_and(is_of_seed));
    let is_made_from_them = seeds.contains(&false);
    seeds.into_iter().map(|is_seed| if is_seed && is_made_from_them { OpenMode::ReadOnly } else { mode }).collect()
}

/// Describes the devices that were left out, for a command that can do nothing because of them.
pub fn about_left_out(left_out: &[LeftOut]) -> Failure {
    let said: Vec<String> = left_out.iter().map(|one| format!("{}: {}", one.path.display(), one.why)).collect();
    Failure::new(said.join("\n"))
}

/// Opens each of these devices in its mode. If some are away, the error names each of them.
pub fn open_each<T>(
    paths: &[PathBuf],
    modes: &[OpenMode],
    open: impl Fn(&Path, OpenMode) -> std::result::Result<T, NotOpened>,
) -> std::result::Result<Vec<T>, NotOpened> {
    let (mut opened, mut away) = (Vec::new(), Vec::new());
    for (path, mode) in paths.iter().zip(modes) {
        match open(path, *mode) {
            Ok(device) => opened.push(device),
            Err(NotOpened::Away(failure)) => away.push(failure),
            Err(refused) => return Err(refused),
        }
    }
    if away.is_empty() { Ok(opened) } else { Err(NotOpened::Away(all_of(&away))) }
}

/// Returns one failure with the sentences of all of these.
pub fn all_of(failures: &[Failure]) -> Failure {
    let said: Vec<String> = failures.iter().map(|failure| failure.sentence().to_owned()).collect();
    Failure::new(said.join("\n"))
}
