//! Flags that new files get by their paths, before they have any content.

use std::path::{Path, PathBuf};

use ubtrfs::format::items::InodeFlags;
use ubtrfs::{Filesystem, InodeId};

use crate::error::{Result, inside};

/// Parses a path from the top level, which may begin with `/` or `./`. The result is empty for the
/// top level itself, and `None` if the path contains `..`.
pub fn path_from_top(word: &str) -> Option<PathBuf> {
    let names = || word.split('/').filter(|name| !matches!(*name, "" | "."));
    (!names().any(|name| name == "..")).then(|| names().collect())
}

/// Flags for some paths and all that is below these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFlags(Vec<(PathBuf, u64)>);

impl PathFlags {
    /// Parses `FLAGS:PATH` as mkfs.btrfs does, with `nodatacow` or `nodatasum`, or both with a
    /// comma. The path begins at the top level.
    pub fn parse(text: &str) -> Option<(PathBuf, u64)> {
        let (names, path) = text.split_once(':')?;
        let mut flags = 0;
        for name in names.split(',') {
            flags |= match name {
                "nodatacow" => InodeFlags::NODATACOW,
                "nodatasum" => InodeFlags::NODATASUM,
                _ => return None,
            };
        }
        path_from_top(path).map(|path| (path, flags))
    }

    /// Returns the flags for all of these paths.
    pub fn new(flags: Vec<(PathBuf, u64)>) -> Self {
        Self(flags)
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The flags for a path.
    fn of(&self, path: &Path) -> u64 {
        let path = path.strip_prefix("/").unwrap_or(path);
        let found = self.0.iter().filter(|(above, _)| path.starts_with(above));
        found.fold(0, |flags, (_, more)| flags | more)
    }

    /// Gives a new inode its flags.
    pub(crate) fn give(&self, fs: &Filesystem, id: InodeId, path: &Path) -> Result<()> {
        match self.of(path) {
            0 => Ok(()),
            flags => fs.inodes().set_flags_as(id, &|is| Ok(is.flags | flags)).map_err(inside(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_hold_for_a_path_and_what_is_below_it() {
        let (cow, sum) = (InodeFlags::NODATACOW, InodeFlags::NODATASUM);
        assert_eq!(PathFlags::parse("nodatacow:/var/lib/"), Some(("var/lib".into(), cow)));
        assert_eq!(PathFlags::parse("nodatasum,nodatacow:a:b"), Some(("a:b".into(), cow | sum)));
        for (given, path) in [(".", ""), ("./", ""), ("/", ""), ("./a/", "a"), ("/./a//b/.", "a/b")] {
            assert_eq!(PathFlags::parse(&format!("nodatacow:{given}")), Some((path.into(), cow)), "{given}");
        }
        for wrong in ["", "nodatacow", "nodump:x", ":x", "nodatacow,:x", "nodatacow:a/../b", "nodatacow:.."] {
            assert_eq!(PathFlags::parse(wrong), None, "{wrong}");
        }
        let flags = PathFlags::new(vec![("a/b".into(), cow), ("a".into(), sum)]);
        for (path, expected) in [("/a", sum), ("a/b/c", cow | sum), ("/a/bc", sum), ("/", 0), ("/b", 0)] {
            assert_eq!(flags.of(Path::new(path)), expected, "{path}");
        }
        let all = PathFlags::new(vec![("".into(), cow)]);
        assert_eq!((all.of(Path::new("/")), all.of(Path::new("/x/y"))), (cow, cow));
    }
}
