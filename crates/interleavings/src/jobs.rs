//! Jobs that run beside the writers.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs::scheduling::may_block;
use ubtrfs::{Compression, CompressionMode, Defragmentation, Errno, ScrubOptions};
use ubtrfs_format::TreeId;
use ubtrfs_format::items::{BalanceFlags, BalanceItem};
use ubtrfs_server::Pool;
use ubtrfs_simulator::{Random, has_superblock};
use ubtrfs_threads::atomic::Ordering;
use ubtrfs_threads::mpsc::channel;
use ubtrfs_threads::thread;
use ubtrfs_volume::{Lasting, Operation};

use crate::files::Versions;
use crate::stage::Stage;
use crate::writer::{read, sync_all};

/// Repetitions of a job at most: writers that have not ended when all jobs have are blocked.
const MAX: u64 = 60;
/// Repetitions of [`Job::Fill`] at most, each of which takes about a million steps of the
/// scheduler.
const MAX_FILLS: u64 = 5;
/// Errors for which chunks may stay where they are: those of a balance, and `EOPNOTSUPP` where
/// there is no free-space tree.
const OF_VACATING: [Errno; 4] = [Errno::NOSPC, Errno::CANCELED, Errno::INPROGRESS, Errno::OPNOTSUPP];
/// Repetitions of [`Job::Drop`]. The other jobs go on until it has ended.
const DROPS: u64 = 3;

/// A job of a thread beside the writers, which repeats it as long as they work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Makes a snapshot, checks the content of its files, and deletes it.
    Snapshot,
    /// Makes and deletes subvolumes that hold a file.
    Subvolume,
    /// Makes a subvolume read-only and writable again in two threads at once.
    ReadOnly,
    /// Scrubs.
    Scrub,
    /// Balances data and metadata.
    Balance,
    /// Discards all free space.
    Trim,
    /// Defragments files.
    Defragment,
    /// Changes how data is compressed.
    Compress,
    /// Remounts read-only and read-write.
    Remount,
    /// Syncs the volume from several threads of the pool that leads fsyncs.
    Sync,
    /// Keeps a commit (`keep_commit`) for a while, so that its blocks stay allocated.
    Keep,
    /// Makes snapshots with leaves of their own until space is short, and deletes them while it
    /// keeps a commit.
    Fill,
    /// Creates, renames and unlinks files, and makes files without a name.
    Names,
    /// Makes a device smaller, and as large as before.
    Resize,
    /// Makes snapshots with some leaves of their own, and deletes them; each commit drops a part of
    /// their trees.
    Drop,
    /// Adds all devices that the volume lacks, and removes one device.
    Devices,
    /// Lets a device fail some writes or flushes, and brings it up to the others.
    Glitch,
}

impl Job {
    /// The jobs from which the seed of a mixture on one device chooses.
    pub const ALL: &[Self] = &[
        Self::Snapshot,
        Self::Subvolume,
        Self::ReadOnly,
        Self::Scrub,
        Self::Balance,
        Self::Trim,
        Self::Defragment,
        Self::Compress,
        Self::Remount,
        Self::Sync,
        Self::Keep,
        Self::Names,
        Self::Resize,
    ];

    /// Returns whether other jobs go on as long as this one works, as they do while writers work.
    pub(crate) fn is_work(self) -> bool {
        self == Self::Drop
    }

    /// Repeats the job as long as writers work, at least once and at most [`MAX`] times.
    pub(crate) fn work(self, stage: &Arc<Stage>, pool: &Pool, random: &mut Random) {
        let most = match self {
            Self::Fill => MAX_FILLS,
            Self::Drop => DROPS,
            _ => MAX,
        };
        for number in 0..most {
            stage.notes.add(format!("{self:?} {number}"));
            match self {
                Self::Snapshot => snapshot(stage, number, random.one_in(2)),
                Self::Subvolume => subvolume(stage, number),
                Self::ReadOnly => read_only(stage, random),
                Self::Scrub => scrub(stage),
                Self::Balance => balance(stage),
                Self::Trim => drop(stage.succeeds("a trim", stage.fs.discarder().trim(0, u64::MAX, 0), &[])),
                Self::Defragment => defragment(stage, random),
                Self::Compress => compress(stage, random),
                Self::Remount => remount(stage),
                Self::Sync => sync(stage, pool, random),
                Self::Keep => keep(stage),
                Self::Fill => fill(stage),
                Self::Names => names(stage, random),
                Self::Resize => resize(stage, random),
                Self::Drop => drop_trees(stage, number, random),
                Self::Devices => devices(stage, random),
                Self::Glitch => glitch(stage, random),
            }
            stage.notes.add(format!("{self:?} {number} is done"));
            if (!self.is_work() && !stage.goes_on()) || stage.fs.abort_reason().is_some() {
                break;
            }
        }
        if self.is_work() {
            stage.working.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn snapshot(stage: &Stage, number: u64, read_only: bool) {
    let name = format!("snapshot {number}").into_bytes();
    let least: Vec<usize> = stage.files.iter().map(|(_, file)| file.done()).collect();
    let made = stage.fs.subvolumes().snapshot(TreeId::FS, stage.dir, &name, read_only);
    let Some(id) = stage.succeeds("a snapshot", made, &[]) else { return };
    let versions: Vec<Versions> =
        stage.files.iter().zip(least).map(|((_, file), least)| Versions { least, ..file.now() }).collect();
    let mut seen = Vec::new();
    for look in 0..2 {
        for (at, ((inode, file), versions)) in stage.files.iter().zip(&versions).enumerate() {
            let inode = ubtrfs::InodeId { subvolume: id, ..*inode };
            let Some(found) = stage.succeeds("a read of a snapshot", read(&stage.fs, inode), &[]) else { return };
            match file.judge(&found, *versions) {
                Ok(version) if look == 0 => seen.push(version),
                Ok(version) => assert_eq!(version, seen[at], "a snapshot changed"),
                Err(what) => panic!("in snapshot {number}: {what}"),
            }
        }
    }
    stage.succeeds("deleting a snapshot", stage.fs.subvolumes().delete_subvolume(stage.dir, &name), &[]);
}

fn subvolume(stage: &Stage, number: u64) {
    let name = format!("subvolume {number}").into_bytes();
    let made = stage.fs.subvolumes().create_subvolume(stage.dir, &name, 0o755, (0, 0));
    let Some(id) = stage.succeeds("making a subvolume", made, &[]) else { return };
    let root = ubtrfs::InodeId { subvolume: id, ino: ubtrfs_format::Ino::FIRST_FREE };
    let new = ubtrfs::NewInode { mode: 0o100_644, ..ubtrfs::NewInode::default() };
    if let Some(file) = stage.succeeds("a creation", stage.fs.directories().create(root, b"file", &new), &[]) {
        let data = Random::data(number, 9000);
        stage.succeeds("a write", stage.fs.files().write(file, ubtrfs::WriteAt::Offset(0), &data, false), &[]);
        stage.succeeds("an fsync", stage.fs.durability().fsync(file), &[]);
        stage.fs.references().forget(file, 1);
    }
    stage.succeeds("deleting a subvolume", stage.fs.subvolumes().delete_subvolume(stage.dir, &name), &[]);
}

/// Two threads toggle a subvolume. Then a file can be made there if, and only if, it says that it
/// is writable.
fn read_only(stage: &Arc<Stage>, random: &mut Random) {
    let name = b"toggled";
    let id = if let Ok(root) = stage.fs.directories().lookup(stage.dir, name) {
        root.subvolume
    } else {
        let made = stage.fs.subvolumes().create_subvolume(stage.dir, name, 0o755, (0, 0));
        let Some(id) = stage.succeeds("making a subvolume", made, &[]) else { return };
        id
    };
    let toggles: Vec<Vec<bool>> = (0..2).map(|_| (0..4).map(|_| random.one_in(2)).collect()).collect();
    thread::scope(|scope| {
        for toggles in toggles {
            scope.spawn(move || {
                for read_only in toggles {
                    let result = stage.fs.subvolumes().set_subvolume_read_only(id, read_only);
                    stage.succeeds("a change of a subvolume's flag", result, &[]);
                }
            });
        }
    });
    // No thread toggles it any more.
    let Ok(info) = stage.fs.subvolumes().subvolume_info(id) else { return };
    let root = ubtrfs::InodeId { subvolume: id, ino: ubtrfs_format::Ino::FIRST_FREE };
    let new = ubtrfs::NewInode { mode: 0o100_644, ..ubtrfs::NewInode::default() };
    match stage.fs.directories().create(root, b"file", &new) {
        Ok(file) => {
            assert!(!info.read_only, "a file was made in a read-only subvolume");
            stage.fs.references().forget(file, 1);
            stage.succeeds("an unlink", stage.fs.directories().unlink(root, b"file"), &[]);
        }
        Err(error) if error.errno() == Errno::ROFS && info.read_only => {}
        Err(error) => drop(stage.succeeds::<()>("a creation", Err(error), &[Errno::EXIST])),
    }
}

fn scrub(stage: &Stage) {
    let result = stage.fs.scrubber().run(ScrubOptions::default(), &mut |_| true);
    if let Some(found) = stage.succeeds("a scrub", result, &[]) {
        let may_be = stage.fails || stage.glitching.is_some();
        assert!(may_be || found.errors() == 0, "a scrub found errors: {found:?}");
        assert_eq!(found.nowhere(), 0, "a scrub found what no device has: {found:?}");
    }
}

fn balance(stage: &Stage) {
    let all = BalanceItem { flags: BalanceFlags::DATA | BalanceFlags::METADATA, ..BalanceItem::default() };
    let result = stage.fs.balancer().start(&all, &|_| true);
    // A small volume may have no other space for a block group, and a change of the trees may
    // outrun a step.
    stage.succeeds("a balance", result, &[Errno::NOSPC, Errno::CANCELED, Errno::INPROGRESS]);
}

fn defragment(stage: &Stage, random: &mut Random) {
    if let Some((id, _)) = random.pick(&stage.files) {
        let how = Defragmentation { unshare: random.one_in(2), ..Defragmentation::default() };
        stage.succeeds("a defragmentation", stage.fs.files().defragment(*id, &how), &[]);
    }
    thread::sleep(Duration::from_micros(50));
}

fn compress(stage: &Stage, random: &mut Random) {
    let algorithm = random.one_of([None, Some(Compression::Zstd), Some(Compression::Lzo)]);
    let mode = algorithm.map(|algorithm| CompressionMode { algorithm, level: 0, force: true });
    stage.fs.set_compression(mode);
    thread::sleep(Duration::from_micros(random.below(500)));
}

fn remount(stage: &Stage) {
    let events_before: Vec<usize> = stage.files.iter().map(|(_, file)| file.done()).collect();
    if stage.succeeds("a remount", stage.fs.durability().stop_writing(), &[]).is_some() {
        let events = stage.events();
        for ((_, file), version) in stage.files.iter().zip(events_before) {
            file.promise(events, version);
        }
    }
    thread::sleep(Duration::from_micros(200));
    stage.succeeds("a remount", stage.fs.durability().write_again(), &[]);
    thread::sleep(Duration::from_millis(1));
}

/// Starts up to four syncs, which may be more than the pool has threads.
fn sync(stage: &Arc<Stage>, pool: &Pool, random: &mut Random) {
    debug_assert!(may_block());
    let (sender, all) = channel();
    let count = 1 + random.below(4);
    for _ in 0..count {
        let (stage, sender) = (Arc::clone(stage), sender.clone());
        pool.run(move || {
            sync_all(&stage);
            let _ = sender.send(());
        });
    }
    for _ in 0..count {
        assert!(all.recv().is_ok(), "a job of the pool was not done");
    }
}

fn keep(stage: &Stage) {
    let kept = stage.fs.keep_commit();
    thread::sleep(Duration::from_micros(300));
    drop(kept);
    thread::sleep(Duration::from_micros(100));
}

/// While the device fails, the others have all that is written. When it has been brought up to
/// them, it has that, too.
fn glitch(stage: &Stage, random: &mut Random) {
    let Some(device) = &stage.glitching else { return };
    lacks_nothing(stage);
    for _ in 0..=random.below(3) {
        let operation = random.one_of([Operation::Write, Operation::Write, Operation::Write, Operation::Flush]);
        device.fail(operation, random.below(40), libc::EIO, Lasting::Once);
    }
    let is_brought_up_at_once = random.one_in(2);
    for _ in 0..random.below(200) {
        thread::sleep(Duration::from_micros(15));
        if is_brought_up_at_once && !stage.fs.volume().devices().lagging().is_empty() {
            break;
        }
    }
    device.heal();
    bring_up(stage);
}

/// Asserts that all copies are right; no device lags or fails here.
fn lacks_nothing(stage: &Stage) {
    let options = ScrubOptions { read_only: true, ..ScrubOptions::default() };
    if let Some(found) = stage.succeeds("a scrub", stage.fs.scrubber().run(options, &mut |_| true), &[]) {
        assert_eq!(found.errors(), 0, "a device that was brought up to the others lacks something: {found:?}");
    }
}

/// Brings the device that failed up to the others. It must not fail any more.
pub(crate) fn bring_up(stage: &Stage) {
    // Each time it may turn out to lack more, by a write that it failed earlier and whose end is
    // awaited only now.
    const MAX_TIMES: usize = 20;
    for _ in 0..MAX_TIMES {
        if stage.fs.volume().devices().lagging().is_empty() {
            return;
        }
        let result = stage.fs.scrubber().catch_up(&mut |_| true);
        stage.succeeds("bringing a device up", result, &[Errno::CANCELED]);
    }
    panic!("a device is never brought up to the others");
}

/// Makes a device smaller and as large as before. Meanwhile writers may fill the rest of it, and
/// use the new space as soon as it is there.
fn resize(stage: &Stage, random: &mut Random) {
    let devices = stage.fs.volume().devices().items();
    let Some(device) = random.pick(&devices).map(|item| item.devid) else { return };
    let Ok(bytes) = stage.fs.volume().devices().size(device) else { return };
    for bytes in [bytes - random.below(bytes / 3), bytes] {
        let result = stage.fs.relocator().resize_device(device, bytes, &|_| true);
        // The device may have been removed, or lag.
        let lags: &[Errno] = if stage.glitching.is_some() { &[Errno::BUSY] } else { &[] };
        stage.succeeds("a resize", result, &[&OF_VACATING[..], &[Errno::NODEV], lags].concat());
    }
}

/// Adds all devices that the volume lacks, and removes one, which the next call adds again.
fn devices(stage: &Stage, random: &mut Random) {
    for blank in stage.devices.iter().filter(|device| !has_superblock(&***device)) {
        stage.succeeds("adding a device", stage.fs.add_device(blank.clone()), &[]);
    }
    let devices = stage.fs.volume().devices().items();
    let Some(device) = random.pick(&devices).map(|item| item.devid) else { return };
    let result = stage.fs.relocator().remove_device(device, &|_| true);
    // The profiles may need all devices that there are.
    stage.succeeds("a removal", result, &[&OF_VACATING[..], &[Errno::INVAL]].concat());
}

/// Makes snapshots and deletes them. While they are half dropped, the rest of their trees has
/// pointers to freed blocks and to blocks that others share.
fn drop_trees(stage: &Stage, number: u64, random: &mut Random) {
    let Some(source) = tree_of_some_leaves(stage) else { return };
    let names: Vec<Vec<u8>> =
        (0..=random.below(2)).map(|half| format!("dropped {number}.{half}").into_bytes()).collect();
    for name in &names {
        let made = stage.fs.subvolumes().snapshot(source, stage.dir, name, false);
        let Some(id) = stage.succeeds("a snapshot", made, &[]) else { continue };
        let root = ubtrfs::InodeId { subvolume: id, ino: ubtrfs_format::Ino::FIRST_FREE };
        has_own_leaves(stage, root, 7 + 20 * random.below(3) as usize);
        if random.one_in(2) {
            stage.succeeds("a sync", stage.fs.durability().sync(), &[]);
        }
    }
    for name in names {
        stage.succeeds(
            "deleting a snapshot",
            stage.fs.subvolumes().delete_subvolume(stage.dir, &name),
            &[Errno::NOENT],
        );
        thread::sleep(Duration::from_micros(random.below(300)));
    }
}

/// Fills the volume with snapshots, and deletes them while a commit is kept: dropping them must not
/// spend the space that the kept commit pins.
fn fill(stage: &Stage) {
    const MAX_SNAPSHOTS: u64 = 400;
    let Some(source) = tree_of_some_leaves(stage) else { return };
    let mut names = Vec::new();
    for number in 0..MAX_SNAPSHOTS {
        let name = format!("filling {number}").into_bytes();
        // A snapshot that an earlier round could not delete is still there.
        let made = stage.fs.subvolumes().snapshot(source, stage.dir, &name, false);
        let made = stage.succeeds("a snapshot", made, &[Errno::EXIST]);
        names.push(name);
        let Some(id) = made else { break };
        let root = ubtrfs::InodeId { subvolume: id, ino: ubtrfs_format::Ino::FIRST_FREE };
        if !has_own_leaves(stage, root, 7) || stage.succeeds("a sync", stage.fs.durability().sync(), &[]).is_none() {
            break;
        }
    }
    let kept = stage.fs.keep_commit();
    for name in names {
        stage.succeeds(
            "deleting a snapshot",
            stage.fs.subvolumes().delete_subvolume(stage.dir, &name),
            &[Errno::NOENT],
        );
        stage.succeeds("a sync", stage.fs.durability().sync(), &[]);
    }
    for _ in 0..10 {
        stage.succeeds("a sync", stage.fs.durability().sync(), &[]);
    }
    drop(kept);
    stage.succeeds("a sync", stage.fs.durability().sync(), &[]);
}

const FILES_OF_SOURCE: usize = 120;

/// Returns a subvolume of files with inline data, and makes it if there is none.
fn tree_of_some_leaves(stage: &Stage) -> Option<TreeId> {
    let name = b"source";
    if let Ok(root) = stage.fs.directories().lookup(stage.dir, name) {
        return Some(root.subvolume);
    }
    let id = stage.succeeds(
        "making a subvolume",
        stage.fs.subvolumes().create_subvolume(stage.dir, name, 0o755, (0, 0)),
        &[],
    )?;
    let root = ubtrfs::InodeId { subvolume: id, ino: ubtrfs_format::Ino::FIRST_FREE };
    let new = ubtrfs::NewInode { mode: 0o100_644, ..ubtrfs::NewInode::default() };
    for number in 0..FILES_OF_SOURCE {
        let made = stage.fs.directories().create(root, format!("file {number}").as_bytes(), &new);
        let file = stage.succeeds("a creation", made, &[])?;
        stage.succeeds("a write", stage.fs.files().write(file, ubtrfs::WriteAt::Offset(0), &[1; 1500], false), &[]);
        stage.fs.references().forget(file, 1);
    }
    Some(id)
}

/// Changes every `step`th file of a snapshot of [`tree_of_some_leaves`]; with a step of seven that
/// is one file in each leaf. Returns whether there was space.
fn has_own_leaves(stage: &Stage, root: ubtrfs::InodeId, step: usize) -> bool {
    (0..FILES_OF_SOURCE).step_by(step).all(|number| {
        let Ok(file) = stage.fs.directories().lookup(root, format!("file {number}").as_bytes()) else { return true };
        let written = stage.fs.files().write(file, ubtrfs::WriteAt::Offset(0), &[2; 1500], false);
        let has_room = stage.succeeds("a write", written, &[]).is_some();
        stage.fs.references().forget(file, 1);
        has_room
    })
}

fn names(stage: &Stage, random: &mut Random) {
    let new = ubtrfs::NewInode { mode: 0o100_644, ..ubtrfs::NewInode::default() };
    let (one, other) = (format!("name {}", random.below(4)), format!("name {}", random.below(4)));
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let expected = [Errno::EXIST, Errno::NOENT];
    match random.below(4) {
        3 => unnamed(stage, random),
        0 => {
            if let Some(id) =
                stage.succeeds("a creation", stage.fs.directories().create(stage.dir, one, &new), &expected)
            {
                let data = Random::data(random.number(), 6000);
                stage.succeeds("a write", stage.fs.files().write(id, ubtrfs::WriteAt::Offset(0), &data, false), &[]);
                stage.fs.references().forget(id, 1);
            }
        }
        1 => drop(stage.succeeds("an unlink", stage.fs.directories().unlink(stage.dir, one), &expected)),
        _ => {
            let result =
                stage.fs.directories().rename(stage.dir, one, stage.dir, other, ubtrfs::RenameFlags::default());
            stage.succeeds("a rename", result, &expected);
        }
    }
}

/// Checks that a file without a name keeps its data until it is closed, also while the engine
/// searches for orphans.
fn unnamed(stage: &Stage, random: &mut Random) {
    let new = ubtrfs::NewInode { mode: 0o100_644, ..ubtrfs::NewInode::default() };
    let made = stage.fs.directories().create_unnamed(stage.dir, &new);
    let Some(id) = stage.succeeds("making a file without a name", made, &[]) else { return };
    let data = Random::data(random.number(), 6000);
    let written = stage.fs.files().write(id, ubtrfs::WriteAt::Offset(0), &data, false);
    if stage.succeeds("a write", written, &[]).is_some() {
        stage.succeeds("a sync", stage.fs.durability().sync(), &[]);
        if let Some(found) = stage.succeeds("a read of a file without a name", read(&stage.fs, id), &[]) {
            assert!(found == data, "a file without a name is not as it was written");
        }
    }
    stage.fs.references().forget(id, 1);
}
