//! Records a volume in memory, path by path, through the library.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs::{Filesystem, InodeId};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::{FileType, Timespec};
use ubtrfs_testkit::content::Digester;
use ubtrfs_testkit::walk::{Entry, Kind, Tree};

/// Returns everything below the mounted subvolume's root.
pub fn tree_of(fs: &Filesystem) -> Tree {
    let mut tree = Tree::default();
    let mut names: BTreeMap<InodeId, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut waiting = vec![(Vec::new(), fs.root())];
    while let Some((path, id)) = waiting.pop() {
        let entry = entry_of(fs, id);
        if entry.kind == Kind::Dir {
            let last = fs.directories().last_index(id).unwrap();
            for child in fs.directories().list(id, DirIndex(0), last, usize::MAX).unwrap() {
                let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let found = fs.directories().lookup(id, &child.name).unwrap();
                fs.references().forget(found, 1);
                if found != child.inode {
                    tree.anomalies.push(format!("{}: listed as {:?}", path.escape_ascii(), child.inode));
                }
                waiting.push(([&path, separator, &child.name].concat(), child.inode));
            }
        } else if entry.nlink > 1 {
            names.entry(id).or_default().insert(path.clone());
        }
        if tree.entries.insert(path.clone(), entry).is_some() {
            tree.anomalies.push(format!("{}: listed twice", path.escape_ascii()));
        }
    }
    tree.links = names.into_values().filter(|names| names.len() > 1).collect();
    tree
}

fn entry_of(fs: &Filesystem, id: InodeId) -> Entry {
    let attributes = fs.inodes().attributes(id).unwrap();
    let kind = match attributes.file_type {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        _ => Kind::File,
    };
    let time = |time: Timespec| (time.sec as i64, time.nsec);
    let device = matches!(kind, Kind::Char | Kind::Block);
    let value = |name: &Vec<u8>| fs.inodes().get_xattr(id, name).unwrap();
    let (digest, data) = if kind == Kind::File { content_of(fs, id, attributes.size) } else { (None, None) };
    Entry {
        kind,
        mode: attributes.mode & 0o7777,
        uid: attributes.uid,
        gid: attributes.gid,
        nlink: attributes.nlink.into(),
        size: Some(attributes.size),
        mtime: Some(time(attributes.mtime)),
        ctime: Some(time(attributes.ctime)),
        atime: None,
        btime: Some(time(attributes.btime)),
        ino: Some(id.ino.0),
        rdev: device.then_some(((attributes.rdev >> 20) as u32, (attributes.rdev & 0xf_ffff) as u32)),
        target: (kind == Kind::Symlink).then(|| fs.files().read_link(id).unwrap()),
        xattrs: fs.inodes().list_xattrs(id).unwrap().iter().map(|name| (name.clone(), value(name))).collect(),
        data,
        digest,
        flags: None,
    }
}

type Content = (Option<ubtrfs_testkit::content::Digest>, Option<Vec<(u64, u64)>>);

fn content_of(fs: &Filesystem, id: InodeId, size: u64) -> Content {
    const STEP: usize = 1 << 20;
    let mut digester = Digester::new(size);
    for offset in (0..size).step_by(STEP) {
        digester.add(offset, &fs.files().read(id, offset, STEP).unwrap());
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(start) = fs.files().seek_data(id, at) {
        at = fs.files().seek_hole(id, start).unwrap();
        ranges.push((start, at - start));
    }
    (Some(digester.finish()), Some(ranges))
}

/// Returns the units of 512 bytes that the files of a tree take, by path.
pub fn blocks_of(fs: &Filesystem, tree: &Tree) -> BTreeMap<Vec<u8>, u64> {
    let files = tree.entries.iter().filter(|(_, entry)| entry.kind == Kind::File);
    files
        .map(|(path, _)| {
            let id = path
                .split(|byte| *byte == b'/')
                .fold(fs.root(), |dir, name| fs.directories().lookup(dir, name).unwrap());
            (path.clone(), fs.inodes().attributes(id).unwrap().blocks)
        })
        .collect()
}
