//! Lists what has changed in a volume since a commit, by the generations of tree blocks: the search
//! skips leaves that are older than the commit without reading their items.
//!
//! `cargo run --example changed_since -- disk.img 7`; without a number it prints that of the last
//! commit.

use std::error::Error;
use std::path::PathBuf;

use ubtrfs::format::items::InodeItem;
use ubtrfs::format::{Generation, Ino, ItemType, Key};
use ubtrfs::{Filesystem, Options, Result};

/// Returns the paths of inodes of the mounted subvolume whose data, attributes or entries have
/// changed in commits after `since`.
pub fn changed_since(fs: &Filesystem, since: Generation) -> Result<Vec<PathBuf>> {
    let subvolume = fs.root().subvolume;
    let (first, last) = (Key::new(Ino::ROOT_DIR.0, ItemType(0), 0), Key::new(u64::MAX, ItemType(u8::MAX), u64::MAX));
    let mut changed = Vec::new();
    fs.search_tree(subvolume, first, last, &mut |item| {
        if item.generation > since.0
            && item.key.item_type == ItemType::INODE_ITEM
            && InodeItem::parse(&item.data).is_ok_and(|inode| inode.transid > since)
        {
            changed.push(Ino(item.key.objectid));
        }
        true
    })?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for ino in changed {
        paths.extend(path_of(fs, ino)?);
    }
    paths.sort();
    Ok(paths)
}

/// Returns a path of an inode, or `None` if it has lost its name.
fn path_of(fs: &Filesystem, mut ino: Ino) -> Result<Option<PathBuf>> {
    let mut names = Vec::new();
    while ino != Ino::ROOT_DIR {
        let found = fs.find_inodes(fs.root().subvolume, ino, 1)?;
        let Some((dir, name)) =
            found.into_iter().filter(|inode| inode.ino == ino).find_map(|mut inode| inode.names.pop())
        else {
            return Ok(None);
        };
        names.push(String::from_utf8_lossy(&name).into_owned());
        ino = dir;
    }
    Ok(Some(std::iter::once("/".to_owned()).chain(names.into_iter().rev()).collect()))
}

/// Prints what has changed in the volume `image`, or without `since` the number of its last commit.
pub fn run(image: &str, since: Option<Generation>) -> Result<Vec<PathBuf>> {
    let fs = Filesystem::open_path(image, Options { read_only: true, ..Options::default() })?;
    let Some(since) = since else {
        println!("{}", fs.generation());
        return Ok(Vec::new());
    };
    let changed = changed_since(&fs, since)?;
    for path in &changed {
        println!("{}", path.display());
    }
    Ok(changed)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (image, since) = match arguments.as_slice() {
        [image] => (image, None),
        [image, since] => (image, Some(Generation(since.parse()?))),
        _ => return Err("usage: changed_since IMAGE [GENERATION]".into()),
    };
    run(image, since).map(drop)?;
    Ok(())
}
