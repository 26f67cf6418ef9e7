//! Whiteouts: entries of a layer of an OCI image that remove what layers below have (the image
//! specification: `.wh.NAME` removes a name, `.wh..wh..opq` all that is in its directory).

use std::path::Path;

use ubtrfs::InodeId;
use ubtrfs::format::items::FileType;

use crate::error::{Result, inside};
use crate::import::{Import, Walk, refused};
use crate::inside::{VolumeFile, VolumeFiles, lookup};
use crate::remove::remove;
use crate::source::Source;

impl Import<'_, '_> {
    /// Removes what layers below have under a name or, if that is `.wh..opq`, all that they have in
    /// the directory. Entries of this layer stay, whether they come before or after the whiteout
    /// (the image specification: whiteouts apply to layers below).
    pub(crate) fn whiteout(&mut self, above: &[&[u8]], name: &[u8], shown: &Path) -> Result<()> {
        if name != b".wh..opq" && name.starts_with(b".wh.") {
            // These names are AUFS's own; container tools skip them.
            return Ok(());
        }
        if matches!(name, b"" | b"." | b"..") {
            return Err(refused(shown, "says that something without a name is removed"));
        }
        let Some(dir) = self.walk(above, shown, Walk::Below)? else { return Ok(()) };
        if name == b".wh..opq" {
            return self.hide(dir, shown);
        }
        match lookup(self.fs, dir, name).map_err(inside(shown))? {
            Some((id, FileType::Directory)) if self.stays(dir, name, id) => self.hide(id, shown),
            Some(_) if !self.has_made(dir, name) => remove(self.fs, dir, name, shown),
            _ => Ok(()),
        }
    }

    /// Returns whether a directory stays although a whiteout removes it: this layer has it, or it
    /// is a subvolume, for which the caller has asked.
    fn stays(&self, above: InodeId, name: &[u8], id: InodeId) -> bool {
        self.has_made(above, name) || id.subvolume != above.subvolume
    }

    /// Removes all below a directory that this archive has not made.
    fn hide(&mut self, dir: InodeId, shown: &Path) -> Result<()> {
        if !self.hidden.insert(dir) {
            return Ok(());
        }
        let source = VolumeFiles::new(self.fs);
        let mut left = vec![VolumeFile::new(dir, shown)];
        while let Some(dir) = left.pop() {
            for (name, file) in source.children(&dir)? {
                match lookup(self.fs, dir.id, &name).map_err(|error| file.failed(error))? {
                    Some((id, FileType::Directory)) if self.stays(dir.id, &name, id) => left.push(file),
                    Some(_) if !self.has_made(dir.id, &name) => {
                        remove(self.fs, dir.id, &name, &file.path().path())?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
