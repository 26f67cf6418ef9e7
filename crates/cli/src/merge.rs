//! `ubtrfs merge`: takes what changed from one subvolume to another into a third.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use rustix::io::Errno;
use serde_json::{Value, json};
use ubtrfs::{MergeSides, Prefer};
use ubtrfs_format::TreeId;
use ubtrfs_server::merge_ioctl::Merge;
use ubtrfs_server::merge_records::{MergeRecord, records};

use crate::args;
use crate::control;
use crate::failure::{Failure, Result, TROUBLE};
use crate::ioctls::Mounted;
use crate::place::Image;
use crate::show::{self, text};
use crate::stream;
use crate::together::Together;

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
    let (prefer, dry_run) = (prefer(arguments), arguments.dry_run);
    let sides = |ids: &[TreeId]| match *ids {
        [base, changed, target] => Ok(MergeSides { base, changed, target }),
        _ => Err(Failure::new("three subvolumes are needed")),
    };
    match Together::find(words.into_iter().map(AsRef::as_ref))? {
        Together::Mounted(path, ids) => {
            let MergeSides { base, changed, .. } = sides(&ids)?;
            // Through the mount of the one that changes.
            let target = Path::new(&arguments.target);
            let number = Mounted::open(target)?.merge(&Merge { base, changed, prefer, dry_run });
            let answer = number.and_then(|number| stream::whole(&path, number));
            let answer = answer.map_err(|errno| about_merge(arguments, target, errno))?;
            serde_json::from_slice(&answer).map_err(|_| about_merge(arguments, &path, Errno::PROTO))
        }
        Together::Image(image, paths) => {
            let opened = Image::open(&image, &arguments.image, !dry_run, false)?;
            let ids = paths.iter().map(|path| opened.subvolume(path)).collect::<Result<Vec<_>>>()?;
            let merged = ubtrfs::merge(&opened.fs, sides(&ids)?, prefer, dry_run, &mut |_| ());
            let merged = merged.map_err(|error| match explained(arguments, error.errno()) {
                Some(why) => Failure::new(format!("{}: {why}", image.display())),
                None => opened.failed(&error),
            })?;
            opened.close()?;
            Ok(records(&merged))
        }
    }
}

/// What an error says of a merge.
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

/// Why a mount's server doesn't merge.
fn about_merge(arguments: &args::Merge, path: &Path, errno: Errno) -> Failure {
    let shown = path.display();
    match (errno, explained(arguments, errno)) {
        (Errno::PERM, _) => {
            let who = "only root, or the user who has mounted it, may merge its subvolumes";
            Failure::new(format!("{shown}: {who}; and nothing that changes may have chattr's flags i or a in TARGET"))
        }
        (_, Some(why)) => Failure::new(format!("{shown}: {why}")),
        _ => control::failure(path, errno),
    }
}

fn show(arguments: &args::Merge, merged: &[MergeRecord]) -> io::Result<()> {
    let is_terminal = io::stdout().is_terminal();
    let mut out = io::BufWriter::new(io::stdout().lock());
    if arguments.json {
        let all: Vec<Value> = merged.iter().map(described).collect();
        serde_json::to_writer_pretty(&mut out, &all)?;
        writeln!(out)?;
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
        MergeRecord::Conflict { path, what } => json!({ "kind": "conflict", "path": text(path), "what": what }),
        MergeRecord::Add { path } => json!({ "kind": "added", "path": text(path) }),
        MergeRecord::Remove { path } => json!({ "kind": "removed", "path": text(path) }),
        MergeRecord::Rename { from, to } => json!({ "kind": "renamed", "old_path": text(from), "path": text(to) }),
        MergeRecord::Change { path, what } => json!({ "kind": "changed", "path": text(path), "what": what }),
    }
}
