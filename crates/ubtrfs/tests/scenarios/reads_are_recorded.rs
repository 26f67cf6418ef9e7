//! A file's access time shows when it was read, even if there is no space to record that at once.

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::{Filesystem, InodeId, NewInode, Options};
use ubtrfs_format::items::Timespec;
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

const FILES: usize = 2000;

fn open(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn times(fs: &Filesystem, file: InodeId) -> (Timespec, Timespec) {
    let attributes = fs.inodes().attributes(file).unwrap();
    (attributes.atime, attributes.mtime)
}

/// One transaction has more access times than the first chunk of metadata has space for.
#[test]
fn an_access_is_recorded_where_a_new_chunk_gives_the_space_for_it() {
    let device = Arc::new(new_volume(512 << 20));
    let fs = open(&device);
    // The items are large, since the change of many leaves is what needs space.
    let xattrs = vec![(b"user.long".to_vec(), vec![b'x'; 10_000])];
    let new = NewInode { mode: 0o100_644, xattrs, ..NewInode::default() };
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = fs.directories().create(fs.root(), format!("{number}").as_bytes(), &new).unwrap();
        fs.files().write(file, ubtrfs::WriteAt::Offset(0), b"content", false).unwrap();
        files.push(file);
        if number % 20 == 0 {
            // A small transaction needs no more chunks than its items do.
            fs.durability().sync().unwrap();
        }
    }
    fs.durability().sync().unwrap();
    let commits = fs.stats().commits;
    for &file in &files {
        fs.files().read(file, 0, 7).unwrap();
    }
    assert_eq!(fs.stats().commits, commits, "a reader waited for a commit");
    let order = |time: Timespec| (time.sec, time.nsec);
    let is_lost = |&&file: &&InodeId| {
        let (read, written) = times(&fs, file);
        order(read) <= order(written)
    };
    let lost = files.iter().filter(is_lost).count();
    assert_eq!(lost, 0, "accesses were not recorded");
    let recorded: Vec<_> = files.iter().map(|&file| times(&fs, file)).collect();
    fs.close().unwrap();
    drop(fs);
    let fs = open(&device);
    let kept: Vec<_> = files.iter().map(|&file| times(&fs, file)).collect();
    assert_eq!(kept, recorded);
}
