//! Where the files are that `du` looks at: on a mount, or in an image.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FileType as FileKind;
use rustix::io::Errno;
use ubtrfs::{FoundExtent, InodeId};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Ino};
use ubtrfs_image::{HostFile, HostTree, LinkedPath, OpenFile};

use crate::args;
use crate::control;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, about_opening};
use crate::path::failure;
use crate::place::Image;

/// Entries that are listed, and extents that are asked for, at once.
const BATCH: usize = 1024;

/// What an inode is.
pub enum Kind {
    /// A directory. `inode`: as below; none where the kernel sees to it that it has one name.
    Directory { inode: Option<(u64, u64)> },
    /// A regular file. `inode`: its subvolume and its number, if it has several names.
    File { inode: Option<(u64, u64)> },
    /// It takes no space of its own, or is none of the volume's.
    Other,
}

/// Something with directories and files.
pub trait Source {
    /// Refers to a directory or a file.
    type Node;

    /// What it is. `node` may get to know in which subvolume it is.
    fn kind(&mut self, node: &mut Self::Node) -> Result<Kind>;

    /// The entries of a directory, in its order.
    fn entries(&mut self, dir: &Self::Node) -> Result<Vec<(Vec<u8>, Self::Node)>>;

    /// Shows the extents of a regular file.
    fn extents(&mut self, file: &Self::Node, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()>;
}

/// Files on a mount.
pub struct OnMount {
    tree: HostTree,
    volume: [u8; 16],
    /// Subvolumes that were seen.
    subvolumes: u64,
}

/// A file on a mount.
pub struct OfMount {
    file: HostFile,
    /// The device number of its directory; none of where the walk begins.
    above: Option<u64>,
    device: u64,
    /// Which of the subvolumes that were seen it is in: device numbers don't tell on FUSE.
    subvolume: u64,
}

impl OnMount {
    /// The place where a walk begins. Everything that was changed before is durable then.
    pub fn open(path: &Path) -> Result<(Self, OfMount)> {
        let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
        let top = OfMount { file: HostFile::named(path, true), above: None, device: found.dev(), subvolume: 0 };
        if !found.is_dir() && !found.is_file() {
            return Ok((Self { tree: HostTree::default(), volume: [0; 16], subvolumes: 0 }, top));
        }
        let failed = |errno: Errno| about_mount(path.display(), errno);
        let mounted = Mounted::open(path)?;
        let volume = mounted.volume_id().map_err(failed)?;
        if mounted.is_of_the_kernel().map_err(failed)? {
            mounted.write_back().map_err(failed)?;
        } else {
            control::sync(&args::Directory { directory: path.to_owned() })?;
        }
        Ok((Self { tree: HostTree::default(), volume, subvolumes: 0 }, top))
    }

    fn is_of_the_volume(&self, dir: &OpenFile) -> std::io::Result<bool> {
        let mounted = Mounted::of(dir)?;
        // The kernel's empty directory where a snapshot has no subvolume knows no ioctl.
        Ok(mounted.volume_id().map_or_else(|_| mounted.is_of_the_kernel() == Ok(true), |id| id == self.volume))
    }
}

impl Source for OnMount {
    type Node = OfMount;

    fn kind(&mut self, node: &mut OfMount) -> Result<Kind> {
        let failed = |error: &std::io::Error| about_opening(&node.file.path(), error);
        let found = match self.tree.open(&node.file) {
            Ok(found) => found,
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && node.above.is_some() => return Ok(Kind::Other),
            Err(error) => return Err(failed(&error)),
        };
        let (device, ino) = found.id();
        match found.file_type() {
            FileKind::RegularFile => {
                let inode = (found.status().st_nlink > 1).then_some((node.subvolume, ino));
                return Ok(Kind::File { inode });
            }
            FileKind::Directory => {}
            _ => return Ok(Kind::Other),
        }
        let is_crossed = node.above.is_some_and(|above| above != device);
        if is_crossed && !self.is_of_the_volume(found).map_err(|error| failed(&error))? {
            return Ok(Kind::Other);
        }
        node.device = device;
        if ino == Ino::FIRST_FREE.0 {
            self.subvolumes += 1;
            node.subvolume = self.subvolumes;
        }
        Ok(Kind::Directory { inode: None })
    }

    fn entries(&mut self, dir: &OfMount) -> Result<Vec<(Vec<u8>, OfMount)>> {
        let below = |file: HostFile| {
            let (name, above) = (file.name().as_bytes().to_vec(), Some(dir.device));
            (name, OfMount { file, above, device: dir.device, subvolume: dir.subvolume })
        };
        let files = self.tree.children(&dir.file).map_err(|error| Failure::about(dir.file.path().display(), &error))?;
        Ok(files.into_iter().map(below).collect())
    }

    fn extents(&mut self, node: &OfMount, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()> {
        let failed = |error: &std::io::Error| about_opening(&node.file.path(), error);
        let opened = self.tree.open(&node.file).and_then(Mounted::of).map_err(|error| failed(&error))?;
        let mut next = Some(0);
        while let Some(from) = next {
            let map = opened.extents(from).map_err(|errno| failed(&errno.into()))?;
            map.extents.iter().for_each(&mut *visit);
            next = map.next.filter(|next| *next > from);
        }
        Ok(())
    }
}

/// Files in an image.
pub struct InImage<'a>(pub &'a Image);

/// A path in an image.
pub struct AtInode {
    path: LinkedPath,
    id: InodeId,
}

impl AtInode {
    /// What is at a path.
    pub fn find(image: &Image, path: &[u8]) -> Result<Self> {
        Ok(Self { path: LinkedPath::new(OsStr::from_bytes(path)), id: image.find(path)? })
    }

    fn failure(&self, error: &ubtrfs::Error) -> Failure {
        failure(self.path.path().as_os_str().as_bytes(), error)
    }
}

impl Source for InImage<'_> {
    type Node = AtInode;

    fn kind(&mut self, node: &mut AtInode) -> Result<Kind> {
        let found = self.0.fs.inodes().attributes(node.id).map_err(|error| node.failure(&error))?;
        let inode = (node.id.subvolume.0, node.id.ino.0);
        Ok(match found.file_type {
            FileType::Directory => Kind::Directory { inode: Some(inode) },
            FileType::Regular => Kind::File { inode: (found.nlink > 1).then_some(inode) },
            _ => Kind::Other,
        })
    }

    fn entries(&mut self, dir: &AtInode) -> Result<Vec<(Vec<u8>, AtInode)>> {
        let mut all = Vec::new();
        let mut after = DirIndex(0);
        loop {
            let listed = self.0.fs.directories().list(dir.id, after, DirIndex(u64::MAX), BATCH);
            let listed = listed.map_err(|error| dir.failure(&error))?;
            let is_end = listed.len() < BATCH;
            for entry in listed {
                after = entry.index;
                let path = dir.path.join(entry.name.as_slice());
                all.push((entry.name, AtInode { path, id: entry.inode }));
            }
            if is_end {
                return Ok(all);
            }
        }
    }

    fn extents(&mut self, file: &AtInode, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()> {
        let mut from = 0;
        loop {
            let found = self.0.fs.files().extents(file.id, from, BATCH).map_err(|error| file.failure(&error))?;
            found.iter().for_each(&mut *visit);
            match found.last() {
                Some(last) if found.len() == BATCH => from = last.offset.saturating_add(last.len),
                _ => return Ok(()),
            }
        }
    }
}
