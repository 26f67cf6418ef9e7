//! `ubtrfs filesystem du`: shows the space that files use, and how much of it they share. The
//! numbers are those of btrfs-progs, which use FIEMAP; on mounts of ubtrfs an ioctl returns them,
//! and in images the engine does.

mod output;
mod ranges;
mod used;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ubtrfs_image::{Error, add_name};

use crate::args::filesystem::Du;
use crate::failure::{Failure, Result, each};
use crate::output::is_lost;
use crate::place::Opening;
use crate::volume_at::{BoxedNode, Kind, Node, open_file};
use output::{Format, Output};
use ranges::Ranges;
use used::Used;

/// `ubtrfs filesystem du`
pub fn run(arguments: &Du) -> Result<()> {
    let format = if arguments.json { Format::Json { is_empty: true } } else { Format::Table(arguments.units.unit()) };
    let mut output = Output::new(format);
    let done = each(&arguments.places, |word| {
        let named = open_file(word, &arguments.image, Opening::READING)?;
        let path = named.path();
        named.volume.write_all(path)?;
        let walk = Walk { output: &mut output, summarize: arguments.summarize, failed: None };
        walk.all(word.as_bytes(), named.volume.node(path)?)
    });
    output.finish();
    done
}

/// A walk through the file or directory of one argument.
struct Walk<'a> {
    output: &'a mut Output,
    summarize: bool,
    /// The last failure; earlier ones were reported.
    failed: Option<Failure>,
}

/// A directory whose entries are being visited.
struct Frame<'a> {
    /// The length of its path within the path of the entry that is visited now.
    end: usize,
    left: std::vec::IntoIter<(Vec<u8>, BoxedNode<'a>)>,
    used: Used,
}

impl Walk<'_> {
    fn all(mut self, name: &[u8], mut top: BoxedNode<'_>) -> Result<()> {
        match top.kind()? {
            Kind::Directory { inode, .. } => self.directory(name, &*top, inode)?,
            Kind::File { .. } => {
                let mut used = file(&*top, None)?;
                // For a single file btrfs-progs count a shared extent as often as the file refers
                // to it.
                used.set_shared = Some(used.shared);
                self.output.row(name, &used);
            }
            Kind::Other => {}
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Prints the usage of everything below a directory, and then its own.
    fn directory<'a>(&mut self, name: &[u8], top: &(dyn Node<'a> + 'a), inode: Option<(u64, u64)>) -> Result<()> {
        let mut set = Ranges::new();
        let mut seen: HashSet<(u64, u64)> = inode.into_iter().collect();
        let frame = |end, entries: Vec<_>| Frame { end, left: entries.into_iter(), used: Used::default() };
        let mut path = name.to_vec();
        let mut frames = vec![frame(path.len(), top.entries()?)];
        while let Some(dir) = frames.last_mut() {
            if is_lost() {
                break;
            }
            path.truncate(dir.end);
            if let Some((name, mut node)) = dir.left.next() {
                add_name(&mut path, &name);
                match node.kind() {
                    Ok(Kind::Directory { inode: Some(inode), .. }) if !seen.insert(inode) => {
                        let path = Path::new(OsStr::from_bytes(&path));
                        self.complain(Failure::of(&Error::has_another_path(path)));
                    }
                    Ok(Kind::Directory { .. }) => match node.entries() {
                        Ok(entries) => frames.push(frame(path.len(), entries)),
                        Err(failure) => self.complain(failure),
                    },
                    Ok(Kind::File { inode }) if inode.is_none_or(|inode| seen.insert(inode)) => {
                        match file(&*node, Some(&mut set)) {
                            Ok(used) => {
                                dir.used.add(&used);
                                self.row_below(&path, &used);
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
                self.row_below(&path, &done.used);
            } else {
                self.output.row(name, &Used { set_shared: Some(set.bytes()), ..done.used });
            }
        }
        Ok(())
    }

    fn row_below(&mut self, path: &[u8], used: &Used) {
        if !self.summarize {
            self.output.row(path, used);
        }
    }

    fn complain(&mut self, failure: Failure) {
        if let Some(before) = self.failed.replace(failure) {
            let _ = before.report();
        }
    }
}

/// Returns the usage of a regular file, and adds its shared extents to `set`. Inline data does not
/// count.
fn file<'a>(node: &(dyn Node<'a> + 'a), mut set: Option<&mut Ranges>) -> Result<Used> {
    let mut used = Used::default();
    node.extents(&mut |extent| {
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
