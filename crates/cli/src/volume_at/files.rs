//! Files and directories, for walks through a volume.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FileType as FileKind;
use rustix::io::Errno;
use ubtrfs::{Defragmentation, FoundExtent, InodeId};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Ino};
use ubtrfs_image::{HostFile, LinkedPath, OpenFile};

use super::on_mount::OnMount;
use crate::args;
use crate::control;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, about_opening};
use crate::mount_table::{self, not_on_btrfs};
use crate::path::failure;
use crate::place::Image;

/// How many entries are listed, and extents are queried, at a time.
const BATCH: usize = 1024;
/// The most bytes that one ioctl defragments, so that the command can be interrupted.
const STEP: u64 = 256 << 20;

/// The type of an inode.
pub enum Kind {
    /// A directory. `inode` is as for a file; `None` if the kernel ensures that the directory has
    /// only one name.
    Directory { inode: Option<(u64, u64)>, is_of_other_subvolume: bool },
    /// A regular file. `inode` is its subvolume and its number, if it has several names.
    File { inode: Option<(u64, u64)> },
    /// It takes no space of its own, is not in the volume, or was removed.
    Other,
}

/// Finds the files of a volume at which walks begin.
pub trait Files {
    /// Makes all earlier changes durable, so that the extents are known.
    fn write_all(&self, path: &Path) -> Result<()>;

    /// Returns the file or directory at a path.
    fn node<'a>(&'a self, path: &Path) -> Result<BoxedNode<'a>>;
}

/// A file or a directory of a walk. It borrows what the walk goes through.
pub type BoxedNode<'a> = Box<dyn Node<'a> + 'a>;

/// A file or a directory of a walk.
pub trait Node<'a> {
    /// Returns its type. This must be called before the other methods.
    fn kind(&mut self) -> Result<Kind>;

    /// Returns the entries of a directory, in the order of the directory.
    fn entries(&self) -> Result<Vec<(Vec<u8>, BoxedNode<'a>)>>;

    /// Passes the extents of a regular file to `visit`.
    fn extents(&self, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()>;

    /// Defragments a regular file. With `flush` the result is durable afterwards.
    fn defragment(&self, how: &Defragmentation, flush: bool) -> Result<()>;
}

/// A file on a mount.
struct OfMount<'a> {
    on: &'a OnMount,
    file: HostFile,
    /// The device number of its directory; `None` where the walk begins.
    above: Option<u64>,
    device: u64,
    /// The number, within this walk, of its subvolume: on FUSE all subvolumes have one device
    /// number.
    subvolume: u64,
}

impl Files for OnMount {
    fn write_all(&self, path: &Path) -> Result<()> {
        let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
        if !found.is_dir() && !found.is_file() {
            // It is not opened: that might wait, or do something.
            let is_btrfs = mount_table::holding(path).is_some_and(|on| on.is_btrfs());
            return if is_btrfs { Ok(()) } else { Err(not_on_btrfs(&path.display().to_string())) };
        }
        let failed = |errno: Errno| about_mount(path.display(), errno);
        let mounted = Mounted::open(path)?;
        mounted.volume_id().map_err(failed)?;
        if mounted.is_of_the_kernel().map_err(failed)? {
            mounted.write_back().map_err(failed)
        } else {
            control::sync(&args::Directory { directory: path.to_owned() })
        }
    }

    fn node<'a>(&'a self, path: &Path) -> Result<BoxedNode<'a>> {
        let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
        let file = HostFile::named(path, true);
        Ok(Box::new(OfMount { on: self, file, above: None, device: found.dev(), subvolume: 0 }))
    }
}

impl OfMount<'_> {
    fn failed(&self, error: &std::io::Error) -> Failure {
        about_opening(&self.file.path(), error)
    }

    fn opened(&self) -> std::io::Result<Mounted> {
        self.on.tree.open(&self.file).and_then(Mounted::of)
    }

    /// Whether a file or a directory on another mount belongs to the volume in which the walk has
    /// begun.
    fn is_of_the_volume(&self, found: &OpenFile) -> std::io::Result<bool> {
        let mounted = Mounted::of(found)?;
        // The kernel has an empty directory in a snapshot in place of a nested subvolume, which
        // supports no ioctl.
        let Ok(id) = mounted.volume_id() else { return Ok(mounted.is_of_the_kernel() == Ok(true)) };
        Ok(self.on.volume() == Some(id))
    }
}

impl<'a> Node<'a> for OfMount<'a> {
    fn kind(&mut self) -> Result<Kind> {
        let found = match self.on.tree.open(&self.file) {
            Ok(found) => found,
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && self.above.is_some() => return Ok(Kind::Other),
            Err(error) => return Err(self.failed(&error)),
        };
        let (device, ino) = found.id();
        let is_crossed = self.above.is_some_and(|above| above != device);
        let is_used = matches!(found.file_type(), FileKind::RegularFile | FileKind::Directory);
        if !is_used || is_crossed && !self.is_of_the_volume(found).map_err(|error| self.failed(&error))? {
            return Ok(Kind::Other);
        }
        match found.file_type() {
            FileKind::RegularFile => {
                let inode = (found.status().st_nlink > 1).then_some((self.subvolume, ino));
                return Ok(Kind::File { inode });
            }
            FileKind::Directory => {}
            _ => return Ok(Kind::Other),
        }
        self.device = device;
        if ino == Ino::FIRST_FREE.0 {
            self.subvolume = self.on.next_subvolume();
        }
        Ok(Kind::Directory { inode: None, is_of_other_subvolume: is_crossed || ino == Ino::FIRST_FREE.0 })
    }

    fn entries(&self) -> Result<Vec<(Vec<u8>, BoxedNode<'a>)>> {
        let OfMount { on, device, subvolume, .. } = *self;
        let below = |file: HostFile| {
            let name = file.name().as_bytes().to_vec();
            let node = OfMount { on, file, above: Some(device), device, subvolume };
            (name, Box::new(node) as BoxedNode<'a>)
        };
        let files = on.tree.children(&self.file);
        let files = files.map_err(|error| Failure::about(self.file.path().display(), &error))?;
        Ok(files.into_iter().map(below).collect())
    }

    fn extents(&self, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()> {
        let opened = self.opened().map_err(|error| self.failed(&error))?;
        let mut next = Some(0);
        while let Some(from) = next {
            let map = opened.extents(from).map_err(|errno| self.failed(&errno.into()))?;
            map.extents.iter().for_each(&mut *visit);
            next = map.next.filter(|next| *next > from);
        }
        Ok(())
    }

    fn defragment(&self, how: &Defragmentation, flush: bool) -> Result<()> {
        let path = self.file.path();
        let opened = match self.opened() {
            Ok(opened) => opened,
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && self.above.is_some() => return Ok(()),
            Err(error) => return Err(self.failed(&error)),
        };
        let failed = |errno: Errno| about_defragmentation(&path, errno);
        // An empty file gets no ioctl below, and would pass on any file system.
        opened.volume_id().map_err(failed)?;
        let is_of_the_kernel = opened.is_of_the_kernel().map_err(failed)?;
        if !how.unshare && is_of_the_kernel {
            return Err(Failure::new(format!(
                "{}: it is on a mount of the kernel's, which defragments shared extents, too, so that they take space \
                 for each file: --unshare says that this is wanted",
                path.display()
            )));
        }
        // The kernel does not know this flag.
        let mut how = Defragmentation { unshare: how.unshare && !is_of_the_kernel, ..how.clone() };
        let end = how.range.end.min(opened.size().map_err(failed)?);
        while how.range.start < end {
            how.range.end = end.min(how.range.start.saturating_add(STEP));
            opened.defragment(&how).map_err(failed)?;
            how.range.start = how.range.end;
        }
        if flush { opened.sync().map_err(failed) } else { Ok(()) }
    }
}

fn about_defragmentation(path: &Path, errno: Errno) -> Failure {
    match errno {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            Failure::new(format!("{} is not a file of a mounted btrfs volume", path.display()))
        }
        Errno::PERM => Failure::new(format!("{}: only who may write to a file may defragment it", path.display())),
        errno => about_mount(path.display(), errno),
    }
}

/// A file in an image.
struct InImage<'a> {
    image: &'a Image,
    path: LinkedPath,
    id: InodeId,
}

impl Files for Image {
    fn write_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn node<'a>(&'a self, path: &Path) -> Result<BoxedNode<'a>> {
        Ok(Box::new(InImage { image: self, path: LinkedPath::new(path.as_os_str()), id: self.find(path)? }))
    }
}

impl InImage<'_> {
    fn failed(&self, error: &ubtrfs::Error) -> Failure {
        failure(self.path.path().as_os_str().as_bytes(), error)
    }
}

impl<'a> Node<'a> for InImage<'a> {
    fn kind(&mut self) -> Result<Kind> {
        let found = self.image.fs.inodes().attributes(self.id).map_err(|error| self.failed(&error))?;
        let inode = (self.id.subvolume.0, self.id.ino.0);
        Ok(match found.file_type {
            FileType::Directory => {
                let is_of_other_subvolume = self.id == InodeId::root_of(self.id.subvolume);
                Kind::Directory { inode: Some(inode), is_of_other_subvolume }
            }
            FileType::Regular => Kind::File { inode: (found.nlink > 1).then_some(inode) },
            _ => Kind::Other,
        })
    }

    fn entries(&self) -> Result<Vec<(Vec<u8>, BoxedNode<'a>)>> {
        let mut all = Vec::new();
        let mut after = DirIndex(0);
        loop {
            let listed = self.image.fs.directories().list(self.id, after, DirIndex(u64::MAX), BATCH);
            let listed = listed.map_err(|error| self.failed(&error))?;
            let is_end = listed.len() < BATCH;
            for entry in listed {
                after = entry.index;
                let path = self.path.join(entry.name.as_slice());
                let node = InImage { image: self.image, path, id: entry.inode };
                all.push((entry.name, Box::new(node) as BoxedNode<'a>));
            }
            if is_end {
                return Ok(all);
            }
        }
    }

    fn extents(&self, visit: &mut dyn FnMut(&FoundExtent)) -> Result<()> {
        let mut from = 0;
        loop {
            let found = self.image.fs.files().extents(self.id, from, BATCH).map_err(|error| self.failed(&error))?;
            found.iter().for_each(&mut *visit);
            match found.last() {
                Some(last) if found.len() == BATCH => from = last.offset.saturating_add(last.len),
                _ => return Ok(()),
            }
        }
    }

    fn defragment(&self, how: &Defragmentation, _: bool) -> Result<()> {
        // The changes become durable when the use of the image ends.
        self.image.fs.files().defragment(self.id, how).map(drop).map_err(|error| self.failed(&error))
    }
}
