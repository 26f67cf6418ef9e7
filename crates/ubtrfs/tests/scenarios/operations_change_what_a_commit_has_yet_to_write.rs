//! An operation on a file whose data the commit in flight has yet to write has the same result as
//! on one whose data is written.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};

use ubtrfs::testing::{CommitHook, CommitStep, Faults};
use ubtrfs::{Defragmentation, Filesystem, InodeId, NewInode, Options, SetAttributes, TimeChange, WriteAt};
use ubtrfs_volume::{Device, OpenOptions, Volume};

use crate::common::memory::new_volume;
use crate::common::pattern;

const SECTOR: u64 = 4096;

type Step = fn(&Filesystem, InodeId) -> ubtrfs::Result<()>;

fn write(fs: &Filesystem, id: InodeId, at: u64, seed: u64, length: usize) -> ubtrfs::Result<()> {
    fs.files().write(id, WriteAt::Offset(at), &pattern(seed, length), false).map(drop)
}

fn resize(fs: &Filesystem, id: InodeId, size: u64) -> ubtrfs::Result<()> {
    fs.inodes().set_attributes(id, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop)
}

/// The committed content.
const COMMITTED: [(&str, Step); 4] = [
    ("nothing", |_, _| Ok(())),
    ("holes", |fs, id| resize(fs, id, 16 * SECTOR)),
    ("data", |fs, id| write(fs, id, 0, 1, 16 * SECTOR as usize)),
    ("space", |fs, id| fs.files().allocate(id, 0, 16 * SECTOR, false)),
];

/// The dirty data when the commit begins.
const DIRTY: [(&str, Step); 4] = [
    ("a few bytes", |fs, id| write(fs, id, 0, 2, 100)),
    ("a sector in part", |fs, id| write(fs, id, SECTOR + 100, 3, 1000)),
    ("sectors", |fs, id| write(fs, id, 2 * SECTOR, 4, 4 * SECTOR as usize)),
    ("sectors apart", |fs, id| {
        write(fs, id, 2 * SECTOR, 5, SECTOR as usize)?;
        write(fs, id, 5 * SECTOR, 6, 3 * SECTOR as usize)
    }),
];

/// The change that joins the next transaction before the operation.
const JOINING: [(&str, Step); 3] = [
    ("nothing", |_, _| Ok(())),
    ("times", |fs, id| {
        let times = SetAttributes { atime: Some(TimeChange::Now), ..SetAttributes::default() };
        fs.inodes().set_attributes(id, &times).map(drop)
    }),
    ("a sector elsewhere", |fs, id| write(fs, id, 12 * SECTOR, 7, SECTOR as usize)),
];

const OPERATIONS: [(&str, Step); 16] = [
    ("punches all", |fs, id| fs.files().punch_hole(id, 0, 64 * SECTOR)),
    ("punches sectors", |fs, id| fs.files().punch_hole(id, 2 * SECTOR, 4 * SECTOR)),
    ("punches within sectors", |fs, id| fs.files().punch_hole(id, 10, 7 * SECTOR - 20)),
    ("punches within a sector", |fs, id| fs.files().punch_hole(id, SECTOR + 200, 300)),
    ("zeroes all", |fs, id| fs.files().zero_range(id, 0, 64 * SECTOR, true)),
    ("zeroes within sectors", |fs, id| fs.files().zero_range(id, 10, 7 * SECTOR - 20, false)),
    ("allocates", |fs, id| fs.files().allocate(id, 0, 20 * SECTOR, false)),
    ("truncates to nothing", |fs, id| resize(fs, id, 0)),
    ("truncates", |fs, id| resize(fs, id, 3 * SECTOR + 50)),
    ("truncates and grows", |fs, id| {
        resize(fs, id, 2 * SECTOR + 50)?;
        resize(fs, id, 9 * SECTOR)
    }),
    ("grows", |fs, id| resize(fs, id, 40 * SECTOR + 1)),
    ("writes over it", |fs, id| write(fs, id, 2 * SECTOR + 5, 8, 5000)),
    ("appends", |fs, id| fs.files().write(id, WriteAt::End, &pattern(9, 5000), false).map(drop)),
    ("shares it within the file", |fs, id| fs.files().clone_range(id, 0, id, 20 * SECTOR, 8 * SECTOR).map(drop)),
    ("shares over it", |fs, id| {
        let size = fs.inodes().size(id)?;
        resize(fs, id, size.max(16 * SECTOR))?;
        fs.files().clone_range(id, 8 * SECTOR, id, 2 * SECTOR, 4 * SECTOR).map(drop)
    }),
    ("defragments", |fs, id| fs.files().defragment(id, &Defragmentation::default()).map(drop)),
];

/// A case: its description and its steps.
struct Case {
    words: String,
    steps: [Step; 4],
}

fn cases(operations: &[(&str, Step)]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (committed, first) in COMMITTED {
        for (dirty, second) in DIRTY {
            for (joining, third) in JOINING {
                cases.extend(operations.iter().map(|(operation, fourth)| Case {
                    words: format!("{committed}, {dirty}, {joining}, {operation}"),
                    steps: [first, second, third, *fourth],
                }));
            }
        }
    }
    cases
}

/// The result of a case: whether the operation succeeded, the content at once, after a commit and
/// in a new mount, and the space on disk then, in units of 512 bytes.
#[derive(Debug, PartialEq)]
struct Left {
    succeeded: bool,
    content: [Vec<u8>; 3],
    blocks: u64,
}

/// Runs cases on a volume, with a file for each. The last two steps of each run while the commit
/// has yet to write what the second step made dirty, or after that commit.
fn left_by(cases: &[Case], beside_the_commit: bool, faults: &Faults) -> Vec<Left> {
    type Late = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;
    let device: Arc<dyn Device> = Arc::new(new_volume(1 << 30));
    let late = Late::default();
    let hook = CommitHook(Arc::new({
        let late = late.clone();
        move |reached| {
            let run = (reached == CommitStep::Frozen).then(|| late.lock().unwrap().take()).flatten();
            if let Some(run) = run {
                run();
            }
        }
    }));
    let mount = |faults: Faults| {
        let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
        let options = Options { background_commits: false, faults, ..Options::default() };
        Filesystem::open(Arc::new(volume), options).unwrap()
    };
    let name = |number: usize| format!("{number}").into_bytes();
    let fs = mount(Faults { hook: Some(hook), ..faults.clone() });
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let files: Vec<(InodeId, [Step; 4])> = (cases.iter().enumerate())
        .map(|(number, case)| (fs.directories().create(fs.root(), &name(number), &new).unwrap(), case.steps))
        .collect();
    for (id, steps) in &files {
        steps[0](&fs, *id).unwrap();
    }
    fs.durability().sync().unwrap();
    for (id, steps) in &files {
        steps[1](&fs, *id).unwrap();
    }
    let (sender, succeeded) = channel();
    let both = {
        let files = files.clone();
        move |fs: &Filesystem| {
            for (id, steps) in &files {
                steps[2](fs, *id).unwrap();
                sender.send(steps[3](fs, *id).is_ok()).unwrap();
            }
        }
    };
    if beside_the_commit {
        let mounted: Weak<Filesystem> = Arc::downgrade(&fs);
        *late.lock().unwrap() = Some(Box::new(move || both(&mounted.upgrade().unwrap())));
        fs.durability().sync().unwrap();
    } else {
        fs.durability().sync().unwrap();
        both(&fs);
    }
    let read = |fs: &Filesystem, id| fs.files().read(id, 0, 1 << 20).unwrap();
    let at_once: Vec<_> = files.iter().map(|(id, _)| read(&fs, *id)).collect();
    fs.durability().sync().unwrap();
    let after: Vec<_> = files.iter().map(|(id, _)| read(&fs, *id)).collect();
    fs.close().unwrap();
    drop(fs);
    let fs = mount(Faults::default());
    let left = |(number, (at_once, after))| {
        let id = fs.directories().lookup(fs.root(), &name(number)).unwrap();
        let (content, blocks) = ([at_once, after, read(&fs, id)], fs.inodes().attributes(id).unwrap().blocks);
        Left { succeeded: succeeded.recv().unwrap(), content, blocks }
    };
    at_once.into_iter().zip(after).enumerate().map(left).collect()
}

/// Returns descriptions of the cases whose result differs beside a commit.
fn differing(operations: &[(&str, Step)], faults: &Faults) -> Vec<String> {
    let cases = cases(operations);
    let (beside, after) = (left_by(&cases, true, faults), left_by(&cases, false, &Faults::default()));
    let differs = |(case, (beside, after)): (Case, (Left, Left))| {
        let content = beside.content.iter().zip(&after.content).map(|(ours, other)| ours == other);
        (beside != after).then(|| {
            format!(
                "{}: succeeded {:?}, content {:?}, blocks {:?}",
                case.words,
                (beside.succeeded, after.succeeded),
                content.collect::<Vec<_>>(),
                (beside.blocks, after.blocks)
            )
        })
    };
    cases.into_iter().zip(beside.into_iter().zip(after)).filter_map(differs).collect()
}

#[test]
fn operations_on_data_that_a_commit_has_yet_to_write_end_as_on_written_data() {
    assert_eq!(differing(&OPERATIONS, &Faults::default()), Vec::<String>::new());
}

#[test]
fn a_hole_that_leaves_data_of_a_commit_is_noticed() {
    let faults = Faults { overlook_frozen: true, ..Faults::default() };
    let found = differing(&OPERATIONS, &faults);
    assert!(!found.is_empty() && found.iter().all(|words| words.contains("punches")), "{found:#?}");
}
