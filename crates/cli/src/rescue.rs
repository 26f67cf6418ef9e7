//! `ubtrfs rescue`: repairs of a volume that can't be mounted as it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ubtrfs_format::items::{FileType, InodeItem, RootItem, inode_refs};
use ubtrfs_format::{Ino, ItemType, Key, Node, Physical, SUPERBLOCK_COPIES, TreeId};
use ubtrfs_mkfs::existing_signature;
use ubtrfs_tree::{Snapshot, Walk};
use ubtrfs_volume::{Copies, Error as VolumeError, OpenOptions, Volume};

use crate::args;
use crate::confirm::confirm;
use crate::device::{about_volume, about_volume_within, open_for_writing};
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::show;
use crate::size::show_size;
use crate::trees::{MAX_NAMES, Trees};

/// How many paths are listed.
const SHOWN: usize = 20;

/// `ubtrfs rescue`
pub fn run(arguments: &args::Rescue) -> Result<()> {
    match &arguments.what {
        args::RescueCommand::ZeroLog(arguments) => zero_log(arguments),
        args::RescueCommand::SuperRecover(arguments) => super_recover(arguments),
        args::RescueCommand::Undo(arguments) => undo(arguments),
    }
}

fn zero_log(arguments: &args::ZeroLog) -> Result<()> {
    let paths = &arguments.devices;
    let writing = open_for_writing(paths, arguments.window)?;
    let volume = Volume::open(writing.devices, OpenOptions { read_only: false });
    let volume = Arc::new(volume.map_err(|error| about_volume_within(paths, arguments.window, &error))?);
    let mut superblock = volume.superblocks().current();
    let shown = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
    if superblock.log_root.0 == 0 {
        say(&format!("{shown}: there is no log; nothing was changed\n"));
        return Ok(());
    }
    say(&Held::read(&volume).as_text(&shown));
    if !arguments.yes {
        confirm("Give this up?", "ubtrfs rescue zero-log --yes", paths, arguments.window)?;
    }
    superblock.drop_log();
    let failed = |error| about_volume(paths, &error);
    // The blocks that the superblock refers to are on the devices already.
    let (data, nodes) = (volume.writer().wait_all([]).map_err(failed)?, volume.writer().wait_all([]).map_err(failed)?);
    let flushed = volume.writer().flush(data, nodes).map_err(failed)?;
    let _published = volume.superblocks().write(&superblock, Copies::All, flushed).map_err(failed)?;
    say(&format!("{shown}: the log is gone; the volume is as of commit {}\n", superblock.generation));
    Ok(())
}

/// Puts back what a repair has overwritten.
fn undo(arguments: &args::Undo) -> Result<()> {
    let paths = &arguments.devices;
    let writing = open_for_writing(paths, arguments.window)?;
    if !arguments.yes {
        let command = format!("ubtrfs rescue undo --yes {}", arguments.file.display());
        confirm("Put back what the repair has overwritten?", &command, paths, arguments.window)?;
    }
    let bytes = ubtrfs_repair::undo(&arguments.file, &writing.devices)
        .map_err(|error| Failure::about(arguments.file.display(), &error))?;
    say(&format!("{} were put back: the volume is as it was before the repair\n", show_size(bytes)));
    Ok(())
}

/// Restores primary superblocks from their copies.
fn super_recover(arguments: &args::SuperRecover) -> Result<()> {
    let paths = &arguments.devices;
    let writing = open_for_writing(paths, arguments.window)?;
    let devices = &writing.devices;
    let failed = |error: &ubtrfs_volume::Error| about_volume(paths, error);
    let mut bad = Vec::new();
    for ((path, device), copy) in paths.iter().zip(devices).zip(Volume::superblocks_of(devices)) {
        let copy =
            copy.ok_or_else(|| Failure::new(format!("{}: no copy of the superblock is good", path.display())))?;
        if copy.bytenr != SUPERBLOCK_COPIES[0] {
            let mut read = |at: u64, buffer: &mut [u8]| device.read_at(Physical(at), buffer);
            let found =
                existing_signature(device.size(), &mut read).map_err(|error| Failure::about(path.display(), &error))?;
            if let Some(found) = found.filter(|found| found != "btrfs") {
                return Err(Failure::new(format!("{} holds a {found} now: nothing was changed", path.display())));
            }
            bad.push((path, device, copy));
        }
    }
    if bad.is_empty() {
        say("all primary superblocks are good; nothing was changed\n");
        return Ok(());
    }
    // The restored superblock must refer to a volume.
    let newest = Volume::candidates(devices).into_iter().next().ok_or_else(|| failed(&VolumeError::NotBtrfs))?;
    Volume::open_candidate(devices.clone(), &newest).map_err(|error| failed(&error))?;
    for (path, _, copy) in &bad {
        say(&format!(
            "{}: the primary superblock is bad; the copy at {} MiB is of commit {} of the volume '{}' with the id {}. What was \
             fsynced since, and is in a log, is lost with it.\n",
            path.display(),
            copy.bytenr.0 >> 20,
            copy.generation,
            show::bytes(copy.label_bytes()),
            copy.fsid
        ));
    }
    if !arguments.yes {
        confirm("Write the copy over the primary?", "ubtrfs rescue super-recover --yes", paths, arguments.window)?;
    }
    for (path, device, copy) in bad {
        Volume::restore_primary(&**device, &copy).map_err(|error| failed(&error))?;
        say(&format!("{}: the primary superblock is that of commit {} again\n", path.display(), copy.generation));
    }
    Ok(())
}

/// The contents of a log tree, as far as they can be read.
#[derive(Default)]
struct Held {
    generation: u64,
    files: usize,
    directories: usize,
    others: usize,
    /// Inodes that the log contains only so that they exist, or that have no name any more.
    companions: usize,
    paths: Vec<String>,
    unread_blocks: usize,
}

impl Held {
    fn read(volume: &Arc<Volume>) -> Self {
        let trees = Trees::new(volume);
        let mut held = Self { generation: trees.superblock().generation.0, ..Self::default() };
        let mut logs = Vec::new();
        if let Some(roots) = trees.log_root_tree() {
            held.unread_blocks += each_item(&roots, &mut |key, data| {
                if key.item_type == ItemType::ROOT_ITEM
                    && let Ok(item) = RootItem::parse(data)
                {
                    logs.push((TreeId(key.offset), item));
                }
            });
        }
        for (id, item) in logs {
            let committed = trees.root_item(id).ok().flatten().map(|item| trees.described(id, &item));
            held.read_log(id, &trees.described(TreeId::LOG, &item), committed.as_ref());
        }
        held
    }

    fn read_log(&mut self, id: TreeId, log: &Snapshot, committed: Option<&Snapshot>) {
        let mut inodes = Vec::new();
        let mut names: Names = BTreeMap::new();
        self.unread_blocks += each_item(log, &mut |key, data| match key.item_type {
            ItemType::INODE_ITEM => inodes.extend(InodeItem::parse(data).ok().map(|item| (Ino(key.objectid), item))),
            ItemType::INODE_REF => {
                if let Some(Ok(entry)) = inode_refs(data).last() {
                    names.insert(Ino(key.objectid), (Ino(key.offset), entry.name.to_vec()));
                }
            }
            _ => {}
        });
        for (ino, item) in inodes {
            if item.generation.0 == 0 || item.nlink == 0 {
                self.companions += 1;
                continue;
            }
            match FileType::from_mode(item.mode) {
                FileType::Regular => self.files += 1,
                FileType::Directory => self.directories += 1,
                _ => self.others += 1,
            }
            if self.paths.len() < SHOWN {
                let path = path_of(ino, &names, committed);
                let path = path.map_or_else(|| format!("inode {ino}"), |path| show::bytes(&path));
                self.paths.push(if id == TreeId::FS { path } else { format!("subvolume {id}: {path}") });
            }
        }
    }

    fn as_text(&self, device: &str) -> String {
        let mut text = format!(
            "{device}: the log holds what was fsynced after commit {}, the last one. Without it that is lost:\n",
            self.generation
        );
        for path in &self.paths {
            let _ = writeln!(text, "  {path}");
        }
        let all = self.files + self.directories + self.others;
        if all > self.paths.len() {
            let _ = writeln!(text, "  … and {} more", all - self.paths.len());
        }
        let _ = writeln!(
            text,
            "{} files, {} directories, {} others go back to what they were at that commit, or are gone if they are newer",
            self.files, self.directories, self.others
        );
        if self.companions > 0 {
            let _ = writeln!(text, "{} more inodes are in the log because of these", self.companions);
        }
        if self.unread_blocks > 0 {
            let _ = writeln!(
                text,
                "{} blocks of the log can't be read, so that there was more than this",
                self.unread_blocks
            );
        }
        text
    }
}

/// One name of each inode: the directory, and the name in it.
type Names = BTreeMap<Ino, (Ino, Vec<u8>)>;

/// Visits the items of a tree, as far as they can be read. Returns how many blocks can't be read.
fn each_item(tree: &Snapshot, visit: &mut dyn FnMut(Key, &[u8])) -> usize {
    let mut unread = 0;
    tree.walk(&mut |_, block| {
        match block.map_err(|_| ()).and_then(|block| block.node().map_err(|_| ())) {
            Ok(Node::Leaf(leaf)) => leaf.iter().for_each(|(key, data)| visit(key, data)),
            Ok(Node::Internal(_)) => {}
            Err(()) => unread += 1,
        }
        Walk::Descend
    });
    unread
}

/// Returns a path of an inode inside its subvolume, if all of it can be found.
fn path_of(ino: Ino, logged: &Names, committed: Option<&Snapshot>) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT_DIR {
        let (parent, name) = logged.get(&at).cloned().or_else(|| committed_name(committed?, at))?;
        names.push(name);
        at = parent;
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    names.reverse();
    Some([b"/", names.join(&b'/').as_slice()].concat())
}

fn committed_name(tree: &Snapshot, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let refs = Key::new(ino.0, ItemType::INODE_REF, 0)..=Key::new(ino.0, ItemType::INODE_REF, u64::MAX);
    let item = tree.range(refs).next()?.ok()?;
    let name = inode_refs(&item).next()?.ok()?.name.to_vec();
    Some((Ino(item.key.offset), name))
}
