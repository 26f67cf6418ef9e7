//! `ubtrfs subvolume show` and `get-default`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;
use ubtrfs_format::{TreeId, Uuid};

use super::list::{described, path, uuid, zoned};
use crate::args::subvolume::{GetDefault, Show};
use crate::failure::{Failure, Result};
use crate::json::as_json;
use crate::output::say;
use crate::place::Opening;
use crate::show;
use crate::volume_at::table::{Listed, default_subvolume, subvolumes};
use crate::volume_at::{Named, open};

/// The column at which values begin, in characters after the first tab.
const COLUMN: usize = 24;

/// `ubtrfs subvolume show`
pub fn run(arguments: &Show) -> Result<()> {
    let by_number = arguments.rootid.is_some() || arguments.uuid.is_some();
    let Named { volume, paths } = open(&arguments.place, &arguments.image, Opening::READING)?;
    volume.settle()?;
    let id = if by_number { None } else { Some(volume.subvolume_at(&paths[0])?) };
    let all = subvolumes(&*volume)?;
    let is_asked = |listed: &&Listed| match (&arguments.uuid, arguments.rootid) {
        (Some(uuid), _) => listed.item.uuid.to_string() == uuid.to_ascii_lowercase(),
        (None, number) => Some(listed.id) == number.map(TreeId).or(id),
    };
    let listed = all.values().find(is_asked);
    let listed = listed.ok_or_else(|| Failure::new("there is no such subvolume"))?;
    let text = if arguments.json {
        let mut value = described(listed);
        let snapshots: Vec<_> = snapshots(&all, listed).map(|snapshot| snapshot.id.0).collect();
        value["snapshots"] = json!(snapshots);
        as_json(&value)?
    } else {
        text(&all, listed)
    };
    say(&text);
    Ok(())
}

fn snapshots<'a>(all: &'a BTreeMap<TreeId, Listed>, of: &Listed) -> impl Iterator<Item = &'a Listed> {
    let uuid = of.item.uuid;
    all.values().filter(move |listed| uuid != Uuid::NIL && listed.item.parent_uuid == uuid && !listed.is_deleted())
}

fn text(all: &BTreeMap<TreeId, Listed>, listed: &Listed) -> String {
    let is_top = listed.id == TreeId::FS;
    let whole = path(listed);
    let name = listed.path.as_deref().and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    let name = if is_top { "<FS_TREE>".into() } else { name.map_or_else(|| whole.clone(), show::bytes) };
    let parent = listed.parent().unwrap_or(TreeId(0)).to_string();
    let (transids, times) = (listed.item.transids, listed.item.times);
    let mut text = format!("{}\n", if is_top { "/" } else { &whole });
    let mut line = |heading: &str, value: &str| {
        let tabs = "\t".repeat((COLUMN - heading.len() - 1).div_ceil(8));
        let _ = writeln!(text, "\t{heading} {tabs}{value}");
    };
    line("Name:", &name);
    line("UUID:", &uuid(listed.item.uuid));
    line("Parent UUID:", &uuid(listed.item.parent_uuid));
    line("Received UUID:", &uuid(listed.item.received_uuid));
    line("Creation time:", &zoned(times[1]));
    line("Subvolume ID:", &listed.id.to_string());
    line("Generation:", &listed.item.generation.to_string());
    line("Gen at creation:", &listed.creation().to_string());
    line("Parent ID:", &parent);
    line("Top level ID:", &parent);
    line("Flags:", if listed.is_read_only() { "readonly" } else { "-" });
    line("Send transid:", &transids[2].to_string());
    line("Send time:", &zoned(times[2]));
    line("Receive transid:", &transids[3].to_string());
    line("Receive time:", &zoned(times[3]));
    text.push_str("\tSnapshot(s):\n");
    for snapshot in snapshots(all, listed) {
        let _ = writeln!(text, "\t\t\t\t{}", path(snapshot));
    }
    text
}

/// `ubtrfs subvolume get-default`
pub fn default(arguments: &GetDefault) -> Result<()> {
    let Named { volume, .. } = open(&arguments.place, &arguments.image, Opening::READING)?;
    volume.settle()?;
    let id = default_subvolume(&*volume)?;
    let all = subvolumes(&*volume)?;
    if arguments.json {
        let listed = all.get(&id).ok_or_else(|| Failure::new(format!("the default subvolume {id} is not there")))?;
        say(&as_json(&described(listed))?);
        return Ok(());
    }
    let line = match all.get(&id).filter(|_| id != TreeId::FS) {
        None => format!("ID {id} (FS_TREE)\n"),
        Some(listed) => {
            let parent = listed.parent().unwrap_or(TreeId(0));
            format!("ID {id} gen {} top level {parent} path {}\n", listed.item.generation, path(listed))
        }
    };
    say(&line);
    Ok(())
}
