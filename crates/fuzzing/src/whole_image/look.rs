//! Reads all of a volume, within bounds.

use std::collections::{HashSet, VecDeque};

use ubtrfs::{FileChange, Filesystem, InodeId, MergeSides, Prefer};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Generation};

/// Entries and bytes that are read at most, so that a loop in a directory tree ends.
const MAX_ENTRIES: usize = 1500;
const MAX_BYTES: usize = 8 << 20;
/// Bytes of a read.
const READ: usize = 64 << 10;
/// Starts of data in a file that are read at most.
const MAX_SEEKS: usize = 12;
/// Entries that are listed at a time.
const LIST: usize = 50;

/// Walks all directories from the root on. Returns how many inodes it found.
pub(crate) fn walk(fs: &Filesystem) -> usize {
    let _ = fs.statfs();
    // A comparison on a writable mount would commit first.
    if fs.is_read_only() {
        compare(fs);
    }
    let mut queue = VecDeque::from([fs.root()]);
    let mut seen = HashSet::from([fs.root()]);
    let (mut entries, mut bytes) = (0, 0);
    while let Some(dir) = queue.pop_front() {
        drop(fs.directories().parent(dir));
        examine(fs, dir, &mut bytes);
        let Ok(last) = fs.directories().last_index(dir) else { continue };
        let mut after = DirIndex(0);
        while let Ok(listed) = fs.directories().list(dir, after, last, LIST) {
            let Some(end) = listed.last().map(|entry| entry.index) else { break };
            assert!(listed.is_sorted_by(|one, next| one.index < next.index), "a listing out of order");
            assert!(end > after && end <= last, "a listing that does not go on");
            after = end;
            for entry in listed {
                entries += 1;
                if entries > MAX_ENTRIES {
                    return seen.len();
                }
                if let Ok(found) = fs.directories().lookup(dir, &entry.name) {
                    fs.references().forget(found, 1);
                }
                if seen.insert(entry.inode) {
                    examine(fs, entry.inode, &mut bytes);
                    if entry.file_type == FileType::Directory {
                        queue.push_back(entry.inode);
                    }
                }
            }
        }
    }
    seen.len()
}

/// Compares each subvolume with the next one, and the mounted one with an empty tree.
fn compare(fs: &Filesystem) {
    let mut left = MAX_ENTRIES;
    let mut visit = |change: FileChange| {
        assert!(change.old.is_some() || change.new.is_some(), "a change of nothing");
        left = left.saturating_sub(1);
        left > 0
    };
    for pair in fs.subvolumes().ids().windows(2).take(MAX_SEEKS) {
        drop(ubtrfs::changes(fs, pair[0], pair[1], &mut visit));
    }
    // Only plans the merges.
    for three in fs.subvolumes().ids().windows(3).take(MAX_SEEKS) {
        let sides = MergeSides { base: three[0], changed: three[1], target: three[2] };
        drop(ubtrfs::merge(fs, sides, Prefer::Theirs, true, &mut |_| unreachable!("nothing is changed")));
    }
    drop(ubtrfs::changes_since(fs, fs.root().subvolume, Generation(0), &mut visit));
}

fn examine(fs: &Filesystem, id: InodeId, bytes: &mut usize) {
    let Ok(attributes) = fs.inodes().attributes(id) else { return };
    for name in fs.inodes().list_xattrs(id).unwrap_or_default() {
        drop(fs.inodes().get_xattr(id, &name));
    }
    drop(fs.inodes().get_xattr(id, b"system.posix_acl_access"));
    drop(fs.files().read_link(id));
    let mut read = |offset, len| {
        if *bytes < MAX_BYTES
            && let Ok(content) = fs.files().read(id, offset, len)
        {
            assert!(content.len() <= len, "more bytes than were asked for");
            *bytes += content.len();
        }
    };
    read(0, READ);
    read(attributes.size.saturating_sub(100), 200);
    let mut from = 0;
    for _ in 0..MAX_SEEKS {
        let Ok(data) = fs.files().seek_data(id, from) else { break };
        assert!(data >= from && data < attributes.size, "data outside the file");
        read(data, READ);
        let Ok(hole) = fs.files().seek_hole(id, data) else { break };
        assert!(hole > data && hole <= attributes.size, "data that has no end");
        from = hole;
    }
}
