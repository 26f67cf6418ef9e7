//! The largest item of each kind that programs can cause: no commit, log or replay fails because of
//! it (invariant 24).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs::testing::Faults;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, RenameFlags, SetAttributes, WriteAt, XattrMode};
use ubtrfs_errors::sentence;
use ubtrfs_format::DirIndex;
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::{Random, make_volume};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::names::{NAME_SEED, name_of_hash};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, RecordingDevice, Volume};

use crate::kernel_mounts_crash_states::write_image;

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const DIRS: usize = 3;
/// The hashes are few, so that many names share each.
const HASHES: [u32; 2] = [0x1234_5678, 0x8765_4321];

/// The visible content of a volume: all names of the directories, links and xattrs of the file that
/// has many, and the sizes of small files.
#[derive(Debug, PartialEq, Eq)]
struct Contents {
    names: Vec<BTreeSet<Vec<u8>>>,
    links: u32,
    xattrs: BTreeMap<Vec<u8>, usize>,
    sizes: BTreeMap<Vec<u8>, u64>,
}

struct Filling {
    fs: Arc<Filesystem>,
    random: Random,
    dirs: Vec<InodeId>,
    file: InodeId,
    /// Names of the file.
    links: Vec<(usize, Vec<u8>)>,
    /// Names of other files.
    others: Vec<(usize, Vec<u8>)>,
    refused: usize,
}

fn open(device: Arc<dyn Device>, options: &Options) -> Result<Arc<Filesystem>, String> {
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).map_err(|error| sentence(&error))?;
    Filesystem::open(Arc::new(volume), options.clone()).map_err(|error| format!("it does not mount: {error:?}"))
}

fn new(mode: u32) -> NewInode {
    NewInode { mode, ..NewInode::default() }
}

impl Filling {
    fn new(fs: Arc<Filesystem>, seed: u64) -> ubtrfs::Result<Self> {
        let dirs: Vec<_> = (0..DIRS)
            .map(|number| fs.directories().create(fs.root(), format!("dir{number}").as_bytes(), &new(DIR)))
            .collect::<ubtrfs::Result<_>>()?;
        let file = fs.directories().create(dirs[0], b"file", &new(FILE))?;
        let links = vec![(0, b"file".to_vec())];
        Ok(Self { fs, random: Random::new(seed), dirs, file, links, others: Vec::new(), refused: 0 })
    }

    /// Returns a name for the given directory, which has one of few hashes as an entry or as an
    /// extended reference.
    fn name(&mut self, dir: usize, number: usize) -> Vec<u8> {
        let len = if self.random.one_in(2) { 255 } else { 64 + self.random.below(190) as usize };
        let hash = self.random.one_of(HASHES);
        match self.random.below(4) {
            0 => format!("{number}").into_bytes(),
            1 => name_of_hash(NAME_SEED, &format!("{number}-"), len, hash),
            _ => name_of_hash(self.dirs[dir].ino.0 as u32, &format!("{number}-"), len, hash),
        }
    }

    /// Returns whether an operation succeeded; a refusal for lack of space is allowed, and any
    /// other error is a failure.
    fn may(&mut self, result: ubtrfs::Result<()>) -> Result<bool, String> {
        let refusals = [Errno::OVERFLOW, Errno::MLINK, Errno::NOSPC, Errno::NAMETOOLONG];
        match result {
            Ok(()) => Ok(true),
            Err(error) if refusals.contains(&error.errno()) && self.fs.abort_reason().is_none() => {
                self.refused += 1;
                Ok(false)
            }
            Err(error) => Err(format!("{error:?}")),
        }
    }

    /// Fills the items of the file's names in its directories, so that later names become extended
    /// references.
    fn fill_lists(&mut self, names: usize) -> Result<(), String> {
        for dir in 0..DIRS {
            for number in 0..names {
                let mut name = format!("plain{number}-").into_bytes();
                name.resize(255, b'p');
                if self.may(self.fs.directories().link(self.file, self.dirs[dir], &name))? {
                    self.links.push((dir, name));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, number: usize) -> Result<(), String> {
        let dir = self.random.below(DIRS as u64) as usize;
        let name = self.name(dir, number);
        let fs = self.fs.clone();
        match self.random.below(20) {
            0..=7 => {
                if self.may(fs.directories().link(self.file, self.dirs[dir], &name))? {
                    self.links.push((dir, name));
                }
            }
            8..=10 => {
                let mut made = new(if self.random.one_in(3) { SYMLINK } else { FILE });
                if made.mode == SYMLINK {
                    made.symlink_target = vec![b't'; 3900 + self.random.below(197) as usize];
                }
                let size = self.random.below(4097) as usize;
                let created = fs.directories().create(self.dirs[dir], &name, &made).and_then(|id| {
                    let written = if made.mode == FILE {
                        fs.files().write(id, WriteAt::End, &vec![b'd'; size], false)
                    } else {
                        Ok(0)
                    };
                    fs.references().forget(id, 1);
                    written.map(drop)
                });
                if self.may(created)? {
                    self.others.push((dir, name));
                }
            }
            11 => {
                let list = if self.random.one_in(2) { &mut self.links } else { &mut self.others };
                let at = self.random.below(list.len() as u64) as usize;
                if list.len() > 1 {
                    let (dir, name) = list.swap_remove(at);
                    fs.directories().unlink(self.dirs[dir], &name).map_err(|error| error.chain())?;
                }
            }
            12 | 13 => {
                let is_link = self.random.one_in(2);
                let list = if is_link { &self.links } else { &self.others };
                let at = self.random.below(list.len() as u64) as usize;
                if let Some((old_dir, old)) = list.get(at).cloned() {
                    let renamed = fs.directories().rename(
                        self.dirs[old_dir],
                        &old,
                        self.dirs[dir],
                        &name,
                        RenameFlags::default(),
                    );
                    if self.may(renamed)? {
                        let list = if is_link { &mut self.links } else { &mut self.others };
                        list[at] = (dir, name);
                    }
                }
            }
            14..=16 => {
                let hash = self.random.one_of(HASHES);
                let name = name_of_hash(NAME_SEED, &format!("user.{}-", self.random.below(9)), 70, hash);
                let most = fs.volume().node_size() as u64;
                let longest = if self.random.one_in(3) { most } else { most / 4 };
                let value = vec![b'v'; self.random.below(longest) as usize];
                self.may(fs.inodes().set_xattr(self.file, &name, &value, XattrMode::Set))?;
            }
            17 => {
                let names = fs.inodes().list_xattrs(self.file).map_err(|error| error.chain())?;
                if let Some(name) = self.random.pick(&names) {
                    fs.inodes().remove_xattr(self.file, name).map_err(|error| error.chain())?;
                }
            }
            18 => fs.durability().fsync(self.file).map_err(|error| format!("fsync: {error:?}"))?,
            _ if self.random.one_in(3) => fs.durability().sync().map_err(|error| format!("sync: {error:?}"))?,
            _ => {
                let size = Some(self.random.below(4097));
                let changes = SetAttributes { size, ..SetAttributes::default() };
                fs.inodes().set_attributes(self.file, &changes).map_err(|error| error.chain())?;
                fs.files().write(self.file, WriteAt::Offset(0), b"begin", false).map_err(|error| error.chain())?;
            }
        }
        match fs.abort_reason() {
            Some(reason) => Err(format!("it turned read-only: {reason}")),
            None => Ok(()),
        }
    }

    fn contents(fs: &Filesystem, file_of: &[(usize, Vec<u8>)]) -> ubtrfs::Result<Contents> {
        let mut contents = Contents { names: Vec::new(), links: 0, xattrs: BTreeMap::new(), sizes: BTreeMap::new() };
        for number in 0..DIRS {
            let dir = fs.directories().lookup(fs.root(), format!("dir{number}").as_bytes())?;
            let entries = fs.directories().list(dir, DirIndex(0), fs.directories().last_index(dir)?, usize::MAX)?;
            for entry in &entries {
                let id = fs.directories().lookup(dir, &entry.name)?;
                let attributes = fs.inodes().attributes(id)?;
                let size =
                    if attributes.mode == SYMLINK { fs.files().read_link(id)?.len() as u64 } else { attributes.size };
                contents.sizes.insert(entry.name.clone(), size);
                if file_of.contains(&(number, entry.name.clone())) {
                    contents.links = attributes.nlink;
                }
                fs.references().forget(id, 1);
            }
            contents.names.push(entries.into_iter().map(|entry| entry.name).collect());
            if number == 0
                && let Some((dir, name)) = file_of.first()
            {
                let dir = fs.directories().lookup(fs.root(), format!("dir{dir}").as_bytes())?;
                let id = fs.directories().lookup(dir, name)?;
                for name in fs.inodes().list_xattrs(id)? {
                    let len = fs.inodes().get_xattr(id, &name)?.len();
                    contents.xattrs.insert(name, len);
                }
            }
        }
        Ok(contents)
    }
}

fn check(device: &OverlayDevice) -> Result<(), String> {
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device.fork())];
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).map_err(|error| sentence(&error))?;
    if report.is_clean() { Ok(()) } else { Err(format!("check: {:?}", report.faults.first())) }
}

/// Fills items on a volume with such nodes. What an fsync made durable last must be there after a
/// crash, though items were as full as possible. Returns how often something was refused, and the
/// state that the crash left.
pub fn fill(seed: u64, node_size: u32, unchecked: bool) -> Result<(usize, OverlayDevice), String> {
    let mut options = MkfsOptions::new(64 << 20);
    options.node_size = Some(node_size);
    options.mixed = node_size == 4096 && seed.is_multiple_of(2);
    options.metadata_profile = Some(Profile::Single);
    let recording = Arc::new(RecordingDevice::new(make_volume(&options)));
    let mount = Options {
        background_commits: false,
        max_inline: if seed.is_multiple_of(3) { 4096 } else { 2048 },
        faults: Faults { unchecked_items: unchecked, ..Faults::default() },
        ..Options::default()
    };
    let fs = open(recording.clone(), &mount)?;
    let mut filling = Filling::new(fs.clone(), seed).map_err(|error| error.chain())?;
    let listed = node_size as usize / 265;
    filling.fill_lists(listed)?;
    for number in 0..listed * 8 + 300 {
        filling.step(number)?;
    }
    fs.durability().sync().map_err(|error| format!("sync: {error:?}"))?;
    // Makes names that only the log has, in full items.
    for number in 0..40 {
        let name = filling.name(1, 1_000_000 + number);
        if filling.may(fs.directories().link(filling.file, filling.dirs[1], &name))? {
            filling.links.push((1, name));
        }
    }
    for dir in filling.dirs.clone() {
        fs.durability().fsync(dir).map_err(|error| format!("fsync: {error:?}"))?;
    }
    fs.durability().fsync(filling.file).map_err(|error| format!("fsync: {error:?}"))?;
    let expected = Filling::contents(&fs, &filling.links).map_err(|error| error.chain())?;
    if expected.links as usize != filling.links.len() {
        return Err(format!("{} links, not {}", expected.links, filling.links.len()));
    }
    let left = recording.current();
    let replayed = Arc::new(RecordingDevice::on(&left));
    let fs = open(replayed.clone(), &Options { faults: Faults::default(), ..mount })?;
    let found = Filling::contents(&fs, &filling.links).map_err(|error| error.chain())?;
    if found != expected {
        return Err("the replay shows something else".into());
    }
    fs.close().map_err(|error| format!("close: {error:?}"))?;
    let left = replayed.current();
    check(&left)?;
    Ok((filling.refused, left))
}

fn assert_fills(seeds: std::ops::Range<u64>, node_size: u32) {
    for seed in seeds {
        let (refused, left) = fill(seed, node_size, false).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert!(refused > 10, "seed {seed}: {refused} refused");
        if seed > 2 {
            continue;
        }
        let dir = scratch_dir();
        let image = dir.path().join("image");
        write_image(&left, &image);
        let complaints = KernelMount::new(&[&image], "").unmount();
        assert!(complaints.is_empty(), "seed {seed}: {complaints:?}");
        assert_btrfs_check_clean(&image);
    }
}

#[test]
fn nodes_of_4_kib() {
    require!(Need::Kernel);
    assert_fills(1..13, 4096);
}

#[test]
fn nodes_of_16_kib() {
    require!(Need::Kernel);
    assert_fills(1..7, 16384);
}

#[test]
fn nodes_of_64_kib() {
    require!(Need::Kernel);
    assert_fills(1..3, 65536);
}
