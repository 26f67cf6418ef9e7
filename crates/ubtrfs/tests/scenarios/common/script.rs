//! Changes subvolumes by scripts, and walks what they hold afterwards.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs::{Attributes, Filesystem, InodeId, NewInode, RenameFlags, SetAttributes, WriteAt, XattrMode};
use ubtrfs_format::items::{FileType, InodeFlags, Timespec};
use ubtrfs_format::{DirIndex, Ino, TreeId};
use ubtrfs_random::Rng;

/// What a file is apart from its names and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facets {
    pub mode: u32,
    pub owner: (u32, u32),
    pub flags: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The content of a file, or the target of a symlink.
    pub content: Vec<u8>,
}

/// An inode as a walk finds it.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: InodeId,
    pub facets: Facets,
    pub born: Timespec,
    /// Entries: the directory and the name.
    pub names: BTreeSet<(Ino, String)>,
    pub paths: BTreeSet<String>,
}

impl Found {
    pub fn is_dir(&self) -> bool {
        self.facets.mode & 0o170_000 == 0o040_000
    }

    pub fn is_file(&self) -> bool {
        self.facets.mode & 0o170_000 == 0o100_000
    }
}

fn facets(fs: &Filesystem, is: &Attributes) -> Facets {
    let names = fs.inodes().list_xattrs(is.id).unwrap().into_iter();
    let content = match is.file_type {
        FileType::Regular => fs.files().read(is.id, 0, is.size as usize).unwrap(),
        FileType::Symlink => fs.files().read_link(is.id).unwrap(),
        _ => Vec::new(),
    };
    Facets {
        mode: is.mode,
        owner: (is.uid, is.gid),
        flags: is.flags & !InodeFlags::PREALLOC,
        xattrs: names.map(|name| (name.clone(), fs.inodes().get_xattr(is.id, &name).unwrap())).collect(),
        content,
    }
}

/// Returns all inodes of a subvolume, by a walk.
pub fn walk(fs: &Filesystem, subvolume: TreeId) -> BTreeMap<Ino, Found> {
    let mut all: BTreeMap<Ino, Found> = BTreeMap::new();
    let root = InodeId::new(subvolume, Ino::ROOT_DIR);
    let mut waiting = vec![(root, None, String::new())];
    while let Some((id, name, path)) = waiting.pop() {
        let found = all.entry(id.ino).or_insert_with(|| {
            let is = fs.inodes().attributes(id).unwrap();
            let (names, paths) = (BTreeSet::new(), BTreeSet::new());
            Found { id, facets: facets(fs, &is), born: is.btime, names, paths }
        });
        found.names.extend(name);
        found.paths.insert(path.clone());
        if found.is_dir() {
            for entry in fs.directories().list(id, DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap() {
                let name = String::from_utf8(entry.name).unwrap();
                let separator = if path.is_empty() { "" } else { "/" };
                waiting.push((entry.inode, Some((id.ino, name.clone())), format!("{path}{separator}{name}")));
            }
        }
    }
    all
}

/// The files of a walk by their paths; all paths of a file are in one set.
pub type Tree = BTreeMap<BTreeSet<String>, Facets>;

pub fn tree(walked: &BTreeMap<Ino, Found>) -> Tree {
    walked.values().map(|found| (found.paths.clone(), found.facets.clone())).collect()
}

fn find(fs: &Filesystem, subvolume: TreeId, path: &str) -> InodeId {
    let mut at = InodeId::new(subvolume, Ino::ROOT_DIR);
    for name in path.split('/').filter(|name| !matches!(*name, "." | "")) {
        at = fs.directories().lookup(at, name.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error:?}"));
        fs.references().forget(at, 1);
    }
    at
}

/// Returns the directory of a path, and its last name.
fn split<'a>(fs: &Filesystem, subvolume: TreeId, path: &'a str) -> (InodeId, &'a [u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    (find(fs, subvolume, dir), name.as_bytes())
}

/// Performs each step of a script.
pub fn run(fs: &Filesystem, subvolume: TreeId, script: &str) {
    for line in script.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split(' ').collect();
        step(fs, subvolume, &words);
    }
}

fn step(fs: &Filesystem, subvolume: TreeId, words: &[&str]) {
    let find = |path| find(fs, subvolume, path);
    let split = |path| split(fs, subvolume, path);
    let number = |word: &str| word.parse::<u64>().unwrap();
    let set = |path, changes: SetAttributes| {
        fs.inodes().set_attributes(find(path), &changes).unwrap();
    };
    let make = |path, new: NewInode| {
        let (dir, name) = split(path);
        let made = fs.directories().create(dir, name, &new).unwrap();
        fs.references().forget(made, 1);
    };
    let rename = |from, to, exchange| {
        let ((dir, name), (other, other_name)) = (split(from), split(to));
        fs.directories()
            .rename(dir, name, other, other_name, RenameFlags { exchange, ..RenameFlags::default() })
            .unwrap();
    };
    match words {
        ["make", path, ..] => make(path, NewInode { mode: 0o100_644, ..NewInode::default() }),
        ["mkdir", path] => make(path, NewInode { mode: 0o040_755, ..NewInode::default() }),
        ["sym", target, path] => {
            let symlink_target = target.as_bytes().to_vec();
            make(path, NewInode { mode: 0o120_777, symlink_target, ..NewInode::default() });
        }
        ["node", path] => make(path, NewInode { mode: 0o020_600, rdev: 0x103, ..NewInode::default() }),
        // Writes the bytes that follow from the seed, at an offset.
        ["write", path, seed, offset, len] => {
            let bytes = Rng::new(number(seed)).noise(number(len) as usize);
            assert_eq!(
                fs.files().write(find(path), WriteAt::Offset(number(offset)), &bytes, false).unwrap(),
                bytes.len()
            );
        }
        ["truncate", path, size] => {
            set(path, SetAttributes { size: Some(number(size)), ..SetAttributes::default() });
        }
        ["punch", path, offset, len] => fs.files().punch_hole(find(path), number(offset), number(len)).unwrap(),
        ["reserve", path, offset, len] => fs.files().allocate(find(path), number(offset), number(len), true).unwrap(),
        ["rm", path] => {
            let (dir, name) = split(path);
            fs.directories().unlink(dir, name).unwrap();
        }
        ["rmdir", path] => {
            let (dir, name) = split(path);
            fs.directories().rmdir(dir, name).unwrap();
        }
        ["mv", from, to] => rename(from, to, false),
        ["swap", from, to] => rename(from, to, true),
        ["ln", from, to] => {
            let (dir, name) = split(to);
            fs.directories().link(find(from), dir, name).unwrap();
        }
        ["chmod", path, mode] => {
            let mode = Some(u32::from_str_radix(mode, 8).unwrap());
            set(path, SetAttributes { mode, ..SetAttributes::default() });
        }
        ["chown", path, id] => {
            let id = Some(number(id) as u32);
            set(path, SetAttributes { uid: id, gid: id, ..SetAttributes::default() });
        }
        ["xattr", path, name, value] => {
            fs.inodes().set_xattr(find(path), name.as_bytes(), value.as_bytes(), XattrMode::Set).unwrap();
        }
        ["unxattr", path, name] => fs.inodes().remove_xattr(find(path), name.as_bytes()).unwrap(),
        ["noatime", path] => fs.inodes().set_flags(find(path), InodeFlags::NOATIME).unwrap(),
        ["nodump", path] => fs.inodes().set_flags(find(path), InodeFlags::NODUMP).unwrap(),
        words => panic!("{words:?}"),
    }
}
