//! `ubtrfs subvolume find-new`.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};

use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind, RootItem, inode_refs};
use ubtrfs_format::{Generation, Ino, ItemType, Key, Logical, TreeId};

use crate::args::subvolume::FindNew;
use crate::failure::{Failure, Result};
use crate::output::{Output, is_lost};
use crate::place::Opening;
use crate::show;
use crate::volume_at::{Named, VolumeAt, open};

/// The most directories above a file: only damaged volumes have more.
const MAX: usize = 4096;
/// The most bytes of paths that are remembered.
const MAX_REMEMBERED: usize = 8 << 20;

/// `ubtrfs subvolume find-new`
pub fn run(arguments: &FindNew) -> Result<()> {
    let Named { volume, paths } = open(&arguments.place, &arguments.image, Opening::READING)?;
    volume.settle()?;
    let id = volume.subvolume_at(&paths[0])?;
    let oldest = Generation(arguments.generation);
    let mut out = io::BufWriter::new(Output::new());
    let mut paths = Paths { volume: &*volume, subvolume: id, remembered: HashMap::new(), bytes: 0 };
    let is_terminal = io::stdout().is_terminal();
    // The generation is read before the search, so that the next search misses no change.
    let marker = generation(&*volume, id)?;

    let mut failed = None;
    let first = Key::new(Ino::FIRST_FREE.0, ItemType::EXTENT_DATA, 0);
    let last = Key::new(Ino::LAST_FREE.0, ItemType::EXTENT_DATA, u64::MAX);
    let mut shown: Option<(Ino, Option<Vec<u8>>)> = None;
    volume.search_since(id, oldest, (first, last), &mut |item| {
        if item.key.item_type != ItemType::EXTENT_DATA {
            return true;
        }
        let mut show = || -> Result<()> {
            let extent = FileExtent::parse(&item.data).map_err(|error| Failure::of(&error))?;
            if extent.generation < oldest {
                return Ok(());
            }
            let ino = Ino(item.key.objectid);
            if shown.as_ref().is_none_or(|(shown, _)| *shown != ino) {
                shown = Some((ino, paths.of(ino)?));
            }
            // A file that was deleted while it was open has no name.
            let Some((_, Some(path))) = &shown else { return Ok(()) };
            let path = if is_terminal { show::bytes(path).into_bytes() } else { path.clone() };
            let line = [line(item.key, &extent).as_bytes(), &path, b"\n"].concat();
            out.write_all(&line).map_err(|error| Failure::output(&error))
        };
        failed = show().err();
        failed.is_none() && !is_lost()
    })?;
    failed.map_or(Ok(()), Err)?;
    let written = writeln!(out, "transid marker was {}", marker.0).and_then(|()| out.flush());
    written.map_err(|error| Failure::output(&error))
}

/// Returns a line without the path.
fn line(key: Key, extent: &FileExtent<'_>) -> String {
    let (disk_start, offset, is_prealloc, is_inline) = match extent.kind {
        FileExtentKind::Inline(_) => (Logical(0), 0, false, true),
        FileExtentKind::Regular { disk_bytenr, offset, prealloc, .. } => (disk_bytenr, offset, prealloc, false),
    };
    let is_compressed = extent.compression != Compression::None;
    let flags = [("COMPRESS", is_compressed), ("PREALLOC", is_prealloc), ("INLINE", is_inline)];
    let flags: Vec<_> = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    format!(
        "inode {} file offset {} len {} disk start {} offset {offset} gen {} flags {} ",
        key.objectid,
        key.offset,
        extent.len(),
        disk_start.0,
        extent.generation.0,
        if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") },
    )
}

/// Returns the generation in which a subvolume was last changed.
fn generation(volume: &dyn VolumeAt, id: TreeId) -> Result<Generation> {
    let key = |offset| Key::new(id.0, ItemType::ROOT_ITEM, offset);
    let items = volume.search(TreeId::ROOT, key(0), key(u64::MAX))?;
    let generations = items.iter().filter_map(|item| RootItem::parse(&item.data).ok()).map(|item| item.generation);
    generations.max().ok_or_else(|| Failure::new(format!("subvolume {id} is no more")))
}

/// The paths of inodes, by the first name of each.
struct Paths<'a> {
    volume: &'a dyn VolumeAt,
    subvolume: TreeId,
    /// The paths of directories.
    remembered: HashMap<Ino, Vec<u8>>,
    /// The bytes of these paths.
    bytes: usize,
}

impl Paths<'_> {
    /// Returns the path from the root of the subvolume; `None` if the inode has no name.
    fn of(&mut self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let Some((mut at, name)) = self.name(ino)? else { return Ok(None) };
        let directory = at;
        let mut names = Vec::new();
        let mut path = loop {
            if at == Ino::ROOT_DIR {
                break Vec::new();
            }
            if let Some(path) = self.remembered.get(&at) {
                break path.clone();
            }
            let Some((above, name)) = self.name(at)? else { return Ok(None) };
            if names.len() > MAX {
                return Err(Failure::new(format!("inode {ino} has no path: a directory is below itself")));
            }
            names.push(name);
            at = above;
        };
        for name in names.iter().rev() {
            path.extend(name);
            path.push(b'/');
        }
        if !names.is_empty() {
            self.bytes += path.len();
            if self.bytes > MAX_REMEMBERED {
                self.remembered.clear();
                self.bytes = path.len();
            }
            self.remembered.insert(directory, path.clone());
        }
        path.extend(name);
        Ok(Some(path))
    }

    /// Returns the first name of an inode, with its directory.
    fn name(&self, ino: Ino) -> Result<Option<(Ino, Vec<u8>)>> {
        let key = |offset| Key::new(ino.0, ItemType::INODE_REF, offset);
        let mut found = None;
        self.volume.search_since(self.subvolume, Generation(0), (key(0), key(u64::MAX)), &mut |item| {
            let name = inode_refs(&item.data).find_map(|name| name.ok().map(|name| name.name.to_vec()));
            found = name.map(|name| (Ino(item.key.offset), name));
            false
        })?;
        Ok(found)
    }
}
