//! A reset puts a snapshot in place of a subvolume: its name shows the old content before the
//! commit and the new content after it, and always exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ubtrfs::testing::{CommitHook, CommitStep, Faults};
use ubtrfs::{Errno, Filesystem, InodeId, Options, RenameFlags, WriteAt};
use ubtrfs_format::{DirIndex, TreeId};
use ubtrfs_random::Rng;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;

use crate::common::files::{errno, file, mkdir, new_file};
use crate::common::image;
use crate::common::lowmem::assert_lowmem_check_clean;

const SIZE: u64 = 512 << 20;

fn subvolume(fs: &Filesystem, dir: InodeId, name: &str) -> InodeId {
    InodeId::root_of(fs.subvolumes().create_subvolume(dir, name.as_bytes(), 0o755, (0, 0)).unwrap())
}

fn read(fs: &Filesystem, dir: InodeId, name: &str) -> ubtrfs::Result<Vec<u8>> {
    let id = fs.directories().lookup(dir, name.as_bytes())?;
    let content = fs.files().read(id, 0, 1 << 20);
    fs.references().forget(id, 1);
    content
}

#[test]
fn the_name_shows_the_snapshot_and_what_was_open_is_as_it_was() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, Options::default());
    let place = mkdir(&fs, fs.root(), "place");
    let work = subvolume(&fs, place, "first");
    for number in 0..400 {
        file(&fs, work, &format!("file{number}"), &vec![number as u8; 9000]);
    }
    let kept = fs.subvolumes().snapshot(work.subvolume, fs.root(), b"kept", true).unwrap();
    let open = fs.directories().lookup(work, b"file7").unwrap();
    fs.files().write(open, WriteAt::Offset(0), b"spoilt", false).unwrap();
    for number in 100..200 {
        fs.directories().unlink(work, format!("file{number}").as_bytes()).unwrap();
    }
    let own = file(&fs, work, "own", &vec![1; 200_000]);
    // These are in the transaction of the reset, which has to find the entry at its new place.
    fs.directories().rename(place, b"first", fs.root(), b"work", RenameFlags::default()).unwrap();
    fs.subvolumes().set_default_subvolume(work.subvolume).unwrap();
    fs.directories().rename(fs.root(), b"work", place, b"work", RenameFlags::default()).unwrap();

    let names = fs.directories().list(place, DirIndex(0), DirIndex(u64::MAX), 9).unwrap();
    let reset = fs.subvolumes().reset_subvolume(place, b"work", kept).unwrap();
    let root = InodeId::root_of(reset);
    assert_ne!(reset, work.subvolume);
    assert_eq!(fs.directories().lookup(place, b"work").unwrap(), root);
    let after = fs.directories().list(place, DirIndex(0), DirIndex(u64::MAX), 9).unwrap();
    assert_eq!((after.len(), after[0].index, after[0].inode), (1, names[0].index, root));
    assert_eq!(read(&fs, root, "file7").unwrap(), [7; 9000]);
    assert_eq!(read(&fs, root, "file150").unwrap(), [150; 9000]);
    assert_eq!(errno(fs.directories().lookup(root, b"own")), Errno::NOENT);
    assert_eq!(fs.files().read(open, 0, 7).unwrap(), b"spoilt\x07");
    fs.files().write(own, WriteAt::Offset(0), b"late", false).unwrap();
    fs.durability().fsync(own).unwrap();
    assert_eq!(fs.files().read(own, 0, 5).unwrap(), b"late\x01");
    assert_eq!(errno(fs.directories().create(work, b"late", &new_file())), Errno::NOENT);
    for id in fs.references().referenced().into_iter().filter(|id| id.subvolume == work.subvolume) {
        fs.references().forget(id, u64::MAX);
    }
    for id in [work, open, own] {
        assert_eq!(errno(fs.inodes().attributes(id)), Errno::STALE);
        assert_eq!(errno(fs.files().read(id, 0, 1)), Errno::STALE);
        assert_eq!(errno(fs.files().write(id, WriteAt::Offset(0), b"late", false)), Errno::STALE);
        assert_eq!(errno(fs.durability().fsync(id)), Errno::STALE);
        assert_eq!(errno(fs.directories().lookup(id, b"file7")), Errno::STALE);
    }
    let info = fs.subvolumes().subvolume_info(reset).unwrap();
    assert_eq!(info.entry, Some((place, b"work".to_vec())));
    assert_eq!(info.parent_uuid, fs.subvolumes().subvolume_info(kept).unwrap().uuid);
    assert!(!info.read_only);
    assert_eq!(fs.subvolumes().default_subvolume().unwrap(), reset);
    assert_eq!(fs.subvolumes().ids(), [TreeId::FS, kept, reset]);

    // The result is a subvolume like any other: it is changed, renamed and reset again.
    file(&fs, root, "new", b"new");
    fs.directories().rename(place, b"work", place, b"renamed", RenameFlags::default()).unwrap();
    let again = fs.subvolumes().reset_subvolume(place, b"renamed", kept).unwrap();
    for id in fs.references().referenced().into_iter().filter(|id| id.subvolume == reset) {
        fs.references().forget(id, u64::MAX);
    }
    assert_eq!(errno(fs.inodes().attributes(root)), Errno::STALE);
    fs.close().unwrap();
    drop(fs);
    assert_ubtrfs_check_clean(&path);
    assert_btrfs_check_clean(&path);

    let fs = image::open(&path, Options { subvolume_id: Some(TreeId::FS.0), ..Options::default() });
    let place = fs.directories().lookup(fs.root(), b"place").unwrap();
    assert_eq!(fs.directories().lookup(place, b"renamed").unwrap(), InodeId::root_of(again));
    assert_eq!(read(&fs, InodeId::root_of(again), "file150").unwrap(), [150; 9000]);
    assert_eq!(fs.subvolumes().default_subvolume().unwrap(), again);
    for _ in 0..1000 {
        fs.durability().sync().unwrap();
        if fs.subvolumes().deleted_subvolumes().is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(fs.subvolumes().deleted_subvolumes(), []);
    fs.close().unwrap();
    assert_btrfs_check_clean(&path);
}

#[test]
fn what_can_not_be_reset_stays_as_it_is() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, Options::default());
    let root = fs.root();
    let work = subvolume(&fs, root, "work");
    file(&fs, work, "file", b"content");
    let outer = subvolume(&fs, root, "outer");
    let inner = subvolume(&fs, outer, "inner");
    mkdir(&fs, root, "dir");
    file(&fs, root, "file", b"");
    let fixed = fs.subvolumes().snapshot(work.subvolume, root, b"fixed", true).unwrap();
    let before = (fs.subvolumes().ids(), fs.stats().generation);
    for (name, source, wanted) in [
        (&b"work"[..], work.subvolume, Errno::INVAL),
        (b"dir", work.subvolume, Errno::INVAL),
        (b"file", work.subvolume, Errno::INVAL),
        (b"nothing", work.subvolume, Errno::NOENT),
        (b"work", TreeId(999), Errno::NOENT),
        (b"fixed", work.subvolume, Errno::ROFS),
        (b"outer", work.subvolume, Errno::NOTEMPTY),
        // A reset would remove the subvolume inside.
        (b"outer", inner.subvolume, Errno::NOTEMPTY),
    ] {
        assert_eq!(errno(fs.subvolumes().reset_subvolume(root, name, source)), wanted, "{}", name.escape_ascii());
    }
    // The caller has looked at another subvolume.
    assert_eq!(errno(fs.subvolumes().reset_subvolume_if(root, b"work", inner.subvolume, fixed)), Errno::AGAIN);
    assert_eq!(errno(fs.subvolumes().delete_subvolume_if(root, b"work", inner.subvolume)), Errno::AGAIN);
    let in_fixed = InodeId::root_of(fixed);
    assert_eq!(errno(fs.subvolumes().reset_subvolume(in_fixed, b"file", work.subvolume)), Errno::ROFS);
    assert_eq!((fs.subvolumes().ids(), fs.stats().generation), before);
    // A subvolume inside the source becomes an empty directory in the result, even the target
    // itself.
    let whole = fs.subvolumes().reset_subvolume(outer, b"inner", outer.subvolume).unwrap();
    assert!(
        fs.directories()
            .list(
                fs.directories().lookup(InodeId::root_of(whole), b"inner").unwrap(),
                DirIndex(0),
                DirIndex(u64::MAX),
                9
            )
            .unwrap()
            .is_empty()
    );
    fs.close().unwrap();
    drop(fs);
    assert_btrfs_check_clean(&path);

    let fs = image::open(&path, Options { subvolume_id: Some(work.subvolume.0), ..Options::default() });
    let below = file(&fs, fs.root(), "still", b"there");
    let top = InodeId::root_of(TreeId::FS);
    assert_eq!(errno(fs.subvolumes().reset_subvolume(top, b"work", fixed)), Errno::BUSY);
    fs.durability().fsync(below).unwrap();
    fs.close().unwrap();
}

type Act = Box<dyn FnOnce(&Filesystem) + Send>;
/// A file system, and what a hook does in a commit of it.
type InCommit = (Arc<Filesystem>, Act);

#[test]
fn while_the_commit_is_under_way_the_name_shows_the_old_content() {
    for step in [CommitStep::Frozen, CommitStep::Merged] {
        let dir = scratch_dir();
        let path = dir.path().join("image");
        image::make(&path, SIZE, |_| {});
        let act: Arc<Mutex<Option<InCommit>>> = Arc::default();
        let hook = CommitHook(Arc::new({
            let act = act.clone();
            move |reached| {
                let Some((fs, act)) = (reached == step).then(|| act.lock().take()).flatten() else { return };
                act(&fs);
            }
        }));
        let faults = Faults { hook: Some(hook), ..Faults::default() };
        let fs = image::open(&path, Options { faults, ..Options::default() });
        let root = fs.root();
        let work = subvolume(&fs, root, "work");
        let open = file(&fs, work, "file", b"before");
        let kept = fs.subvolumes().snapshot(work.subvolume, root, b"kept", true).unwrap();
        fs.files().write(open, WriteAt::Offset(0), b"spoilt", false).unwrap();
        let other = subvolume(&fs, root, "other");
        let seen = Arc::new(Mutex::new(false));
        let in_commit: Act = Box::new({
            let seen = seen.clone();
            move |fs| {
                assert_eq!(read(fs, work, "file").unwrap(), b"spoilt");
                assert_eq!(fs.directories().lookup(root, b"work").unwrap(), work);
                // Changes before the reset are undone by it.
                fs.files().write(open, WriteAt::Offset(0), b"late", false).unwrap();
                fs.directories().create(work, b"late", &new_file()).unwrap();
                fs.directories().unlink(work, b"file").unwrap();
                for changed in [
                    fs.subvolumes().create_subvolume(work, b"inner", 0o755, (0, 0)).map(drop),
                    fs.directories().rename(root, b"other", work, b"inner", RenameFlags::default()),
                ] {
                    assert_eq!(errno(changed), Errno::NOENT);
                }
                let to = RenameFlags::default();
                assert_eq!(errno(fs.directories().rename(root, b"work", root, b"elsewhere", to)), Errno::BUSY);
                assert_eq!(errno(fs.subvolumes().delete_subvolume(root, b"work")), Errno::BUSY);
                assert_eq!(errno(fs.subvolumes().reset_subvolume(root, b"work", kept)), Errno::BUSY);
                assert_eq!(errno(fs.subvolumes().snapshot(work.subvolume, root, b"late", false)), Errno::NOENT);
                assert_eq!(errno(fs.subvolumes().set_subvolume_read_only(work.subvolume, true)), Errno::NOENT);
                assert_eq!(errno(fs.subvolumes().set_default_subvolume(work.subvolume)), Errno::NOENT);
                fs.directories().create(root, b"beside", &new_file()).unwrap();
                *seen.lock() = true;
            }
        });
        *act.lock() = Some((fs.clone(), in_commit));
        let reset = fs.subvolumes().reset_subvolume(root, b"work", kept).unwrap();
        assert!(*seen.lock());
        assert_eq!(read(&fs, InodeId::root_of(reset), "file").unwrap(), b"before");
        assert_eq!(errno(fs.directories().lookup(InodeId::root_of(reset), b"late")), Errno::NOENT);
        assert_eq!(fs.files().read(open, 0, 9).unwrap(), b"latelt");
        assert_eq!(fs.directories().lookup(root, b"other").unwrap(), other);
        fs.directories().lookup(root, b"beside").unwrap();
        fs.close().unwrap();
        drop(fs);
        assert_btrfs_check_clean(&path);
    }
}

/// Resets a subvolume while others write, share and remove files in it.
#[test]
fn resets_beside_writers_keep_the_name_and_the_snapshots() {
    let rounds = if soaks() { 1500 } else { 80 };
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 2 << 30, |_| {});
    let fs = Filesystem::open_path(&path, Options { memory: 32 << 20, ..Options::default() }).unwrap();
    let root = fs.root();
    let work = subvolume(&fs, root, "work");
    for number in 0..120 {
        file(&fs, work, &format!("{number}"), &[1; 9000]);
    }
    let kept: Vec<TreeId> = (0..2)
        .map(|copy| {
            fs.subvolumes().snapshot(work.subvolume, root, format!("kept{copy}").as_bytes(), copy == 0).unwrap()
        })
        .collect();
    let shared = mkdir(&fs, root, "shared");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(writer);
                let mut count = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    count += 1;
                    // The name always exists.
                    let work = fs.directories().lookup(root, b"work").unwrap();
                    match change(fs, work, shared, &mut rng, writer, count) {
                        Ok(()) => {}
                        Err(error) => assert!(
                            matches!(error.errno(), Errno::STALE | Errno::NOENT | Errno::EXIST),
                            "{error:?}: {:?}",
                            error.errno()
                        ),
                    }
                    fs.references().forget(work, 1);
                }
            });
        }
        for round in 0..rounds {
            let reset = InodeId::root_of(fs.subvolumes().reset_subvolume(root, b"work", kept[round % 2]).unwrap());
            assert_eq!(fs.directories().lookup(root, b"work").unwrap(), reset);
            fs.references().forget(reset, 1);
        }
        done.store(true, Ordering::Relaxed);
    });
    for kept in &kept {
        for number in 0..120 {
            assert_eq!(read(&fs, InodeId::root_of(*kept), &format!("{number}")).unwrap(), [1; 9000]);
        }
    }
    assert_eq!(fs.subvolumes().ids().len(), 4);
    fs.close().unwrap();
    assert_eq!(fs.abort_reason(), None);
    drop(fs);
    assert_ubtrfs_check_clean(&path);
    assert_lowmem_check_clean(&path);
}

/// Changes something in the subvolume.
fn change(
    fs: &Filesystem,
    work: InodeId,
    shared: InodeId,
    rng: &mut Rng,
    writer: u64,
    count: u64,
) -> ubtrfs::Result<()> {
    let name = format!("{}", rng.below(120));
    let id = fs.directories().lookup(work, name.as_bytes())?;
    let done = match rng.below(8) {
        0 => fs.directories().unlink(work, name.as_bytes()),
        1 => fs
            .directories()
            .create(work, format!("new{writer}.{count}").as_bytes(), &new_file())
            .map(|new| fs.references().forget(new, 1)),
        2 => {
            let name = format!("{writer}.{}", count % 50);
            let copy = fs
                .directories()
                .lookup(shared, name.as_bytes())
                .or_else(|_| fs.directories().create(shared, name.as_bytes(), &new_file()));
            copy.and_then(|copy| {
                let done = fs.files().clone_range(id, 0, copy, 0, 8192);
                fs.references().forget(copy, 1);
                done.map(drop)
            })
        }
        3 => fs.durability().fsync(id),
        4 => fs.directories().rename(
            work,
            name.as_bytes(),
            work,
            format!("{}", rng.below(120)).as_bytes(),
            RenameFlags::default(),
        ),
        _ => fs.files().write(id, WriteAt::Offset(0), &vec![count as u8; 9000], false).map(drop),
    };
    fs.references().forget(id, 1);
    done
}
