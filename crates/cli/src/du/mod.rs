//! `ubtrfs filesystem du`: the space that files use, and how much of it they share. Numbers are
//! those of btrfs-progs, which ask FIEMAP; on mounts of ours an ioctl tells the same, and in images
//! the engine does.

mod output;
mod ranges;
mod source;
mod used;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ubtrfs_image::{Error, add_name};

use crate::args::filesystem::Du;
use crate::failure::{Failure, Result, each};
use crate::place::{Image, Place};
use output::{Format, Output};
use ranges::Ranges;
use source::{AtInode, InImage, Kind, OnMount, Source};
use used::Used;

/// `ubtrfs filesystem du`
pub fn run(arguments: &Du) -> Result<()> {
    let format = if arguments.json { Format::Json { is_empty: true } } else { Format::Table(arguments.units.unit()) };
    let mut output = Output::new(format)?;
    let mut opened: Option<(PathBuf, Image)> = None;
    let done = each(&arguments.places, |word| {
        let walk = Walk { output: &mut output, summarize: arguments.summarize, failed: None };
        let name = word.as_bytes();
        match Place::parse(word) {
            Place::Mounted(path) => {
                let (mut source, top) = OnMount::open(&path)?;
                walk.all(&mut source, name, top)
            }
            Place::Image { image, path } => {
                let image = in_image(&mut opened, &image, arguments)?;
                walk.all(&mut InImage(image), name, AtInode::find(image, &path)?)
            }
        }
    });
    output.finish().and(done)
}

/// The image, which the place before may be in, too.
fn in_image<'a>(opened: &'a mut Option<(PathBuf, Image)>, path: &Path, arguments: &Du) -> Result<&'a Image> {
    let image = match opened.take() {
        Some((before, image)) if before == path => image,
        // The one before lets its devices go.
        _ => Image::open(path, &arguments.image, false, false)?,
    };
    Ok(&opened.insert((path.to_owned(), image)).1)
}

/// A walk through what one argument names.
struct Walk<'a> {
    output: &'a mut Output,
    summarize: bool,
    /// What failed last; what failed before was reported.
    failed: Option<Failure>,
}

/// A directory whose entries are being looked at.
struct Frame<N> {
    /// Where its path ends in that of what is looked at.
    end: usize,
    left: std::vec::IntoIter<(Vec<u8>, N)>,
    used: Used,
}

impl Walk<'_> {
    fn all<S: Source>(mut self, source: &mut S, name: &[u8], mut top: S::Node) -> Result<()> {
        match source.kind(&mut top)? {
            Kind::Directory { inode } => self.directory(source, name, (&top, inode))?,
            Kind::File { .. } => {
                let mut used = file(source, &top, None)?;
                // Of one file btrfs-progs show what it shares as often as it has it.
                used.set_shared = Some(used.shared);
                self.output.row(name, &used)?;
            }
            Kind::Other => {}
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Shows everything below a directory, and then itself.
    fn directory<S: Source>(&mut self, source: &mut S, name: &[u8], top: (&S::Node, Option<(u64, u64)>)) -> Result<()> {
        let (top, inode) = top;
        let mut set = Ranges::new();
        let mut seen: HashSet<(u64, u64)> = inode.into_iter().collect();
        let frame = |end, entries: Vec<_>| Frame { end, left: entries.into_iter(), used: Used::default() };
        let mut path = name.to_vec();
        let mut frames = vec![frame(path.len(), source.entries(top)?)];
        while let Some(dir) = frames.last_mut() {
            path.truncate(dir.end);
            if let Some((name, mut node)) = dir.left.next() {
                add_name(&mut path, &name);
                match source.kind(&mut node) {
                    Ok(Kind::Directory { inode: Some(inode) }) if !seen.insert(inode) => {
                        let path = Path::new(OsStr::from_bytes(&path));
                        self.complain(Failure::of(&Error::has_another_path(path)));
                    }
                    Ok(Kind::Directory { .. }) => match source.entries(&node) {
                        Ok(entries) => frames.push(frame(path.len(), entries)),
                        Err(failure) => self.complain(failure),
                    },
                    Ok(Kind::File { inode }) if inode.is_none_or(|inode| seen.insert(inode)) => {
                        match file(source, &node, Some(&mut set)) {
                            Ok(used) => {
                                dir.used.add(&used);
                                self.row_below(&path, &used)?;
                            }
                            Err(failure) => self.complain(failure),
                        }
                    }
                    Ok(Kind::File { .. } | Kind::Other) => {}
                    Err(failure) => self.complain(failure),
                }
                continue;
            }
            let Some(done) = frames.pop() else { break };
            if let Some(above) = frames.last_mut() {
                above.used.add(&done.used);
                self.row_below(&path, &done.used)?;
            } else {
                self.output.row(name, &Used { set_shared: Some(set.bytes()), ..done.used })?;
            }
        }
        Ok(())
    }

    fn row_below(&mut self, path: &[u8], used: &Used) -> Result<()> {
        if self.summarize { Ok(()) } else { self.output.row(path, used) }
    }

    fn complain(&mut self, failure: Failure) {
        if let Some(before) = self.failed.replace(failure) {
            let _ = before.report();
        }
    }
}

/// What a regular file uses; what it shares comes into `set`. What is in the metadata does not
/// count.
fn file<S: Source>(source: &mut S, node: &S::Node, mut set: Option<&mut Ranges>) -> Result<Used> {
    let mut used = Used::default();
    source.extents(node, &mut |extent| {
        let Some(address) = extent.address else { return };
        used.total = used.total.saturating_add(extent.len);
        if extent.is_shared {
            used.shared = used.shared.saturating_add(extent.len);
            if let Some(set) = &mut set {
                set.add(address.0, extent.len);
            }
        }
    })?;
    Ok(used)
}
