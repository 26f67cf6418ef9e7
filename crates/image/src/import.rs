//! Imports a tar archive into a directory of a volume.
//!
//! Archives are untrusted: no entry is made outside of the directory, and none through a symbolic
//! link, not even through one that an earlier entry has made. Only layers of OCI images follow
//! links, and these don't lead out of the directory either.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::format::items::FileType;
use ubtrfs::format::posix::MAX_SYMLINKS;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, SetAttributes};

use crate::archive::{ArchiveReader, components};
use crate::archive_entry::Described;
use crate::archive_header::Kind;
use crate::attributes::{Attributes, give_property};
use crate::content::Target;
use crate::decompress::decompressed;
use crate::error::{Error, Result, inside};
use crate::inside::lookup;
use crate::job::Job;
use crate::remove::remove;
use crate::selection::Selection;

/// How many bytes are read at once. A read ends at a multiple of this in a file, so that blocks
/// within are read whole.
const PIECE: usize = 1 << 20;

/// The meaning of the names of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// Files.
    #[default]
    Plain,
    /// Names that begin with `.wh.` are whiteouts, by which a layer of an OCI image removes files
    /// of the layers below.
    Oci,
}

/// How archives are read.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The meaning of their names.
    pub layer: Layer,
    /// Whether to share data with a file of the same job that has it already.
    pub dedupe: bool,
    /// Which entries are taken, and their owners.
    pub selection: Selection,
}

/// Reads an archive into a directory. It may be compressed by gzip, zstd, xz or bzip2.
pub fn import(
    fs: &Arc<Filesystem>,
    dir: InodeId,
    archive: impl Read,
    options: ImportOptions,
    job: &mut Job<'_>,
) -> Result<()> {
    import_plain(fs, dir, decompressed(archive)?, options, job)
}

/// Reads an archive that is not compressed into a directory.
pub(crate) fn import_plain(
    fs: &Arc<Filesystem>,
    dir: InodeId,
    archive: impl Read,
    options: ImportOptions,
    job: &mut Job<'_>,
) -> Result<()> {
    let ImportOptions { layer, dedupe, selection } = options;
    let (made, hidden, times, flags) = (HashMap::new(), HashSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut import = Import { fs, job, root: dir, layer, dedupe, made, hidden, times, flags };
    let mut archive = ArchiveReader::new(archive);
    while let Some(mut of) = archive.next()? {
        if selection.excluded.has_above(&components(&of.path)?) {
            continue;
        }
        (of.uid, of.gid) = selection.owners.owner((of.uid, of.gid));
        let changed = selection.owners.change_xattrs(&mut of.xattrs);
        changed.map_err(|why| Error::Refused(format!("{}: {why}", of.path.escape_ascii())))?;
        import.entry(&mut archive, &of)?;
    }
    archive.finish()?;
    // This comes last since entries change the times of their directories.
    for (id, times) in import.times {
        match fs.inodes().set_attributes(id, &times) {
            // A later entry may have replaced it.
            Err(error) if error.errno() != Errno::NOENT => return Err(inside("/")(error)),
            _ => {}
        }
    }
    // This comes last since flags may forbid any further change.
    for (id, flags) in import.flags {
        match fs.inodes().set_flags_as(id, &|is| Ok(is.flags | flags)) {
            Err(error) if error.errno() != Errno::NOENT => return Err(inside("/")(error)),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) struct Import<'a, 'b> {
    pub(crate) fs: &'a Arc<Filesystem>,
    job: &'a mut Job<'b>,
    root: InodeId,
    layer: Layer,
    dedupe: bool,
    /// The names that entries of this archive have made, by their directories.
    made: HashMap<InodeId, HashSet<Vec<u8>>>,
    /// Directories whose content of layers below has been removed.
    pub(crate) hidden: HashSet<InodeId>,
    /// The times of directories and the flags to be set in the end, by the last entry of each.
    times: BTreeMap<InodeId, SetAttributes>,
    flags: BTreeMap<InodeId, u64>,
}

impl Import<'_, '_> {
    fn entry(&mut self, archive: &mut ArchiveReader<impl Read>, of: &Described) -> Result<()> {
        let shown = Path::new(OsStr::from_bytes(&of.path)).to_owned();
        let names = components(&of.path)?;
        let Some((name, above)) = names.split_last() else {
            // The directory itself.
            if of.kind != Kind::Directory {
                return Err(refused(&shown, "would take the place of the directory that is imported to"));
            }
            self.job.made(self.fs, self.root, Path::new("/"))?;
            return self.finish(self.root, of, &shown);
        };
        if self.layer == Layer::Oci
            && let Some(hidden) = name.strip_prefix(b".wh.")
        {
            return self.whiteout(above, hidden, &shown);
        }
        let dir = self.directory_for(above, &shown)?;
        let mut present = lookup(self.fs, dir, name).map_err(inside(&shown))?;
        if of.kind == Kind::Directory {
            if let Some((id, FileType::Directory)) = present {
                self.note_made(dir, name);
                self.tell_job(id, &names)?;
                return self.finish(id, of, &shown);
            }
        } else if let Some((id, FileType::Directory)) = present {
            if id.subvolume != dir.subvolume {
                return Err(refused(&shown, "would replace a subvolume"));
            }
            match self.layer {
                Layer::Oci => remove(self.fs, dir, name, &shown)?,
                // As by tar(1), an entry replaces only an empty directory.
                Layer::Plain => match self.fs.directories().rmdir(dir, name) {
                    Err(error) if error.errno() == Errno::NOTEMPTY => {
                        return Err(refused(&shown, "would replace a directory that is not empty"));
                    }
                    removed => removed.map_err(inside(&shown))?,
                },
            }
            present = None;
        }
        self.note_made(dir, name);
        if of.kind == Kind::Link {
            self.link(dir, name, of, present.map(|(id, _)| id), &shown)?;
            return self.job.done(FileType::Regular);
        }
        if present.is_some() {
            self.fs.directories().unlink(dir, name).map_err(inside(&shown))?;
        }
        let new = NewInode {
            mode: of.kind.type_bits() | of.mode,
            uid: of.uid,
            gid: of.gid,
            rdev: of.rdev,
            symlink_target: if of.kind == Kind::Symlink { of.target.clone() } else { Vec::new() },
            ..NewInode::default()
        };
        let made = self.fs.directories().create(dir, name, &new).map_err(inside(&shown))?;
        if matches!(of.kind, Kind::Regular | Kind::Directory) {
            self.tell_job(made, &names)?;
            give_property(self.fs, made, &of.xattrs, &shown)?;
        }
        if of.kind == Kind::Regular {
            self.content(archive, of, made, &shown)?;
        }
        self.finish(made, of, &shown)?;
        self.fs.references().forget(made, 1);
        Ok(())
    }

    /// Notes that an entry of this archive has a name in a directory.
    fn note_made(&mut self, dir: InodeId, name: &[u8]) {
        if self.layer == Layer::Oci {
            self.made.entry(dir).or_default().insert(name.to_vec());
        }
    }

    pub(crate) fn has_made(&self, dir: InodeId, name: &[u8]) -> bool {
        self.made.get(&dir).is_some_and(|names| names.contains(name))
    }

    fn tell_job(&self, id: InodeId, names: &[&[u8]]) -> Result<()> {
        // Composing a path for each of n nested directories takes time of n².
        if self.job.asks_for_paths() { self.job.made(self.fs, id, &joined(names)) } else { Ok(()) }
    }

    /// The directory of these names, for a new entry. Missing directories are made.
    fn directory_for(&mut self, names: &[&[u8]], shown: &Path) -> Result<InodeId> {
        self.walk(names, shown, Walk::Make)?.ok_or_else(|| inside(shown)(Errno::NOENT.into()))
    }

    /// The directory of these names, as the walk finds it.
    ///
    /// The names of a layer of an OCI image go through symbolic links of layers below, as with
    /// container tools; the root of each link is the directory that is imported to.
    pub(crate) fn walk(&mut self, names: &[&[u8]], shown: &Path, how: Walk) -> Result<Option<InodeId>> {
        let mut dir = self.root;
        let mut above = Vec::new();
        let mut left: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                // This is from a symbolic link, and does not lead above the directory that is
                // imported to.
                dir = above.pop().unwrap_or(self.root);
                continue;
            }
            let next = match lookup(self.fs, dir, &name).map_err(inside(shown))? {
                Some((id, FileType::Directory)) => id,
                // When another file replaced the directory, all below it was removed.
                Some(_) if how == Walk::Below && self.has_made(dir, &name) => return Ok(None),
                Some((id, FileType::Symlink)) if self.layer == Layer::Oci => {
                    links += 1;
                    if links > MAX_SYMLINKS {
                        return Err(inside(shown)(Errno::LOOP.into()));
                    }
                    let target = self.fs.files().read_link(id).map_err(inside(shown))?;
                    if target.starts_with(b"/") {
                        dir = self.root;
                        above.clear();
                    }
                    let names = target.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
                    left.extend(names.map(<[u8]>::to_vec));
                    continue;
                }
                _ if how != Walk::Make => return Ok(None),
                Some((_, FileType::Symlink)) => {
                    return Err(refused(shown, "would be made through a symbolic link"));
                }
                Some(_) => return Err(inside(shown)(Errno::NOTDIR.into())),
                None => {
                    let new = NewInode { mode: 0o040_755, ..NewInode::default() };
                    let made = self.fs.directories().create(dir, &name, &new).map_err(inside(shown))?;
                    self.tell_job(made, &names[..names.len().saturating_sub(left.len())])?;
                    self.fs.references().forget(made, 1);
                    made
                }
            };
            if how == Walk::Make {
                // The directory contains an entry of this archive.
                self.note_made(dir, &name);
            }
            above.push(dir);
            dir = next;
        }
        Ok(Some(dir))
    }

    fn link(
        &mut self,
        dir: InodeId,
        name: &[u8],
        of: &Described,
        present: Option<InodeId>,
        shown: &Path,
    ) -> Result<()> {
        let names = components(&of.target)?;
        let found = match names.split_last() {
            Some((last, above)) => match self.walk(above, shown, Walk::Find)? {
                Some(above) => lookup(self.fs, above, last).map_err(inside(shown))?,
                None => None,
            },
            None => None,
        };
        let target = match found {
            Some((id, file_type)) if file_type != FileType::Directory => id,
            _ => return Err(refused(shown, "is a link to no file of the archive or the directory")),
        };
        if present == Some(target) {
            return Ok(());
        }
        if present.is_some() {
            self.fs.directories().unlink(dir, name).map_err(inside(shown))?;
        }
        self.fs.directories().link(target, dir, name).map_err(inside(shown))
    }

    fn content(
        &mut self,
        archive: &mut ArchiveReader<impl Read>,
        of: &Described,
        to: InodeId,
        shown: &Path,
    ) -> Result<()> {
        let set_size = SetAttributes { size: Some(of.size), ..SetAttributes::default() };
        self.fs.inodes().set_attributes(to, &set_size).map_err(inside(shown))?;
        let to = Target { id: to, size: of.size };
        let mut buf = vec![0; PIECE.min(of.size as usize)];
        for (start, len) in &of.ranges {
            let mut done = 0;
            while done < *len {
                let until = PIECE as u64 - (start + done) % PIECE as u64;
                let piece = (len - done).min(until) as usize;
                archive.read_data(&mut buf[..piece])?;
                let written = self.job.write(self.fs, to, start + done, &buf[..piece], self.dedupe);
                written.map_err(inside(shown))?;
                done += piece as u64;
            }
        }
        Ok(())
    }

    /// Gives a new file the rest of its attributes.
    fn finish(&mut self, id: InodeId, of: &Described, shown: &Path) -> Result<()> {
        let Described { uid, gid, mode, ref xattrs, mtime, btime, .. } = *of;
        let attributes = Attributes { owner: (uid, gid), mode, xattrs, atime: of.atime.unwrap_or(mtime), mtime, btime };
        attributes.give(self.fs, id, shown)?;
        if of.flags != 0 && matches!(of.kind, Kind::Regular | Kind::Directory) {
            self.flags.insert(id, of.flags);
        }
        if of.kind == Kind::Directory {
            self.times.insert(id, attributes.times());
            return self.job.done(FileType::Directory);
        }
        self.job.done(FileType::Regular)
    }
}

/// The purpose of a walk to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// To make an entry there. Missing directories are made.
    Make,
    /// To find an existing entry.
    Find,
    /// To find what layers below have there.
    Below,
}

/// Joins names to a path. Symbolic links are not resolved.
fn joined(names: &[&[u8]]) -> PathBuf {
    names.iter().map(|name| OsStr::from_bytes(name)).collect()
}

pub(crate) fn refused(path: &Path, why: &str) -> Error {
    Error::Refused(format!("the archive's entry {} {why}", path.to_string_lossy().escape_debug()))
}
