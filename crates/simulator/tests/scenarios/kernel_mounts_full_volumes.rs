//! The kernel's btrfs mounts every volume that we have filled, and every state that a crash leaves
//! of it: it replays, cleans up orphans and deletes files (invariant 25).

use std::path::Path;
use std::sync::Arc;

use crate::kernel_mounts_crash_states::write_image;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, Reason, Result, WriteAt};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::{Crashes, Random, make_volume};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::btrfs_check;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::{OpenOptions, OverlayDevice, RecordingDevice, Volume};

const MIB: u64 = 1 << 20;
/// Files that are made on a full volume after removals, each of which may take a commit.
const FEW: u64 = 20;
/// Files that are removed to have a little space.
const LITTLE: u64 = 300;
fn regular() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

type Kind = (&'static str, u64, fn(&mut MkfsOptions));

fn kinds() -> [Kind; 8] {
    let single: fn(&mut MkfsOptions) = |options| options.metadata_profile = Some(Profile::Single);
    [
        ("single", 48, single),
        ("tiny", 45, single),
        ("small nodes", 60, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.node_size = Some(4096);
        }),
        ("large nodes", 80, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.node_size = Some(65536);
        }),
        ("two copies", 128, |_| ()),
        ("mixed", 20, |options| options.mixed = true),
        ("a tree of block groups", 64, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.block_group_tree = true;
        }),
        ("no free-space tree", 64, |options| {
            options.metadata_profile = Some(Profile::Single);
            options.free_space_tree = false;
        }),
    ]
}

/// The files with which a volume is filled.
#[derive(Clone, Copy, Debug)]
enum Filling {
    /// Large files.
    Data,
    /// Files so small that they are inline, with long names.
    Metadata,
    /// Both, the data first.
    Both,
}

fn open(recording: &Arc<RecordingDevice>, change: impl FnOnce(&mut Options)) -> Arc<Filesystem> {
    let volume = Volume::open(vec![recording.clone()], OpenOptions::default()).unwrap();
    let mut options = Options { background_commits: false, memory: 64 << 20, ..Options::default() };
    change(&mut options);
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn new_volume(kind: &Kind) -> Arc<RecordingDevice> {
    let mut options = MkfsOptions::new(kind.1 * MIB);
    kind.2(&mut options);
    Arc::new(RecordingDevice::new(make_volume(&options)))
}

fn name(number: u64) -> Vec<u8> {
    let mut name = format!("{number:08}").into_bytes();
    name.resize(150, b'x');
    name
}

/// Returns whether an operation found the volume full; other errors fail the test.
fn is_full<T>(result: Result<T>) -> bool {
    let Err(error) = result else { return false };
    assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
    true
}

/// Makes files of `len` bytes from this number on, at most `most`, until there is no space. Returns
/// the next number.
fn fill(fs: &Filesystem, first: u64, len: usize, most: u64) -> u64 {
    let content = Random::noise(first, len);
    for number in first..first.saturating_add(most) {
        let id = match fs.directories().create(fs.root(), &name(number), &regular()) {
            Ok(id) => id,
            Err(error) => {
                assert!(is_full::<()>(Err(error)));
                return number;
            }
        };
        let full = is_full(fs.files().write(id, WriteAt::Offset(0), &content, false));
        fs.references().forget(id, 1);
        if full {
            return number + 1;
        }
    }
    first + most
}

impl Filling {
    /// Makes files of each size, at most `most`, until there is no space. Returns the next number.
    fn fill(self, fs: &Filesystem, mut first: u64, most: u64) -> u64 {
        if !matches!(self, Self::Metadata) {
            first = fill(fs, first, 1 << 20, most);
            first = fill(fs, first, 60_000, most);
        }
        if !matches!(self, Self::Data) {
            first = fill(fs, first, 1500, most);
        }
        first
    }
}

/// Links files that are orphans in the last commit, and syncs each. If there is no space, it
/// removes files below number `next`, the last first. Returns the next number.
fn take_back(fs: &Filesystem, orphans: &[InodeId], mut next: u64) -> u64 {
    for orphan in orphans {
        while is_full(fs.directories().link(*orphan, fs.root(), format!("taken back {}", orphan.ino).as_bytes())) {
            next -= 1;
            fs.directories().unlink(fs.root(), &name(next)).unwrap();
        }
        fs.durability().fsync(*orphan).unwrap();
    }
    next
}

/// Lets the kernel mount what a crash left, delete a file, and commit.
fn kernel_continues(device: &OverlayDevice, image: &Path) -> std::result::Result<(), String> {
    write_image(device, image);
    let mount = KernelMount::try_new(&[image], "").map_err(|outcome| outcome.report())?;
    let deletes = || -> std::io::Result<()> {
        let entry = std::fs::read_dir(mount.path())?.next();
        if let Some(entry) = entry {
            std::fs::remove_file(entry?.path())?;
        }
        let outcome = run(command("btrfs", &["filesystem", "sync"]).arg(mount.path()));
        if outcome.success() { Ok(()) } else { Err(std::io::Error::other(outcome.report())) }
    };
    let deleted = deletes();
    let complaints = mount.unmount();
    deleted.map_err(|error| format!("a file is deleted: {error}; {complaints:?}"))?;
    // The kernel records the ids of subvolumes when it first has space for that; nothing depends on
    // it.
    if !complaints.iter().all(|what| what.contains("btrfs_uuid_scan_kthread failed -28")) {
        return Err(format!("the kernel complains: {complaints:?}"));
    }
    let outcome = btrfs_check(image);
    if outcome.success() { Ok(()) } else { Err(format!("btrfs check is not content: {}", outcome.report())) }
}

/// Makes a file without a name, with several extents.
fn unnamed(fs: &Filesystem) -> InodeId {
    let file = fs.directories().create_unnamed(fs.root(), &regular()).unwrap();
    for at in 0..4 {
        fs.files().write(file, WriteAt::Offset(at * 10_000), &[7; 4096], false).unwrap();
    }
    file
}

/// Makes files and syncs each, until there is no space: a log has them, or a commit.
fn sync_new_files(fs: &Filesystem, next: u64) {
    for number in next..next + FEW {
        let Ok(file) = fs.directories().create(fs.root(), &name(number), &regular()) else { break };
        let full = is_full(fs.files().write(file, WriteAt::Offset(0), b"new", false));
        fs.durability().fsync(file).unwrap();
        if full {
            break;
        }
    }
}

/// Fills a volume that has orphans. Crashes while some of these get names again and files are
/// synced, first with little free space and then with none. So many states of each are mounted.
fn crash_full(kind: &Kind, filling: Filling, states: usize, image: &Path) -> (usize, Vec<String>) {
    let recording = new_volume(kind);
    let fs = open(&recording, |_| ());
    let orphans: Vec<_> = (0..60).map(|_| unnamed(&fs)).collect();
    fs.durability().sync().unwrap();
    let full = filling.fill(&fs, 0, u64::MAX);
    fs.durability().sync().unwrap();
    let (mut mounted, mut failed) = (0, Vec::new());
    let mut crash = |when: &str| {
        for (point, device) in Crashes::new(&recording, kind.1, 8 * states).take(states) {
            mounted += 1;
            if let Err(what) = kernel_continues(&device, image) {
                failed.push(format!("{}, full of {filling:?}, {when}, {point:?}: {what}", kind.0));
            }
        }
        recording.forget_history();
    };
    recording.forget_history();
    let next = take_back(&fs, &orphans[..2], full);
    crash("full");
    // There is space for a log, and little more.
    let left = next - (next / 2).min(LITTLE);
    (left..next).for_each(|number| fs.directories().unlink(fs.root(), &name(number)).unwrap());
    fs.durability().sync().unwrap();
    recording.forget_history();
    let left = take_back(&fs, &orphans[2..4], left);
    sync_new_files(&fs, left);
    crash("a little was removed");
    (mounted, failed)
}

#[test]
fn the_kernel_continues_on_any_volume_that_ubtrfs_filled() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let states = if soaks() { 32 } else { 1 };
    let (mut mounted, mut failed) = (0, Vec::new());
    for kind in kinds() {
        for filling in [Filling::Data, Filling::Metadata, Filling::Both] {
            let (more, errors) = crash_full(&kind, filling, states, &image);
            mounted += more;
            failed.extend(errors);
        }
    }
    eprintln!("the kernel mounted {mounted} states of full volumes");
    assert!(failed.is_empty(), "{} of {mounted} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(mounted >= 44 * states);
}

/// Syncs a file that is an orphan in the last commit and has a name again. Returns how many commits
/// and logs that takes.
pub(crate) fn fsyncs_of_orphans(change: impl FnOnce(&mut Options)) -> (u64, u64) {
    let fs = open(&new_volume(&kinds()[0]), change);
    let file = fs.directories().create_unnamed(fs.root(), &regular()).unwrap();
    fs.durability().sync().unwrap();
    fs.directories().link(file, fs.root(), b"back").unwrap();
    let before = fs.stats();
    fs.durability().fsync(file).unwrap();
    let after = fs.stats();
    let counted =
        after.log_fallbacks.iter().find(|(reason, _)| *reason == Reason::Orphan).map_or(0, |(_, count)| *count);
    let commits = after.commits - before.commits;
    assert_eq!(counted, commits);
    (commits, after.log_writes - before.log_writes)
}

/// Fills a volume. Returns how much less metadata is free then than the kernel needs.
pub(crate) fn metadata_missing_to_the_kernel(change: impl FnOnce(&mut Options)) -> u64 {
    let fs = open(&new_volume(&kinds()[0]), change);
    Filling::Both.fill(&fs, 0, u64::MAX);
    fs.durability().sync().unwrap();
    let space = fs.stats().space;
    space.kernel_needs.saturating_sub(space.metadata_free)
}
