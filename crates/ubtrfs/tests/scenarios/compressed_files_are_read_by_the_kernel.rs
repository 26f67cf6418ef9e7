//! Files that were written compressed, and then changed in every way, are read right by the kernel
//! and by us: after a commit, and from a log after a crash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::{
    Compression, CompressionMode, Defragmentation, Filesystem, InodeId, NewInode, Options, Recompression,
    SetAttributes, WriteAt, XattrMode,
};
use ubtrfs_format::Incompat;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;

use crate::common::image::{make, open};

const SECTOR: u64 = 4096;

fn mode(algorithm: Compression, level: i32, force: bool) -> CompressionMode {
    CompressionMode { algorithm, level, force }
}

fn modes() -> Vec<CompressionMode> {
    let zlib = (1..=9).map(|level| mode(Compression::Zlib, level, level % 2 == 0));
    let zstd = [-15, -7, -1, 1, 3, 5, 8, 11, 13, 15].map(|level| mode(Compression::Zstd, level, level % 5 == 0));
    let lzo = [false, true].map(|force| mode(Compression::Lzo, 0, force));
    zlib.chain(zstd).chain(lzo).collect()
}

fn create(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

/// Returns bytes that compress well, not at all, or in parts.
fn content(rng: &mut Rng, len: usize) -> Vec<u8> {
    let (kind, seed) = (rng.below(3), rng.below(1 << 30));
    let mut state = seed * 2 + 1;
    (0..len as u64)
        .map(|at| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = (state >> 40) as u8;
            match kind {
                0 => b"a fine day, and nothing happened; "[((at + seed) % 34) as usize],
                1 => noise,
                _ if (at >> 15) % 2 == 0 => noise,
                _ => ((at + seed) >> 6) as u8,
            }
        })
        .collect()
}

/// Files and their contents.
struct Work {
    fs: Arc<Filesystem>,
    rng: Rng,
    files: Vec<(String, InodeId, Vec<u8>)>,
}

impl Work {
    fn new(fs: Arc<Filesystem>, seed: u64) -> Self {
        let files = (0..5).map(|number| format!("file-{number}"));
        let files = files.map(|name| (name.clone(), create(&fs, &name), Vec::new())).collect();
        Self { fs, rng: Rng::new(seed), files }
    }

    /// Changes how data is compressed from now on, for all files or for one.
    fn choose(&mut self) {
        const PROPERTY: &[u8] = b"btrfs.compression";
        let id = self.files[self.rng.index(self.files.len())].1;
        let modes = modes();
        let mode = modes[self.rng.index(modes.len())];
        match self.rng.below(8) {
            0 => self.fs.set_compression(Some(mode)),
            1 => self.fs.set_compression(None),
            2 => self.fs.inodes().set_flags(id, InodeFlags::COMPRESS).unwrap(),
            3 => self.fs.inodes().set_flags(id, InodeFlags::NOCOMPRESS).unwrap(),
            4 => self.fs.inodes().set_flags(id, 0).unwrap(),
            5 => {
                let name = CompressionMode::property(mode.algorithm).as_bytes();
                self.fs.inodes().set_flags(id, InodeFlags::COMPRESS).unwrap();
                self.fs.inodes().set_xattr(id, PROPERTY, name, XattrMode::Set).unwrap();
            }
            6 => {
                let level = self.rng.one_in(2).then_some(mode.level);
                let compression = match self.rng.below(3) {
                    0 => Recompression::Keep,
                    1 => Recompression::Remove,
                    _ => Recompression::With { algorithm: mode.algorithm, level },
                };
                let unshare = self.rng.one_in(2);
                let how = Defragmentation { compression, unshare, ..Defragmentation::default() };
                self.fs.files().defragment(id, &how).unwrap();
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        let index = self.rng.index(self.files.len());
        let other = self.rng.index(self.files.len());
        let (fs, rng) = (self.fs.clone(), &mut self.rng);
        let from = self.files[other].2.clone();
        let (_, id, now) = &mut self.files[index];
        let size = now.len() as u64;
        let at = rng.below(size + 1);
        let len = rng.below(400 << 10) + 1;
        let whole = (at - at % SECTOR, len.next_multiple_of(SECTOR));
        match rng.below(12) {
            0..=4 => {
                let at = if rng.one_in(2) { size } else { at };
                let data = content(rng, len as usize);
                let end = at as usize + data.len();
                now.resize(now.len().max(end), 0);
                now[at as usize..end].copy_from_slice(&data);
                if rng.one_in(8) {
                    fs.files().write_directly(*id, WriteAt::Offset(at), &data, false).unwrap();
                } else {
                    fs.files().write(*id, WriteAt::Offset(at), &data, false).unwrap();
                }
            }
            5 => {
                now.truncate(at as usize);
                fs.inodes().set_attributes(*id, &SetAttributes { size: Some(at), ..SetAttributes::default() }).unwrap();
            }
            6 => {
                fs.files().punch_hole(*id, at, len).unwrap();
                let end = (at + len).min(size);
                now[at as usize..end as usize].fill(0);
            }
            7 => {
                fs.files().allocate(*id, whole.0, whole.1, false).unwrap();
                now.resize(now.len().max((whole.0 + whole.1) as usize), 0);
            }
            8 if index != other => {
                let source = self.files[other].1;
                let len = whole.1.min(from.len() as u64 - from.len() as u64 % SECTOR);
                let (_, id, now) = &mut self.files[index];
                if len > 0 {
                    let to = size - size % SECTOR;
                    fs.files().clone_range(source, 0, *id, to, len).unwrap();
                    now.resize(now.len().max((to + len) as usize), 0);
                    now[to as usize..(to + len) as usize].copy_from_slice(&from[..len as usize]);
                }
            }
            9 => fs.durability().fsync(*id).unwrap(),
            10 => fs.durability().sync().unwrap(),
            _ => assert!(fs.files().read(*id, 0, now.len()).unwrap() == *now),
        }
    }

    fn expected(&self) -> BTreeMap<String, Vec<u8>> {
        self.files.iter().map(|(name, _, content)| (name.clone(), content.clone())).collect()
    }

    fn fsync_all(&self) {
        self.files.iter().for_each(|(_, id, _)| self.fs.durability().fsync(*id).unwrap());
    }
}

fn assert_ours(fs: &Filesystem, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, content) in expected {
        let id = fs.directories().lookup(fs.root(), name.as_bytes()).unwrap();
        assert!(fs.files().read(id, 0, content.len() + 1).unwrap() == *content, "{what}: {name}");
    }
}

/// Mounts the volume with the kernel, which replays a log, compares the files, and leaves a volume
/// without a log.
fn assert_kernels(image: &Path, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    let mount = KernelMount::new(&[image], "");
    for (name, content) in expected {
        assert!(std::fs::read(mount.path().join(name)).unwrap() == *content, "{what}: {name}");
    }
    let complaints = mount.unmount();
    assert!(complaints.is_empty(), "{what}: {complaints:?}");
    assert_btrfs_check_clean(image);
}

/// Returns the number of an image's file extent items with an algorithm, as btrfs-progs shows them.
fn compressed_items(image: &Path, algorithm: &str) -> usize {
    let shown = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "5"]).arg(image)).ok();
    shown.stdout.matches(&format!("({algorithm})")).count()
}

fn options(mode: CompressionMode) -> Options {
    Options { compression: Some(mode), ..Options::default() }
}

/// In commits and in logs, all lengths are what the kernel takes them for (invariant 31).
#[test]
fn files_of_every_algorithm_and_level_are_read_after_commits_and_crashes() {
    require!(Need::Kernel);
    for seed in seeds(1) {
        for (number, mode) in modes().into_iter().enumerate() {
            let what = format!("seed {seed}, {mode:?}");
            let dir = scratch_dir();
            let image = dir.path().join("image");
            make(&image, 256 << 20, |_| {});
            let mut work = Work::new(open(&image, options(mode)), seed * 100 + number as u64);
            (0..60).for_each(|_| work.step());
            work.fs.durability().sync().unwrap();
            (0..10).for_each(|_| work.step());
            let replayed = is_read_after_a_crash(work, &image, options(mode), &what);
            let name = format!("{:?}", mode.algorithm).to_lowercase();
            assert!(compressed_items(&replayed, &name) > 0, "{what}");
        }
    }
}

/// Remounts, flags and properties choose another algorithm, or none, at any time.
#[test]
fn files_are_read_whatever_algorithm_is_chosen_between_writes() {
    require!(Need::Kernel);
    for seed in seeds(6) {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        make(&image, 256 << 20, |_| {});
        let mut work = Work::new(open(&image, Options::default()), seed);
        for _ in 0..100 {
            work.choose();
            work.step();
        }
        is_read_after_a_crash(work, &image, Options::default(), &format!("seed {seed}"));
    }
}

/// Fsyncs everything and crashes. Both we and the kernel read the files from the log. Returns the
/// image that we have replayed.
fn is_read_after_a_crash(work: Work, image: &Path, options: Options, what: &str) -> PathBuf {
    work.fsync_all();
    let expected = work.expected();
    // There is no commit, so the log has what the last commit lacks.
    drop(work);
    let replayed = image.with_extension("replayed");
    std::fs::copy(image, &replayed).unwrap();
    let fs = open(&replayed, options);
    assert_ours(&fs, &expected, what);
    fs.close().unwrap();
    drop(fs);
    assert_ubtrfs_check_clean(&replayed);
    assert_kernels(&replayed, &expected, &format!("{what}, replayed by us"));
    assert_kernels(image, &expected, &format!("{what}, replayed by the kernel"));
    assert_ours(&open(image, Options::default()), &expected, &format!("{what}, after the kernel"));
    replayed
}

/// A volume names the algorithms that it needs as soon as it needs them (invariant 30).
#[test]
fn the_superblock_names_the_algorithm_with_the_first_data_that_needs_it() {
    for (algorithm, feature) in
        [(Compression::Lzo, Incompat::COMPRESS_LZO), (Compression::Zstd, Incompat::COMPRESS_ZSTD)]
    {
        for commits in [false, true] {
            let text = vec![7; 100_000];
            let dir = scratch_dir();
            let image = dir.path().join("image");
            make(&image, 256 << 20, |_| {});
            let incompat = || {
                let fs = open(&image, Options { read_only: true, no_log_replay: true, ..Options::default() });
                fs.volume().superblocks().current().incompat
            };
            let fs = open(&image, options(mode(algorithm, 0, false)));
            let file = create(&fs, "file");
            fs.durability().sync().unwrap();
            drop(fs);
            assert!(!incompat().contains(feature));
            let fs = open(&image, options(mode(algorithm, 0, false)));
            fs.files().write(file, WriteAt::Offset(0), &text, false).unwrap();
            if commits {
                fs.durability().sync().unwrap();
            } else {
                fs.durability().fsync(file).unwrap();
            }
            assert_eq!(fs.stats().log_writes, 0, "a log would be without the feature");
            fs.files().write(file, WriteAt::Offset(1 << 20), &text, false).unwrap();
            fs.durability().fsync(file).unwrap();
            assert_eq!(fs.stats().log_writes, 1);
            drop(fs);
            assert!(incompat().contains(feature), "{algorithm:?}, commits: {commits}");
            assert_ubtrfs_check_clean(&image);
        }
    }
}

/// A file of a sector is inline if it is small enough once it is compressed. It is a file like any
/// other: it grows, shrinks and is shared, also during a commit.
#[test]
fn small_files_are_inline_if_they_are_small_when_compressed() {
    require!(Need::Kernel);
    for (algorithm, name) in [(Compression::Zlib, "zlib"), (Compression::Lzo, "lzo"), (Compression::Zstd, "zstd")] {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        make(&image, 256 << 20, |_| {});
        let mut expected = BTreeMap::new();
        let fs = open(&image, options(mode(algorithm, 0, false)));
        for size in [1, 60, 2000, 2048, 2049, 3000, 4095, 4096, 4097] {
            for how in ["committed", "fsynced", "grown", "cut", "written", "cloned", "punched"] {
                let name = format!("{how}-{size}");
                let id = create(&fs, &name);
                let mut now = text(size);
                fs.files().write(id, WriteAt::Offset(0), &now, false).unwrap();
                if how != "committed" {
                    fs.durability().fsync(id).unwrap();
                }
                match how {
                    "grown" => {
                        fs.inodes()
                            .set_attributes(id, &SetAttributes { size: Some(9000), ..SetAttributes::default() })
                            .unwrap();
                        now.resize(9000, 0);
                    }
                    "cut" => {
                        let half = size as u64 / 2;
                        fs.inodes()
                            .set_attributes(id, &SetAttributes { size: Some(half), ..SetAttributes::default() })
                            .unwrap();
                        now.truncate(half as usize);
                    }
                    "written" => {
                        fs.files().write(id, WriteAt::Offset(8192), b"end", false).unwrap();
                        now.resize(8192, 0);
                        now.extend(b"end");
                    }
                    "cloned" => {
                        let copy = create(&fs, &format!("copy-{size}"));
                        fs.files().clone_range(id, 0, copy, 0, size as u64).unwrap();
                        expected.insert(format!("copy-{size}"), now.clone());
                    }
                    "punched" => {
                        fs.files().punch_hole(id, 0, (size as u64 / 3).max(1)).unwrap();
                        now[..(size / 3).max(1)].fill(0);
                    }
                    _ => {}
                }
                expected.insert(name, now);
            }
        }
        assert_ours(&fs, &expected, "before the commit");
        fs.close().unwrap();
        drop(fs);
        assert_ubtrfs_check_clean(&image);
        assert_kernels(&image, &expected, name);
        let shown = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "5"]).arg(&image)).ok().stdout;
        let large = ["ram_bytes 4096 ", "ram_bytes 3000 "].map(|ram| {
            shown.lines().filter(|line| line.contains("inline extent data size") && line.contains(ram)).count()
        });
        assert!(large.into_iter().all(|count| count >= 2), "{name}: {large:?}");
    }
}

fn text(len: usize) -> Vec<u8> {
    b"a fine day, and nothing happened; ".iter().copied().cycle().take(len).collect()
}

#[test]
fn a_property_names_the_algorithm_for_commits_and_fsyncs_alike() {
    require!(Need::Kernel);
    for is_synced in [false, true] {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        make(&image, 256 << 20, |_| {});
        let fs = open(&image, Options::default());
        let file = create(&fs, "file");
        fs.inodes().set_flags(file, InodeFlags::COMPRESS).unwrap();
        fs.inodes().set_xattr(file, b"btrfs.compression", b"lzo", XattrMode::Set).unwrap();
        fs.files().write(file, WriteAt::Offset(0), &text(12_000), false).unwrap();
        if is_synced {
            fs.durability().fsync(file).unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        let counts = ["zlib", "lzo", "zstd"].map(|algorithm| compressed_items(&image, algorithm));
        assert_eq!(counts, [0, 1, 0], "fsynced: {is_synced}");
        assert_btrfs_check_clean(&image);
    }
}

#[test]
fn what_may_not_be_compressed_is_not() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    make(&image, 256 << 20, |_| {});
    let fs = open(&image, options(mode(Compression::Zstd, 3, true)));
    let text = vec![b'x'; 1 << 20];
    let nodatacow = create(&fs, "nodatacow");
    fs.inodes().set_flags(nodatacow, InodeFlags::NODATACOW).unwrap();
    fs.files().write(nodatacow, WriteAt::Offset(0), &text, false).unwrap();
    let direct = create(&fs, "direct");
    fs.files().write_directly(direct, WriteAt::Offset(0), &text, false).unwrap();
    let reserved = create(&fs, "reserved");
    fs.files().allocate(reserved, 0, 1 << 20, false).unwrap();
    fs.files().write(reserved, WriteAt::Offset(0), &text, false).unwrap();
    let sector = create(&fs, "sector");
    fs.files().write(sector, WriteAt::Offset(1 << 20), &text[..4096], false).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(compressed_items(&image, "zstd"), 0);
    // When preallocated space is written, it holds data like any other.
    fs.files().write(reserved, WriteAt::Offset(0), &text, false).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_eq!(compressed_items(&image, "zstd"), 8);
    assert_btrfs_check_clean(&image);
}

#[test]
fn a_file_that_does_not_pack_is_marked_unless_compression_is_forced() {
    // The samples, of 16 bytes in 256, suggest that the data compresses, but compression saves no
    // sector.
    let mut hopeful = Rng::new(1).noise(8192);
    hopeful.chunks_mut(256).for_each(|chunk| chunk[..16].fill(0));
    for force in [false, true] {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        make(&image, 256 << 20, |_| {});
        let fs = open(&image, options(mode(Compression::Lzo, 0, force)));
        let (early, late) = (create(&fs, "fsynced"), create(&fs, "committed"));
        for file in [early, late] {
            fs.files().write(file, WriteAt::Offset(0), &hopeful, false).unwrap();
        }
        fs.durability().fsync(early).unwrap();
        fs.durability().sync().unwrap();
        for file in [early, late] {
            let marked = fs.inodes().flags(file).unwrap() & InodeFlags::NOCOMPRESS != 0;
            assert_eq!(marked, !force, "force: {force}");
        }
    }
}
