//! A log can express neither the move of a subvolume nor the reuse of its name: an fsync after a
//! move leaves a volume that can be mounted.

use std::sync::Arc;
use std::thread;

use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags};
use ubtrfs_format::{DirIndex, Ino, TreeId};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

/// So many files that it takes some time to collect the log of their directory.
const FILES: u32 = 2000;

fn open(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    Filesystem::open(
        Arc::new(volume),
        Options { background_commits: false, subvolume_id: Some(TreeId::FS.0), ..Options::default() },
    )
    .unwrap()
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
}

/// Returns the name and the root of a subvolume in the top directory.
fn subvolume(fs: &Filesystem) -> (Vec<u8>, InodeId) {
    let entries = fs.directories().list(fs.root(), DirIndex(0), DirIndex(u64::MAX), 1000).unwrap();
    let found = entries.into_iter().find(|entry| entry.inode.ino == Ino::ROOT_DIR).unwrap();
    (found.name, found.inode)
}

#[test]
fn an_fsync_that_meets_the_move_of_a_subvolume_leaves_a_volume_that_mounts() {
    let dir = scratch_dir();
    let image = Fixture::load("snapshots").unpack(dir.path()).remove(0);
    let bytes = std::fs::read(image).unwrap();
    let mut gathered = 0;
    for _ in 0..5 {
        let device = Arc::new(MemoryDevice::from_bytes(bytes.clone()));
        let fs = open(&device);
        let (name, moving) = subvolume(&fs);
        let crowd = create(&fs, fs.root(), "crowd", 0o040_755);
        fs.durability().sync().unwrap();
        let file = create(&fs, fs.root(), "file", 0o100_644);
        fs.durability().fsync(file).unwrap();
        for number in 0..FILES {
            create(&fs, crowd, &number.to_string(), 0o100_644);
        }
        let before = fs.stats();
        let crashed = thread::scope(|scope| {
            let synced = scope.spawn(|| fs.durability().fsync(crowd).unwrap());
            while fs.stats().log_requests == before.log_requests && !synced.is_finished() {
                std::hint::spin_loop();
            }
            let flags = RenameFlags::default();
            fs.directories().rename(fs.root(), &name, crowd, b"moved", flags).unwrap();
            fs.directories().rename(fs.root(), b"file", fs.root(), &name, flags).unwrap();
            gathered += u64::from(!synced.is_finished());
            synced.join().unwrap();
            Arc::new(MemoryDevice::from_bytes(device.to_bytes()))
        });
        let after = open(&crashed);
        let crowd = after.directories().lookup(after.root(), b"crowd").unwrap();
        let places = [(after.root(), &name[..]), (crowd, b"moved")];
        let there =
            places.map(|(dir, name)| after.directories().lookup(dir, name).ok().filter(|found| *found == moving));
        assert_eq!(there.iter().flatten().count(), 1, "it is in one place");
        after.directories().lookup(crowd, (FILES - 1).to_string().as_bytes()).unwrap();
        fs.close().unwrap();
        let closed = open(&device);
        let crowd = closed.directories().lookup(closed.root(), b"crowd").unwrap();
        assert_eq!(closed.directories().lookup(crowd, b"moved").unwrap(), moving);
        assert_eq!(closed.directories().parent(moving).unwrap(), crowd);
    }
    assert!(gathered > 0, "the moves came after all fsyncs");
}
