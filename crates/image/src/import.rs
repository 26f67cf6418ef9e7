//! A tar archive into a directory of a volume.
//!
//! Archives come from anywhere: no entry is made outside of the directory, and none through a
//! symbolic link, be it one that an entry before has made.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tar::EntryType;
use ubtrfs::format::items::FileType;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, SetAttributes, TimeChange, XattrMode};

use crate::archive_entry::{ArchiveReader, Described, components};
use crate::copy::write_all;
use crate::error::{Error, Result, inside};
use crate::inside::VolumeFiles;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// What the names of an archive mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// Files.
    #[default]
    Plain,
    /// Those that begin with `.wh.` say what a layer of an OCI image removes of those below it.
    Oci,
}

/// Reads an archive into a directory.
pub fn import(fs: &Filesystem, dir: InodeId, archive: impl Read, layer: Layer) -> Result<()> {
    let mut import = Import { fs, root: dir, layer, made: HashSet::new(), times: Vec::new() };
    let mut archive = ArchiveReader::new(archive);
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

struct Import<'a> {
    fs: &'a Filesystem,
    root: InodeId,
    layer: Layer,
    /// What entries of this archive have made.
    made: HashSet<InodeId>,
    /// The times of directories, to be set in the end.
    times: Vec<(InodeId, SetAttributes)>,
}

impl Import<'_> {
    fn entry(&mut self, archive: &mut ArchiveReader<impl Read>, of: &Described) -> Result<()> {
        let shown = Path::new(OsStr::from_bytes(&of.path)).to_owned();
        let names = components(&of.path)?;
        let Some((name, above)) = names.split_last() else {
            // The directory itself.
            if of.kind == EntryType::Directory {
                self.finish(self.root, of, &shown)?;
            }
            return Ok(());
        };
        let dir = self.parent(above, &shown)?;
        if self.layer == Layer::Oci && name.starts_with(b".wh.") {
            return self.whiteout(dir, &name[4..], &shown);
        }
        let present = self.lookup(dir, name, &shown)?;
        if of.kind == EntryType::Directory {
            if let Some((id, FileType::Directory)) = present {
                self.made.insert(id);
                return self.finish(id, of, &shown);
            }
        } else if let Some((_, FileType::Directory)) = present {
            if self.layer == Layer::Plain {
                return Err(refused(&shown, "would replace a directory"));
            }
            self.remove(dir, name, &shown)?;
        }
        if of.kind == EntryType::Link {
            return self.link(dir, name, of, present.map(|(id, _)| id), &shown);
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
            xattrs: Vec::new(),
        };
        let made = self.fs.create(dir, name, &new).map_err(inside(&shown))?;
        self.made.insert(made);
        if FileType::from_mode(new.mode) == FileType::Regular {
            self.content(archive, of, made, &shown)?;
        }
        self.finish(made, of, &shown)?;
        self.fs.forget(made, 1);
        Ok(())
    }

    /// The directory of these names; what is missing is made.
    fn parent(&mut self, names: &[&[u8]], shown: &Path) -> Result<InodeId> {
        let mut dir = self.root;
        for name in names {
            dir = match self.lookup(dir, name, shown)? {
                Some((id, FileType::Directory)) => {
                    // It has something of this archive.
                    self.made.insert(id);
                    id
                }
                Some((_, FileType::Symlink)) => {
                    return Err(refused(shown, "would be made through a symbolic link"));
                }
                Some(_) => return Err(inside(shown)(Errno::NOTDIR.into())),
                None => {
                    let new = NewInode { mode: 0o040_755, ..NewInode::default() };
                    let made = self.fs.create(dir, name, &new).map_err(inside(shown))?;
                    self.fs.forget(made, 1);
                    self.made.insert(made);
                    made
                }
            };
        }
        Ok(dir)
    }

    fn lookup(&self, dir: InodeId, name: &[u8], shown: &Path) -> Result<Option<(InodeId, FileType)>> {
        match self.fs.lookup(dir, name) {
            Ok(id) => {
                let mode = self.fs.mode(id);
                self.fs.forget(id, 1);
                Ok(Some((id, FileType::from_mode(mode.map_err(inside(shown))?))))
            }
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(inside(shown)(error)),
        }
    }

    fn link(&self, dir: InodeId, name: &[u8], of: &Described, present: Option<InodeId>, shown: &Path) -> Result<()> {
        let mut at = self.root;
        let mut found = None;
        for part in components(&of.target)? {
            // Only directories are looked into: no link is followed.
            let is_dir = found.is_none_or(|(_, file_type)| file_type == FileType::Directory);
            found = if is_dir { self.lookup(at, part, shown)? } else { None };
            match found {
                Some((id, _)) => at = id,
                None => break,
            }
        }
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
        match self.lookup(dir, name, shown)? {
            Some((id, _)) if !self.made.contains(&id) => self.remove(dir, name, shown),
            _ => Ok(()),
        }
    }

    /// Removes all below a directory that no entry of this archive has made.
    fn hide(&self, dir: InodeId, shown: &Path) -> Result<()> {
        let mut left = vec![dir];
        while let Some(dir) = left.pop() {
            for (name, id) in VolumeFiles::entries(self.fs, dir).map_err(inside(shown))? {
                match self.lookup(dir, &name, shown)? {
                    Some((_, FileType::Directory)) if self.made.contains(&id) => left.push(id),
                    Some(_) if !self.made.contains(&id) => self.remove(dir, &name, shown)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes a file, or a directory with all that is in it.
    fn remove(&self, dir: InodeId, name: &[u8], shown: &Path) -> Result<()> {
        // Directories from the top down, each with its name in the one before.
        let mut way: Vec<(InodeId, Vec<u8>)> = Vec::new();
        let (mut at, mut name) = (dir, name.to_vec());
        loop {
            match self.lookup(at, &name, shown)? {
                Some((id, FileType::Directory)) => way.push((id, name)),
                Some(_) => self.fs.unlink(at, &name).map_err(inside(shown))?,
                None => {}
            }
            loop {
                let Some((last, its_name)) = way.last().cloned() else { return Ok(()) };
                if let Some((child, _)) = VolumeFiles::entries(self.fs, last).map_err(inside(shown))?.pop() {
                    (at, name) = (last, child);
                    break;
                }
                way.pop();
                let above = way.last().map_or(dir, |(id, _)| *id);
                self.fs.rmdir(above, &its_name).map_err(inside(shown))?;
            }
        }
    }

    fn content(&self, archive: &mut ArchiveReader<impl Read>, of: &Described, to: InodeId, shown: &Path) -> Result<()> {
        let set_size = SetAttributes { size: Some(of.size), ..SetAttributes::default() };
        self.fs.set_attributes(to, &set_size).map_err(inside(shown))?;
        let mut buf = vec![0; PIECE.min(of.size as usize)];
        for (start, len) in &of.ranges {
            let mut done = 0;
            while done < *len {
                let piece = (len - done).min(PIECE as u64) as usize;
                archive.read_data(&mut buf[..piece])?;
                write_all(self.fs, to, start + done, &buf[..piece]).map_err(inside(shown))?;
                done += piece as u64;
            }
        }
        Ok(())
    }

    /// Gives what was made the rest of its attributes.
    fn finish(&mut self, id: InodeId, of: &Described, shown: &Path) -> Result<()> {
        // Another owner takes capabilities away, so they come after.
        let owner = SetAttributes { uid: Some(of.uid), gid: Some(of.gid), ..SetAttributes::default() };
        self.fs.set_attributes(id, &owner).map_err(inside(shown))?;
        for (name, value) in &of.xattrs {
            self.fs.set_xattr(id, name, value, XattrMode::Set).map_err(inside(shown))?;
        }
        let times = SetAttributes {
            atime: Some(TimeChange::To(of.atime.unwrap_or(of.mtime))),
            mtime: Some(TimeChange::To(of.mtime)),
            ..SetAttributes::default()
        };
        let changes = SetAttributes { mode: Some(of.mode), ..times };
        self.fs.set_attributes(id, &changes).map_err(inside(shown))?;
        if of.kind == EntryType::Directory {
            self.times.push((id, times));
        }
        Ok(())
    }
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Refused(format!("the archive's entry {} {why}", path.display()))
}
