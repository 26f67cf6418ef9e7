//! `ubtrfs filesystem defragment`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ubtrfs::{Defragmentation, Recompression};
use ubtrfs_image::add_name;

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

/// How each file is defragmented, from its start.
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

/// Defragments what is at a path.
fn one(arguments: &Defragment, volume: &dyn VolumeAt, path: &Path) -> Result<()> {
    let how = how(arguments);
    let name = path.as_os_str().as_bytes();
    let mut top = volume.node(path)?;
    match top.kind()? {
        Kind::Directory { .. } if !arguments.recursive => {
            Err(Failure::new(format!("{} is a directory: -r defragments the files in it", path.display())))
        }
        Kind::Directory { .. } => all_below(arguments, &how, top, name),
        Kind::File { .. } | Kind::Other => file(arguments, &how, &*top, name),
    }
}

/// Defragments the regular files below a directory that are in its subvolume. One that fails keeps
/// no other from its turn.
fn all_below<'a>(arguments: &Defragment, how: &Defragmentation, top: BoxedNode<'a>, name: &[u8]) -> Result<()> {
    let mut left = vec![(name.to_vec(), top)];
    let mut is_top = true;
    let mut step = |left: &mut Vec<(Vec<u8>, BoxedNode<'a>)>| {
        let Some((path, mut node)) = left.pop() else { return Ok(false) };
        match node.kind()? {
            Kind::Directory { is_of_other_subvolume, .. } if std::mem::take(&mut is_top) || !is_of_other_subvolume => {
                let mut entries = node.entries()?;
                entries.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
                left.extend(entries.into_iter().map(|(name, node)| {
                    let mut path: Vec<u8> = path.clone();
                    add_name(&mut path, &name);
                    (path, node)
                }));
            }
            Kind::File { .. } => file(arguments, how, &*node, &path)?,
            _ => {}
        }
        Ok(true)
    };
    // The next step, until there is none.
    each(
        std::iter::from_fn(|| match step(&mut left) {
            Ok(false) => None,
            done => Some(done.map(drop)),
        }),
        |done| done,
    )
}

fn file<'a>(arguments: &Defragment, how: &Defragmentation, file: &(dyn Node<'a> + 'a), path: &[u8]) -> Result<()> {
    if arguments.verbose {
        say_line(&OsStr::from_bytes(path).display().to_string())?;
    }
    file.defragment(how, arguments.flush)
}
