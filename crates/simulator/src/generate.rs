//! Random operations, most of which fit the state of the volume.

use std::collections::VecDeque;

use ubtrfs::{Compression, Recompression, RenameFlags, WriteAt, XattrMode};
use ubtrfs_format::items::Timespec;
use ubtrfs_testkit::names::{COLLIDING, COLLIDING_XATTRS};

use crate::model::is_regular;
use crate::operation::{DeviceChange, Name};
use crate::{Body, Model, Operation, Path, Random, What};

/// The kinds of operations that are made.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a habit of its own")]
pub struct Habits {
    /// Unmounts and mounts at times.
    pub remount: bool,
    /// Set-id bits and capabilities, which make operations of several steps.
    pub privileges: bool,
    /// Large writes, so that small volumes become full.
    pub large: bool,
    /// Sizes of many TiB, with holes in between.
    pub huge: bool,
    /// Commits every few operations, so that space is soon used again.
    pub eager: bool,
    /// Many fsyncs.
    pub fsyncs: bool,
    /// Files share extents repeatedly, and meanwhile grow and are fsynced.
    pub shares: bool,
    /// Subvolumes are made, copied by snapshots and deleted.
    pub subvolumes: bool,
    /// Devices are added, removed and resized.
    pub devices: bool,
}

/// Makes operations.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    habits: Habits,
    names: Vec<Vec<u8>>,
    /// The next operations.
    planned: VecDeque<Operation>,
}

const MAX: usize = 3;

/// A file that keeps a volume full; operations leave it alone.
pub(crate) const FILLER: &[u8] = b"filler";

impl Generator {
    /// Returns the generator of this seed.
    pub fn new(seed: u64, habits: Habits) -> Self {
        let mut names: Vec<Vec<u8>> = (b'a'..=b'h').map(|letter| vec![letter]).collect();
        for (one, other) in &COLLIDING[..2] {
            names.extend([one.as_bytes().to_vec(), other.as_bytes().to_vec()]);
        }
        names.extend([vec![b'n'; 255], vec![b'm'; 200], b"\xff\xfe no utf-8".to_vec()]);
        Self { random: Random::new(seed), habits, names, planned: VecDeque::new() }
    }

    /// Returns the next operation on a volume in this state, with so many open handles.
    pub fn next(&mut self, model: &Model, handles: usize) -> Operation {
        if let Some(operation) = self.planned.pop_front() {
            return operation;
        }
        if self.habits.eager && self.random.one_in(4) {
            return Operation::Sync;
        }
        let mut paths = model.paths();
        paths.retain(|(path, _)| path.0 != FILLER);
        if self.habits.fsyncs && self.random.one_in(4) {
            return Operation::Fsync { what: self.any(&paths, handles), data_only: self.random.one_in(4) };
        }
        if self.habits.devices && self.random.one_in(8) {
            return Operation::ChangeDevices { change: self.device_change() };
        }
        if self.habits.subvolumes && self.random.one_in(6) {
            return self.subvolume(model, &paths);
        }
        if self.habits.shares && self.random.one_in(2) {
            return self.share(model, &paths, handles);
        }
        match self.random.below(140) {
            0..18 => self.create(model, &paths),
            18..46 => self.write(model, &paths, handles),
            46..53 => {
                let (what, size) = self.file(model, &paths, handles);
                Operation::Truncate { what, size: self.new_size(size) }
            }
            53..58 => self.attributes(&paths, handles),
            58..64 => {
                let what = self.any(&paths, handles);
                let name = self.xattr_name(model, &what);
                let collides = COLLIDING_XATTRS.iter().any(|(a, b)| [a, b].iter().any(|x| x.as_bytes() == name));
                let longest = if collides { 100 } else { self.random.one_of([0, 20, 300, 3000, 4200]) };
                let mode = self.random.one_of([XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let len = self.random.below(longest + 1) as usize;
                Operation::SetXattr { what, name: Name(name), len, fill: self.random.number(), mode }
            }
            64..67 => {
                let what = self.any(&paths, handles);
                let name = self.xattr_name(model, &what);
                Operation::RemoveXattr { what, name: Name(name) }
            }
            67..72 => Operation::Link { what: self.any(&paths, handles), path: self.new_path(model, &paths) },
            72..80 => Operation::Unlink { path: self.existing(&paths) },
            80..83 => Operation::Rmdir { path: self.existing(&paths) },
            83..92 => {
                let to = if self.random.one_in(2) { self.existing(&paths) } else { self.new_path(model, &paths) };
                let plain = RenameFlags::default();
                let flags = match self.random.below(8) {
                    0 => RenameFlags { no_replace: true, ..plain },
                    1 => RenameFlags { whiteout: true, ..plain },
                    2 | 3 => RenameFlags { exchange: true, ..plain },
                    _ => plain,
                };
                Operation::Rename { from: self.existing(&paths), to, flags }
            }
            92..97 => Operation::Fsync { what: self.any(&paths, handles), data_only: self.random.one_in(4) },
            97..101 => Operation::Sync,
            101..103 => Operation::Unnamed { dir: self.directory(model, &paths), mode: 0o100_600 },
            103..106 => Operation::Open { path: self.existing(&paths) },
            106..109 => Operation::Close { handle: self.random.below(1 << 16) as usize },
            109..112 => {
                let (what, size) = self.file(model, &paths, handles);
                let offset = self.random.below(size + 1);
                Operation::Punch { what, offset, len: self.random.below(size / 2 + 5000) }
            }
            115..123 => self.allocate(model, &paths, handles),
            123..130 => self.clone_range(model, &paths, handles),
            130..134 => {
                let what = self.any(&paths, handles);
                let name = self.xattr_name(model, &what);
                let len = if self.random.one_in(3) { None } else { Some(self.random.below(300) as usize) };
                let mode = self.random.below(0o10_000) as u32;
                Operation::ModeAndXattr { what, mode, name: Name(name), len, fill: self.random.number() }
            }
            134..140 => {
                let is_empty = |id| matches!(&model.node(id).body, Body::File(content) if content.size() == 0);
                let empty: Vec<_> = paths.iter().filter(|(_, id)| is_empty(*id)).collect();
                match self.random.pick(&empty) {
                    Some((path, _)) => Operation::NoDataCow { what: What::At(path.clone()) },
                    None => Operation::NoDataCow { what: self.file(model, &paths, handles).0 },
                }
            }
            112 if self.habits.remount => Operation::Remount,
            // As for a defragmentation, the random numbers that this takes do not change the
            // operations after it.
            113 => Operation::EmptyBlockGroup { number: self.random.clone().below(64) as usize },
            114 => self.defragment(model, &paths, handles),
            _ => Operation::Look,
        }
    }

    /// Returns a change of the devices; additions are as frequent as removals.
    fn device_change(&mut self) -> DeviceChange {
        let number = self.random.below(64) as usize;
        match self.random.below(6) {
            0 => DeviceChange::Add,
            1 => DeviceChange::Remove { number },
            _ => DeviceChange::Resize { number, parts: DeviceChange::PARTS - self.random.below(6) },
        }
    }

    /// Returns a defragmentation. The random numbers that this takes do not change the operations
    /// after it.
    fn defragment(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let before = self.random.clone();
        let (what, _) = self.file(model, paths, handles);
        let with = |algorithm, level| Recompression::With { algorithm, level };
        let compression = self.random.one_of([
            Recompression::Keep,
            Recompression::Keep,
            Recompression::Remove,
            with(Compression::Zlib, None),
            with(Compression::Lzo, Some(1)),
            with(Compression::Zstd, None),
        ]);
        let unshare = self.random.one_in(3);
        self.random = before;
        Operation::Defragment { what, compression, unshare }
    }

    fn existing(&mut self, paths: &[(Path, ubtrfs::InodeId)]) -> Path {
        let below = paths.get(1..).unwrap_or_default();
        match self.random.pick(below) {
            Some((path, _)) => path.clone(),
            None => Path(b"a".to_vec()),
        }
    }

    fn any(&mut self, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> What {
        if handles > 0 && self.random.one_in(5) {
            return What::Handle(self.random.below(1 << 16) as usize);
        }
        let path = self.random.pick(paths).map(|(path, _)| path.clone()).unwrap_or_default();
        What::At(path)
    }

    /// Returns mostly a regular file, with its size.
    fn file(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> (What, u64) {
        let files: Vec<_> = paths.iter().filter(|(_, id)| is_regular(model.node(*id).mode)).collect();
        if (handles > 0 && self.random.one_in(5)) || files.is_empty() || self.random.one_in(30) {
            return (self.any(paths, handles), 5000);
        }
        match self.random.pick(&files) {
            Some((path, id)) => (What::At(path.clone()), model.node(*id).size()),
            None => (What::At(Path::default()), 0),
        }
    }

    fn directory(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)]) -> Path {
        let fits = |path: &Path, id| model.node(id).is_dir() && path.names().count() < MAX;
        let directories: Vec<_> = paths.iter().filter(|(path, id)| fits(path, *id)).collect();
        if self.random.one_in(40) {
            return self.existing(paths);
        }
        self.random.pick(&directories).map(|(path, _)| path.clone()).unwrap_or_default()
    }

    fn new_path(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)]) -> Path {
        let dir = self.directory(model, paths);
        let name = self.random.pick(&self.names).cloned().unwrap_or_default();
        dir.join(&name)
    }

    /// Returns an operation on a subvolume. There are only a few subvolumes at a time, since each
    /// snapshot doubles what its source has.
    fn subvolume(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)]) -> Operation {
        const MAX_NODES: usize = 250;
        let tops: Vec<_> = paths.iter().filter(|(_, id)| model.is_subvolume(*id)).collect();
        let top = self.random.pick(&tops).map_or_else(|| Path(b"a".to_vec()), |(path, _)| path.clone());
        let anywhere = if self.random.one_in(2) { self.existing(paths) } else { top.clone() };
        let is_large = model.nodes.len() > MAX_NODES;
        match self.random.below(20) {
            16..19 if !is_large => {
                let source = if self.random.one_in(6) { Path::default() } else { self.existing(paths) };
                Operation::ResetSubvolume { path: top, source }
            }
            19 => Operation::ResetSubvolume { path: self.existing(paths), source: anywhere },
            0..3 => Operation::CreateSubvolume { path: self.new_path(model, paths) },
            3..9 if !is_large => {
                let source = if self.random.one_in(4) { Path::default() } else { anywhere };
                let read_only = self.random.one_in(3);
                Operation::Snapshot { source, path: self.new_path(model, paths), read_only }
            }
            9 => Operation::DeleteSubvolume { path: self.existing(paths) },
            10 | 11 => Operation::SetReadOnly { path: top, read_only: self.random.one_in(3) },
            12 => Operation::SetDefault { path: if self.random.one_in(2) { Path::default() } else { top } },
            _ => Operation::DeleteSubvolume { path: top },
        }
    }

    fn create(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)]) -> Operation {
        let path = self.new_path(model, paths);
        let bits = self.random.one_of([0o644, 0o600, 0o755, 0o1777, 0o2775, 0o6755]);
        let (mut rdev, mut target) = (0, Path::default());
        let mode = match self.random.below(24) {
            0..14 => 0o100_000 | bits,
            14..19 => 0o040_000 | bits,
            19..22 => {
                let longest = self.random.one_of([10, 200, 3000]);
                let len = 1 + self.random.below(longest) as usize;
                target = Path(Random::noise(self.random.number(), len).iter().map(|byte| b'a' + byte % 26).collect());
                0o120_777
            }
            22 => 0o010_000 | bits,
            _ => {
                rdev = self.random.below(4096) << 20 | self.random.below(1 << 20);
                self.random.one_of([0o020_000, 0o060_000]) | bits
            }
        };
        let owner = (self.random.below(3) as u32, self.random.below(3) as u32 * 1000);
        let is_plain = matches!(mode & 0o170_000, 0o100_000 | 0o040_000);
        let xattr = is_plain && self.random.one_in(6);
        Operation::Create { path, mode, owner, rdev, target, xattr, open: self.random.one_in(8) }
    }

    fn write(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let (what, size) = self.file(model, paths, handles);
        let longest = if self.habits.large && self.random.one_in(2) {
            600_000
        } else {
            self.random.one_of([200, 200, 200, 9000, 9000, 9000, 70_000, 70_000, 400_000])
        };
        let mut len = self.random.below(longest) as usize;
        let offset = match self.random.below(8) {
            0..3 => self.random.below(size.min(1 << 20) + 1),
            3 | 4 => self.random.below(size.min(1 << 20) / 4096 + 1) * 4096,
            5 => size + self.random.below(40_000),
            6 if self.habits.huge && self.random.one_in(4) => self.random.below(1 << 45),
            _ => 0,
        };
        if self.random.one_in(5) {
            len = (len / 4096 + 1) * 4096;
        }
        // Zeros of holes are cheap, but a file that has grown to many TiB must not be appended to
        // for long.
        let at = if self.random.one_in(5) { WriteAt::End } else { WriteAt::Offset(offset) };
        let kill_privileges = self.habits.privileges && self.random.one_in(8);
        Operation::Write { what, at, len, fill: self.random.number(), kill_privileges }
    }

    fn allocate(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let (what, size) = self.file(model, paths, handles);
        let offset = match self.random.below(4) {
            0 => 0,
            1 => size,
            2 => self.random.below(size.min(1 << 20) / 4096 + 1) * 4096,
            _ => self.random.below(size.min(1 << 20) + 20_000),
        };
        let longest = self.random.one_of([5000, 40_000, 300_000]);
        // An operation that fails after it has begun leaves a state that is neither the old nor the
        // new one, so it is not made where space may be short.
        let zero = !self.habits.large && self.random.one_in(3);
        Operation::Allocate { what, offset, len: self.random.below(longest), zero, keep_size: self.random.one_in(2) }
    }

    fn clone_range(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let (from, from_size) = self.file(model, paths, handles);
        let (to, to_size) = self.file(model, paths, handles);
        let mut offset = |size: u64| match self.random.below(4) {
            0 | 1 => 0,
            2 => self.random.below(size.min(1 << 20) / 4096 + 2) * 4096,
            _ => size.min(1 << 20).next_multiple_of(4096),
        };
        let (from_offset, to_offset) = (offset(from_size), offset(to_size));
        // If a file has grown to many TiB, not all of it is cloned.
        let len = match self.random.below(4) {
            0 | 1 => 1 << 20,
            2 => self.random.below(20) * 4096,
            _ => self.random.below(100_000),
        };
        Operation::Clone { from, from_offset, to, to_offset, len }
    }

    /// Returns an operation that brings extents into states in which they may be shared, that
    /// shares them, or that makes a file with shared extents durable. It stands alone, or is most
    /// of a sequence in which an extent grows after it was logged.
    fn share(&mut self, model: &Model, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let (what, size) = self.file(model, paths, handles);
        match self.random.below(12) {
            0..3 => self.clone_range(model, paths, handles),
            3..5 => self.grow(what),
            5..7 => Operation::Fsync { what, data_only: self.random.one_in(4) },
            7 => Operation::Allocate { what, offset: size, len: 65_536, zero: false, keep_size: true },
            8 => Operation::Truncate { what, size: self.new_size(size) },
            _ => {
                let (to, _) = self.file(model, paths, handles);
                // An extent grows at the beginning of a sector.
                let whole = Operation::Truncate { what: what.clone(), size: (size.min(1 << 20) / 4096 + 1) * 4096 };
                let fsync = |what: &What| Operation::Fsync { what: what.clone(), data_only: false };
                let clone =
                    Operation::Clone { from: what.clone(), from_offset: 0, to: to.clone(), to_offset: 0, len: 2 << 20 };
                let (first, last) = (self.grow(what.clone()), self.grow(what.clone()));
                let all = [whole, first, fsync(&what), last, clone, fsync(&to), fsync(&what)];
                let some = all.into_iter().filter(|_| !self.random.one_in(8));
                self.planned = some.collect();
                self.planned.pop_front().unwrap_or(Operation::Sync)
            }
        }
    }

    /// Returns an append, mostly of whole sectors.
    fn grow(&mut self, what: What) -> Operation {
        let len = self.random.one_of([100, 4096, 8192, 8192, 65_536, 65_536]);
        Operation::Write { what, at: WriteAt::End, len, fill: self.random.number(), kill_privileges: false }
    }

    fn new_size(&mut self, size: u64) -> u64 {
        match self.random.below(9) {
            0 => 0,
            1 | 2 => self.random.below(size + 1),
            3 => size / 2 / 4096 * 4096,
            4 => size + self.random.below(50_000),
            5 => size.saturating_sub(1),
            6 if self.habits.huge => self.random.below(1 << 45),
            7 => self.random.below(3000),
            _ => size,
        }
    }

    fn attributes(&mut self, paths: &[(Path, ubtrfs::InodeId)], handles: usize) -> Operation {
        let what = self.any(paths, handles);
        let mut some = |limit| self.random.one_in(2).then(|| self.random.below(limit));
        let (mode, uid, gid) = (some(0o10_000), some(1 << 32), some(2000));
        let mtime = some(1 << 33).map(|sec| Timespec { sec, nsec: (sec % 1_000_000_000) as u32 });
        let narrow = |value: Option<u64>| value.map(|value| value as u32);
        let (uid, gid) = if self.habits.privileges { (narrow(uid), narrow(gid)) } else { (None, None) };
        Operation::Attributes { what, mode: narrow(mode), uid, gid, mtime }
    }

    /// Returns a name of an xattr: for inodes other than files and directories, one that the kernel
    /// shows for any kind of inode.
    fn xattr_name(&mut self, model: &Model, what: &What) -> Vec<u8> {
        let plain = match what {
            What::At(path) => model
                .resolve(path)
                .is_some_and(|id| matches!(model.node(id).body, Body::File(_) | Body::Directory { .. })),
            What::Handle(_) => false,
        };
        let name = match self.random.below(8) {
            0 if self.habits.privileges && plain => "security.capability",
            1 if plain => COLLIDING_XATTRS[0].0,
            2 if plain => COLLIDING_XATTRS[0].1,
            3 if plain => "user.one",
            4 if plain => "user.two",
            5 => "trusted.one",
            6 => "trusted.two",
            _ => return [b"trusted.".as_slice(), &[b'x'; 240]].concat(),
        };
        name.as_bytes().to_vec()
    }
}
