//! `ubtrfs filesystem defragment`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ubtrfs::{Defragmentation, Recompression};
use ubtrfs_image::{Error, add_name};

use crate::args::filesystem::Defragment;
use crate::failure::{Failure, Result, each};
use crate::output::say_line;
use crate::place::Opening;
use crate::volume_at::{BoxedNode, Kind, Node, VolumeAt, open_file};

/// `ubtrfs filesystem defragment`
pub fn run(arguments: &Defragment) -> Result<()> {
    each(&arguments.places, |word| {
        let named = open_file(word, &arguments.image, Opening::WRITING)?;
        named.change_in_steps(|volume, paths| paths.iter().try_for_each(|path| one(arguments, volume, path)))
    })
}

/// Returns how each file is defragmented, from its start.
fn how(arguments: &Defragment) -> Defragmentation {
    let compression = match arguments.compress {
        Some(algorithm) => Recompression::With { algorithm, level: arguments.level.map(i32::from) },
        None if arguments.nocomp => Recompression::Remove,
        None => Recompression::Keep,
    };
    let end = arguments.start.saturating_add(arguments.length.unwrap_or(u64::MAX));
    Defragmentation {
        range: arguments.start..end,
        extent_threshold: arguments.threshold.max(1),
        compression,
        unshare: arguments.unshare,
    }
}

/// Defragments the file or directory at a path.
fn one(arguments: &Defragment, volume: &dyn VolumeAt, path: &Path) -> Result<()> {
    let how = how(arguments);
    let name = path.as_os_str().as_bytes();
    let mut top = volume.node(path)?;
    match top.kind()? {
        Kind::Directory { .. } if !arguments.recursive => {
            Err(Failure::new(format!("{} is a directory: -r defragments the files in it", path.display())))
        }
        Kind::Directory { inode, .. } => all_below(arguments, &how, (&*top, inode), name),
        Kind::File { .. } => file(arguments, &how, &*top, name),
        Kind::Other => Err(Failure::new(format!("{} is neither a regular file nor a directory", path.display()))),
    }
}

/// A directory whose entries are being visited.
struct Frame<'a> {
    /// The length of its path within the path of the entry that is visited now.
    end: usize,
    left: std::vec::IntoIter<(Vec<u8>, BoxedNode<'a>)>,
}

/// Defragments the regular files below a directory that are in its subvolume. If one fails, the
/// others are defragmented all the same. A directory with a second path, which only damaged volumes
/// have, is passed over, since it may contain itself.
fn all_below<'a>(
    arguments: &Defragment,
    how: &Defragmentation,
    (top, inode): (&(dyn Node<'a> + 'a), Option<(u64, u64)>),
    name: &[u8],
) -> Result<()> {
    let frame = |end, mut entries: Vec<(Vec<u8>, BoxedNode<'a>)>| {
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Frame { end, left: entries.into_iter() }
    };
    let mut path = name.to_vec();
    let mut frames = vec![frame(path.len(), top.entries()?)];
    let mut seen: HashSet<(u64, u64)> = inode.into_iter().collect();
    let mut step = || {
        let Some(dir) = frames.last_mut() else { return Ok(false) };
        path.truncate(dir.end);
        let Some((name, mut node)) = dir.left.next() else {
            frames.pop();
            return Ok(true);
        };
        add_name(&mut path, &name);
        match node.kind()? {
            Kind::Directory { is_of_other_subvolume: false, inode } => {
                if inode.is_some_and(|inode| !seen.insert(inode)) {
                    let path = Path::new(OsStr::from_bytes(&path));
                    return Err(Failure::of(&Error::has_another_path(path)));
                }
                frames.push(frame(path.len(), node.entries()?));
            }
            Kind::File { .. } => file(arguments, how, &*node, &path)?,
            Kind::Directory { .. } | Kind::Other => {}
        }
        Ok(true)
    };
    // Takes one step after another, until none is left.
    each(
        std::iter::from_fn(|| match step() {
            Ok(false) => None,
            done => Some(done.map(drop)),
        }),
        |done| done,
    )
}

fn file<'a>(arguments: &Defragment, how: &Defragmentation, file: &(dyn Node<'a> + 'a), path: &[u8]) -> Result<()> {
    if arguments.verbose {
        say_line(&OsStr::from_bytes(path).display().to_string());
    }
    file.defragment(how, arguments.flush)
}
