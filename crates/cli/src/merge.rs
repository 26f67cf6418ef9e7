//! `ubtrfs merge`: applies the changes from one subvolume to another to a third one.

use std::io::{self, IsTerminal, Write};

use rustix::io::Errno;
use serde_json::{Value, json};
use ubtrfs::{MergeSides, Prefer};
use ubtrfs_server::merge_records::MergeRecord;

use crate::args;
use crate::failure::{Failure, Result, TROUBLE};
use crate::json::{Array, name};
use crate::output::Output;
use crate::place::Opening;
use crate::show;
use crate::volume_at::{WantedMerge, open_together};

/// The exit status if there are conflicts.
const CONFLICTS: u8 = 1;

/// `ubtrfs merge`
pub fn run(arguments: &args::Merge) -> Result<()> {
    let merged = merge(arguments).map_err(|failure| failure.with_status(TROUBLE))?;
    show(arguments, &merged).map_err(|error| Failure::output(&error).with_status(TROUBLE))?;
    let has_conflicts = merged.iter().any(|record| matches!(record, MergeRecord::Conflict { .. }));
    if has_conflicts && prefer(arguments) == Prefer::Neither { Err(Failure::Said(CONFLICTS)) } else { Ok(()) }
}

fn prefer(arguments: &args::Merge) -> Prefer {
    match arguments {
        args::Merge { ours: true, .. } => Prefer::Ours,
        args::Merge { theirs: true, .. } => Prefer::Theirs,
        _ => Prefer::Neither,
    }
}

fn merge(arguments: &args::Merge) -> Result<Vec<MergeRecord>> {
    let words = [&arguments.base, &arguments.changed, &arguments.target];
    let opening = if arguments.dry_run { Opening::READING } else { Opening::WRITING };
    let named = open_together(words.into_iter().map(AsRef::as_ref), &arguments.image, opening)?;
    let (merged, _) = named.change(|volume, paths| {
        let ids = volume.subvolumes_at(paths)?;
        let ([base, changed, target], [_, _, at]) = (&*ids, paths) else {
            return Err(Failure::new("three subvolumes are needed"));
        };
        volume.merge(&WantedMerge {
            sides: MergeSides { base: *base, changed: *changed, target: *target },
            target: at,
            prefer: prefer(arguments),
            dry_run: arguments.dry_run,
            explained: &|errno| explained(arguments, errno),
        })
    })?;
    Ok(merged)
}

/// Describes an error of a merge.
fn explained(arguments: &args::Merge, errno: Errno) -> Option<String> {
    let [base, changed, target] = [&arguments.base, &arguments.changed, &arguments.target].map(|word| word.display());
    let why = match errno {
        Errno::INVAL => {
            return Some(format!(
                "BASE ({base}), CHANGED ({changed}) and TARGET ({target}) are not snapshots of one subvolume: 'ubtrfs \
                 subvolume show' has what each is a snapshot of, and the order is 'ubtrfs merge BASE CHANGED TARGET'"
            ));
        }
        Errno::ROFS => {
            return Some(format!(
                "TARGET ({target}), or the mount through which it is named, is read-only; a read-only snapshot of what \
                 both were is BASE: 'ubtrfs merge BASE CHANGED TARGET'"
            ));
        }
        Errno::INTR => "the command was stopped for too long: nothing was merged",
        Errno::TIMEDOUT => "the command was stopped for too long to show what was merged",
        Errno::TOOBIG => "there are more changes than fit into memory: a million, or a quarter of a gigabyte of names",
        Errno::NAMETOOLONG => "a path is too long: its directories take more than 4 megabytes of memory",
        Errno::NOTEMPTY => "a subvolume in TARGET is where CHANGED has removed a directory or made a file",
        Errno::BUSY => "CHANGED or TARGET is being changed, or a thousand comparisons and merges wait for their turn",
        _ => return None,
    };
    Some(why.into())
}

fn show(arguments: &args::Merge, merged: &[MergeRecord]) -> io::Result<()> {
    let is_terminal = io::stdout().is_terminal();
    let mut out = io::BufWriter::new(Output::new());
    if arguments.json {
        let mut array = Array::new(&mut out);
        merged.iter().try_for_each(|record| array.push(&described(record)))?;
        array.finish()?;
    } else {
        let path = |path: &[u8]| match path {
            b"" => b".".to_vec(),
            path if is_terminal => show::bytes(path).into_bytes(),
            path => path.to_vec(),
        };
        for record in merged {
            let line = match record {
                MergeRecord::Conflict { path: at, what } => {
                    [b"C ".as_slice(), &*path(at), b": ", what.as_bytes()].concat()
                }
                MergeRecord::Add { path: at } => [b"A ".as_slice(), &*path(at)].concat(),
                MergeRecord::Remove { path: at } => [b"D ".as_slice(), &*path(at)].concat(),
                MergeRecord::Rename { from, to } => [b"R ".as_slice(), &*path(from), b" -> ", &*path(to)].concat(),
                MergeRecord::Change { path: at, what } => {
                    [b"M ".as_slice(), &*path(at), b": ", what.join(", ").as_bytes()].concat()
                }
            };
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

fn described(record: &MergeRecord) -> Value {
    match record {
        MergeRecord::Conflict { path, what } => json!({ "kind": "conflict", "path": name(path), "what": what }),
        MergeRecord::Add { path } => json!({ "kind": "added", "path": name(path) }),
        MergeRecord::Remove { path } => json!({ "kind": "removed", "path": name(path) }),
        MergeRecord::Rename { from, to } => json!({ "kind": "renamed", "old_path": name(from), "path": name(to) }),
        MergeRecord::Change { path, what } => json!({ "kind": "changed", "path": name(path), "what": what }),
    }
}
