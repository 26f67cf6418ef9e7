//! A tar archive into a directory of a volume.
//!
//! Archives come from anywhere: no entry is made outside of the directory, and none through a
//! symbolic link, be it one that an entry before has made. Only layers of OCI images go through
//! links, which don't lead out of the directory either.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tar::EntryType;
use ubtrfs::format::items::FileType;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, SetAttributes};

use crate::archive_entry::{ArchiveReader, Described, components};
use crate::attributes::Attributes;
use crate::content::Target;
use crate::error::{Error, Result, inside};
use crate::inside::{VolumeFile, VolumeFiles, lookup};
use crate::job::Job;
use crate::remove::remove;
use crate::source::Source;

/// Bytes that are read at once, up to a multiple of them in a file: blocks within are read whole.
const PIECE: usize = 1 << 20;
/// Symbolic links that one name may lead through, as in the kernel.
const MOST_LINKS: u32 = 40;

/// What the names of an archive mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// Files.
    #[default]
    Plain,
    /// Those that begin with `.wh.` say what a layer of an OCI image removes of those below it.
    Oci,
}

/// How archives are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    /// What their names mean.
    pub layer: Layer,
    /// Data that a file of the same job has already is shared with it.
    pub dedupe: bool,
}

/// Reads an archive into a directory.
pub fn import(
    fs: &Arc<Filesystem>,
    dir: InodeId,
    archive: impl Read,
    options: ImportOptions,
    job: &mut Job<'_>,
) -> Result<()> {
    let ImportOptions { layer, dedupe } = options;
    let mut import = Import { fs, job, root: dir, layer, dedupe, made: HashSet::new(), times: Vec::new() };
    let mut archive = ArchiveReader::new(BufReader::with_capacity(PIECE, archive));
    while let Some(of) = archive.next()? {
        import.entry(&mut archive, &of)?;
    }
    archive.finish()?;
    // Entries change the times of the directories that they come into.
    for (id, times) in import.times.into_iter().rev() {
        match fs.set_attributes(id, &times) {
            // A later entry may have replaced it.
            Err(error) if error.errno() != Errno::NOENT => return Err(inside("/")(error)),
            _ => {}
        }
    }
    Ok(())
}

struct Import<'a, 'b> {
    fs: &'a Arc<Filesystem>,
    job: &'a mut Job<'b>,
    root: InodeId,
    layer: Layer,
    dedupe: bool,
    /// What entries of this archive have made.
    made: HashSet<InodeId>,
    /// The times of directories, to be set in the end.
    times: Vec<(InodeId, SetAttributes)>,
}

impl Import<'_, '_> {
    fn entry(&mut self, archive: &mut ArchiveReader<impl Read>, of: &Described) -> Result<()> {
        let shown = Path::new(OsStr::from_bytes(&of.path)).to_owned();
        let names = components(&of.path)?;
        let Some((name, above)) = names.split_last() else {
            // The directory itself.
            if of.kind != EntryType::Directory {
                return Err(refused(&shown, "would take the place of the directory that is imported to"));
            }
            self.job.made(self.fs, self.root, Path::new("/"))?;
            return self.finish(self.root, of, &shown);
        };
        let Some(dir) = self.directory(above, &shown, true)? else { return Ok(()) };
        if self.layer == Layer::Oci && name.starts_with(b".wh.") {
            return self.whiteout(dir, &name[4..], &shown);
        }
        let present = lookup(self.fs, dir, name, &shown)?;
        if of.kind == EntryType::Directory {
            if let Some((id, FileType::Directory)) = present {
                self.made.insert(id);
                self.job.made(self.fs, id, &joined(&names))?;
                return self.finish(id, of, &shown);
            }
        } else if let Some((_, FileType::Directory)) = present {
            if self.layer == Layer::Plain {
                return Err(refused(&shown, "would replace a directory"));
            }
            remove(self.fs, dir, name, &shown)?;
        }
        if of.kind == EntryType::Link {
            self.link(dir, name, of, present.map(|(id, _)| id), &shown)?;
            return self.job.done(FileType::Regular);
        }
        if let Some((_, file_type)) = present
            && file_type != FileType::Directory
        {
            self.fs.unlink(dir, name).map_err(inside(&shown))?;
        }
        let new = NewInode {
            mode: of.type_bits().ok_or_else(|| refused(&shown, "is of a kind that no file has"))? | of.mode,
            uid: of.uid,
            gid: of.gid,
            rdev: of.rdev,
            symlink_target: of.target.clone(),
            ..NewInode::default()
        };
        let made = self.fs.create(dir, name, &new).map_err(inside(&shown))?;
        self.made.insert(made);
        if matches!(FileType::from_mode(new.mode), FileType::Regular | FileType::Directory) {
            self.job.made(self.fs, made, &joined(&names))?;
        }
        if FileType::from_mode(new.mode) == FileType::Regular {
            self.content(archive, of, made, &shown)?;
        }
        self.finish(made, of, &shown)?;
        self.fs.forget(made, 1);
        Ok(())
    }

    /// The directory of these names; with `make`, what is missing is made.
    ///
    /// The names of a layer of an OCI image go through symbolic links of layers below, as container
    /// tools have it; the root of each link is the directory that is imported to.
    fn directory(&mut self, names: &[&[u8]], shown: &Path, make: bool) -> Result<Option<InodeId>> {
        let mut dir = self.root;
        let mut above = Vec::new();
        let mut left: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                // Of a link: it ends at the directory that is imported to.
                dir = above.pop().unwrap_or(self.root);
                continue;
            }
            let next = match lookup(self.fs, dir, &name, shown)? {
                Some((id, FileType::Directory)) => id,
                Some((id, FileType::Symlink)) if self.layer == Layer::Oci => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(inside(shown)(Errno::LOOP.into()));
                    }
                    let target = self.fs.read_link(id).map_err(inside(shown))?;
                    if target.starts_with(b"/") {
                        dir = self.root;
                        above.clear();
                    }
                    let names = target.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
                    left.extend(names.map(<[u8]>::to_vec));
                    continue;
                }
                _ if !make => return Ok(None),
                Some((_, FileType::Symlink)) => {
                    return Err(refused(shown, "would be made through a symbolic link"));
                }
                Some(_) => return Err(inside(shown)(Errno::NOTDIR.into())),
                None => {
                    let new = NewInode { mode: 0o040_755, ..NewInode::default() };
                    let made = self.fs.create(dir, &name, &new).map_err(inside(shown))?;
                    self.job.made(self.fs, made, &joined(&names[..names.len().saturating_sub(left.len())]))?;
                    self.fs.forget(made, 1);
                    made
                }
            };
            if make {
                // It has something of this archive.
                self.made.insert(next);
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
            Some((last, above)) => match self.directory(above, shown, false)? {
                Some(above) => lookup(self.fs, above, last, shown)?,
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
            self.fs.unlink(dir, name).map_err(inside(shown))?;
        }
        self.fs.link(target, dir, name).map_err(inside(shown))
    }

    /// Removes what layers below have under a name, or, where that is `.wh..opq`, all that they
    /// have in the directory.
    fn whiteout(&self, dir: InodeId, name: &[u8], shown: &Path) -> Result<()> {
        if name == b".wh..opq" {
            return self.hide(dir, shown);
        }
        match lookup(self.fs, dir, name, shown)? {
            Some((id, _)) if !self.made.contains(&id) => remove(self.fs, dir, name, shown),
            _ => Ok(()),
        }
    }

    /// Removes all below a directory that no entry of this archive has made.
    fn hide(&self, dir: InodeId, shown: &Path) -> Result<()> {
        let source = VolumeFiles::new(self.fs);
        let mut left = vec![VolumeFile { id: dir, path: shown.to_owned() }];
        while let Some(dir) = left.pop() {
            for (name, file) in source.children(&dir)? {
                let is_made = self.made.contains(&file.id);
                match lookup(self.fs, dir.id, &name, &file.path)? {
                    Some((_, FileType::Directory)) if is_made => left.push(file),
                    Some(_) if !is_made => remove(self.fs, dir.id, &name, &file.path)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        archive: &mut ArchiveReader<impl Read>,
        of: &Described,
        to: InodeId,
        shown: &Path,
    ) -> Result<()> {
        let set_size = SetAttributes { size: Some(of.size), ..SetAttributes::default() };
        self.fs.set_attributes(to, &set_size).map_err(inside(shown))?;
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

    /// Gives what was made the rest of its attributes.
    fn finish(&mut self, id: InodeId, of: &Described, shown: &Path) -> Result<()> {
        let Described { uid, gid, mode, ref xattrs, mtime, .. } = *of;
        let attributes = Attributes { owner: (uid, gid), mode, xattrs, atime: of.atime.unwrap_or(mtime), mtime };
        attributes.give(self.fs, id, shown)?;
        if of.kind == EntryType::Directory {
            self.times.push((id, attributes.times()));
            return self.job.done(FileType::Directory);
        }
        self.job.done(FileType::Regular)
    }
}

/// The path of names, without links in it.
fn joined(names: &[&[u8]]) -> PathBuf {
    names.iter().map(|name| OsStr::from_bytes(name)).collect()
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Refused(format!("the archive's entry {} {why}", path.display()))
}
