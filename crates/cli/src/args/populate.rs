//! Arguments about the contents of a new volume.

use std::path::PathBuf;

use clap::Args;
use ubtrfs::CompressionMode;
use ubtrfs_image::{IdRange, NewSubvolume, PathFlags, Platform, Selection, path_from_top};

use super::compression::{Compression, parse_compression};
use super::edit::parse_memory;
use crate::failure::{Failure, Result};

/// What a new volume is filled with.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Populate {
    /// Fill the volume with the content of a directory, of a tar archive (- is the standard input),
    /// or of an image in an OCI layout: oci:DIR or oci-archive:FILE, with or without :NAME.
    #[arg(short, long, value_name = "DIR|TAR|oci:DIR")]
    pub rootdir: Option<PathBuf>,
    /// If an OCI layout has images for several platforms, take the image for OS/ARCHITECTURE
    /// [default: the platform of this program].
    #[arg(long, value_name = "OS/ARCHITECTURE", requires = "rootdir")]
    pub platform: Option<Platform>,
    /// Make the directory at PATH a subvolume. KIND is rw (by default), ro for a read-only
    /// subvolume, default for the default subvolume, or default-ro for both.
    #[arg(short = 'u', long, value_name = "[KIND:]PATH", value_parser = parse_subvolume, requires = "rootdir")]
    pub subvol: Vec<AsGiven<NewSubvolume>>,
    /// Set flags of the file or directory at PATH and of everything below it: nodatacow, nodatasum,
    /// or both with a comma.
    #[arg(long, value_name = "FLAGS:PATH", value_parser = parse_flags, requires = "rootdir")]
    pub inode_flags: Vec<AsGiven<(PathBuf, u64)>>,
    /// Compress the files: zlib, lzo or zstd, with or without :LEVEL, or no [default: no].
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_compression, requires = "rootdir")]
    pub compress: Option<Compression>,
    /// Refused: share the data of the directory's files with the image. ubtrfs copies the data.
    #[arg(long, requires = "rootdir")]
    pub reflink: bool,
    /// Store data that several files have only once: equal blocks share extents.
    #[arg(long, requires = "rootdir")]
    pub dedupe: bool,
    /// Make all files belong to the user root and the group root.
    #[arg(long, requires = "rootdir", conflicts_with = "owner_map")]
    pub all_root: bool,
    /// Change the ids of COUNT users and groups (u: only users, g: only groups) from FROM on to
    /// those from TO on; COUNT is 1 by default. If several maps contain an id, the first one
    /// counts; ids in no map stay.
    #[arg(long, value_name = "[u:|g:]FROM:TO[:COUNT]", value_parser = parse_owner_map, requires = "rootdir")]
    pub owner_map: Vec<OwnerMap>,
    /// Leave out what a shell pattern matches, with everything below it. A pattern with a slash
    /// matches paths from the top, a pattern without a slash matches names anywhere.
    #[arg(long, value_name = "PATTERN", requires = "rootdir")]
    pub exclude: Vec<String>,
    /// Treat directories on which other file systems are mounted as empty.
    #[arg(short = 'x', long, requires = "rootdir")]
    pub one_file_system: bool,
    /// End the volume, and the image file, where its last chunk ends; --size is then the largest
    /// size.
    #[arg(long, requires = "rootdir")]
    pub shrink: bool,
    /// Bytes of memory for caches and for changes that are not written yet while the volume is
    /// filled, at least 16M [default: 64M].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, requires = "rootdir")]
    pub memory: Option<usize>,
}

impl Populate {
    /// How files are compressed.
    pub fn compression(&self) -> Option<CompressionMode> {
        self.compress.and_then(Compression::mode)
    }

    /// The directories that become subvolumes.
    pub fn subvolumes(&self) -> Vec<NewSubvolume> {
        self.subvol.iter().map(|given| given.value.clone()).collect()
    }

    /// Paths, and the flags of what is there and below.
    pub fn flags(&self) -> Vec<(PathBuf, u64)> {
        self.inode_flags.iter().map(|given| given.value.clone()).collect()
    }

    /// What of it comes into the volume, and whom it belongs to there.
    pub fn selection(&self) -> Result<Selection> {
        let mut selection = Selection { one_file_system: self.one_file_system, ..Selection::default() };
        for pattern in &self.exclude {
            selection
                .excluded
                .add(pattern)
                .map_err(|error| Failure::new(format!("--exclude: {error}")).with_status(2))?;
        }
        selection.owners.all_root = self.all_root;
        let maps = |of: fn(&OwnerMap) -> bool| self.owner_map.iter().filter(move |map| of(map)).map(|map| map.range);
        selection.owners.users = maps(|map| map.of_users).collect();
        selection.owners.groups = maps(|map| map.of_groups).collect();
        Ok(selection)
    }
}

/// A value, and the path in it as it was given.
#[derive(Clone, Debug)]
pub struct AsGiven<T> {
    pub value: T,
    pub path: String,
}

fn parse_flags(text: &str) -> std::result::Result<AsGiven<(PathBuf, u64)>, String> {
    let value = PathFlags::parse(text)
        .ok_or_else(|| format!("'{text}' is not nodatacow:PATH, nodatasum:PATH or both with a comma"))?;
    let (_, path) = text.split_once(':').unwrap_or_default();
    Ok(AsGiven { value, path: path.into() })
}

/// What users and groups become.
#[derive(Clone, Copy, Debug)]
pub struct OwnerMap {
    of_users: bool,
    of_groups: bool,
    range: IdRange,
}

fn parse_owner_map(text: &str) -> std::result::Result<OwnerMap, String> {
    let (of_users, of_groups, numbers) = match text.split_once(':') {
        Some(("u", numbers)) => (true, false, numbers),
        Some(("g", numbers)) => (false, true, numbers),
        _ => (true, true, text),
    };
    let numbers: Vec<Option<u32>> = numbers.split(':').map(|number| number.parse().ok()).collect();
    let range = match numbers[..] {
        [Some(from), Some(to)] => IdRange { from, to, count: 1 },
        [Some(from), Some(to), Some(count)] => IdRange { from, to, count },
        _ => return Err(format!("'{text}' is not [u:|g:]FROM:TO[:COUNT], as in 1000:0 or u:100000:0:65536")),
    };
    // In system calls the last number means "unchanged".
    let ends = |first: u32| range.count > 0 && first.checked_add(range.count).is_some();
    if !ends(range.from) || !ends(range.to) {
        return Err(format!("'{text}' has numbers that no user or group has"));
    }
    Ok(OwnerMap { of_users, of_groups, range })
}

fn parse_subvolume(text: &str) -> std::result::Result<AsGiven<NewSubvolume>, String> {
    let (kind, path) = match text.split_once(':') {
        Some((kind @ ("rw" | "ro" | "default" | "default-ro"), path)) => (kind, path),
        _ => ("rw", text),
    };
    let Some(below) = path_from_top(path).filter(|path| !path.as_os_str().is_empty()) else {
        return Err(format!("'{text}' names no directory below the root directory"));
    };
    let (read_only, default) = (kind.ends_with("ro"), kind.starts_with("default"));
    Ok(AsGiven { value: NewSubvolume { path: below, read_only, default }, path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_of_numbers_that_there_are() {
        let map = parse_owner_map("1000:0").unwrap();
        assert_eq!((map.of_users, map.of_groups, map.range), (true, true, IdRange { from: 1000, to: 0, count: 1 }));
        let map = parse_owner_map("g:100000:0:65536").unwrap();
        assert_eq!((map.of_users, map.range.count), (false, 65536));
        for wrong in ["", "1", "x:1:2", "1:2:0", "1:2:3:4", "-1:0", "4294967295:0", "1:4294967290:10"] {
            assert!(parse_owner_map(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn subvolumes_have_a_kind_and_a_path() {
        let parsed = |text| {
            let new = parse_subvolume(text).map(|given| given.value);
            new.map(|new| (new.path.display().to_string(), new.read_only, new.default))
        };
        assert_eq!(parsed("home"), Ok(("home".into(), false, false)));
        assert_eq!(parsed("rw:/var/log/"), Ok(("var/log".into(), false, false)));
        assert_eq!(parsed("ro:usr"), Ok(("usr".into(), true, false)));
        assert_eq!(parsed("default:root"), Ok(("root".into(), false, true)));
        assert_eq!(parsed("default-ro:root"), Ok(("root".into(), true, true)));
        assert_eq!(parsed("x:y"), Ok(("x:y".into(), false, false)));
        assert_eq!(parsed("./etc/"), Ok(("etc".into(), false, false)));
        assert_eq!(parsed("ro:/./a//b/."), Ok(("a/b".into(), true, false)));
        for wrong in ["", "/", ".", "./", "ro:", "../a", "a/..", "a/../b"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
