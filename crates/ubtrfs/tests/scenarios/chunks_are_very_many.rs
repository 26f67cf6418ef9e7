//! A volume may have very many chunks, and a commit may add and remove very many of them. Their
//! items are in system chunks, which hold nothing else, and which no reservation of an operation
//! counts (invariant 8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ubtrfs::mkfs::Profile;
use ubtrfs::{Errno, Filesystem, NewInode, Options};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode};

use crate::common::image;
use crate::common::volumes::assert_clean;

/// So many chunks of a MiB that their items fill a system chunk of 8 MiB.
const CHUNKS: u64 = 90_000;
/// Far more time than it takes.
const LONG: Duration = Duration::from_secs(100);

/// A superblock names all system chunks, and has space for fifteen of them with two copies. When
/// these are full there is no space for more chunks: an operation fails, but no commit does.
#[test]
fn system_chunks_that_no_superblock_can_name_are_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    image::make(&path, (2 * CHUNKS) << 20, |options| options.metadata_profile = Some(Profile::Dup));
    let fs = image::open(&path, Options { largest_chunk: Some(1 << 20), ..Options::default() });
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let allocated = (0..10).try_for_each(|number| {
        let file = fs.directories().create(fs.root(), format!("file{number}").as_bytes(), &new).unwrap();
        fs.files().allocate(file, 0, (CHUNKS / 5) << 20, false)?;
        fs.durability().sync()
    });
    assert_eq!(allocated.unwrap_err().errno(), Errno::NOSPC);
    fs.directories().create(fs.root(), b"more", &new).unwrap();
    fs.durability().sync().unwrap();
    fs.close().unwrap();
}

#[test]
fn items_of_very_many_chunks_fit_system_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    image::make(&path, (CHUNKS + 10_000) << 20, |options| options.metadata_profile = Some(Profile::Single));
    let options = || Options { largest_chunk: Some(1 << 20), ..Options::default() };
    let fs = image::open(&path, options());
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let names: Vec<_> = (0..3).map(|number| format!("file{number}")).collect();
    for name in &names {
        let file = fs.directories().create(fs.root(), name.as_bytes(), &new).unwrap();
        fs.files().allocate(file, 0, (CHUNKS / 3) << 20, false).unwrap();
        fs.durability().sync().unwrap();
    }
    assert!(fs.stats().chunks_made > CHUNKS / 2, "{}", fs.stats().chunks_made);
    fs.close().unwrap();
    drop(fs);
    let clean = |what: &str| {
        let device = FileDevice::open(&path, OpenMode::ReadOnly, Exclusive::No).unwrap();
        assert_clean(&[Arc::new(device) as Arc<dyn Device>], what);
    };
    clean("filled");
    // This mount frees unlinked files by threads of its own.
    let device = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    let fs = Filesystem::open_devices(vec![Arc::new(device)], options()).unwrap();
    for name in &names {
        fs.directories().unlink(fs.root(), name.as_bytes()).unwrap();
    }
    // Each commit removes some of the empty chunks.
    let began = Instant::now();
    while fs.stats().chunks_given_back < 1000 && began.elapsed() < LONG {
        fs.directories().create(fs.root(), format!("other{}", fs.stats().commits).as_bytes(), &new).unwrap();
        fs.durability().sync().unwrap();
    }
    assert!(fs.stats().chunks_given_back >= 1000, "{}", fs.stats().chunks_given_back);
    fs.close().unwrap();
    drop(fs);
    clean("emptied");
}
