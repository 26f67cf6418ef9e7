//! Filling volumes and emptying them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ubtrfs::{Errno, Filesystem, NewInode, Options, WriteAt};
use ubtrfs_format::Physical;
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{
    Device, DeviceCounters, DeviceTicket, DeviceWrite, Exclusive, FileDevice, OpenMode, OpenOptions, Volume,
    WriteError, check_writes,
};

/// An image file that stays small while a volume on it is filled with zeros, since these become
/// holes.
#[derive(Debug)]
struct Sparse(FileDevice);

impl Device for Sparse {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        const WORTH_IT: usize = 64 << 10;
        if let Err(error) = check_writes(&writes, self.size()) {
            return DeviceTicket::done(Err(error));
        }
        let is_zero = |write: &DeviceWrite| write.data.len() >= WORTH_IT && write.data.iter().all(|byte| *byte == 0);
        let (zeroes, rest): (Vec<_>, Vec<_>) = writes.into_iter().partition(is_zero);
        for write in zeroes {
            let (at, len) = (write.at, write.data.len());
            if let Err(source) = self.0.discard(at, len as u64) {
                return DeviceTicket::done(Err(WriteError { at, len, source }));
            }
        }
        self.0.submit(rest)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.0.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

pub fn open(path: &Path, change: impl FnOnce(&mut Options)) -> Arc<Filesystem> {
    let device = Arc::new(Sparse(FileDevice::open(path, OpenMode::ReadWrite, Exclusive::Yes).unwrap()));
    let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
    let mut options = Options { background_commits: false, ..Options::default() };
    change(&mut options);
    Filesystem::open(Arc::new(volume), options).unwrap()
}

/// What a volume is filled with.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Files of `len` zeros, written `step` bytes at a time.
    Files { len: u64, step: usize },
    /// Files of so many bytes, inline in metadata.
    Inline(usize),
}

/// How much a volume took, and how long that lasted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    pub files: u64,
    pub bytes: u64,
    pub commits: u64,
    pub took: Duration,
    /// The longest time that a thousandth of the volume took.
    pub slowest: Duration,
    /// The bytes that statfs reported as free before.
    pub said_free: u64,
}

pub fn available(fs: &Filesystem) -> u64 {
    let stats = fs.statfs();
    assert!(stats.blocks_available <= stats.blocks_free && stats.blocks_free <= stats.blocks, "{stats:?}");
    stats.blocks_available * u64::from(stats.block_size)
}

fn name(number: u64) -> Vec<u8> {
    format!("a file with the number {number:08}").into_bytes()
}

fn is_full<T>(result: ubtrfs::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
            true
        }
    }
}

/// Fills the volume with files; the last one may be shorter than the others.
pub fn fill(fs: &Filesystem, content: Content) -> Filled {
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let (begin, commits) = (Instant::now(), fs.stats().commits);
    let mut filled = Filled { said_free: available(fs), ..Filled::default() };
    let mut mark = (Instant::now(), 0);
    'full: loop {
        let id = match fs.directories().create(fs.root(), &name(filled.files), &new) {
            Ok(id) => id,
            Err(error) => {
                is_full::<()>(Err(error));
                break;
            }
        };
        filled.files += 1;
        let (len, step) = match content {
            Content::Files { len, step } => (len, step),
            Content::Inline(len) => (len as u64, len),
        };
        let data = vec![u8::from(matches!(content, Content::Inline(_))); step];
        let mut at = 0;
        while at < len {
            let part = step.min((len - at) as usize);
            if is_full(fs.files().write(id, WriteAt::Offset(at), &data[..part], false)) {
                fs.references().forget(id, 1);
                break 'full;
            }
            at += part as u64;
            filled.bytes += part as u64;
        }
        fs.references().forget(id, 1);
        if filled.bytes - mark.1 > filled.said_free / 1000 {
            filled.slowest = filled.slowest.max(mark.0.elapsed());
            mark = (Instant::now(), filled.bytes);
        }
    }
    filled.took = begin.elapsed();
    filled.commits = fs.stats().commits - commits;
    filled
}

/// Removes what [`fill`] made.
pub fn empty(fs: &Filesystem, filled: &Filled) {
    for number in 0..filled.files {
        fs.directories().unlink(fs.root(), &name(number)).unwrap_or_else(|error| panic!("unlink {number}: {error:?}"));
    }
    while fs.stats().inactivation.inodes > 0 {
        fs.durability().sync().unwrap();
    }
    // Freed space becomes available with the next commit; later commits remove empty chunks.
    for _ in 0..8 {
        fs.durability().sync().unwrap();
    }
}

#[test]
fn sparse_devices_conform() {
    let dir = ubtrfs_testkit::scratch::scratch_dir();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(2 << 20).unwrap();
    let file = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    assert_conforms(Subject::new(Arc::new(Sparse(file))));
}
