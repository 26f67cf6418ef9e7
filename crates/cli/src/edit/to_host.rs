//! Copies files of an image into a directory of the host. Nothing is made outside that directory,
//! whatever names and links the image has.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};
use ubtrfs::{Damage, Filesystem};
use ubtrfs_format::items::FileType;
use ubtrfs_image::{
    Description, Editor, HostDirectory, HostTree, Job, LinkedPath, Source, VolumeFile, VolumeFiles, is_name,
};

use super::session::about;
use crate::args::edit::Cp;
use crate::failure::{Failure, Result};
use crate::host::destination::{Destination, Stream, is_content, is_named_as_directory};
use crate::host::replacement::Replacement;
use crate::host::sources::Sources;
use crate::host::target::{
    Identity, Made, NO_LINK, enter, hold, hold_again, make_directory, make_directory_as, make_link, make_node,
    make_symlink,
};
use crate::place::Image;
use crate::problems::Problems;
use crate::show;

/// A directory that is being copied.
struct Frame {
    to: Rc<HostDirectory>,
    path: LinkedPath,
    description: Description,
    /// The permissions that the directory gets at the end, if the copy is no archive and they still
    /// have to be set.
    mode: Option<u32>,
    left: Vec<(Vec<u8>, VolumeFile)>,
}

/// The files that are copied to one directory.
struct Tree {
    source: VolumeFiles,
    /// The directory that the copy goes to.
    root: Rc<HostDirectory>,
    /// The directories below it, of which a few are open.
    host: HostTree,
    /// The first names of inodes that have several.
    links: HashMap<(u64, u64), First>,
}

/// Why a file is not copied.
enum Stop {
    /// It can't be read, which is no reason not to copy others.
    Unreadable(Failure),
    /// The copy can't go on.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Stop {
    /// A file of the image that can't be read.
    fn unreadable(error: &ubtrfs_image::Error) -> Self {
        Self::Unreadable(about(error))
    }

    fn failure(self) -> Failure {
        let (Self::Unreadable(failure) | Self::Failed(failure)) = self;
        failure
    }
}

/// The copy of an inode that has several names. It holds no descriptor, since there may be many
/// such inodes.
struct First {
    dir: Rc<HostDirectory>,
    name: Vec<u8>,
    known: Identity,
}

struct Copier<'a, 'b> {
    fs: &'a Filesystem,
    /// What was skipped because it can't be read.
    damage: &'a Damage,
    job: &'a mut Job<'b>,
    sources: &'a Sources,
    archive: bool,
    recursive: bool,
    /// The permissions that new files don't get (umask(2)).
    umask: u32,
    problems: &'a mut Problems,
}

/// Copies files of an image to a path, or into it if it is a directory. Files that could be copied,
/// but not exactly as in the image, are added to `problems`.
pub fn copy(
    image: &Image,
    arguments: &Cp,
    from: &[PathBuf],
    to: &Path,
    job: &mut Job<'_>,
    problems: &mut Problems,
) -> Result<()> {
    let (fs, sources) = (&image.fs, image.sources());
    let (archive, recursive) = (arguments.archive, arguments.recursive || arguments.archive);
    let editor = Editor::new(fs, (0, 0));
    if !to.is_dir() && (from.len() > 1 || is_named_as_directory(to) && !recursive) {
        return Err(no_directory(to));
    }
    let mut copier =
        Copier { fs, damage: &image.damage, job, sources, archive, recursive, umask: crate::host::umask(), problems };
    let mut made = HashSet::new();
    for path in from {
        let (id, file_type) = editor.find(path, !recursive).map_err(|error| about(&error))?;
        let source = VolumeFiles::new(fs);
        let file = VolumeFile::new(id, path);
        // The top level has no name, and `DIR/.` stands for the contents of the directory.
        let name = path.file_name().filter(|_| !is_content(path));
        let to = match name {
            None if to.is_dir() && recursive => {
                let mut tree = Tree::new(source, to)?;
                for (name, file) in tree.source.children(&file).map_err(|error| about(&error))? {
                    made.insert(to.join(OsStr::from_bytes(&name)));
                    copier.tree(&mut tree, &file, &name, to)?;
                }
                continue;
            }
            Some(name) if to.is_dir() => to.join(name),
            _ => to.to_owned(),
        };
        // As with cp(1), this command neither replaces nor writes through a file that it has made.
        if file_type != FileType::Directory && !made.insert(to.clone()) {
            let sentence = "two of the files that are copied would have this name";
            return Err(Failure::new(format!("{}: {sentence}", to.display())));
        }
        let destination = match file_type {
            FileType::Regular => Destination::of_content(&to, sources)?,
            _ => Destination::named(&to)?,
        };
        match destination {
            Destination::Named { above, name } => {
                let mut tree = Tree::new(source, &above)?;
                copier.tree(&mut tree, &file, &name, &above)?;
            }
            Destination::Stream(device) => {
                copier.stream(&source, &file, device, &to)?;
                copier.done(file_type)?;
            }
        }
    }
    Ok(())
}

/// Returns the failure about a target that has to be a directory, and is none, perhaps because the
/// user meant an image.
fn no_directory(to: &Path) -> Failure {
    let shown = show::path(to);
    let image = to.as_os_str().as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
    let image = Path::new(OsStr::from_bytes(image));
    if image != to && !image.exists() {
        let image = show::path(image);
        return Failure::new(format!("there is no image {image}, nor a directory {shown}"));
    }
    Failure::new(format!("{shown} is not a directory"))
}

impl Tree {
    fn new(source: VolumeFiles, above: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, above, flags, Mode::empty())
            .map_err(io::Error::from)
            .and_then(HostTree::begin)
            .map_err(|error| Failure::about(show::path(above), &error))?;
        Ok(Self { source, root, host: HostTree::default(), links: HashMap::new() })
    }
}

impl Copier<'_, '_> {
    fn tree(&mut self, tree: &mut Tree, file: &VolumeFile, name: &[u8], above: &Path) -> Result<()> {
        let mut frames: Vec<Frame> = Vec::new();
        let root = Rc::clone(&tree.root);
        let first = self.one(tree, file, &root, name, &LinkedPath::new(above));
        frames.extend(first.map_err(Stop::failure)?);
        while let Some(frame) = frames.last_mut() {
            if let Some((name, file)) = frame.left.pop() {
                match self.one(tree, &file, &frame.to, &name, &frame.path) {
                    Ok(next) => frames.extend(next),
                    Err(Stop::Unreadable(failure)) => self.problems.add_failure(&failure),
                    Err(Stop::Failed(failure)) => return Err(failure),
                }
            } else if let Some(done) = frames.pop() {
                let to = tree.host.descriptor(&done.to);
                let finished = to.and_then(|to| self.finish(&Made::Open(to.as_fd()), &done.description, done.mode));
                finished.map_err(|error| about_path(&done.path, &error))?;
                self.done(FileType::Directory)?;
            }
        }
        Ok(())
    }

    /// Copies one file into a directory. For a directory it returns a frame with the entries that
    /// remain to be copied.
    fn one(
        &mut self,
        tree: &mut Tree,
        file: &VolumeFile,
        to: &Rc<HostDirectory>,
        name: &[u8],
        above: &LinkedPath,
    ) -> std::result::Result<Option<Frame>, Stop> {
        if !is_name(name) {
            let sentence = format!("{} has a name that no file can have", show::path(&above.path()));
            return Err(Failure::new(sentence).into());
        }
        let path = above.join(name);
        let failed = |error: io::Error| about_path(&path, &error);
        let at = &*tree.host.descriptor(to).map_err(failed)?;
        let description = tree.source.describe(file).map_err(|error| Stop::unreadable(&error))?;
        if description.file_type() == FileType::Directory {
            if !self.recursive {
                let shown = show::path(&path.path());
                return Err(Failure::new(format!("{shown} would be a copy of a directory: -r copies those")).into());
            }
            let mode = match self.directory(at, name, description.mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => made.map_err(failed)?,
            };
            let to = enter(at, name).and_then(|dir| tree.host.enter(to, name, dir)).map_err(failed)?;
            let before = self.damage.count();
            // The directory itself is copied all the same.
            let mut left = tree.source.children(file).unwrap_or_else(|error| {
                self.problems.add_failure(&about(&error));
                Vec::new()
            });
            if self.damage.count() != before {
                self.problems.add(show::path(&path.path()), "part of the directory can't be read");
            }
            left.reverse();
            return Ok(Some(Frame { to, path, description, mode, left }));
        }
        let kind = rustix::fs::FileType::from_raw_mode(description.mode);
        let mut new = Replacement::begin(at, name, kind, self.sources).map_err(failed)?;
        let first = description.identity.as_ref().and_then(|identity| tree.links.get(identity));
        let first = first
            .map(|First { dir, name, known }| tree.host.descriptor(dir).and_then(|dir| hold_again(&dir, name, *known)));
        let first = match first.transpose() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.problems.add(show::path(&path.path()), NO_LINK);
                None
            }
            first => first.map_err(failed)?,
        };
        if let Some(first) = first {
            let found = rustix::fs::fstat(&first).map_err(|error| failed(error.into()))?;
            if !new.is_taken_by(&found) {
                make_link(&first, at, new.name_for_now()).map_err(failed)?;
                new.finish(None, false).map_err(failed)?;
            }
        } else {
            // A file that the user named may replace the only copy of its content, so the new
            // content is made durable first.
            let is_durable = to.is_first();
            let known = self.file(&tree.source, file, (at, new, is_durable), &description, &path)?;
            if let Some(identity) = description.identity.filter(|_| self.archive) {
                tree.links.insert(identity, First { dir: Rc::clone(to), name: name.to_vec(), known });
            }
        }
        self.done(description.file_type())?;
        Ok(None)
    }

    fn done(&mut self, file_type: FileType) -> Result<()> {
        self.job.done(file_type).map_err(|error| about(&error))
    }

    /// Makes a file other than a directory.
    fn file(
        &mut self,
        source: &VolumeFiles,
        from: &VolumeFile,
        (at, mut new, is_durable): (&OwnedFd, Replacement<'_>, bool),
        description: &Description,
        path: &LinkedPath,
    ) -> std::result::Result<Identity, Stop> {
        let failed = |error: io::Error| about_path(path, &error);
        match description.file_type() {
            FileType::Regular => {
                let inherits = new.has_file() && !self.archive;
                let mode = if inherits { 0o600 } else { self.first_mode(description) };
                let file = new.make_file(mode).map_err(failed)?;
                self.content(source, from, description.size, &file, path)?;
                if inherits {
                    new.inherit(&file).map_err(failed)?;
                } else {
                    self.finish(&Made::Open(file.as_fd()), description, None).map_err(failed)?;
                }
                new.finish(Some(&file), is_durable).map_err(failed)?;
                return Ok(Made::Open(file.as_fd()).identity().map_err(failed)?);
            }
            FileType::Symlink => make_symlink(at, new.name_for_now(), &description.target).map_err(failed)?,
            _ => {
                let attributes = self.fs.inodes().attributes(from.id);
                let attributes = attributes.map_err(|error| Stop::Unreadable(about_path(path, &error)))?;
                let mode = self.first_mode(description);
                make_node(at, new.name_for_now(), &attributes, mode).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => Failure::new(format!(
                        "{} is a device node, which only root may make outside of an image",
                        show::path(&path.path())
                    )),
                    _ => failed(error),
                })?;
            }
        }
        let held = hold(at, new.name_for_now(), description.mode).map_err(failed)?;
        self.finish(&held, description, None).map_err(failed)?;
        new.finish(None, false).map_err(failed)?;
        Ok(held.identity().map_err(failed)?)
    }

    fn content(
        &mut self,
        source: &VolumeFiles,
        from: &VolumeFile,
        size: u64,
        to: &File,
        path: &LinkedPath,
    ) -> std::result::Result<(), Stop> {
        let before = self.damage.count();
        self.read(source, from, size, path, &mut |at, data| to.write_all_at(data, at))?;
        if self.damage.count() != before {
            let what = "part of its map can't be read: there may be holes where data was";
            self.problems.add(show::path(&path.path()), what);
        }
        Ok(to.set_len(size).map_err(|error| about_path(path, &error))?)
    }

    /// Writes the content of a file into a device or a FIFO, with zeros for holes.
    fn stream(&mut self, source: &VolumeFiles, from: &VolumeFile, mut to: Stream, path: &Path) -> Result<()> {
        let to = &mut to.file;
        let size = source.describe(from).map_err(|error| about(&error))?.size;
        let (mut done, path) = (0, &LinkedPath::new(path));
        self.read(source, from, size, path, &mut |at, data| {
            io::copy(&mut io::repeat(0).take(at - done), to)?;
            done = at + data.len() as u64;
            to.write_all(data)
        })
        .map_err(Stop::failure)?;
        let rest = io::copy(&mut io::repeat(0).take(size.saturating_sub(done)), to);
        // A device with delayed writes reports their failure here. Files that can't be synced
        // return `EINVAL`.
        let written = rest.and_then(|_| match to.sync_all() {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            _ => Ok(()),
        });
        written.map_err(|error| about_path(path, &error))
    }

    fn read(
        &mut self,
        source: &VolumeFiles,
        from: &VolumeFile,
        size: u64,
        path: &LinkedPath,
        write: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> std::result::Result<(), Stop> {
        let mut failed = None;
        let job = &mut *self.job;
        let read = source.read(from, size, &mut |at, data| {
            job.add(data.len() as u64);
            write(at, data).map_err(|error| {
                let sentence = ubtrfs_errors::sentence(&error);
                failed = Some(about_path(path, &error));
                ubtrfs_image::Error::Refused(sentence)
            })
        });
        match (read, failed) {
            (_, Some(failure)) => Err(failure.into()),
            (Err(error), None) => Err(Stop::unreadable(&error)),
            (Ok(_), None) => Ok(()),
        }
    }

    /// Makes a new directory. Returns the permissions that it has to get at the end, if these
    /// differ and the copy is no archive, whose permissions are set with the other attributes.
    fn directory(&self, at: &OwnedFd, name: &[u8], mode: u32) -> io::Result<Option<u32>> {
        if self.archive {
            return make_directory(at, name).map(|()| None);
        }
        // These bits of the umask apply even if a default ACL does, as with cp(1).
        make_directory_as(at, name, mode & 0o1777 & !(self.umask & 0o022))
    }

    /// Returns the permissions with which a file other than a directory is made. Together with the
    /// umask and ACLs they give a plain copy its final permissions, as with cp(1). The copy in an
    /// archive gets its permissions after all else.
    fn first_mode(&self, of: &Description) -> u32 {
        match of.file_type() {
            _ if self.archive => 0o600,
            FileType::Regular => of.mode & 0o777,
            _ => of.mode & 0o7777,
        }
    }

    /// Sets the final attributes of a copy. A plain copy gets at most `mode`. Owners and attributes
    /// that only root may set are omitted for other users, as with cp(1).
    fn finish(&self, made: &Made<'_>, of: &Description, mode: Option<u32>) -> io::Result<()> {
        if !self.archive {
            return mode.map_or(Ok(()), |mode| made.permit(mode));
        }
        // ACLs that the file has inherited from its directory, or had before, do not belong to the
        // copy.
        made.drop_acls(|name| of.xattrs.iter().any(|(of, _)| of == name))?;
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

/// Returns the failure for an error of a file of the host.
fn about_path(path: &LinkedPath, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::about(show::path(&path.path()), error)
}
