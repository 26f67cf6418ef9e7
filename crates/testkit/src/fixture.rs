//! The volumes in `tests/fixtures`: compressed images that a kernel made, and manifests of what it
//! showed of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::content::{Digest, WHOLE_LIMIT, unhex};
use crate::diff::{Options, assert_same};
use crate::walk::{Entry, Kind, Time, Tree};

/// A fixture: its manifest, from which images are made on demand.
#[derive(Debug)]
pub struct Fixture {
    /// What the kernel showed of it.
    pub manifest: Manifest,
}

/// What a kernel showed of a volume.
#[derive(Debug, Deserialize)]
pub struct Manifest {
    /// Name of the fixture.
    pub name: String,
    /// The options it was made with.
    pub mkfs: String,
    /// The options it was mounted with when it was filled.
    pub mount_opts: String,
    /// True when the image was copied while mounted, so that it looks as after a crash.
    #[serde(default)]
    pub crash_copy: bool,
    /// The subvolume that `entries` begin at.
    pub subvol: u64,
    /// Fields of the superblock, as text.
    #[serde(rename = "super")]
    pub superblock: BTreeMap<String, String>,
    /// Every path after the mount, with the log replayed.
    pub entries: Vec<ManifestEntry>,
    /// Every path of the last commit, without replay (crash copies only).
    pub committed: Option<Vec<ManifestEntry>>,
    /// How many items of each type the log holds (crash copies only).
    pub log_items: Option<BTreeMap<String, u64>>,
    /// The subvolumes.
    pub subvolumes: Vec<Subvolume>,
    /// Lines of `btrfs filesystem df`, in bytes.
    pub df: Vec<String>,
    /// Exit status of `btrfs check` after the mount; `None` when it was not run.
    pub check_after: Option<i32>,
    /// The images, one per device.
    pub devices: Vec<Device>,
}

/// A subvolume or snapshot.
#[derive(Debug, Deserialize)]
pub struct Subvolume {
    /// Its path from the top.
    pub path: String,
    /// Its number.
    pub id: u64,
    /// Generation of its last change.
    #[serde(rename = "gen")]
    pub generation: u64,
    /// Generation it was made in.
    #[serde(rename = "cgen")]
    pub created: u64,
    /// The subvolume that holds it.
    pub parent: u64,
    /// Its UUID.
    pub uuid: String,
    /// UUID of the subvolume of which it is a snapshot.
    pub parent_uuid: Option<String>,
    /// True when it is read-only.
    pub ro: bool,
}

/// One image of a fixture.
#[derive(Debug, Deserialize)]
pub struct Device {
    /// File name of the compressed image.
    pub file: String,
    /// Its size in bytes when unpacked.
    pub size: u64,
    /// SHA-256 of the unpacked image.
    pub sha256: String,
}

/// One path of a manifest.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "as in `walk::Entry`")]
pub struct ManifestEntry {
    pub path: String,
    pub path_hex: Option<String>,
    #[serde(rename = "type")]
    pub kind: String,
    pub ino: u64,
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub mtime: Option<Time>,
    pub size: Option<u64>,
    pub sha256: Option<String>,
    pub data: Option<Vec<(u64, u64)>>,
    pub target: Option<String>,
    pub rdev: Option<(u32, u32)>,
    #[serde(default)]
    pub xattrs_hex: BTreeMap<String, String>,
    pub attr_flags: Option<u32>,
}

/// The directory that holds the fixtures.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// The names of all fixtures, sorted.
pub fn names() -> Vec<String> {
    let listed = std::fs::read_dir(directory()).expect("the directory of the fixtures");
    let mut names: Vec<String> = listed
        .filter_map(|item| {
            let name = item.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".json")?.to_owned())
        })
        .collect();
    names.sort();
    assert!(!names.is_empty(), "there are no fixtures");
    names
}

/// The fixtures of one device that are not crash copies with a log.
pub fn ordinary() -> Vec<Fixture> {
    names()
        .iter()
        .filter(|name| !name.starts_with("log-"))
        .map(|name| Fixture::load(name))
        .filter(|fixture| fixture.manifest.devices.len() == 1)
        .collect()
}

impl Fixture {
    /// Reads the manifest of fixture `name`.
    pub fn load(name: &str) -> Self {
        let path = directory().join(format!("{name}.json"));
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        let manifest = serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { manifest }
    }

    /// Returns `options` (may be empty) and the mount option that selects the subvolume of the
    /// manifest, whatever the default subvolume is.
    pub fn options(&self, options: &str) -> String {
        let comma = if options.is_empty() { "" } else { "," };
        format!("{options}{comma}subvolid={}", self.manifest.subvol)
    }

    /// Unpacks the images into `dir` as sparse files, one path per device.
    pub fn unpack(&self, dir: &Path) -> Vec<PathBuf> {
        let unpack = |device: &Device| {
            let path = dir.join(device.file.trim_end_matches(".zst"));
            unpack_sparse(&directory().join(&device.file), &path)
                .unwrap_or_else(|error| panic!("unpack {}: {error}", device.file));
            path
        };
        self.manifest.devices.iter().map(unpack).collect()
    }

    /// The tree that a mount must show, the log replayed.
    pub fn tree(&self) -> Tree {
        self.manifest.tree_of(&self.manifest.entries)
    }

    /// The tree of the last commit, as a mount without replay must show it.
    pub fn committed_tree(&self) -> Tree {
        let entries = self.manifest.committed.as_ref();
        self.manifest.tree_of(entries.unwrap_or(&self.manifest.entries))
    }

    /// Fails the test unless `actual` agrees with the manifest.
    #[track_caller]
    pub fn assert_shows(&self, actual: &Tree) {
        let what = format!("fixture {} (left: its manifest, right: actual)", self.manifest.name);
        assert_same(&what, &self.tree(), actual, Options::SAME_VOLUME);
    }

    /// Fails the test unless `actual` agrees with the manifest of the last commit, without the log.
    #[track_caller]
    pub fn assert_shows_committed(&self, actual: &Tree) {
        let what = format!("fixture {} at its last commit (left: its manifest, right: actual)", self.manifest.name);
        assert_same(&what, &self.committed_tree(), actual, Options::SAME_VOLUME);
    }
}

impl Manifest {
    fn tree_of(&self, entries: &[ManifestEntry]) -> Tree {
        let mut tree = Tree::default();
        let mut names: BTreeMap<(&str, u64), std::collections::BTreeSet<Vec<u8>>> = BTreeMap::new();
        for item in entries {
            let path = item.raw_path();
            let entry = item.entry(&self.name);
            if entry.kind != Kind::Dir && entry.nlink > 1 {
                let group = (self.subvolume_of(&item.path), item.ino);
                names.entry(group).or_default().insert(path.clone());
            }
            tree.entries.insert(path, entry);
        }
        tree.links = names.into_values().filter(|names| names.len() > 1).collect();
        tree
    }

    /// Returns the path of the innermost subvolume of `path`.
    fn subvolume_of(&self, path: &str) -> &str {
        let within = |top: &&str| path.strip_prefix(*top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let tops = self.subvolumes.iter().map(|subvolume| subvolume.path.as_str());
        tops.filter(within).max_by_key(|top| top.len()).unwrap_or("")
    }
}

impl ManifestEntry {
    fn raw_path(&self) -> Vec<u8> {
        match &self.path_hex {
            Some(hex) => unhex(hex).expect("hexadecimal digits in a manifest"),
            None => self.path.clone().into_bytes(),
        }
    }

    fn entry(&self, fixture: &str) -> Entry {
        let kind = match self.kind.as_str() {
            "file" => Kind::File,
            "dir" => Kind::Dir,
            "symlink" => Kind::Symlink,
            "fifo" => Kind::Fifo,
            "socket" => Kind::Socket,
            "chr" => Kind::Char,
            "blk" => Kind::Block,
            other => panic!("{fixture}: type {other} of {}", self.path),
        };
        let size = self.size.unwrap_or(0);
        Entry {
            kind,
            mode: u32::from_str_radix(&self.mode, 8).expect("a mode in octal digits"),
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: Some(size),
            mtime: self.mtime,
            ctime: None,
            atime: None,
            btime: None,
            ino: Some(self.ino),
            rdev: self.rdev,
            target: self.target.clone().map(String::into_bytes),
            xattrs: self
                .xattrs_hex
                .iter()
                .map(|(name, value)| {
                    let value = unhex(value).expect("hexadecimal digits in a manifest");
                    (name.clone().into_bytes(), value)
                })
                .collect(),
            data: self.data.clone().map(joined),
            digest: self.sha256.clone().filter(|_| size <= WHOLE_LIMIT).map(Digest::Whole),
            // Manifests do not have the flags of directories.
            flags: (kind == Kind::File).then(|| self.attr_flags.unwrap_or(0)),
        }
    }
}

/// Joins adjacent ranges.
fn joined(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (offset, length) in ranges {
        match out.last_mut() {
            Some((start, len)) if *start + *len == offset => *len += length,
            _ => out.push((offset, length)),
        }
    }
    out
}

/// Unpacks a zstd file, with holes in place of each 64 KiB of zeros.
fn unpack_sparse(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut input = zstd::Decoder::new(File::open(from)?)?;
    let mut output = File::create(to)?;
    let mut buffer = vec![0; 65536];
    let mut size = 0;
    loop {
        let mut len = 0;
        while len < buffer.len() {
            match input.read(&mut buffer[len..])? {
                0 => break,
                more => len += more,
            }
        }
        if len == 0 {
            break;
        }
        if buffer[..len].iter().any(|&byte| byte != 0) {
            output.seek(SeekFrom::Start(size))?;
            output.write_all(&buffer[..len])?;
        }
        size += len as u64;
    }
    output.set_len(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};

    #[test]
    fn every_manifest_can_be_read() {
        for name in names() {
            let fixture = Fixture::load(&name);
            assert_eq!(fixture.manifest.name, name);
            assert!(fixture.tree().entries.contains_key(&b""[..]));
            for device in &fixture.manifest.devices {
                assert!(directory().join(&device.file).is_file(), "{}", device.file);
            }
        }
        assert!(ordinary().len() >= 12);
    }

    #[test]
    fn an_image_unpacks_to_the_bytes_that_were_packed() {
        let fixture = Fixture::load("old-mkfs");
        let dir = crate::scratch::scratch_dir();
        let images = fixture.unpack(dir.path());
        let device = &fixture.manifest.devices[0];
        let bytes = std::fs::read(&images[0]).expect("the image");
        assert_eq!(bytes.len() as u64, device.size);
        assert_eq!(crate::content::hex(&Sha256::digest(&bytes)), device.sha256);
        let held = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&images[0]).expect("the image"));
        assert!(held * 512 < device.size / 4, "the image is not sparse: {held} sectors");
    }
}
