//! A subvolume that is being dropped shares nodes and data with others, and points to blocks that
//! are already freed. The rest of it is moved as it is: a balance does not wait for a drop, and a
//! drop that begins meanwhile does not make it fail (invariant 35).

use std::path::Path;
use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{Faults, OverlayDevice};
use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, Options, WriteAt};
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{Ino, Logical, TreeId};
use ubtrfs_testkit::fixture;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::common::files::{file, new_file};
use crate::common::pattern;
use crate::common::tree::tree_of;
use crate::common::volumes::{assert_clean, volume};

/// Files of the subvolume whose snapshot is dropped.
const FILES: u64 = 400;
/// The number of references that a commit drops.
const PER_COMMIT: u64 = 6;

fn open(devices: Vec<Arc<dyn Device>>, faults: Faults) -> Arc<Filesystem> {
    let volume = Arc::new(Volume::open(devices, OpenOptions::default()).unwrap());
    let freeing = FreeingLimits { per_transaction: PER_COMMIT, at_the_end: PER_COMMIT, ..FreeingLimits::default() };
    let options = Options { background_commits: false, freeing, faults, ..Options::default() };
    Filesystem::open(volume, options).unwrap()
}

fn root_of(id: TreeId) -> InodeId {
    InodeId::new(id, Ino::ROOT_DIR)
}

/// Empties all block groups of data and metadata.
fn empty_all(fs: &Filesystem) -> ubtrfs::Result<()> {
    let is_of =
        |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA) || flags.contains(BlockGroupFlags::METADATA);
    let chunks = fs.volume().chunk_map().all();
    let starts: Vec<Logical> = chunks.iter().filter(|(_, chunk)| is_of(chunk.flags)).map(|(start, _)| *start).collect();
    starts.into_iter().try_for_each(|start| match fs.relocator().empty_block_group(start, &|| true) {
        // A commit has removed it.
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        emptied => emptied.map(drop),
    })
}

/// Makes a volume with a subvolume, a snapshot of it that stays, and one that was changed and
/// deleted, and makes the first commit of the drop.
fn with_deleted_snapshot() -> (Arc<OverlayDevice>, Arc<Filesystem>) {
    let device = Arc::new(volume(1, Profile::Single, Profile::Single).swap_remove(0));
    let fs = open(vec![device.clone()], Faults::default());
    let work = fs.subvolumes().create_subvolume(fs.root(), b"work", 0o755, (0, 0)).unwrap();
    for number in 0..FILES {
        let len = if number.is_multiple_of(9) { 12_000 } else { 1400 };
        let id = file(&fs, root_of(work), &format!("file {number}"), &pattern(number, len));
        fs.references().forget(id, 1);
    }
    fs.durability().sync().unwrap();
    fs.subvolumes().snapshot(work, fs.root(), b"kept", true).unwrap();
    let gone = fs.subvolumes().snapshot(work, fs.root(), b"gone", false).unwrap();
    for number in (0..FILES).step_by(31) {
        let id = fs.directories().lookup(root_of(gone), format!("file {number}").as_bytes()).unwrap();
        fs.files().write(id, WriteAt::Offset(100), &pattern(number + 7, 1000), false).unwrap();
        fs.references().forget(id, 1);
    }
    for number in 0..20 {
        let id = fs.directories().create(root_of(gone), format!("new {number}").as_bytes(), &new_file()).unwrap();
        fs.files().write(id, WriteAt::Offset(0), &pattern(number, 9000), false).unwrap();
        fs.references().forget(id, 1);
    }
    fs.durability().sync().unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"gone").unwrap();
    (device, fs)
}

/// Moves everything at each commit of a drop. Returns how often that failed.
fn move_at_each_commit(faults: &Faults) -> usize {
    let (volume, fs) = with_deleted_snapshot();
    let before = tree_of(&fs);
    let (mut commits, mut failed, mut half_dropped) = (0, 0, 0);
    loop {
        fs.durability().sync().unwrap();
        if fs.subvolumes().deleted_subvolumes().is_empty() {
            break;
        }
        commits += 1;
        let device: Arc<dyn Device> = Arc::new(volume.fork());
        let moved = open(vec![device.clone()], faults.clone());
        let what = format!("after commit {commits}");
        if let Err(error) = empty_all(&moved) {
            assert!(faults.overlook_drops, "{what}: {error:?}");
            assert_eq!(error.errno(), Errno::IO, "{what}: {error:?}");
            failed += 1;
            continue;
        }
        half_dropped += usize::from(!moved.subvolumes().deleted_subvolumes().is_empty());
        assert_eq!(tree_of(&moved), before, "{what}");
        moved.durability().sync().unwrap();
        drop(moved);
        assert_clean(std::slice::from_ref(&device), &what);
        // The drop goes on where it was.
        let moved = open(vec![device.clone()], Faults::default());
        while !moved.subvolumes().deleted_subvolumes().is_empty() {
            moved.durability().sync().unwrap();
        }
        assert_eq!(tree_of(&moved), before, "{what}, dropped");
        moved.close().unwrap();
        drop(moved);
        assert_clean(&[device], &format!("{what}, dropped"));
    }
    // A concurrent commit may drop the rest.
    assert!(commits > 5 && (half_dropped > 5 || failed > 0), "{half_dropped} of {commits} commits");
    failed
}

#[test]
fn half_dropped_trees_are_moved_at_any_commit_of_a_drop() {
    assert_eq!(move_at_each_commit(&Faults::default()), 0);
    assert!(move_at_each_commit(&Faults { overlook_drops: true, ..Faults::default() }) > 0, "the fault is not found");
}

/// The kernel has dropped a part of a subvolume that still has a snapshot. We move the rest, and
/// the kernel goes on.
#[test]
fn a_tree_that_the_kernel_half_dropped_is_moved() {
    const FILES: usize = 24_000;
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let packed = fixture::directory().join("half-dropped.img.zst");
    run(command("zstd", &["-d", "-q", "--sparse"]).arg(packed).arg("-o").arg(&image)).ok();
    let fs = open(vec![on(&image)], Faults::default());
    assert_eq!(fs.subvolumes().deleted_subvolumes().len(), 1);
    empty_all(&fs).unwrap();
    assert_eq!(fs.subvolumes().deleted_subvolumes().len(), 1, "the drop has ended");
    fs.close().unwrap();
    drop(fs);
    assert_clean(&[on(&image)], "moved");
    assert_btrfs_check_clean(&image);
    let kernel = KernelMount::new(&[&image], "");
    run(command("btrfs", &["subvolume", "sync"]).arg(kernel.path())).ok();
    for number in 0..FILES {
        let found = std::fs::read_to_string(kernel.path().join(format!("s/{number}"))).unwrap();
        assert_eq!(found, format!("file {number}"));
    }
    let complaints = kernel.unmount();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_clean(&[on(&image)], "dropped by the kernel");
    assert_btrfs_check_clean(&image);
    assert!(open(vec![on(&image)], Faults::default()).subvolumes().deleted_subvolumes().is_empty());
}

fn on(image: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(image, OpenMode::ReadWrite, Exclusive::Yes).unwrap())
}
