//! `ubtrfs subvolume list`.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Value, json};
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{TreeId, Uuid};

use crate::args::subvolume::{List, SortKey, SortedBy};
use crate::failure::Result;
use crate::json::{self, as_json};
use crate::output::say;
use crate::place::Opening;
use crate::show;
use crate::volume_at::table::{Listed, subvolumes};
use crate::volume_at::{Named, open};

const TOP_LEVEL: &str = "top level";

/// `ubtrfs subvolume list`
pub fn run(arguments: &List) -> Result<()> {
    let Named { volume, paths } = open(&arguments.place, &arguments.image, Opening::READING)?;
    volume.settle()?;
    let within = if arguments.below { Some(volume.subvolume_of(&paths[0])?) } else { None };
    let all = subvolumes(&*volume)?;
    let mut shown: Vec<&Listed> = all.values().filter(|listed| is_wanted(arguments, within, listed)).collect();
    shown.sort_by(|one, other| compare(&arguments.sort, one, other));
    let text = if arguments.json {
        as_json(&shown.iter().map(|listed| described(listed)).collect::<Vec<_>>())?
    } else if arguments.table {
        table(arguments, &shown)
    } else {
        lines(arguments, &shown)
    };
    say(&text);
    Ok(())
}

fn is_wanted(arguments: &List, within: Option<TreeId>, listed: &Listed) -> bool {
    let bounds = [(arguments.with_generation, listed.item.generation.0), (arguments.with_creation, listed.creation())];
    listed.id != TreeId::FS
        && listed.is_deleted() == arguments.deleted
        && (!arguments.snapshots || listed.is_snapshot())
        && (!arguments.read_only || listed.is_read_only())
        && within.is_none_or(|within| listed.parent() == Some(within))
        && bounds.iter().all(|(bound, number)| bound.is_none_or(|bound| bound.admits(*number)))
}

fn compare(keys: &[SortKey], one: &Listed, other: &Listed) -> Ordering {
    let by = |key: &SortKey| {
        let order = match key.by {
            SortedBy::Id => one.id.cmp(&other.id),
            SortedBy::Generation => one.item.generation.cmp(&other.item.generation),
            SortedBy::Creation => one.creation().cmp(&other.creation()),
            SortedBy::Path => one.path.cmp(&other.path),
        };
        if key.descending { order.reverse() } else { order }
    };
    keys.iter().map(by).find(|order| order.is_ne()).unwrap_or_else(|| one.id.cmp(&other.id))
}

/// Returns the columns: their names and their values.
fn columns(arguments: &List, listed: &Listed) -> Vec<(&'static str, String)> {
    let item = &listed.item;
    let parent = || listed.parent().unwrap_or(TreeId(0)).to_string();
    let mut columns = vec![("ID", listed.id.to_string()), ("gen", item.generation.to_string())];
    if arguments.creation || arguments.snapshots {
        columns.push(("cgen", listed.creation().to_string()));
    }
    if arguments.parent {
        columns.push(("parent", parent()));
    }
    columns.push((TOP_LEVEL, parent()));
    if arguments.snapshots {
        columns.push(("otime", seconds(item.times[1])));
    }
    let ids = [
        (arguments.parent_uuid, "parent_uuid", item.parent_uuid),
        (arguments.received_uuid, "received_uuid", item.received_uuid),
        (arguments.uuid, "uuid", item.uuid),
    ];
    let asked = ids.into_iter().filter(|(is_asked, ..)| *is_asked);
    columns.extend(asked.map(|(_, name, id)| (name, format!("{:<36}", uuid(id)))));
    columns.push(("path", path(listed)));
    columns
}

fn lines(arguments: &List, shown: &[&Listed]) -> String {
    let mut text = String::new();
    for listed in shown {
        let columns = columns(arguments, listed);
        let columns: Vec<_> = columns.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "{}", columns.join(" "));
    }
    text
}

/// Returns a table as btrfs(8) prints it: with a tab after each heading, and one more after the
/// widest value.
fn table(arguments: &List, shown: &[&Listed]) -> String {
    let rows: Vec<_> = shown.iter().map(|listed| columns(arguments, listed)).collect();
    let Some(first) = rows.first() else { return String::new() };
    let headings: String = first.iter().flat_map(|(name, _)| [name, "\t"]).collect();
    let rules: String = headings.chars().map(|letter| if letter == '\t' { letter } else { '-' }).collect();
    let mut text = format!("{headings}\n{rules}\n");
    for row in &rows {
        let values =
            row.iter().map(|(name, value)| if *name == TOP_LEVEL { value.clone() + "\t" } else { value.clone() });
        let _ = writeln!(text, "{}", values.collect::<Vec<_>>().join("\t"));
    }
    text
}

/// Returns the path of a subvolume, for people.
pub fn path(listed: &Listed) -> String {
    match &listed.path {
        Some(path) => show::bytes(path),
        None if listed.is_deleted() => "DELETED".into(),
        None => "?".into(),
    }
}

/// Returns an id, or a dash if there is none.
pub fn uuid(uuid: Uuid) -> String {
    if uuid == Uuid::NIL { "-".into() } else { uuid.to_string() }
}

/// Returns a time without fractions of the second.
fn seconds(time: Timespec) -> String {
    show::time(time).chars().take(19).collect()
}

/// Describes a subvolume, for programs.
pub fn described(listed: &Listed) -> Value {
    let id = |uuid: Uuid| (uuid != Uuid::NIL).then(|| uuid.to_string());
    json!({
        "id": listed.id.0,
        "path": listed.path.as_deref().map(json::name),
        "parent_id": listed.parent().map(|parent| parent.0),
        "generation": listed.item.generation.0,
        "creation_generation": listed.creation(),
        "creation_time": (listed.item.times[1].sec > 0).then(|| json::time(listed.item.times[1])),
        "uuid": id(listed.item.uuid),
        "parent_uuid": id(listed.item.parent_uuid),
        "received_uuid": id(listed.item.received_uuid),
        "read_only": listed.is_read_only(),
        "deleted": listed.is_deleted(),
        "bytes_used": listed.item.bytes_used,
    })
}

/// Returns a time with its zone, or a dash if there is none.
pub fn zoned(time: Timespec) -> String {
    if time.sec == 0 { "-".into() } else { format!("{} +0000", seconds(time)) }
}
