//! `ubtrfs history`: shows which commits can still be read, and the versions of a file in them.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use ubtrfs::{Damage, Errno, Filesystem, Options, Rescue};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::{FileType, Timespec};
use ubtrfs_volume::{Device, Error as VolumeError, Origin, Volume};

use crate::args;
use crate::commits::{self, Commit};
use crate::device::{about_volume_within, open_what_can_be_read};
use crate::failure::{Failure, Result};
use crate::json::{self, as_json};
use crate::output::say;
use crate::path::{AtEnd, lookup};
use crate::place::split_image;
use crate::reading::{newest, say_what_is_missing};
use crate::show;

/// `ubtrfs history`
pub fn run(arguments: &args::History) -> Result<()> {
    let (image, path) = match arguments.path.as_ref().map(PathBuf::from) {
        None => split_image(&arguments.image),
        path => (arguments.image.clone(), path),
    };
    let paths = [std::slice::from_ref(&image), &*arguments.devices].concat();
    let reading = open_what_can_be_read(&paths, arguments.window)?;
    if let Ok(volume) = newest(&paths, arguments.window, &reading.devices) {
        say_what_is_missing(&show::path(&image), &volume);
    }
    let commits = commits::all(&reading.devices);
    if commits.is_empty() {
        // The reason depends on whether a superblock refers to a commit at all.
        return Err(match Volume::candidates(&reading.devices).first() {
            None => about_volume_within(&paths, arguments.window, &VolumeError::NotBtrfs),
            Some(_) => Failure::new(format!("{}: no state of the volume can be opened", image.display())),
        });
    }
    let text = match &path {
        None if arguments.json => as_json(&commits.iter().map(describe).collect::<Vec<_>>())?,
        None => commits.iter().map(line).collect(),
        Some(path) => {
            let path = path.as_os_str().as_bytes();
            let versions = versions(arguments, &reading.devices, &commits, path);
            if versions.iter().all(|stretch| !matches!(stretch.was, Was::There(_))) {
                let path = show::bytes(path);
                return Err(Failure::new(format!("{path}: no commit that can be read has it")));
            }
            if arguments.json {
                as_json(&versions.iter().map(Stretch::describe).collect::<Vec<_>>())?
            } else {
                versions.iter().map(Stretch::line).collect()
            }
        }
    };
    say(&text);
    Ok(())
}

fn origin(commit: &Commit) -> &'static str {
    match commit.candidate.origin {
        Origin::Superblock => "superblock",
        Origin::Backup => "backup root",
        Origin::Scan => "found",
    }
}

fn describe(commit: &Commit) -> Value {
    json!({
        "generation": commit.generation(),
        "root": commit.candidate.superblock.root.0,
        "origin": origin(commit),
        "changed": commit.time.map(json::time),
        "unreadable_blocks": commit.unread,
    })
}

fn line(commit: &Commit) -> String {
    let time = commit.time.map_or_else(|| "time unknown".into(), show::local);
    let mut line = format!("generation {:<10} {time}, {}", commit.generation(), origin(commit));
    if commit.unread > 0 {
        let _ = write!(line, "; {} blocks of its root tree can't be read", commit.unread);
    }
    line + "\n"
}

/// A version of a file.
#[derive(Clone, PartialEq, Eq)]
struct Version {
    kind: FileType,
    ino: u64,
    /// The generation in which the inode was made.
    made: u64,
    size: u64,
    mtime: Timespec,
}

/// What was at the path.
#[derive(Clone, PartialEq, Eq)]
enum Was {
    There(Version),
    Absent,
    /// The reason why it cannot be read.
    Unreadable(String),
}

/// Consecutive readable commits that have the same file at the path.
struct Stretch {
    first: u64,
    last: u64,
    was: Was,
}

impl Stretch {
    fn line(&self) -> String {
        let commits = if self.first == self.last {
            format!("generation {}", self.first)
        } else {
            format!("generations {} to {}", self.first, self.last)
        };
        let was = match &self.was {
            Was::There(version) => {
                let kind = match version.kind {
                    FileType::Directory => "directory, ",
                    FileType::Symlink => "symbolic link, ",
                    _ => "",
                };
                let Version { size, mtime, ino, made, .. } = version;
                let time = show::local(*mtime);
                format!("{kind}{size} bytes, modified {time}, inode {ino} made by generation {made}")
            }
            Was::Absent => "absent".into(),
            Was::Unreadable(why) => format!("can't be read: {why}"),
        };
        format!("{commits}: {was}\n")
    }

    fn describe(&self) -> Value {
        let mut value = json!({ "first_generation": self.first, "last_generation": self.last });
        let more = match &self.was {
            Was::There(Version { ino, made, size, mtime, .. }) => {
                json!({ "state": "present", "inode": ino, "made": made, "size": size, "modified": json::time(*mtime) })
            }
            Was::Absent => json!({ "state": "absent" }),
            Was::Unreadable(why) => json!({ "state": "unreadable", "error": why }),
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }
}

/// Returns what was at a path, newest first. Of several roots of one commit, the first one that can
/// be read counts.
fn versions(arguments: &args::History, devices: &[Arc<dyn Device>], commits: &[Commit], path: &[u8]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for roots in commits.chunk_by(|one, next| one.generation() == next.generation()) {
        let mut was = roots.iter().map(|commit| what_was(arguments, devices, commit, path));
        let Some(first) = was.next() else { continue };
        let is_known = |was: &Was| !matches!(was, Was::Unreadable(_));
        let was = if is_known(&first) { first } else { was.find(is_known).unwrap_or(first) };
        let generation = roots[0].generation();
        match stretches.last_mut() {
            Some(stretch) if stretch.was == was => stretch.first = generation,
            _ => stretches.push(Stretch { first: generation, last: generation, was }),
        }
    }
    stretches
}

fn what_was(arguments: &args::History, devices: &[Arc<dyn Device>], commit: &Commit, path: &[u8]) -> Was {
    let volume = match Volume::open_what_is_left(devices, &commit.candidate) {
        Ok((volume, _)) => Arc::new(volume),
        Err(error) => return Was::Unreadable(sentence(&error)),
    };
    let damage = Arc::new(Damage::default());
    let options = Options {
        read_only: true,
        // What was fsynced after the last commit belongs to no commit.
        no_log_replay: true,
        subvolume: arguments.subvol.clone(),
        subvolume_id: arguments.subvolid,
        no_atime: true,
        background_commits: false,
        rescue: Rescue { pass_over: Some(Arc::clone(&damage)), ..Rescue::default() },
        ..Options::default()
    };
    let found = Filesystem::open(volume, options).and_then(|fs| {
        let id = lookup(&fs, path, AtEnd::Stay)?;
        fs.inodes().attributes(id)
    });
    match found {
        Ok(found) => Was::There(Version {
            kind: found.file_type,
            ino: found.id.ino.0,
            made: found.generation.0,
            size: found.size,
            mtime: found.mtime,
        }),
        // Parts of directories that cannot be read were passed over, so only without damage is the
        // file known to be absent.
        Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) && damage.count() == 0 => Was::Absent,
        Err(ubtrfs::Error::Refused(ubtrfs::Refusal::NoSubvolume(_))) if damage.count() == 0 => Was::Absent,
        Err(error) => Was::Unreadable(damage.sentences().into_iter().next().unwrap_or_else(|| sentence(&error))),
    }
}
