//! Changes as text: a line for each change.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;

use ubtrfs::{ChangedAttribute, Content, FileChange, FileName, WhatChanged};
use ubtrfs_format::items::FileType;

use super::output::Output;
use crate::args::Diff;
use crate::show;

/// The most ranges that are shown of a file.
const MAX_RANGES: usize = 16;

/// Writes a line for each change.
pub struct Lines<W> {
    out: W,
    form: Form,
    /// The output is a terminal, so characters of names that could confuse it are escaped.
    is_terminal: bool,
    summary: Summary,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    All,
    NameOnly,
    Stat,
}

#[derive(Default)]
struct Summary {
    made: u64,
    removed: u64,
    renamed: u64,
    changed: u64,
    bytes: u64,
}

impl<W: Write> Lines<W> {
    pub fn new(out: W, arguments: &Diff) -> Self {
        let form = match arguments {
            Diff { name_only: true, .. } => Form::NameOnly,
            Diff { stat: true, .. } => Form::Stat,
            _ => Form::All,
        };
        Self { out, form, is_terminal: io::stdout().is_terminal(), summary: Summary::default() }
    }

    fn shown(&self, path: &[u8]) -> Vec<u8> {
        match path {
            b"" => b".".to_vec(),
            path if self.is_terminal => show::bytes(path).into_bytes(),
            path => path.to_vec(),
        }
    }

    /// Returns the path of a name, with a slash at the end if it is a directory.
    fn path(&self, change: &FileChange, name: &FileName) -> Vec<u8> {
        let mut path = self.shown(&name.path);
        if change.file_type == FileType::Directory {
            path.push(b'/');
        }
        path
    }

    fn line(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        parts.iter().try_for_each(|part| self.out.write_all(part))?;
        self.out.write_all(b"\n")
    }

    fn names(&mut self, change: &FileChange) -> io::Result<()> {
        let paths = change.names_removed.iter().chain(&change.names_added);
        let mut paths: BTreeSet<&[u8]> = paths.map(|name| &*name.path).collect();
        if !details(change).is_empty() {
            paths.extend(change.new_names.first().map(|name| &*name.path));
        }
        let subvolumes = subvolumes(change);
        paths.extend(subvolumes.iter().map(|(_, path, _)| &**path));
        paths.into_iter().try_for_each(|path| self.line(&[&self.shown(path)]))
    }

    fn stat(&mut self, change: &FileChange) -> io::Result<()> {
        let bytes = bytes(change);
        let (Some(name), true) = (change.new_names.first().or(change.old_names.first()), bytes > 0) else {
            return Ok(());
        };
        let letter = match change.what {
            WhatChanged::Made => "A",
            WhatChanged::Removed => "D",
            WhatChanged::Changed => "M",
        };
        let path = self.path(change, name);
        self.line(&[format!("{letter} {bytes:>15} ").as_bytes(), &path])
    }

    fn all(&mut self, change: &FileChange) -> io::Result<()> {
        let is_there = change.what == WhatChanged::Changed;
        let pairs = if is_there { change.names_removed.len().min(change.names_added.len()) } else { 0 };
        for (old, new) in change.names_removed.iter().zip(&change.names_added).take(pairs) {
            self.line(&[b"R ", &self.path(change, old), b" -> ", &self.path(change, new)])?;
        }
        for name in change.names_removed.iter().skip(pairs) {
            self.line(&[b"D ", &self.path(change, name)])?;
        }
        // Added names are further names of a file that exists under another one.
        let first = if is_there {
            change.new_names.iter().find(|name| !change.names_added.contains(name))
        } else {
            change.names_added.first()
        };
        for name in change.names_added.iter().skip(pairs) {
            match first.filter(|first| *first != name) {
                Some(first) => self.line(&[b"A ", &self.path(change, name), b" = ", &self.path(change, first)])?,
                None => self.line(&[b"A ", &self.path(change, name)])?,
            }
        }
        let details = details(change);
        if !details.is_empty()
            && let Some(name) = change.new_names.first()
        {
            self.line(&[b"M ", &self.path(change, name), b": ", details.join(", ").as_bytes()])?;
        }
        for (letter, path, what) in subvolumes(change) {
            self.line(&[letter.as_bytes(), b" ", &self.shown(&path), b"/: ", what.as_bytes()])?;
        }
        Ok(())
    }
}

impl<W: Write> Output for Lines<W> {
    fn change(&mut self, change: &FileChange) -> io::Result<()> {
        let summary = &mut self.summary;
        match change.what {
            WhatChanged::Made => summary.made += 1,
            WhatChanged::Removed => summary.removed += 1,
            WhatChanged::Changed => {
                summary.renamed += u64::from(!change.names_added.is_empty() || !change.names_removed.is_empty());
                summary.changed += u64::from(!details(change).is_empty());
            }
        }
        summary.bytes = summary.bytes.saturating_add(bytes(change));
        match self.form {
            Form::All => self.all(change),
            Form::NameOnly => self.names(change),
            Form::Stat => self.stat(change),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.form == Form::Stat {
            let Summary { made, removed, renamed, changed, bytes } = self.summary;
            let summary = format!(
                "{made} made, {removed} removed, {renamed} with other names, {changed} changed; {bytes} bytes of content"
            );
            self.line(&[summary.as_bytes()])?;
        }
        self.out.flush()
    }
}

/// Returns how many bytes of content changed.
fn bytes(change: &FileChange) -> u64 {
    let size = change.new.or(change.old).map_or(0, |item| item.size);
    match change.what {
        _ if change.file_type != FileType::Regular => 0,
        WhatChanged::Made | WhatChanged::Removed => size,
        WhatChanged::Changed => {
            let ranges = change.content.iter().map(|changed| changed.range.end - changed.range.start);
            ranges.fold(0, u64::saturating_add)
        }
    }
}

/// Describes what changed in an inode that exists on both sides, besides its names.
fn details(change: &FileChange) -> Vec<String> {
    if change.what != WhatChanged::Changed {
        return Vec::new();
    }
    let mut details = ranges(change);
    let is_directory = change.file_type == FileType::Directory;
    for attribute in &change.attributes {
        let (Some(old), Some(new)) = (&change.old, &change.new) else { break };
        details.push(match attribute {
            ChangedAttribute::Mode => format!("mode {:04o} -> {:04o}", old.mode & 0o7777, new.mode & 0o7777),
            ChangedAttribute::Owner => format!("owner {}:{} -> {}:{}", old.uid, old.gid, new.uid, new.gid),
            ChangedAttribute::Size if !is_directory => format!("size {} -> {}", old.size, new.size),
            ChangedAttribute::Device => format!("device {:#x} -> {:#x}", old.rdev, new.rdev),
            ChangedAttribute::Flags => format!("flags {:#x} -> {:#x}", old.flags, new.flags),
            ChangedAttribute::ModificationTime if !is_directory => "mtime".to_owned(),
            ChangedAttribute::CreationTime => "btime".to_owned(),
            _ => continue,
        });
    }
    for xattr in &change.xattrs {
        let sign = match (&xattr.old, &xattr.new) {
            (None, _) if change.old.is_some() => "+",
            (_, None) => "-",
            _ => "",
        };
        details.push(format!("xattr {sign}{}", show::bytes(&xattr.name)));
    }
    let is_known = change.old.is_some();
    if !is_known && details.is_empty() && change.names_added.is_empty() && change.subvolumes.is_empty() {
        details.push("attributes".to_owned());
    }
    details
}

/// Describes the ranges that changed, by what they hold now.
fn ranges(change: &FileChange) -> Vec<String> {
    let mut ranges: Vec<(Content, Range<u64>)> = Vec::new();
    for changed in &change.content {
        match ranges.last_mut() {
            Some((content, range)) if *content == changed.new && range.end == changed.range.start => {
                range.end = changed.range.end;
            }
            _ => ranges.push((changed.new, changed.range.clone())),
        }
    }
    let mut shown: Vec<String> = Vec::new();
    for (content, range) in ranges.iter().take(MAX_RANGES) {
        let content = match content {
            Content::Data => "data",
            Content::Prealloc => "reserved",
            Content::Hole => "hole",
        };
        shown.push(format!("{content} {}-{}", range.start, range.end.saturating_sub(1)));
    }
    if ranges.len() > MAX_RANGES {
        shown.push(format!("{} more ranges", ranges.len() - MAX_RANGES));
    }
    shown
}

/// Returns the changed entries of subvolumes: a letter, the path, and the subvolume.
fn subvolumes(change: &FileChange) -> Vec<(&'static str, Vec<u8>, String)> {
    let Some(dir) = change.new_names.first() else { return Vec::new() };
    let separator: &[u8] = if dir.path.is_empty() { b"" } else { b"/" };
    let entries = change.subvolumes.iter().flat_map(|entry| [("D", entry.old, entry), ("A", entry.new, entry)]);
    let entries = entries.filter_map(|(letter, id, entry)| {
        Some((letter, [&dir.path, separator, &entry.name].concat(), format!("subvolume {}", id?)))
    });
    entries.collect()
}
