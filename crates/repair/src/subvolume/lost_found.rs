//! `lost+found`: where inodes get a name that have lost all of theirs.

use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_format::{Ino, ItemType, Key, TreeId};

use super::Subvolume;
use super::content::derived_item;
use super::inode::{Inode, Name};
use crate::change::Level;
use crate::error::Result;
use crate::roots::Link;

const DIRECTORY: &[u8] = b"lost+found";

impl Subvolume<'_> {
    /// Gives an inode a name in `lost+found` in the root directory of its subvolume.
    pub(super) fn put_into_lost_found(&mut self, ino: u64) -> Result<()> {
        let directory = self.lost_found()?;
        let name = format!("inode-{ino}");
        self.add_entry(directory, name.as_bytes(), ino)?;
        let inode = self.load(ino)?;
        if let Some(item) = inode.item() {
            inode.set_item(InodeItem { nlink: 1, ..item });
        }
        self.note(Level::Names, ino, "its names are lost: it gets this one".into());
        Ok(())
    }

    /// Gives a subvolume without a name one in `lost+found`. Returns the directory, and the number
    /// and the name of the entry.
    pub fn name_subvolume(&mut self, child: TreeId) -> Result<(u64, u64, Vec<u8>)> {
        let directory = self.lost_found()?;
        let name = format!("subvolume-{}", child.0).into_bytes();
        let transid = self.rules.generation;
        let parent = self.load(directory)?;
        let index = parent.free_index();
        parent.put_entry(
            &name,
            index,
            (Key::new(child.0, ItemType::ROOT_ITEM, u64::MAX), FileType::Directory),
            transid,
        );
        let what = format!("subvolume {child} has no name: it gets one here");
        self.note(Level::Names, directory, what);
        Ok((directory, index, name))
    }

    /// Adds the entry of a subvolume that the root tree says there is. Returns whether its
    /// directory exists.
    pub fn add_subvolume_entry(&mut self, link: &Link) -> Result<bool> {
        if !self.is_directory(link.directory.0)? {
            return Ok(false);
        }
        let location = (Key::new(link.child.0, ItemType::ROOT_ITEM, u64::MAX), FileType::Directory);
        let transid = self.rules.generation;
        self.load(link.directory.0)?.put_entry(&link.name, link.index, location, transid);
        let name = String::from_utf8_lossy(&link.name);
        let what = format!("the entry \"{name}\" of subvolume {} is put back", link.child);
        self.note(Level::Names, link.directory.0, what);
        Ok(true)
    }

    fn add_entry(&mut self, directory: u64, name: &[u8], child: u64) -> Result<()> {
        let file_type = self.load(child)?.item().map_or(FileType::Unknown, |item| FileType::from_mode(item.mode));
        let transid = self.rules.generation;
        let parent = self.load(directory)?;
        let index = parent.free_index();
        parent.put_entry(name, index, (Key::new(child, ItemType::INODE_ITEM, 0), file_type), transid);
        self.load(child)?.add_name(&Name { parent: directory, index, name: name.to_vec() });
        Ok(())
    }

    /// Returns the directory, which is made if there is none.
    fn lost_found(&mut self) -> Result<u64> {
        let root = Ino::ROOT_DIR.0;
        self.settle_root()?;
        let entries = self.load(root)?.entries();
        let mut name = DIRECTORY.to_vec();
        for entry in entries.iter().filter(|entry| entry.index.is_some() && entry.name.starts_with(DIRECTORY)) {
            if entry.location.item_type == ItemType::INODE_ITEM && self.is_directory(entry.location.objectid)? {
                return Ok(entry.location.objectid);
            }
            // Something else has the name.
            name.clone_from(&entry.name);
            name.push(b'_');
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let parent = self.load(root)?.item();
        let mut inode = Inode::none(ino, self.session.geometry.node_size as usize);
        let item = derived_item(&inode, FileType::Directory, parent, &self.rules);
        inode.set_item(item);
        self.inodes.insert(ino, inode);
        self.add_entry(root, &name, ino)?;
        Ok(ino)
    }
}
