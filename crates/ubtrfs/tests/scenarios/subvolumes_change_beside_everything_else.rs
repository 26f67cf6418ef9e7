//! A subvolume is made, copied and deleted as a whole, whatever happens beside it: writes during
//! the commit of a snapshot do not reach it (invariant 29), names are reserved for subvolumes that
//! are being made, nothing is added to one that is being deleted, and all of its space is freed.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ubtrfs::testing::{CommitFault, CommitHook, CommitStep, Faults};
use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, RenameFlags, WriteAt};
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_random::Rng;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;

use crate::common::files::{errno, file, mkdir};
use crate::common::image;
use crate::common::lowmem::assert_lowmem_check_clean;

const SIZE: u64 = 512 << 20;

thread_local! {
    static MOUNTED: RefCell<Weak<Filesystem>> = RefCell::default();
}

fn root_of(id: TreeId) -> InodeId {
    InodeId::new(id, Ino::ROOT_DIR)
}

fn read(fs: &Filesystem, dir: InodeId, name: &str) -> Vec<u8> {
    let id = fs.directories().lookup(dir, name.as_bytes()).unwrap();
    fs.files().read(id, 0, 8 << 20).unwrap()
}

fn new_image(dir: &Path, change: impl FnOnce(&mut MkfsOptions)) -> PathBuf {
    let path = dir.join("image");
    image::make(&path, SIZE, change);
    path
}

fn close(fs: Arc<Filesystem>, path: &Path) {
    close_and_check(fs, path, assert_lowmem_check_clean);
}

fn close_and_check(fs: Arc<Filesystem>, path: &Path, check: impl Fn(&Path)) {
    fs.close().unwrap();
    assert_eq!(fs.abort_reason(), None);
    drop(fs);
    assert_ubtrfs_check_clean(path);
    check(path);
}

/// Closes everything of a subvolume that is open.
fn let_go(fs: &Filesystem, subvolume: TreeId) {
    for id in fs.references().referenced().into_iter().filter(|id| id.subvolume == subvolume) {
        fs.references().forget(id, u64::MAX);
    }
}

fn drop_all(fs: &Filesystem) {
    let start = Instant::now();
    for id in fs.subvolumes().deleted_subvolumes() {
        let_go(fs, id);
    }
    while start.elapsed() < Duration::from_secs(300) {
        if fs.subvolumes().deleted_subvolumes().is_empty() {
            return;
        }
        fs.durability().sync().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{:?} are never dropped", fs.subvolumes().deleted_subvolumes());
}

/// Opens a volume with a hook that calls `act` once, at this step of the commit when it is due.
fn open_with(path: &Path, step: CommitStep, act: Arc<Mutex<Option<Act>>>) -> Arc<Filesystem> {
    open_faulty(path, step, act, None)
}

fn open_faulty(
    path: &Path,
    step: CommitStep,
    act: Arc<Mutex<Option<Act>>>,
    commit: Option<CommitFault>,
) -> Arc<Filesystem> {
    let hook = CommitHook(Arc::new(move |reached| {
        let mounted = || MOUNTED.with(|mounted| mounted.borrow().upgrade());
        if reached == step
            && let Some(fs) = mounted()
            && let Some(act) = act.lock().take()
        {
            act(&fs);
        }
    }));
    let faults = Faults { hook: Some(hook), commit, ..Faults::default() };
    let fs = image::open(path, Options { faults, memory: 6 << 20, ..Options::default() });
    MOUNTED.with(|mounted| *mounted.borrow_mut() = Arc::downgrade(&fs));
    fs
}

type Act = Box<dyn FnOnce(&Filesystem) + Send>;

#[test]
fn writes_in_place_during_the_commit_of_a_snapshot_do_not_reach_it() {
    const LEN: usize = 400 << 10;
    for step in [CommitStep::Frozen, CommitStep::Merged] {
        let dir = scratch_dir();
        let path = new_image(dir.path(), |_| ());
        let act: Arc<Mutex<Option<Act>>> = Arc::default();
        let fs = open_with(&path, step, act.clone());
        let plain = file(&fs, fs.root(), "plain", &vec![1; LEN]);
        let nocow = file(&fs, fs.root(), "nocow", b"");
        fs.inodes().set_flags(nocow, InodeFlags::NODATACOW).unwrap();
        fs.files().write(nocow, WriteAt::Offset(0), &vec![2; LEN], false).unwrap();
        let reserved = file(&fs, fs.root(), "reserved", b"");
        fs.files().allocate(reserved, 0, LEN as u64, false).unwrap();
        fs.durability().sync().unwrap();
        *act.lock() = Some(Box::new(move |fs| {
            for id in [plain, nocow, reserved] {
                fs.files().write(id, WriteAt::Offset(0), &vec![0xee; LEN], false).unwrap();
            }
        }));
        let copy = fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"copy", false).unwrap();
        assert!(act.lock().is_none());
        let holds = |fs: &Filesystem| {
            assert!(read(fs, root_of(copy), "plain") == vec![1; LEN]);
            assert!(read(fs, root_of(copy), "nocow") == vec![2; LEN], "{step:?}");
            assert!(read(fs, root_of(copy), "reserved") == vec![0; LEN], "{step:?}");
            for name in ["plain", "nocow", "reserved"] {
                assert!(read(fs, fs.root(), name) == vec![0xee; LEN]);
            }
        };
        holds(&fs);
        fs.durability().sync().unwrap();
        for id in [plain, nocow, reserved] {
            fs.files().write(id, WriteAt::Offset(0), &vec![0xee; LEN], false).unwrap();
        }
        close(fs, &path);
        holds(&image::open(&path, Options::default()));
    }
}

#[test]
fn the_name_of_a_subvolume_that_is_being_made_is_reserved() {
    for step in [CommitStep::Frozen, CommitStep::Merged] {
        let dir = scratch_dir();
        let path = new_image(dir.path(), |_| ());
        let act: Arc<Mutex<Option<Act>>> = Arc::default();
        let fs = open_with(&path, step, act.clone());
        let home = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
        let inner = mkdir(&fs, root_of(home), "inner");
        let other = mkdir(&fs, fs.root(), "other");
        let name = file(&fs, fs.root(), "file", b"");
        *act.lock() = Some(Box::new(move |fs| {
            let new = NewInode { mode: 0o100_644, ..NewInode::default() };
            let plain = RenameFlags::default();
            assert_eq!(errno(fs.directories().lookup(inner, b"copy")), Errno::NOENT);
            assert_eq!(errno(fs.directories().create(inner, b"copy", &new)), Errno::EXIST);
            assert_eq!(errno(fs.directories().rename(fs.root(), b"file", inner, b"copy", plain)), Errno::XDEV);
            assert_eq!(errno(fs.directories().rmdir(root_of(home), b"inner")), Errno::NOTEMPTY);
            let directory = mkdir(fs, root_of(home), "directory");
            assert_eq!(
                errno(fs.directories().rename(root_of(home), b"directory", root_of(home), b"inner", plain)),
                Errno::NOTEMPTY
            );
            fs.directories().rmdir(root_of(home), b"directory").unwrap();
            fs.references().forget(directory, 1);
            assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"home")), Errno::NOTEMPTY);
            fs.directories().unlink(fs.root(), b"file").unwrap();
            file(fs, inner, "beside", b"beside");
        }));
        let copy = fs.subvolumes().snapshot(TreeId::FS, inner, b"copy", false).unwrap();
        assert!(act.lock().is_none());
        fs.references().forget(name, 1);
        assert_eq!(fs.directories().lookup(inner, b"copy").unwrap(), root_of(copy));
        assert_eq!(fs.directories().lookup(root_of(copy), b"file").unwrap().ino, name.ino);
        assert_eq!(fs.inodes().attributes(inner).unwrap().size, 2 * ("copy".len() + "beside".len()) as u64);
        assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"home")), Errno::NOTEMPTY);
        fs.directories().rename(inner, b"copy", other, b"moved", RenameFlags::default()).unwrap();
        fs.subvolumes().delete_subvolume(fs.root(), b"home").unwrap();
        fs.durability().sync().unwrap();
        assert_eq!(fs.directories().lookup(other, b"moved").unwrap(), root_of(copy));
        close(fs, &path);
    }
}

#[test]
fn a_subvolume_into_which_another_was_moved_just_now_is_not_deleted() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let fs = image::open(&path, Options::default());
    let outer = fs.subvolumes().create_subvolume(fs.root(), b"outer", 0o755, (0, 0)).unwrap();
    let inner = fs.subvolumes().create_subvolume(fs.root(), b"inner", 0o755, (0, 0)).unwrap();
    fs.directories().rename(fs.root(), b"inner", root_of(outer), b"inner", RenameFlags::default()).unwrap();
    assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"outer")), Errno::NOTEMPTY);
    fs.directories().rename(root_of(outer), b"inner", fs.root(), b"inner", RenameFlags::default()).unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"outer").unwrap();
    assert_eq!(
        errno(fs.directories().rename(fs.root(), b"inner", root_of(outer), b"inner", RenameFlags::default())),
        Errno::STALE
    );
    assert_eq!(errno(fs.subvolumes().snapshot(outer, fs.root(), b"copy", false)), Errno::NOENT);
    assert_eq!(errno(fs.subvolumes().snapshot(inner, root_of(outer), b"copy", false)), Errno::STALE);
    assert_eq!(errno(fs.subvolumes().set_default_subvolume(outer)), Errno::NOENT);
    fs.subvolumes().set_default_subvolume(inner).unwrap();
    assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"inner")), Errno::PERM);
    fs.subvolumes().set_default_subvolume(TreeId::FS).unwrap();
    assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"nothing")), Errno::NOENT);
    mkdir(&fs, fs.root(), "directory");
    assert_eq!(errno(fs.subvolumes().delete_subvolume(fs.root(), b"directory")), Errno::INVAL);
    close(fs, &path);
}

/// Otherwise, making a subvolume writable that already is could give an inode number to two files.
#[test]
fn numbers_of_inodes_are_given_once_while_a_subvolume_is_made_writable() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let act: Arc<Mutex<Option<Act>>> = Arc::default();
    let fs = open_with(&path, CommitStep::Frozen, act.clone());
    let id = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    *act.lock() = Some(Box::new(move |fs| {
        file(fs, root_of(id), "during", b"during");
    }));
    fs.subvolumes().set_subvolume_read_only(id, false).unwrap();
    file(&fs, root_of(id), "after", b"after");
    assert_eq!(read(&fs, root_of(id), "during"), b"during");
    assert_eq!(read(&fs, root_of(id), "after"), b"after");
    *act.lock() = Some(Box::new(move |fs| {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        assert_eq!(errno(fs.directories().create(root_of(id), b"late", &new)), Errno::ROFS);
    }));
    fs.subvolumes().set_subvolume_read_only(id, true).unwrap();
    assert!(act.lock().is_none());
    close(fs, &path);
}

/// Makes a subvolume writable and, while that is being committed, read-only. Returns whether the
/// subvolume can be changed then.
fn is_changed_though_it_was_made_read_only(fault: Option<CommitFault>) -> bool {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let act: Arc<Mutex<Option<Act>>> = Arc::default();
    let fs = open_faulty(&path, CommitStep::Frozen, act.clone(), fault);
    let id = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    fs.subvolumes().set_subvolume_read_only(id, true).unwrap();
    let (mounted, (sender, receiver)) = (Arc::downgrade(&fs), channel());
    *act.lock() = Some(Box::new(move |_| {
        let fs = mounted.upgrade().unwrap();
        let other = std::thread::spawn(move || fs.subvolumes().set_subvolume_read_only(id, true).unwrap());
        // The other thread soon waits for the next commit.
        std::thread::sleep(Duration::from_millis(100));
        sender.send(other).unwrap();
    }));
    fs.subvolumes().set_subvolume_read_only(id, false).unwrap();
    receiver.recv().unwrap().join().unwrap();
    assert!(fs.subvolumes().subvolume_info(id).unwrap().read_only);
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let made = fs.directories().create(root_of(id), b"file", &new).map_err(|error| error.errno());
    close(fs, &path);
    assert!(made.is_ok() || made == Err(Errno::ROFS));
    made.is_ok()
}

#[test]
fn a_subvolume_that_is_read_only_on_disk_is_so_in_memory() {
    assert!((0..5).all(|_| !is_changed_though_it_was_made_read_only(None)));
    let is_noticed = |_| is_changed_though_it_was_made_read_only(Some(CommitFault::ReadOnlyAfterPublish));
    assert!((0..20).any(is_noticed));
}

/// The last change counts, whichever thread makes it.
#[test]
fn subvolumes_that_are_made_read_only_and_writable_at_once_are_as_the_volume_says() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let fs = image::open(&path, Options::default());
    let id = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    for round in 0..100 {
        std::thread::scope(|scope| {
            for to in [true, false] {
                let fs = &fs;
                scope.spawn(move || fs.subvolumes().set_subvolume_read_only(id, to).unwrap());
            }
        });
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let made = fs.directories().create(root_of(id), format!("{round}").as_bytes(), &new);
        let expected = if fs.subvolumes().subvolume_info(id).unwrap().read_only { Err(Errno::ROFS) } else { Ok(()) };
        assert_eq!(made.map(drop).map_err(|error| error.errno()), expected, "round {round}");
    }
    close(fs, &path);
}

/// The whiteout in its old place belongs to another subvolume than the directory that it moves
/// into.
#[test]
fn subvolumes_are_moved_into_others_and_leave_whiteouts() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let fs = image::open(&path, Options::default());
    let outer = fs.subvolumes().create_subvolume(fs.root(), b"outer", 0o755, (0, 0)).unwrap();
    let inner = fs.subvolumes().create_subvolume(fs.root(), b"inner", 0o755, (0, 0)).unwrap();
    let flags = RenameFlags { whiteout: true, ..RenameFlags::default() };
    fs.directories().rename(fs.root(), b"inner", root_of(outer), b"moved", flags).unwrap();
    assert_eq!(fs.directories().lookup(root_of(outer), b"moved").unwrap(), root_of(inner));
    let left = fs.directories().lookup(fs.root(), b"inner").unwrap();
    assert_eq!(fs.inodes().attributes(left).unwrap().file_type, FileType::CharDevice);
    fs.directories().rename(root_of(outer), b"moved", fs.root(), b"again", flags).unwrap();
    fs.references().forget(left, 1);
    close(fs, &path);
}

#[test]
fn files_without_names_are_freed_in_snapshots() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let fs = image::open(&path, Options::default());
    let open = file(&fs, fs.root(), "open", &vec![5; 3 << 20]);
    fs.directories().unlink(fs.root(), b"open").unwrap();
    let copies = [("writable", false), ("fixed", true)]
        .map(|(name, read_only)| fs.subvolumes().snapshot(TreeId::FS, fs.root(), name.as_bytes(), read_only).unwrap());
    let mut fs = fs;
    let commit = |fs: &Filesystem| (0..5).for_each(|_| fs.durability().sync().unwrap());
    let has_it = |fs: &Filesystem, id: TreeId| fs.inodes().attributes(InodeId::new(id, open.ino)).is_ok();
    commit(&fs);
    // No program can have it open in the copy.
    assert_eq!(copies.map(|id| has_it(&fs, id)), [false, false]);
    assert!(has_it(&fs, TreeId::FS));
    fs.files().write(open, WriteAt::Offset(0), &[6; 5000], false).unwrap();
    fs.references().forget(open, 1);
    for _ in 0..2 {
        commit(&fs);
        assert_eq!(copies.map(|id| has_it(&fs, id)), [false, false]);
        assert!(!has_it(&fs, TreeId::FS));
        close(fs, &path);
        fs = image::open(&path, Options::default());
    }
    fs.subvolumes().set_subvolume_read_only(copies[1], false).unwrap();
    commit(&fs);
    assert!(!has_it(&fs, copies[1]));
    close(fs, &path);
}

#[test]
fn nothing_of_a_deleted_subvolume_is_changed_and_its_space_comes_back() {
    let dir = scratch_dir();
    let path = new_image(dir.path(), |_| ());
    let freeing = FreeingLimits { per_transaction: 20, at_the_end: 20, ..FreeingLimits::default() };
    let fs = image::open(&path, Options { freeing, ..Options::default() });
    fs.durability().sync().unwrap();
    let before = fs.statfs().blocks_free;
    let id = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    for number in 0..700 {
        file(&fs, root_of(id), &format!("file{number}"), &vec![number as u8; 9000]);
    }
    let nocow = file(&fs, root_of(id), "nocow", b"");
    fs.inodes().set_flags(nocow, InodeFlags::NODATACOW).unwrap();
    fs.files().write(nocow, WriteAt::Offset(0), &vec![1; 2 << 20], false).unwrap();
    let unlinked = file(&fs, root_of(id), "unlinked", &vec![2; 3 << 20]);
    fs.durability().sync().unwrap();
    fs.directories().unlink(root_of(id), b"unlinked").unwrap();
    // The files are dirty when the subvolume is deleted.
    fs.files().write(nocow, WriteAt::Offset(0), &vec![3; 1 << 20], false).unwrap();
    fs.files().write(unlinked, WriteAt::Offset(0), &vec![3; 1 << 20], false).unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"home").unwrap();
    let_go(&fs, id);
    assert_eq!(errno(fs.files().write(nocow, WriteAt::Offset(0), b"late", false)), Errno::STALE);
    assert_eq!(errno(fs.files().read(nocow, 0, 10)), Errno::STALE);
    assert_eq!(errno(fs.durability().fsync(nocow)), Errno::STALE);
    fs.durability().sync().unwrap();
    drop_all(&fs);
    fs.durability().sync().unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.stats().inactivation.inodes, 0);
    assert!(fs.statfs().blocks_free + 64 >= before, "{before} blocks were free, {} are", fs.statfs().blocks_free);
    close(fs, &path);
}

/// The options of a kind of volume.
type Change = fn(&mut MkfsOptions);

/// Covers all options by which volumes differ, and trees of every height.
#[test]
fn subvolumes_are_whole_on_volumes_of_every_kind() {
    let kinds: [(&str, Change); 6] = [
        ("4K nodes", |options| options.node_size = Some(4096)),
        ("64K nodes", |options| options.node_size = Some(65536)),
        ("mixed", |options| options.mixed = true),
        ("no free-space tree", |options| options.free_space_tree = false),
        ("block group tree", |options| options.block_group_tree = true),
        ("single", |options| (options.metadata_profile, options.no_holes) = (Some(Profile::Single), false)),
    ];
    for (kind, change) in kinds {
        eprintln!("{kind}");
        let dir = scratch_dir();
        let path = new_image(dir.path(), change);
        let freeing = FreeingLimits { per_transaction: 300, at_the_end: 300, ..FreeingLimits::default() };
        let fs = image::open(&path, Options { freeing, ..Options::default() });
        let mut rng = Rng::new(7);
        let home = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
        let mut tops = vec![("home".to_string(), home)];
        let mut number = 0;
        for round in 0..4 {
            // The tree is a single leaf at first, and then has more levels.
            let files = [3, 60, 900, 100][round];
            for _ in 0..files {
                let (_, top) = rng.pick(&tops).clone();
                number += 1;
                let len = *rng.pick(&[10, 1000, 5000, 40_000]);
                let name = format!("file{number}");
                let id = file(&fs, root_of(top), &name, &vec![number as u8; len]);
                if rng.one_in(6) {
                    let copy = file(&fs, root_of(top), &format!("clone{number}"), b"");
                    fs.files().clone_range(id, 0, copy, 0, len as u64).ok();
                }
                if rng.one_in(4) {
                    fs.directories().unlink(root_of(top), name.as_bytes()).unwrap();
                }
            }
            for copy in 0..3 {
                let (_, source) = rng.pick(&tops).clone();
                let name = format!("copy{round}.{copy}");
                let id = fs.subvolumes().snapshot(source, fs.root(), name.as_bytes(), false).unwrap();
                tops.push((name, id));
            }
            let (name, _) = tops.remove(rng.index(tops.len()));
            fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
            fs.durability().sync().unwrap();
        }
        close(fs, &path);
        let fs = image::open(&path, Options { freeing, ..Options::default() });
        while !tops.is_empty() {
            let (name, _) = tops.remove(rng.index(tops.len()));
            fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
            if rng.one_in(2) {
                fs.durability().sync().unwrap();
            }
        }
        drop_all(&fs);
        fs.durability().sync().unwrap();
        assert_eq!(fs.subvolumes().ids(), [TreeId::FS], "{kind}");
        let (blocks, free) = (fs.statfs().blocks, fs.statfs().blocks_free);
        assert!(free + 2000 > blocks, "{kind}: {free} of {blocks} blocks are free");
        close(fs, &path);
    }
}

#[test]
fn on_a_full_volume_nothing_is_made_by_half_and_deletion_makes_room() {
    for mixed in [false, true] {
        let dir = scratch_dir();
        let path = dir.path().join("image");
        image::make(&path, 128 << 20, |options| options.mixed = mixed);
        let fs = image::open(&path, Options::default());
        let home = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
        let mut number = 0;
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        // First fills the space for data, then that for metadata.
        for len in [1 << 20, 5000, 1500, 0] {
            while let Ok(id) = fs.directories().create(root_of(home), format!("{number:0200}").as_bytes(), &new) {
                number += 1;
                let content = vec![number as u8; len];
                let written = fs.files().write(id, WriteAt::Offset(0), &content, false);
                fs.references().forget(id, 1);
                if written.is_err() {
                    break;
                }
                if number % 40 == 0
                    && fs.subvolumes().snapshot(home, fs.root(), format!("s{number}").as_bytes(), false).is_err()
                {
                    break;
                }
            }
        }
        let mut made = Vec::new();
        let refused = (0..20_000).find_map(|number| {
            let name = format!("more{number}");
            match fs.subvolumes().snapshot(home, fs.root(), name.as_bytes(), true) {
                Ok(id) => {
                    made.push((name, id));
                    None
                }
                Err(error) => Some((name, error.errno())),
            }
        });
        let (name, errno) = refused.unwrap();
        assert_eq!((errno, fs.abort_reason()), (Errno::NOSPC, None));
        assert_eq!(fs.directories().lookup(fs.root(), name.as_bytes()).unwrap_err().errno(), Errno::NOENT);
        eprintln!("{number} files, {} snapshots", made.len());
        fs.durability().sync().unwrap();
        // In the lowmem mode, hundreds of snapshots take minutes.
        close_and_check(fs, &path, |path| assert_btrfs_check_clean(path));
        let fs = image::open(&path, Options::default());
        fs.subvolumes().delete_subvolume(fs.root(), b"home").unwrap();
        for id in fs.subvolumes().ids() {
            if let Some((dir, name)) = fs.subvolumes().subvolume_info(id).unwrap().entry {
                fs.subvolumes().delete_subvolume(dir, &name).unwrap();
            }
        }
        drop_all(&fs);
        fs.durability().sync().unwrap();
        file(&fs, fs.root(), "again", &vec![1; 40 << 20]);
        close(fs, &path);
    }
}

/// Makes and deletes snapshots while programs write and threads work in the background.
#[test]
fn snapshots_are_whole_beside_writers_and_deletions() {
    let rounds = if soaks() { 1000 } else { 60 };
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 2 << 30, |_| ());
    let fs = Filesystem::open_path(&path, Options { memory: 32 << 20, ..Options::default() }).unwrap();
    let home = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    let root = root_of(home);
    for number in 0..200 {
        file(&fs, root, &format!("{number}"), &vec![0; 6000]);
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer: u64| {
                let (fs, is_done) = (&fs, &is_done);
                scope.spawn(move || {
                    let mut rng = Rng::new(writer);
                    let mut count = 0_u64;
                    while !is_done() {
                        let name = format!("{}", rng.below(100) * 2 + writer);
                        let id = fs.directories().lookup(root, name.as_bytes()).unwrap();
                        count += 1;
                        // One write makes the whole content of a file.
                        fs.files().write(id, WriteAt::Offset(0), &vec![count as u8; 6000], false).unwrap();
                        if rng.one_in(20) {
                            fs.durability().fsync(id).unwrap();
                        }
                        fs.references().forget(id, 1);
                    }
                })
            })
            .collect();
        let snapshots: Vec<_> = (0..2)
            .map(|thread: u64| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut rng = Rng::new(77 + thread);
                    let mut copies = Vec::new();
                    for round in 0..rounds / 2 {
                        let name = format!("copy {thread} {round}");
                        let id = fs.subvolumes().snapshot(home, fs.root(), name.as_bytes(), rng.one_in(2)).unwrap();
                        for _ in 0..20 {
                            let content = read(fs, root_of(id), &format!("{}", rng.below(200)));
                            assert!(content.len() == 6000 && content.windows(2).all(|two| two[0] == two[1]));
                        }
                        copies.push(name);
                        if copies.len() > 12 || rng.one_in(3) {
                            let name = copies.swap_remove(rng.index(copies.len()));
                            fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = snapshots.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap();
        }
        for result in ended {
            result.unwrap();
        }
    });
    drop_all(&fs);
    close(fs, &path);
}
