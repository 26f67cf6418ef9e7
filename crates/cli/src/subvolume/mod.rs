//! `ubtrfs subvolume` and `ubtrfs property`.

mod find_new;
mod list;
mod property;
mod reset;
mod show;

use std::path::PathBuf;
use std::time::Duration;

use ubtrfs_format::TreeId;

use crate::args;
use crate::args::subvolume::{Create, Delete, SetDefault, Snapshot, SubvolumeCommand, SyncDeleted};
use crate::failure::{Failure, Result, each};
use crate::output::say_line;
use crate::place::Opening;
use crate::volume_at::{Finished, VolumeAt, open, open_together};
pub use property::run as property;

/// `ubtrfs subvolume`
pub fn run(arguments: &args::subvolume::Subvolume) -> Result<()> {
    match &arguments.what {
        SubvolumeCommand::Create(arguments) => create(arguments),
        SubvolumeCommand::Snapshot(arguments) => snapshot(arguments),
        SubvolumeCommand::Delete(arguments) => delete(arguments),
        SubvolumeCommand::Reset(arguments) => reset::run(arguments),
        SubvolumeCommand::List(arguments) => list::run(arguments),
        SubvolumeCommand::Show(arguments) => show::run(arguments),
        SubvolumeCommand::GetDefault(arguments) => show::default(arguments),
        SubvolumeCommand::SetDefault(arguments) => set_default(arguments),
        SubvolumeCommand::FindNew(arguments) => find_new::run(arguments),
        SubvolumeCommand::Sync(arguments) => sync(arguments),
    }
}

fn create(arguments: &Create) -> Result<()> {
    each(&arguments.places, |word| {
        let named = open(word, &arguments.image, Opening::WRITING)?;
        let create = |volume: &dyn VolumeAt, paths: &[PathBuf]| {
            let paths = paths.iter().map(|path| volume.create(path, arguments.parents).map(|path| volume.shown(&path)));
            paths.collect::<Result<Vec<_>>>()
        };
        let (made, _) = named.change(create)?;
        for shown in &made {
            say_line(&format!("Create subvolume '{shown}'"));
        }
        Ok(())
    })
}

fn snapshot(arguments: &Snapshot) -> Result<()> {
    let kind = if arguments.read_only { "readonly snapshot" } else { "snapshot" };
    let words = [&*arguments.source, &*arguments.dest];
    let named = open_together(words, &arguments.image, Opening::WRITING)?;
    let (shown, _) = named.change(|volume, paths| {
        let made = volume.snapshot(&paths[0], &paths[1], arguments.read_only)?;
        Ok((volume.shown(&paths[0]), volume.shown(&made)))
    })?;
    say_line(&format!("Create a {kind} of '{}' in '{}'", shown.0, shown.1));
    Ok(())
}

fn delete(arguments: &Delete) -> Result<()> {
    let how = if arguments.commit_each || arguments.commit_after { "commit" } else { "no-commit" };
    if arguments.subvolid.is_some() && arguments.places.len() > 1 {
        return Err(Failure::new("with --subvolid one place says which volume it is").with_status(2));
    }
    let mut to_commit = Vec::new();
    let deleted = each(&arguments.places, |word| {
        let (shown, finished) = open(word, &arguments.image, Opening::WRITING)?.change(|volume, paths| {
            match arguments.subvolid {
                Some(id) => volume.delete_by_id(id)?,
                None => volume.delete(&paths[0])?,
            }
            Ok(volume.shown(&paths[0]))
        })?;
        if arguments.commit_each {
            finished.commit()?;
        } else if arguments.commit_after {
            to_commit.push(finished);
        }
        say_line(&format!("Delete subvolume ({how}): '{shown}'"));
        Ok(())
    });
    deleted.and(each(to_commit, Finished::commit))
}

fn set_default(arguments: &SetDefault) -> Result<()> {
    let (id, word) = match &arguments.places[..] {
        [id, place] => {
            let id = id.to_str().and_then(|id| id.parse().ok());
            (Some(id.ok_or_else(|| Failure::new("a subvolume's number comes before the place").with_status(2))?), place)
        }
        [place, ..] => (None, place),
        [] => return Err(Failure::new("a place is needed").with_status(2)),
    };
    let named = open(word, &arguments.image, Opening::WRITING)?;
    let choose = |volume: &dyn VolumeAt, paths: &[PathBuf]| {
        let id = id.map_or_else(|| volume.subvolume_at(&paths[0]), |id| Ok(TreeId(id)))?;
        volume.set_default(id)
    };
    named.change(choose).map(drop)
}

fn sync(arguments: &SyncDeleted) -> Result<()> {
    let pause = Duration::from_secs(arguments.seconds.max(1));
    let is_awaited = |id: &TreeId| arguments.ids.is_empty() || arguments.ids.contains(&id.0);
    let named = open(&arguments.place, &arguments.image, Opening::WRITING_IN_BACKGROUND)?;
    named.change_in_steps(|volume, _| {
        let waiting: Vec<_> = volume.deleted()?.into_iter().filter(is_awaited).collect();
        loop {
            let left = volume.deleted()?;
            if !left.iter().any(|id| waiting.contains(id)) {
                return Ok(());
            }
            if left.len() as u64 <= volume.undropped() {
                return Err(undropped(&left));
            }
            volume.wait_for_drops(pause)?;
        }
    })
}

/// Returns the failure about subvolumes that the mount does not drop, if only such are left.
fn undropped(left: &[TreeId]) -> Failure {
    let ids: Vec<_> = left.iter().map(TreeId::to_string).collect();
    Failure::new(format!(
        "of the deleted subvolumes {}, tree blocks can't be read: their space does not come back in this mount",
        ids.join(", ")
    ))
}
