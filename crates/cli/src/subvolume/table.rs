//! The subvolumes of a volume, as the root tree describes them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use rustix::io::Errno;
use ubtrfs_format::items::{RootFlags, RootItem, RootRef, dir_entries, inode_refs};
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId, Uuid};

use crate::args::subvolume::InImage;
use crate::failure::{Failure, Result};
use crate::ioctls::{Item, Mounted, about_mount, check_subvolume};
use crate::mount_table;
use crate::place::{Image, Place, split};

/// A volume whose trees can be searched.
pub enum Source {
    Mounted(Mounted),
    Image(Image),
}

/// A subvolume and where its entry is.
#[derive(Debug)]
pub struct Listed {
    pub id: TreeId,
    pub item: RootItem,
    /// The subvolume, directory and name of the entry.
    entry: Option<(TreeId, Ino, Vec<u8>)>,
    /// The path from the top level; `None` if it was deleted, or if it can't be found.
    pub path: Option<Vec<u8>>,
}

impl Listed {
    /// The subvolume that it is in.
    pub fn parent(&self) -> Option<TreeId> {
        self.entry.as_ref().map(|(parent, ..)| *parent)
    }

    pub fn is_deleted(&self) -> bool {
        self.item.refs == 0
    }

    pub fn is_read_only(&self) -> bool {
        self.item.flags & RootFlags::RDONLY != 0
    }

    pub fn is_snapshot(&self) -> bool {
        self.item.parent_uuid != Uuid::NIL
    }

    /// The generation in which it was made.
    pub fn creation(&self) -> u64 {
        self.item.transids[1]
    }
}

impl Source {
    /// Opens the volume of a place to look at it; on a mount, after what was changed is durable.
    pub fn open(place: &Place, how: &InImage) -> Result<Self> {
        Ok(match place {
            Place::Mounted(path) => {
                let mounted = Mounted::open(path)?;
                // Of a read-only mount all is durable.
                let _ = mounted.commit();
                Self::Mounted(mounted)
            }
            Place::Image { image, .. } => Self::Image(Image::open(image, how, false, false)?),
        })
    }

    /// The items of a tree from `first` to `last`.
    pub fn search(&self, tree: TreeId, first: Key, last: Key) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        self.search_since(tree, Generation(0), (first, last), &mut |item| {
            items.push(item);
            true
        })?;
        Ok(items)
    }

    /// Shows the items of a tree from `first` to `last` in leaves that the commit `oldest` or a
    /// later one wrote, until `visit` returns false.
    pub fn search_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        range: (Key, Key),
        visit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<()> {
        match self {
            Self::Mounted(mounted) => mounted.search_since(tree, oldest, range, visit).map_err(|errno| match errno {
                Errno::PERM => Failure::new("only root, or the user who has mounted it, may list a volume"),
                errno => about_mount(mounted.path().display(), errno),
            }),
            Self::Image(image) => {
                let visit = &mut |item: ubtrfs::FoundItem| visit(Item { key: item.key, data: item.data });
                let searched = image.fs.search_tree_since(tree, oldest, range, visit);
                searched.map_err(|error| image.failed(&error))
            }
        }
    }

    /// The subvolume that a place is in, by its path in an image.
    pub fn subvolume_of(&self, place: &Place) -> Result<TreeId> {
        match (self, place) {
            (Self::Image(image), Place::Image { path, .. }) => Ok(image.find(path)?.subvolume),
            (Self::Mounted(mounted), Place::Mounted(path)) => {
                mounted.subvolume().map_err(|errno| about_mount(path.display(), errno))
            }
            _ => Err(Failure::new("the place is on another volume")),
        }
    }

    /// All subvolumes, the top level among them, by number.
    pub fn subvolumes(&self) -> Result<BTreeMap<TreeId, Listed>> {
        let mut all = BTreeMap::new();
        let first = Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, 0);
        let last = Key::new(Ino::LAST_FREE.0, ItemType::ROOT_BACKREF, u64::MAX);
        let mut entries = BTreeMap::new();
        for Item { key, data } in self.search(TreeId::ROOT, first, last)? {
            let id = TreeId(key.objectid);
            let failed = |error: ubtrfs_format::Error| Failure::about(format_args!("subvolume {id}"), &error);
            match key.item_type {
                ItemType::ROOT_ITEM if id.is_subvolume() => {
                    let item = RootItem::parse(&data).map_err(failed)?;
                    all.insert(id, Listed { id, item, entry: None, path: None });
                }
                ItemType::ROOT_BACKREF => {
                    let entry = RootRef::parse(&data).map_err(failed)?;
                    entries.insert(id, (TreeId(key.offset), entry.dirid, entry.name.to_vec()));
                }
                _ => {}
            }
        }
        for (id, entry) in entries {
            if let Some(listed) = all.get_mut(&id) {
                listed.entry = Some(entry);
            }
        }
        self.find_paths(&mut all);
        Ok(all)
    }

    /// Finds the paths; those of damaged directories remain unknown.
    fn find_paths(&self, all: &mut BTreeMap<TreeId, Listed>) {
        let mut directories: BTreeMap<(TreeId, Ino), Option<Vec<u8>>> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for listed in all.values() {
            let Some((parent, dir, name)) = &listed.entry else { continue };
            let above = directories.entry((*parent, *dir)).or_insert_with(|| self.path_of(*parent, *dir).ok());
            names.insert(listed.id, (*parent, above.as_ref().map(|above| [above, name.as_slice()].concat())));
        }
        for listed in all.values_mut() {
            if listed.id == TreeId::FS {
                listed.path = Some(Vec::new());
                continue;
            }
            let (mut path, mut at) = (Vec::new(), listed.id);
            // More than so many are a circle.
            for _ in 0..names.len() {
                let Some((parent, Some(name))) = names.get(&at) else { break };
                let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                path = [name, separator, &path].concat();
                at = *parent;
                if at == TreeId::FS {
                    listed.path = Some(path);
                    break;
                }
            }
        }
    }

    /// The path of a directory from the root of its subvolume, with a slash after each name.
    fn path_of(&self, tree: TreeId, dir: Ino) -> Result<Vec<u8>> {
        let mut path = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT_DIR {
            let key = |offset| Key::new(at.0, ItemType::INODE_REF, offset);
            let found = self.search(tree, key(0), key(u64::MAX))?.into_iter().next();
            let named = found.and_then(|item| {
                let name = inode_refs(&item.data).next()?.ok()?.name.to_vec();
                Some((Ino(item.key.offset), name))
            });
            let lost = || Failure::new(format!("directory {at} of subvolume {tree} has no name"));
            let (parent, name) = named.filter(|(parent, _)| *parent != at).ok_or_else(lost)?;
            path = [&name, b"/".as_slice(), &path].concat();
            if path.len() > 4096 {
                return Err(lost());
            }
            at = parent;
        }
        Ok(path)
    }

    /// The subvolume that is mounted if none is asked for.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        let key = |offset| Key::new(TreeId::ROOT_TREE_DIR.0, ItemType::DIR_ITEM, offset);
        let items = self.search(TreeId::ROOT, key(0), key(u64::MAX))?;
        let mut named = items.iter().flat_map(|item| dir_entries(&item.data).filter_map(std::result::Result::ok));
        let default = named.find(|entry| entry.name == b"default");
        Ok(default.map_or(TreeId::FS, |entry| TreeId(entry.location.objectid)))
    }
}

/// The directory and the name of the entry of a subvolume.
pub fn entry_on_mount(path: &Path) -> Result<(Mounted, OsString)> {
    // Directories above need not be readable to name a subvolume.
    let real = match path.file_name() {
        Some(_) if !path.is_symlink() => path.to_owned(),
        _ => path.canonicalize().map_err(|error| Failure::about(path.display(), &error))?,
    };
    let opened = Mounted::open(&real)?;
    check_subvolume(&opened, path)?;
    let (dir, name) = split(&real)?;
    let mounted = mount_table::mounted_on(&mount_table::resolve(path)?)?;
    let device = |mounted: &mount_table::Mounted| mounted.device;
    if mounted.as_ref().map(device).is_some_and(|own| mount_table::holding(&dir).as_ref().map(device) != Some(own)) {
        return Err(is_mount_point(&opened, path));
    }
    Ok((Mounted::open(&dir)?, name))
}

/// Fails because a subvolume is named by the place where it is mounted, which is no entry of the
/// volume.
fn is_mount_point(opened: &Mounted, path: &Path) -> Failure {
    let shown = path.display();
    Failure::new(match opened.subvolume() {
        Ok(TreeId::FS) => format!(
            "{shown} is where the volume itself is mounted: its top level has no entry that could be deleted or replaced; \
             name a subvolume below it, such as {shown}/NAME"
        ),
        Ok(id) => format!(
            "{shown} is where the subvolume {id} is mounted: to change or delete it, mount the top level elsewhere \
             (-o subvolid=5) and name the subvolume there, or unmount it and name it as IMAGE:PATH"
        ),
        Err(errno) => return about_mount(shown, errno),
    })
}

/// An error about a subvolume that can't go with others in it.
pub fn in_it(shown: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{shown}: there are other subvolumes in it"))
}
