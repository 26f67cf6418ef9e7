//! Copying files of an image into a directory of the host. Nothing is made outside of it, whatever
//! names and links the image has.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use ubtrfs::Filesystem;
use ubtrfs_format::items::FileType;
use ubtrfs_image::{Description, Editor, Job, Source, VolumeFile, VolumeFiles};

use super::session::about;
use crate::args::edit::Cp;
use crate::failure::{Failure, Result};
use crate::restore::target::{
    Made, enter, enter_all, hold, is_name, make_directory, make_file, make_link, make_node, make_symlink, type_of,
};

/// A directory that is being copied.
struct Frame {
    to: OwnedFd,
    path: PathBuf,
    /// Its path from the directory that the copy goes to.
    way: Vec<Vec<u8>>,
    description: Description,
    is_new: bool,
    left: Vec<(Vec<u8>, VolumeFile)>,
}

struct Copier<'a, 'b> {
    fs: &'a Filesystem,
    job: &'a mut Job<'b>,
    /// The directory that the copy goes to.
    root: OwnedFd,
    source: VolumeFiles,
    archive: bool,
    recursive: bool,
    /// Permissions that new files don't get.
    umask: u32,
    /// The path, from there, that the first name of an inode with several was copied to. No
    /// descriptor is held for it, since there may be many.
    links: HashMap<(u64, u64), Vec<Vec<u8>>>,
}

/// Copies files of an image to a path: into it, if it is a directory.
pub fn copy(fs: &Arc<Filesystem>, arguments: &Cp, from: &[PathBuf], to: &Path, job: &mut Job<'_>) -> Result<()> {
    let recursive = arguments.recursive || arguments.archive;
    let editor = Editor::new(fs, (0, 0));
    if from.len() > 1 && !to.is_dir() {
        return Err(Failure::new(format!("{} is not a directory", to.display())));
    }
    let previous = rustix::process::umask(Mode::empty());
    rustix::process::umask(previous);
    let umask = previous.as_raw_mode();
    for path in from {
        let (id, _) = editor.find(path, !recursive).map_err(|error| about(&error))?;
        let source = VolumeFiles::new(fs);
        let file = VolumeFile { id, path: path.clone() };
        let (above, files) = match path.file_name() {
            // The top level has no name: what is in it goes into the directory.
            None if to.is_dir() && recursive => (to, source.children(&file).map_err(|error| about(&error))?),
            Some(name) if to.is_dir() => (to, vec![(name.as_bytes().to_vec(), file)]),
            _ => {
                let name = to.file_name().ok_or_else(|| Failure::new(format!("{} is no name", to.display())))?;
                let above = to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
                (above, vec![(name.as_bytes().to_vec(), file)])
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, above, flags, Mode::empty())
            .map_err(|error| Failure::about(above.display(), &io::Error::from(error)))?;
        let archive = arguments.archive;
        let mut copier = Copier { fs, job: &mut *job, root, source, archive, recursive, umask, links: HashMap::new() };
        for (name, file) in files {
            copier.tree(&file, &name, above)?;
        }
    }
    Ok(())
}

impl Copier<'_, '_> {
    fn tree(&mut self, file: &VolumeFile, name: &[u8], above: &Path) -> Result<()> {
        let mut frames: Vec<Frame> = Vec::new();
        let root = self.root.try_clone().map_err(|error| Failure::about(above.display(), &error))?;
        frames.extend(self.one(file, (&root, &[]), name, above)?);
        while let Some(frame) = frames.last_mut() {
            if let Some((name, file)) = frame.left.pop() {
                let next = self.one(&file, (&frame.to, &frame.way), &name, &frame.path);
                frames.extend(next?);
            } else if let Some(done) = frames.pop() {
                let failed = |error: io::Error| Failure::about(done.path.display(), &error);
                self.finish(&Made::Open(done.to.as_fd()), &done.description, done.is_new).map_err(failed)?;
                self.done(FileType::Directory)?;
            }
        }
        Ok(())
    }

    /// Copies one file into a directory, which is open and at the end of this way; of a directory,
    /// what is in it remains to be copied.
    fn one(
        &mut self,
        file: &VolumeFile,
        (at, way): (&OwnedFd, &[Vec<u8>]),
        name: &[u8],
        above: &Path,
    ) -> Result<Option<Frame>> {
        let path = above.join(OsStr::from_bytes(name));
        if !is_name(name) {
            return Err(Failure::new(format!("{} has a name that no file can have", above.display())));
        }
        let description = self.source.describe(file).map_err(|error| about(&error))?;
        let failed = |error: io::Error| Failure::about(path.display(), &error);
        if description.file_type() == FileType::Directory {
            if !self.recursive {
                return Err(Failure::new(format!(
                    "{} would be a copy of a directory: -r copies those",
                    path.display()
                )));
            }
            let is_new = match make_directory(at, name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                made => made.map(|()| true).map_err(failed)?,
            };
            let to = enter(at, name).map_err(failed)?;
            let mut left = self.source.children(file).map_err(|error| about(&error))?;
            left.reverse();
            let way = [way, &[name.to_vec()]].concat();
            return Ok(Some(Frame { to, path, way, description, is_new, left }));
        }
        if type_of(at, name).is_some() {
            // A directory is refused by this.
            rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(|error| failed(error.into()))?;
        }
        let path_of_first = description.identity.as_ref().and_then(|identity| self.links.get(identity));
        if let Some((first, way)) = path_of_first.and_then(|path| path.split_last()) {
            let dir = enter_all(&self.root, way).map_err(failed)?;
            make_link(&dir, first, at, name).map_err(failed)?;
            self.done(description.file_type())?;
            return Ok(None);
        }
        self.file(file, at, name, &description, &path)?;
        if let Some(identity) = description.identity.filter(|_| self.archive) {
            self.links.insert(identity, [way, &[name.to_vec()]].concat());
        }
        self.done(description.file_type())?;
        Ok(None)
    }

    fn done(&mut self, file_type: FileType) -> Result<()> {
        self.job.done(file_type).map_err(|error| about(&error))
    }

    fn file(
        &mut self,
        from: &VolumeFile,
        at: &OwnedFd,
        name: &[u8],
        description: &Description,
        path: &Path,
    ) -> Result<()> {
        let failed = |error: io::Error| Failure::about(path.display(), &error);
        match description.file_type() {
            FileType::Regular => {
                let file = make_file(at, name).map_err(failed)?;
                self.content(from, description.size, &file, path)?;
                self.finish(&Made::Open(file.as_fd()), description, true).map_err(failed)
            }
            FileType::Symlink => {
                make_symlink(at, name, &description.target).map_err(failed)?;
                self.finish(&hold(at, name, description.mode).map_err(failed)?, description, true).map_err(failed)
            }
            _ => {
                let attributes = self.fs.attributes(from.id).map_err(|error| Failure::about(path.display(), &error))?;
                make_node(at, name, &attributes).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => Failure::new(format!(
                        "{} is a device node, which only root may make outside of an image",
                        path.display()
                    )),
                    _ => failed(error),
                })?;
                self.finish(&hold(at, name, description.mode).map_err(failed)?, description, true).map_err(failed)
            }
        }
    }

    fn content(&mut self, from: &VolumeFile, size: u64, to: &File, path: &Path) -> Result<()> {
        let mut failed = None;
        let job = &mut *self.job;
        let read = self.source.read(from, size, &mut |at, data| {
            job.add(data.len() as u64);
            to.write_all_at(data, at).map_err(|error| {
                let sentence = ubtrfs_tree::sentence(&error);
                failed = Some(Failure::about(path.display(), &error));
                ubtrfs_image::Error::Refused(sentence)
            })
        });
        match (read, failed) {
            (_, Some(failure)) => Err(failure),
            (Err(error), None) => Err(about(&error)),
            (Ok(()), None) => to.set_len(size).map_err(|error| Failure::about(path.display(), &error)),
        }
    }

    /// Gives a copy the attributes that it is to have. Owners and attributes that only root may set
    /// are left out for others, as by cp(1).
    fn finish(&self, made: &Made<'_>, of: &Description, is_new: bool) -> io::Result<()> {
        if !self.archive {
            return if is_new { made.permit(of.mode & 0o777 & !self.umask) } else { Ok(()) };
        }
        let is_owned = match made.own(of.uid, of.gid) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
            owned => owned.map(|()| true)?,
        };
        for (name, value) in &of.xattrs {
            match made.set_xattr(name, value) {
                Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {}
                set => set?,
            }
        }
        made.permit(if is_owned { of.mode } else { of.mode & !0o6000 })?;
        made.stamp(of.atime, of.mtime)
    }
}
