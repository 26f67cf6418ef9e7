//! Makes subvolumes of some directories of a tree that is copied into a volume.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ubtrfs::format::TreeId;
use ubtrfs::format::items::FileType;
use ubtrfs::{Errno, Filesystem};

use crate::edit::Editor;
use crate::error::{Error, Result, inside, shown};

/// A directory that becomes a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its path from the top level.
    pub path: PathBuf,
    /// Whether it becomes read-only in the end.
    pub read_only: bool,
    /// Whether it becomes the default subvolume.
    pub default: bool,
}

/// Subvolumes that are being filled.
#[derive(Debug)]
pub struct MadeSubvolumes(Vec<(NewSubvolume, TreeId)>);

impl MadeSubvolumes {
    /// Makes empty subvolumes, and the directories above them.
    pub fn new(fs: &Filesystem, editor: &Editor, mut wanted: Vec<NewSubvolume>) -> Result<Self> {
        // A subvolume precedes those below it.
        wanted.sort_by(|a, b| a.path.components().cmp(b.path.components()));
        let mut made = Vec::new();
        for subvolume in wanted {
            let path = &subvolume.path;
            if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
                editor.make_directory(above, true, None)?;
            }
            let (dir, path) = editor.place(path, None)?;
            let name = path.file_name().unwrap_or_default().as_bytes();
            let id =
                fs.subvolumes().create_subvolume(dir, name, 0o755, (0, 0)).map_err(|error| match error.errno() {
                    Errno::EXIST => Error::Refused(format!("{} is named as a subvolume twice", shown(&path))),
                    _ => inside(&path)(error),
                })?;
            made.push((subvolume, id));
        }
        Ok(Self(made))
    }

    /// Gives the filled subvolumes their last properties.
    ///
    /// # Errors
    ///
    /// If something else has taken the place of one of them.
    pub fn finish(self, fs: &Filesystem, editor: &Editor) -> Result<()> {
        for (NewSubvolume { path, read_only, default }, id) in self.0 {
            let found = editor.find(&path, false)?;
            if found.0.subvolume != id || found.1 != FileType::Directory {
                return Err(Error::Refused(format!("{} is no directory in the tree", shown(&path))));
            }
            if default {
                fs.subvolumes().set_default_subvolume(id).map_err(inside(&path))?;
            }
            if read_only {
                fs.subvolumes().set_subvolume_read_only(id, true).map_err(inside(&path))?;
            }
        }
        Ok(())
    }
}
