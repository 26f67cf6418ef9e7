//! What may be opened, and the exact reason if something may not.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{
    READ_ONLY, READ_WRITE, bytes_at, copies, device, fixture, fixtures, has, mkfs, open, root_of, scribble,
};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, encode_sys_chunk};
use ubtrfs_format::{
    CHECKSUM_FIELD, ChecksumType, DeviceId, Error as FormatError, Generation, HEADER_SIZE, ItemType, KEY_POINTER_SIZE,
    Key, Physical, SUPERBLOCK_COPIES, Superblock,
};
use ubtrfs_volume::{
    Device, Engine, Error, Exclusive, FileDevice, MemoryDevice, OpenMode, Origin, OverlayDevice, Result, Rng, Volume,
};

const NODE: usize = 16384;

fn made(size: u64, options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    has("mkfs.btrfs").then(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = mkfs(dir.path(), size, options);
        (dir, path)
    })
}

fn error(result: Result<Volume>) -> Error {
    match result {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

#[test]
fn other_contents_are_reported_as_no_btrfs() {
    let memory = |bytes| Volume::open(vec![Arc::new(MemoryDevice::from_bytes(bytes))], READ_ONLY);
    assert!(matches!(error(memory(vec![0; 1 << 20])), Error::NotBtrfs));
    assert!(matches!(error(memory(vec![0; 5000])), Error::NotBtrfs));
    assert!(matches!(error(memory(Vec::new())), Error::NotBtrfs));
    assert!(matches!(error(Volume::open(Vec::new(), READ_ONLY)), Error::NoDevice));
    let dir = tempfile::tempdir().unwrap();
    let open = |path: PathBuf| FileDevice::open(path, OpenMode::ReadWrite, Exclusive::Yes).unwrap_err();
    assert!(matches!(open(dir.path().to_owned()), Error::NotADevice { .. }));
    assert!(matches!(open(dir.path().join("none")), Error::Open { .. }));
    assert!(matches!(open("/dev/null".into()), Error::NotADevice { .. }));
}

#[test]
fn one_program_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0; 8192]).unwrap();
    let open = |mode, exclusive| FileDevice::open(&path, mode, exclusive);
    let held = |result| matches!(result, Err(Error::Held { path: held, .. }) if held == path);
    let writer = open(OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    assert!(held(open(OpenMode::ReadWrite, Exclusive::Yes)));
    assert!(held(open(OpenMode::ReadOnly, Exclusive::Yes)));
    open(OpenMode::ReadOnly, Exclusive::No).unwrap();
    // This also works before the writer is closed, once it writes nothing any more.
    writer.release();
    drop(open(OpenMode::ReadWrite, Exclusive::Yes).unwrap());
    drop(writer);
    let reader = open(OpenMode::ReadOnly, Exclusive::Yes).unwrap();
    open(OpenMode::ReadOnly, Exclusive::Yes).unwrap();
    assert!(held(open(OpenMode::ReadWrite, Exclusive::Yes)));
    drop(reader);
    open(OpenMode::ReadWrite, Exclusive::Yes).unwrap();
}

#[test]
fn a_damaged_primary_superblock_leaves_reading() {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    let paths = [path.clone()];
    scribble(&path, SUPERBLOCK_COPIES[0].plus(600), b"rubbish");
    let failure = error(open(&paths, READ_WRITE, Engine::Threads));
    let source = FormatError::BadChecksum { what: "superblock" };
    assert!(
        matches!(&failure, Error::PrimarySuperblock { copy, source: s } if *copy == SUPERBLOCK_COPIES[1] && *s == source),
        "{failure:?}"
    );
    let volume = open(&paths, READ_ONLY, Engine::Threads).unwrap();
    volume.reader().read_node(&root_of(&volume)).unwrap();
    drop(volume);
    scribble(&path, SUPERBLOCK_COPIES[1].plus(600), b"rubbish");
    for options in [READ_ONLY, READ_WRITE] {
        assert!(matches!(error(open(&paths, options, Engine::Threads)), Error::Superblock(s) if s == source));
    }
    scribble(&path, SUPERBLOCK_COPIES[0].plus(64), b"!");
    // The other copy is bad as well.
    assert!(matches!(error(open(&paths, READ_ONLY, Engine::Threads)), Error::NotBtrfs));
}

#[test]
fn a_truncated_image_is_for_reading_only() {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    let paths = [path.clone()];
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((256 << 20) - 4096).unwrap();
    let failure = error(open(&paths, READ_WRITE, Engine::Auto));
    assert!(
        matches!(failure, Error::Truncated { devid: DeviceId(1), have: 268_431_360, need: 268_435_456 }),
        "{failure:?}"
    );
    let volume = open(&paths, READ_ONLY, Engine::Auto).unwrap();
    volume.reader().read_node(&root_of(&volume)).unwrap();
    let (last, chunk) = volume.chunk_map().all().pop().unwrap();
    drop(volume);
    // The image is so short that the chunks are missing, but the superblock is there. The result is
    // an error, not a crash.
    file.set_len(2 << 20).unwrap();
    let failure = error(open(&paths, READ_ONLY, Engine::Auto));
    assert!(matches!(failure, Error::Read { .. }), "{failure:?}");
    assert!(chunk.length > 0 && last.0 > 0);
}

#[test]
fn a_volume_is_opened_whole() {
    if !has("zstd") || !fixtures().join("prof-raid1.0.img.zst").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let raid1 = fixture("prof-raid1", dir.path());
    let raid0 = fixture("prof-raid0", dir.path());
    let open = |paths: &[&PathBuf]| {
        let devices = paths.iter().map(|path| device(path, OpenMode::ReadOnly, Engine::Threads)).collect();
        Volume::open(devices, READ_ONLY)
    };
    let volume = open(&[&raid1[1], &raid1[0]]).unwrap();
    assert_eq!(volume.devices().items().iter().map(|item| item.devid.0).collect::<Vec<_>>(), [1, 2]);
    let Error::MissingDevices { have: 1, need: 2, missing } = error(open(&[&raid1[0]])) else { panic!("both") };
    assert_eq!(missing.iter().map(|item| item.devid.0).collect::<Vec<_>>(), [2], "the other is named");
    assert!(matches!(error(open(&[&raid1[0], &raid0[1]])), Error::ForeignDevice { .. }));
    // With one device missing it can be opened for reading on request.
    let degraded =
        Volume::open_degraded(vec![device(&raid1[1], OpenMode::ReadOnly, Engine::Threads)], READ_ONLY).unwrap();
    assert_eq!(degraded.devices().missing().iter().map(|item| item.devid.0).collect::<Vec<_>>(), [1]);
    assert_eq!(degraded.chunk_map().all(), volume.chunk_map().all());
    degraded.reader().read_node(&root_of(&degraded)).unwrap();
    assert!(degraded.is_read_only() && volume.devices().missing().is_empty());
    assert!(matches!(error(open(&[&raid1[0], &raid1[0]])), Error::DuplicateDevice(DeviceId(1))));
}

/// An image in memory whose superblock and chunk root can be changed, checksums kept right.
struct Hostile {
    base: Arc<[u8]>,
    superblock: Superblock,
    /// The location of the chunk root on the device, and its bytes.
    chunk_root: u64,
    root: Vec<u8>,
    /// A block right after the chunk root.
    beside: Option<Vec<u8>>,
}

fn overwrite(device: &OverlayDevice, at: u64, bytes: &[u8]) {
    let write = ubtrfs_volume::DeviceWrite { at: Physical(at), data: bytes.to_vec().into() };
    device.submit(vec![write]).wait().unwrap();
}

fn fix_checksum(bytes: &mut [u8]) {
    let sum = ChecksumType::Crc32c.compute(&bytes[CHECKSUM_FIELD..]);
    bytes[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
}

impl Hostile {
    fn new() -> Option<Self> {
        let (_dir, path) = made(128 << 20, &["-m", "single"])?;
        let volume = open(std::slice::from_ref(&path), READ_ONLY, Engine::Threads).unwrap();
        let superblock = volume.superblocks().current();
        let chunk_root = copies(&volume, superblock.chunk_root)[0].0;
        let root = bytes_at(&path, Physical(chunk_root), NODE);
        Some(Self { base: std::fs::read(path).unwrap().into(), superblock, chunk_root, root, beside: None })
    }

    fn open(&self) -> Result<Volume> {
        let device = OverlayDevice::new(Arc::clone(&self.base));
        overwrite(&device, SUPERBLOCK_COPIES[0].0, &self.superblock.to_bytes().unwrap()[..]);
        overwrite(&device, self.chunk_root, &self.root);
        if let Some(beside) = &self.beside {
            overwrite(&device, self.chunk_root + NODE as u64, beside);
        }
        Volume::open(vec![Arc::new(device)], READ_WRITE)
    }

    fn with_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Self {
        let mut superblock = self.superblock.clone();
        change(&mut superblock);
        let (base, root) = (Arc::clone(&self.base), self.root.clone());
        Self { base, superblock, chunk_root: self.chunk_root, root, beside: None }
    }

    fn change_root(&self, change: impl FnOnce(&mut [u8])) -> Self {
        let mut changed = self.with_superblock(|_| ());
        change(&mut changed.root);
        fix_checksum(&mut changed.root);
        changed
    }

    /// Changes an item of the chunk root, found by its type and its index among those.
    fn change_item(&self, item_type: ItemType, nth: usize, change: impl FnOnce(&mut [u8])) -> Self {
        self.change_root(|node| {
            let count = u32::from_le_bytes(node[96..100].try_into().unwrap()) as usize;
            let header = |slot: usize| HEADER_SIZE + slot * 25;
            let slot = (0..count).filter(|slot| node[header(*slot) + 8] == item_type.0).nth(nth).unwrap();
            let field =
                |at: usize| u32::from_le_bytes(node[header(slot) + at..header(slot) + at + 4].try_into().unwrap());
            let start = HEADER_SIZE + field(17) as usize;
            let end = start + field(21) as usize;
            change(&mut node[start..end]);
        })
    }
}

#[test]
fn hostile_superblocks_and_chunk_trees_are_exact_errors() {
    let Some(image) = Hostile::new() else { return };
    image.open().unwrap();
    let fails = |image: &Hostile, text: &str| {
        let error = sentence(&error(image.open()));
        assert!(error.contains(text), "{error:?} should say {text:?}");
    };
    // The number of devices in the chunk tree counts, as for the kernel.
    image.with_superblock(|s| s.num_devices = 2).open().unwrap();
    fails(&image.with_superblock(|s| (s.num_devices, s.chunk_root.0) = (2, 1 << 50)), "2 devices, 1 given");
    fails(&image.with_superblock(|s| s.chunk_root.0 += 4096), "checksum does not match");
    fails(&image.with_superblock(|s| s.chunk_root.0 = 1 << 50), "no chunk holds");
    fails(&image.with_superblock(|s| s.chunk_root_generation = Generation(1)), "generation");
    fails(&image.with_superblock(|s| s.chunk_root_level = 3), "level");
    fails(&image.with_superblock(|s| s.sys_chunk_array.truncate(60)), "sys_chunk_array_size");
    fails(&image.with_superblock(|s| s.sys_chunk_array.extend_from_slice(&[0; 200])), "unexpected item type");
    fails(&image.with_superblock(|s| s.dev_item.fsid.0[0] ^= 1), "another file system's id");
    fails(&image.with_superblock(|s| s.bytes_used = 5 * 16384), "bytes_used");
    fails(&image.with_superblock(|s| s.compat_ro.0 = 8), "block-group tree");
    fails(&image.with_superblock(|s| s.dev_item.uuid.0[0] ^= 1), "not the one that the volume knows");
    fails(&image.with_superblock(|s| s.dev_item.devid.0 = 9), "device 1 of the volume is missing");
    // The same chunk twice.
    fails(&image.with_superblock(|s| s.sys_chunk_array.extend_from_within(..)), "overlap");
    // A system chunk that only the superblock knows.
    let more = |s: &mut Superblock| {
        let (_, mut item) = ubtrfs_format::items::sys_chunks(&s.sys_chunk_array).unwrap().remove(0);
        item.length = 65536;
        encode_sys_chunk(&mut s.sys_chunk_array, Key::new(256, ItemType::CHUNK_ITEM, 1 << 50), &item);
    };
    fails(&image.with_superblock(more), "is not that of the chunk tree");

    let last_chunk = |change: &dyn Fn(&mut ChunkItem)| {
        image.change_item(ItemType::CHUNK_ITEM, 2, |bytes| {
            let mut item = ChunkItem::parse(bytes).unwrap();
            change(&mut item);
            bytes.copy_from_slice(&item.to_bytes());
        })
    };
    fails(&last_chunk(&|c| c.stripes[0].offset.0 = 1 << 40), "beyond its device");
    fails(&last_chunk(&|c| c.stripes[0].devid.0 = 7), "device 7 of the volume is missing");
    fails(&last_chunk(&|c| c.length = 1 << 44), "beyond its device");
    fails(&last_chunk(&|c| c.length = 0), "chunk length");
    fails(&last_chunk(&|c| c.flags.0 |= 1 << 5), "stripe count does not fit");
    fails(&last_chunk(&|c| c.stripe_len = 4096), "stripe_len");
    let first = image.change_item(ItemType::CHUNK_ITEM, 0, |bytes| {
        let mut item = ChunkItem::parse(bytes).unwrap();
        item.length += 1 << 20;
        bytes.copy_from_slice(&item.to_bytes());
    });
    fails(&first, "overlap");
    fails(&image.change_item(ItemType::CHUNK_ITEM, 1, |bytes| bytes[44] = 2), "chunk stripe: 0 bytes");
    fails(&image.change_item(ItemType::DEV_ITEM, 0, |bytes| bytes[0] = 2), "key has another id");
    // Sums of the sizes of devices must not overflow anywhere.
    fails(&image.change_item(ItemType::DEV_ITEM, 0, |bytes| bytes[8..16].fill(0xff)), "more than 8 EiB");
    fails(&image.change_root(|node| node[96] = 255), "item");
}

#[test]
fn a_chunk_tree_that_leads_back_to_itself_ends() {
    let Some(image) = Hostile::new() else { return };
    // The root becomes an internal block, whose children are itself (levels must fall) or the same
    // block twice.
    let at = image.superblock.chunk_root.0;
    let loops = |children: &[(u64, u64)]| {
        let mut hostile = image.change_root(|node| {
            node[100] = 1;
            node[96..100].copy_from_slice(&(children.len() as u32).to_le_bytes());
            for (slot, (objectid, bytenr)) in children.iter().enumerate() {
                let pointer = &mut node[HEADER_SIZE + slot * KEY_POINTER_SIZE..][..KEY_POINTER_SIZE];
                pointer[..8].copy_from_slice(&objectid.to_le_bytes());
                pointer[8] = ItemType::DEV_ITEM.0;
                pointer[9..17].copy_from_slice(&1_u64.to_le_bytes());
                pointer[17..25].copy_from_slice(&bytenr.to_le_bytes());
                pointer[25..33].copy_from_slice(&image.superblock.chunk_root_generation.0.to_le_bytes());
            }
        });
        hostile.superblock.chunk_root_level = 1;
        hostile
    };
    let text = error(loops(&[(1, at)]).open()).to_string();
    assert!(text.contains("referenced more than once"), "{text}");
    // A good leaf next to the root, referenced twice.
    let leaf_at = at + 16384;
    let mut twice = loops(&[(1, leaf_at), (2, leaf_at)]);
    let mut leaf = image.root.clone();
    leaf[48..56].copy_from_slice(&leaf_at.to_le_bytes());
    fix_checksum(&mut leaf);
    twice.beside = Some(leaf);
    let text = error(twice.open()).to_string();
    assert!(text.contains("referenced more than once"), "{text}");
}

#[test]
fn random_damage_never_panics() {
    let Some(image) = Hostile::new() else { return };
    let mut random = Rng::new(11);
    let mut opened = 0;
    for _ in 0..3000 {
        let mut sb = image.superblock.to_bytes().unwrap();
        let mut root = image.root.clone();
        for _ in 0..=random.below(3) {
            let value = [0, 1, 0xff, random.next_u64() as u8][random.below(4) as usize];
            if random.below(2) == 0 {
                // This hits the fields and the chunk array, and rarely the padding.
                let at = 32 + random.below(1100) as usize;
                sb[at] = value;
            } else {
                let at = if random.below(2) == 0 { 32 + random.below(300) } else { 15700 + random.below(684) };
                root[at as usize] = value;
            }
        }
        fix_checksum(&mut sb[..]);
        fix_checksum(&mut root);
        let device = OverlayDevice::new(Arc::clone(&image.base));
        overwrite(&device, SUPERBLOCK_COPIES[0].0, &sb[..]);
        overwrite(&device, image.chunk_root, &root);
        if let Ok(volume) = Volume::open(vec![Arc::new(device)], READ_ONLY) {
            opened += 1;
            let _ = volume.reader().read_node(&root_of(&volume));
            for (start, chunk) in volume.chunk_map().all() {
                let _ = volume.chunk_map().superblock_ranges(start);
                let _ = volume.reader().read_data(start.plus(chunk.length - 4096), &mut [0; 8192], None);
            }
        }
    }
    assert!(opened > 100 && opened < 2900, "{opened} of 3000 opened: the damage is too harmless or too great");
}

#[test]
fn older_commits_and_other_superblocks_open_a_volume_too() {
    if !has("zstd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = fixture("plain", dir.path());
    let devices = || vec![device(&paths[0], OpenMode::ReadOnly, Engine::Threads)];
    let candidates = Volume::candidates(&devices());
    let newest = candidates[0].superblock.generation;
    assert!(candidates[0].origin == Origin::Superblock && candidates[0].copy == SUPERBLOCK_COPIES[0]);
    assert!(
        candidates.len() > 2 && candidates[1..].iter().all(|older| older.origin == Origin::Backup),
        "{candidates:?}"
    );
    assert!(candidates.windows(2).all(|pair| pair[0].superblock.generation >= pair[1].superblock.generation));
    for candidate in &candidates {
        let volume = Volume::open_candidate(devices(), candidate).unwrap();
        assert!(volume.is_read_only());
        assert_eq!(volume.superblocks().current().generation, candidate.superblock.generation);
    }
    // The same without the primary superblock, and without any.
    scribble(&paths[0], SUPERBLOCK_COPIES[0], &[0; 4096]);
    // The volume may have been replaced on purpose: the copy is not used without a request, and the
    // error names it.
    let gone = error(Volume::open(devices(), READ_ONLY));
    assert!(matches!(gone, Error::PrimarySuperblock { copy, .. } if copy == SUPERBLOCK_COPIES[1]), "{gone:?}");
    let others = Volume::candidates(&devices());
    assert_eq!((others[0].superblock.generation, others[0].copy), (newest, SUPERBLOCK_COPIES[1]));
    Volume::open_candidate(devices(), &others[0]).unwrap();
    scribble(&paths[0], SUPERBLOCK_COPIES[1], &[0; 4096]);
    assert!(Volume::candidates(&devices()).is_empty());
}

/// mkfs.btrfs leaves copies of an older volume's superblock beyond the new one's end.
#[test]
fn what_an_older_volume_left_leads_nowhere() {
    if !has("mkfs.btrfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = mkfs(dir.path(), 300 << 20, &["-L", "old"]);
    // A later commit than the new volume's.
    let devices = || vec![device(&path, OpenMode::ReadOnly, Engine::Threads)];
    let old = Volume::superblock_of(&*devices()[0]).unwrap();
    let at = SUPERBLOCK_COPIES[1];
    let mut copy = Superblock { bytenr: at, generation: Generation(500), ..old.clone() };
    scribble(&path, at, &copy.to_bytes().unwrap()[..]);
    let made = std::process::Command::new("mkfs.btrfs").args(["-qfM", "-b", "60M", "-L", "new"]).arg(&path).output();
    assert!(made.unwrap().status.success());
    let left = Superblock::parse(&bytes_at(&path, at, 4096), at);
    assert!(left.is_ok_and(|left| left.fsid == old.fsid), "mkfs.btrfs wiped it: nothing is tested");
    let new = Volume::superblock_of(&*devices()[0]).unwrap();
    assert_ne!(new.fsid, old.fsid);
    let candidates = Volume::candidates(&devices());
    assert!(!candidates.is_empty() && candidates.iter().all(|one| one.superblock.fsid == new.fsid), "{candidates:?}");
    for candidate in &candidates {
        assert_eq!(Volume::open_candidate(devices(), candidate).unwrap().superblocks().current().fsid, new.fsid);
    }
    // The copy is not used for a damaged primary either.
    let primary = bytes_at(&path, SUPERBLOCK_COPIES[0], 4096);
    let mut damaged = primary.clone();
    damaged[200] ^= 1;
    scribble(&path, SUPERBLOCK_COPIES[0], &damaged);
    let refused = error(Volume::open(devices(), READ_ONLY));
    assert!(matches!(refused, Error::PrimarySuperblock { .. }), "{refused:?}");
    scribble(&path, SUPERBLOCK_COPIES[0], &primary);
    // A copy behind the end is not used even if it has the same id.
    copy.fsid = new.fsid;
    copy.dev_item.fsid = new.fsid;
    scribble(&path, at, &copy.to_bytes().unwrap()[..]);
    assert!(Volume::candidates(&devices()).iter().all(|one| one.copy == SUPERBLOCK_COPIES[0]));
}

/// A state is opened for a rescue although a device is missing, or has no superblock.
#[test]
fn what_is_left_of_a_volume_opens_without_some_of_its_devices() {
    if !has("zstd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = fixture("prof-raid1", dir.path());
    let only = |number: usize| vec![device(&paths[number], OpenMode::ReadOnly, Engine::Threads)];
    for (given, missing) in [(0, 2), (1, 1)] {
        let newest = Volume::candidates(&only(given)).remove(0);
        assert!(matches!(error(Volume::open_candidate(only(given), &newest)), Error::MissingDevices { .. }));
        let (volume, chunk_tree) = Volume::open_what_is_left(&only(given), &newest).unwrap();
        assert!(volume.is_read_only() && chunk_tree.is_none(), "{chunk_tree:?}");
        let lacks: Vec<_> = volume.devices().missing().iter().map(|item| item.devid).collect();
        assert_eq!(lacks, [DeviceId(missing)]);
        volume.reader().read_node(&root_of(&volume)).unwrap();
    }
    let all = || [only(0), only(1)].concat();
    let newest = Volume::candidates(&all()).remove(0);
    SUPERBLOCK_COPIES[..2].iter().for_each(|at| scribble(&paths[1], *at, &[0; 4096]));
    assert!(matches!(error(Volume::open_candidate(all(), &newest)), Error::NotBtrfs));
    let (volume, _) = Volume::open_what_is_left(&all(), &newest).unwrap();
    assert_eq!(volume.devices().missing().len(), 1);
    volume.reader().read_node(&root_of(&volume)).unwrap();
}

/// An older leaf of the chunk tree has all chunks but those that were added since.
#[test]
fn chunks_are_found_in_older_leaves_of_a_lost_chunk_tree() {
    if !has("zstd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = fixture("plain", dir.path());
    let devices = || vec![device(&paths[0], OpenMode::ReadOnly, Engine::Threads)];
    let newest = Volume::candidates(&devices()).remove(0);
    let sound = open(&paths, READ_ONLY, Engine::Threads).unwrap();
    let places = copies(&sound, newest.superblock.chunk_root);
    let all = sound.chunk_map().all();
    drop(sound);
    // With one copy nothing is lost.
    scribble(&paths[0], places[0], &[0; NODE]);
    let (volume, chunk_tree) = Volume::open_what_is_left(&devices(), &newest).unwrap();
    assert!(chunk_tree.is_none() && volume.chunk_map().all() == all);
    drop(volume);
    for at in &places {
        scribble(&paths[0], *at, &[0; NODE]);
    }
    error(Volume::open_candidate(devices(), &newest));
    let (volume, chunk_tree) = Volume::open_what_is_left(&devices(), &newest).unwrap();
    assert!(volume.is_read_only() && chunk_tree.is_some());
    let found = volume.chunk_map().all();
    // Chunks that were removed since may be among them.
    let lost = all.iter().filter(|chunk| !found.contains(chunk)).count();
    assert!(lost <= 1 && all.len() > 2, "{lost} of {} chunks are lost", all.len());
    volume.reader().read_node(&root_of(&volume)).unwrap();
    drop(volume);
    // Without any leaf the chunks are unknown.
    let system = all.iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM));
    for stripe in system.flat_map(|(_, chunk)| chunk.stripes.iter().map(|stripe| (stripe.offset, chunk.length))) {
        scribble(&paths[0], stripe.0, &vec![0; stripe.1 as usize]);
    }
    assert!(Volume::open_what_is_left(&devices(), &newest).is_err());
}
