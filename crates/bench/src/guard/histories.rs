//! Histories of a volume in memory, which are the same in each run: they have one thread, random
//! numbers with a fixed seed, and no commits but their own.

use std::sync::Arc;

use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Rng, Volume};

use crate::failure::{Failure, Result};
use crate::memory;

const VOLUME: u64 = 1 << 30;
const SECTOR: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A volume, and the engine on it.
pub struct Bed {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
}

fn open(device: &Arc<MemoryDevice>) -> Result<Arc<Filesystem>> {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let volume = Volume::open(vec![device], OpenOptions { read_only: false })
        .map_err(|error| Failure::about("a volume in memory", &error))?;
    let options = Options { background_commits: false, ..Options::default() };
    Ok(Filesystem::open(Arc::new(volume), options)?)
}

impl Bed {
    /// Makes a new volume.
    pub fn new() -> Result<Self> {
        let device = Arc::new(memory::volume(VOLUME)?);
        let fs = open(&device)?;
        Ok(Self { device, fs })
    }

    /// Returns the engine.
    pub fn fs(&self) -> &Filesystem {
        &self.fs
    }

    /// Commits, and opens the volume again with empty caches.
    fn reopen(&mut self) -> Result<()> {
        self.fs.close()?;
        self.fs = open(&self.device)?;
        Ok(())
    }

    fn dir(&self, parent: InodeId, name: &str) -> Result<InodeId> {
        Ok(self.fs.directories().create(
            parent,
            name.as_bytes(),
            &NewInode { mode: 0o40_755, ..NewInode::default() },
        )?)
    }

    fn file(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        Ok(self.fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })?)
    }

    fn write(&self, file: InodeId, at: u64, len: u64) -> Result<()> {
        self.fs.files().write(file, WriteAt::Offset(at), &vec![at as u8; len as usize], false)?;
        Ok(())
    }

    /// Makes a directory of committed files with a sector each.
    fn full_directory(&self, files: u64) -> Result<InodeId> {
        let dir = self.dir(self.fs.root(), "dir")?;
        for number in 0..files {
            let file = self.file(dir, &format!("file{number}"))?;
            self.write(file, 0, SECTOR)?;
        }
        self.fs.durability().sync()?;
        Ok(dir)
    }

    /// Makes a directory of committed files, and mounts again, so that nothing of it is in memory.
    fn cold_directory(&mut self, files: u64) -> Result<InodeId> {
        self.full_directory(files)?;
        self.reopen()?;
        Ok(self.fs.directories().lookup(self.fs.root(), b"dir")?)
    }
}

/// A function that reads the counters for the first time.
type Begin<'a> = dyn FnMut(&Bed) + 'a;

/// A history of a volume.
pub struct History {
    /// Its name in the baseline.
    pub name: &'static str,
    /// Runs it, and calls the function where the counted part begins.
    pub run: fn(&mut Bed, &mut Begin<'_>) -> Result<()>,
}

/// All histories.
pub const HISTORIES: &[History] = &[
    History { name: "create 2,000 files, sync", run: create },
    History { name: "fsync each of 200 new files", run: fsync_new },
    History { name: "16 random sectors of 64 MiB, fsync; 100 times", run: fsync_random },
    History { name: "append 64 KiB, fsync; 200 times", run: fsync_append },
    History { name: "rename 2,000 files after an fsync, sync", run: rename },
    History { name: "unlink 2,000 files, sync", run: unlink },
    History { name: "write 128 MiB in order, sync", run: write_in_order },
    History { name: "overwrite 2,000 random sectors of 64 MiB, sync", run: overwrite },
    History { name: "read 1,000 random sectors of 64 MiB after a mount", run: read_random },
    History { name: "list and stat 2,000 files after a mount", run: list },
    History { name: "snapshot after a change; 50 times", run: snapshot },
];

fn create(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    begin(bed);
    bed.full_directory(2000)?;
    Ok(())
}

fn fsync_new(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let dir = bed.full_directory(1000)?;
    begin(bed);
    for number in 0..200 {
        let file = bed.file(dir, &format!("new{number}"))?;
        bed.write(file, 0, SECTOR)?;
        bed.fs.durability().fsync(file)?;
    }
    Ok(())
}

/// Makes a committed file of so many bytes.
fn large(bed: &Bed, bytes: u64) -> Result<InodeId> {
    let file = bed.file(bed.fs.root(), "large")?;
    for at in (0..bytes).step_by(MIB as usize) {
        bed.write(file, at, MIB)?;
    }
    bed.fs.durability().sync()?;
    Ok(file)
}

/// Returns the offset of a random sector of a file of 64 MiB.
fn random_sector(random: &mut Rng) -> u64 {
    random.below(64 * MIB / SECTOR) * SECTOR
}

fn fsync_random(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let file = large(bed, 64 * MIB)?;
    let mut random = Rng::new(1);
    begin(bed);
    for _ in 0..100 {
        for _ in 0..16 {
            bed.write(file, random_sector(&mut random), SECTOR)?;
        }
        bed.fs.durability().fsync(file)?;
    }
    Ok(())
}

fn fsync_append(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let file = large(bed, MIB)?;
    begin(bed);
    for number in 0..200 {
        bed.write(file, MIB + number * 16 * SECTOR, 16 * SECTOR)?;
        bed.fs.durability().fsync(file)?;
    }
    Ok(())
}

fn rename(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let dir = bed.full_directory(2000)?;
    let other = bed.file(bed.fs.root(), "other")?;
    bed.fs.durability().fsync(other)?;
    begin(bed);
    for number in 0..2000 {
        let (old, new) = (format!("file{number}"), format!("renamed{number}"));
        bed.fs.directories().rename(dir, old.as_bytes(), dir, new.as_bytes(), RenameFlags::default())?;
    }
    bed.fs.durability().sync()?;
    Ok(())
}

fn unlink(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let dir = bed.cold_directory(2000)?;
    begin(bed);
    for number in 0..2000 {
        bed.fs.directories().unlink(dir, format!("file{number}").as_bytes())?;
    }
    bed.fs.durability().sync()?;
    Ok(())
}

fn write_in_order(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    begin(bed);
    large(bed, 128 * MIB)?;
    Ok(())
}

fn overwrite(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let file = large(bed, 64 * MIB)?;
    let mut random = Rng::new(2);
    begin(bed);
    for _ in 0..2000 {
        bed.write(file, random_sector(&mut random), SECTOR)?;
    }
    bed.fs.durability().sync()?;
    Ok(())
}

fn read_random(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    large(bed, 64 * MIB)?;
    bed.reopen()?;
    let file = bed.fs.directories().lookup(bed.fs.root(), b"large")?;
    let mut random = Rng::new(3);
    begin(bed);
    for _ in 0..1000 {
        bed.fs.files().read(file, random_sector(&mut random), SECTOR as usize)?;
    }
    Ok(())
}

fn list(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let dir = bed.cold_directory(2000)?;
    begin(bed);
    for number in 0..2000 {
        let file = bed.fs.directories().lookup(dir, format!("file{number}").as_bytes())?;
        bed.fs.inodes().attributes(file)?;
        bed.fs.references().forget(file, 1);
    }
    Ok(())
}

fn snapshot(bed: &mut Bed, begin: &mut Begin<'_>) -> Result<()> {
    let dir = bed.full_directory(2000)?;
    let file = bed.fs.directories().lookup(dir, b"file0")?;
    begin(bed);
    for number in 0..50 {
        bed.write(file, number * SECTOR, SECTOR)?;
        bed.fs.subvolumes().snapshot(TreeId::FS, bed.fs.root(), format!("snapshot{number}").as_bytes(), true)?;
    }
    Ok(())
}
