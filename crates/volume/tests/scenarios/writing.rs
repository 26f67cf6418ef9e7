//! Writes, barriers and superblocks, through files and through devices that fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::{
    READ_ONLY, READ_WRITE, bytes_at, chunk_at, copies, fixture, fixtures, has, mkfs, open, root_of, scribble,
};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{Generation, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{
    Buffer, Copies, Device, DeviceCounters, DeviceTicket, DeviceWrite, Engine, Error, Exclusive, Fate, FaultyDevice,
    FileDevice, Flushed, Lasting, MemoryDevice, OpenMode, Operation, RecordingDevice, Rng, SharedBuffer, Volume, Write,
};

const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Threads];

fn made(size: u64, options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    has("mkfs.btrfs").then(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = mkfs(dir.path(), size, options);
        (dir, path)
    })
}

fn copy_at(path: &Path, at: Physical) -> Superblock {
    Superblock::parse(&bytes_at(path, at, SUPERBLOCK_SIZE), at).unwrap()
}

fn random(len: usize, random: &mut Rng) -> Vec<u8> {
    (0..len / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

#[test]
fn many_threads_write_and_read_back() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let device = FileDevice::open_with_engine(&path, OpenMode::ReadWrite, Exclusive::Yes, engine).unwrap();
        assert!(engine == Engine::Auto || !device.uses_io_uring());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let device = &device;
                scope.spawn(move || {
                    let mut numbers = Rng::new(thread);
                    let base = thread * (16 << 20);
                    let mut model = vec![0; 16 << 20];
                    for round in 0..20 {
                        let mut writes = Vec::new();
                        let mut at = numbers.below(64) * 4096;
                        while writes.len() < 40 && at < (15 << 20) {
                            let data = random(4096 << numbers.below(5), &mut numbers);
                            model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                            let len = data.len() as u64;
                            writes.push(DeviceWrite { at: Physical(base + at), data: data.into() });
                            at += len + if numbers.below(2) == 0 { 0 } else { numbers.below(64) * 4096 };
                        }
                        let ticket = device.submit(writes);
                        if round % 3 == 0 {
                            while !ticket.is_done() {
                                std::thread::yield_now();
                            }
                        }
                        ticket.wait().unwrap();
                        if round % 7 == 0 {
                            device.flush().unwrap();
                        }
                    }
                    let mut back = vec![0; model.len()];
                    device.read_at(Physical(base), &mut back).unwrap();
                    assert!(back == model, "thread {thread}");
                    // Neither addresses nor memory are aligned.
                    device.read_at(Physical(base + 4093), &mut back[3..9001]).unwrap();
                    assert!(back[3..9001] == model[4093..4093 + 8998]);
                });
            }
        });
        let counters = device.counters();
        assert!(counters.writes > 0 && counters.flushes == 12 && counters.reads == 8, "{counters:?}");
        assert!(device.read_at(Physical((64 << 20) - 1), &mut [0; 2]).is_err());
    }
}

#[test]
fn more_writes_than_the_queue_holds_in_one_batch() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let device = FileDevice::open_with_engine(&path, OpenMode::ReadWrite, Exclusive::Yes, engine).unwrap();
        // Every other page, so that nothing can be joined.
        let page = |n: u64| SharedBuffer::from(vec![n as u8; 4096]);
        let writes = (0..2000).map(|n| DeviceWrite { at: Physical(n * 8192), data: page(n) }).collect();
        drop(device.submit(writes));
        device.submit(vec![DeviceWrite { at: Physical(4096), data: page(77) }]).wait().unwrap();
        drop(device);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[4096], 77);
        assert!((0..2000).all(|n| bytes[n * 8192 + 4095] == n as u8), "dropping a ticket drops no write");
    }
}

#[test]
fn misaligned_and_forbidden_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0; 65536]).unwrap();
    let write = |at, len| vec![DeviceWrite { at: Physical(at), data: SharedBuffer::from(vec![0; len]) }];
    let device = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    for (at, len) in [(1, 4096), (0, 100), (65536, 4096), (61440, 8192), (u64::MAX - 4095, 4096)] {
        assert!(device.submit(write(at, len)).wait().is_err(), "{len} at {at}");
    }
    drop(device);
    let device = FileDevice::open(&path, OpenMode::ReadOnly, Exclusive::Yes).unwrap();
    let error = device.submit(write(0, 4096)).wait().unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn a_full_file_system_under_a_sparse_image_is_an_error_from_wait() {
    struct Mount(PathBuf);
    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(dir.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            assert!(std::env::var("UBTRFS_TEST_KERNEL").as_deref() != Ok("1"), "a small tmpfs can't be mounted");
            eprintln!("skipped: a small tmpfs can't be mounted");
            return;
        }
        let _mount = Mount(dir.path().to_owned());
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let device = FileDevice::open_with_engine(&path, OpenMode::ReadWrite, Exclusive::Yes, engine).unwrap();
        let write = |at, len| vec![DeviceWrite { at: Physical(at), data: Buffer::zeroed(len).share() }];
        device.submit(write(0, 1 << 20)).wait().unwrap();
        let error = device.submit(write(1 << 20, 16 << 20)).wait().unwrap_err();
        assert_eq!(error.source.raw_os_error(), Some(libc::ENOSPC), "{error:?}");
        assert!(((1 << 20)..(17 << 20)).contains(&error.at.0) && error.len > 0, "{error:?}");
        device.submit(write(0, 1 << 20)).wait().unwrap();
        device.flush().unwrap();
    }
}

/// Issues a barrier after no writes.
fn flush(volume: &Volume) -> ubtrfs_volume::Result<Flushed> {
    volume.writer().flush(volume.writer().wait_all([])?, volume.writer().wait_all([])?)
}

#[test]
fn a_superblock_is_published_to_the_copies_asked_for() {
    for engine in ENGINES {
        let Some((_dir, path)) = made(256 << 20, &[]) else { return };
        let paths = [path.clone()];
        let volume = open(&paths, READ_WRITE, engine).unwrap();
        let before = volume.superblocks().current();
        let mut next = before.clone();
        next.generation = before.generation.next();
        let mut item = volume.devices().items()[0];
        item.bytes_used += 1 << 20;
        volume.devices().set_item(item).unwrap();

        let flushed = flush(&volume).unwrap();
        let _ = volume.superblocks().write(&next, Copies::Primary, flushed).unwrap();
        let mut expected = next.clone();
        expected.dev_item = item;
        assert_eq!(copy_at(&path, SUPERBLOCK_COPIES[0]), expected);
        assert_eq!(volume.superblocks().current(), expected);
        assert_eq!(copy_at(&path, SUPERBLOCK_COPIES[1]).generation, before.generation);

        next.generation = next.generation.next();
        let flushed = flush(&volume).unwrap();
        let _ = volume.superblocks().write(&next, Copies::All, flushed).unwrap();
        expected.generation = next.generation;
        expected.bytenr = SUPERBLOCK_COPIES[1];
        assert_eq!(copy_at(&path, SUPERBLOCK_COPIES[1]), expected);
        let counters = volume.counters().devices;
        assert_eq!((counters.flushes, counters.writes), (4, 3));

        let old = Superblock { generation: Generation(1), ..next };
        let flushed = flush(&volume).unwrap();
        assert!(matches!(volume.superblocks().write(&old, Copies::All, flushed), Err(Error::BadRequest(_))));
        assert!(!volume.is_read_only());
    }
}

#[test]
fn a_rewritten_superblock_satisfies_btrfs_check() {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    if !has("btrfs") {
        return;
    }
    let volume = open(std::slice::from_ref(&path), READ_WRITE, Engine::Auto).unwrap();
    let flushed = flush(&volume).unwrap();
    let _ = volume.superblocks().write(&volume.superblocks().current(), Copies::All, flushed).unwrap();
    drop(volume);
    let output = Command::new("btrfs").args(["check", "--readonly"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_foreign_writer_stops_a_commit() {
    foreign_writer(Copies::All);
}

#[test]
fn a_foreign_writer_stops_log_writes_after_a_second() {
    foreign_writer(Copies::Primary);
}

/// Of invariant 12.
fn foreign_writer(copies: Copies) {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    let volume = open(std::slice::from_ref(&path), READ_WRITE, Engine::Auto).unwrap();
    let flushed = flush(&volume).unwrap();
    let _ = volume.superblocks().write(&volume.superblocks().current(), Copies::All, flushed).unwrap();
    let mut foreign = copy_at(&path, SUPERBLOCK_COPIES[0]);
    foreign.generation = Generation(foreign.generation.0 + 5);
    let foreign_bytes = foreign.to_bytes().unwrap();
    scribble(&path, SUPERBLOCK_COPIES[0], &foreign_bytes[..]);
    let flushed = flush(&volume).unwrap();
    if copies == Copies::Primary {
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    let error = volume.superblocks().write(&volume.superblocks().current(), copies, flushed).unwrap_err();
    assert!(matches!(&error, Error::ForeignWriter { found: Some(g), .. } if *g == foreign.generation), "{error:?}");
    assert!(volume.is_read_only());
    assert_eq!(
        bytes_at(&path, SUPERBLOCK_COPIES[0], SUPERBLOCK_SIZE),
        foreign_bytes[..],
        "invariant 12: it was not overwritten"
    );
    assert!(matches!(volume.writer().submit(Vec::new()), Err(Error::ReadOnly)));
    let flushed = flush(&volume).unwrap();
    assert!(matches!(volume.superblocks().write(&foreign, Copies::All, flushed), Err(Error::ReadOnly)));
}

/// Of invariant 12.
#[test]
fn a_foreign_writer_stops_the_first_log_write() {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    let volume = open(std::slice::from_ref(&path), READ_WRITE, Engine::Auto).unwrap();
    let mut foreign = copy_at(&path, SUPERBLOCK_COPIES[0]);
    foreign.generation = foreign.generation.next();
    scribble(&path, SUPERBLOCK_COPIES[0], &foreign.to_bytes().unwrap()[..]);
    let flushed = flush(&volume).unwrap();
    let error = volume.superblocks().write(&volume.superblocks().current(), Copies::Primary, flushed).unwrap_err();
    assert!(matches!(error, Error::ForeignWriter { .. }), "{error:?}");
}

/// A device in memory that counts as far away.
#[derive(Debug)]
struct Far(MemoryDevice);

impl Device for Far {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, at: Physical, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(at, buf)
    }
    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.0.submit(writes)
    }
    fn reads_ahead(&self) -> usize {
        1
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, at: Physical, len: u64) -> std::io::Result<()> {
        self.0.discard(at, len)
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Of invariant 12.
#[test]
fn a_foreign_writer_stops_log_writes_on_devices_far_away() {
    let Some((_dir, path)) = made(128 << 20, &[]) else { return };
    let device = Arc::new(Far(MemoryDevice::from_bytes(memory(&path).to_vec())));
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    for looks in [1, 0] {
        let reads = device.counters().reads;
        let flushed = flush(&volume).unwrap();
        let _ = volume.superblocks().write(&volume.superblocks().current(), Copies::Primary, flushed).unwrap();
        assert_eq!(device.counters().reads, reads + looks, "the superblock is read once in a second");
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let mut foreign = volume.superblocks().current();
    foreign.generation = foreign.generation.next();
    let data = foreign.to_bytes().unwrap().to_vec().into();
    device.submit(vec![DeviceWrite { at: SUPERBLOCK_COPIES[0], data }]).wait().unwrap();
    let flushed = flush(&volume).unwrap();
    let error = volume.superblocks().write(&volume.superblocks().current(), Copies::Primary, flushed).unwrap_err();
    assert!(matches!(error, Error::ForeignWriter { .. }), "{error:?}");
}

fn memory(path: &Path) -> Arc<[u8]> {
    std::fs::read(path).unwrap().into()
}

fn of_type(volume: &Volume, flags: BlockGroupFlags) -> Logical {
    volume.chunk_map().all().iter().find(|(_, chunk)| chunk.flags.contains(flags)).expect("such a chunk").0
}

#[test]
fn failures_of_devices_are_reported() {
    let Some((_dir, path)) = made(128 << 20, &[]) else { return };
    let memory = memory(&path);
    let faulty = || {
        let device = Arc::new(FaultyDevice::new(Arc::new(MemoryDevice::from_bytes(memory.to_vec()))));
        let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
        (device, volume)
    };
    let (device, volume) = faulty();
    device.fail(Operation::Write, 1, libc::ENOSPC, Lasting::Once);
    let at = of_type(&volume, BlockGroupFlags::METADATA);
    let ticket = volume.writer().submit(vec![Write { at, data: Buffer::zeroed(16384).share() }]).unwrap();
    let error = volume.writer().wait(ticket).unwrap_err();
    let Error::Write { devid, at: physical, logical, len, source } = &error else { panic!("{error:?}") };
    assert_eq!((devid.0, *logical, *len, source.raw_os_error()), (1, Some(at), 16384, Some(libc::ENOSPC)));
    let said = format!("device 1: writing 16384 bytes at {physical} (logical {at})");
    assert_eq!(error.to_string(), said);
    assert_eq!(sentence(&error), format!("{said}: No space left on device"));
    let caused = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(caused.and_then(std::io::Error::raw_os_error), Some(libc::ENOSPC));

    device.fail(Operation::Flush, 0, libc::EIO, Lasting::Once);
    assert!(matches!(flush(&volume), Err(Error::Flush { .. })));
    assert!(volume.is_read_only(), "after a failed barrier nobody knows what is durable");

    for (operation, successes) in [(Operation::Write, 0), (Operation::Flush, 1), (Operation::Read, 0)] {
        let (device, volume) = faulty();
        device.fail(operation, successes, libc::EIO, Lasting::Once);
        let flushed = flush(&volume).unwrap();
        assert!(
            volume.superblocks().write(&volume.superblocks().current(), Copies::All, flushed).is_err(),
            "{operation:?}"
        );
        assert!(volume.is_read_only());
    }
}

#[test]
fn all_copies_are_written_and_superblocks_never_hit() {
    let Some((_dir, path)) = made(256 << 20, &["-m", "dup"]) else { return };
    let volume = open(std::slice::from_ref(&path), READ_WRITE, Engine::Auto).unwrap();
    let (start, chunk) = chunk_at(&volume, of_type(&volume, BlockGroupFlags::METADATA));
    let at = start.plus(chunk.length - 32768);
    let data = random(32768, &mut Rng::new(1));
    let ticket = volume.writer().submit(vec![Write { at, data: data.clone().into() }]).unwrap();
    let written = volume.writer().wait(ticket).unwrap().merge(volume.writer().wait_all([]).unwrap());
    let _ = volume.writer().flush(written, volume.writer().wait_all([]).unwrap()).unwrap();
    for place in copies(&volume, at) {
        assert!(bytes_at(&path, place, data.len()) == data);
    }
    // Some chunk holds the superblock's second copy.
    let reserved: Vec<_> =
        volume.chunk_map().all().iter().flat_map(|(start, _)| volume.chunk_map().superblock_ranges(*start)).collect();
    assert!(!reserved.is_empty());
    for range in reserved {
        let write = Write { at: range.start, data: Buffer::zeroed(65536).share() };
        assert!(matches!(volume.writer().submit(vec![write]), Err(Error::BadRequest(_))));
        assert!(matches!(volume.writer().discard(range.start, 65536), Err(Error::BadRequest(_))));
    }
    volume.writer().discard(at, 32768).unwrap();
    let unmapped = Write { at: Logical(0), data: Buffer::zeroed(4096).share() };
    assert!(matches!(volume.writer().submit(vec![unmapped]), Err(Error::Unmapped { .. })));
    let odd = Write { at: at.plus(512), data: Buffer::zeroed(4096).share() };
    assert!(matches!(volume.writer().submit(vec![odd]), Err(Error::BadRequest(_))));
}

#[test]
fn chunks_are_added_and_removed() {
    let Some((_dir, path)) = made(256 << 20, &[]) else { return };
    let device = Arc::new(MemoryDevice::from_bytes(memory(&path).to_vec()));
    let volume = Volume::open(vec![device], READ_WRITE).unwrap();
    let (_, mut chunk) = chunk_at(&volume, of_type(&volume, BlockGroupFlags::DATA));
    chunk.length = 8 << 20;
    chunk.stripes[0].offset = Physical(200 << 20);
    let start = Logical(1 << 40);
    assert!(matches!(volume.chunk_map().remove(start), Err(Error::Unmapped { .. })));
    volume.add_chunk(start, chunk.clone()).unwrap();
    assert!(matches!(volume.add_chunk(start, chunk), Err(Error::OverlappingChunks { .. })));
    let ticket = volume.writer().submit(vec![Write { at: start, data: SharedBuffer::from(vec![5; 4096]) }]).unwrap();
    let _ = volume.writer().wait(ticket).unwrap();
    let mut back = [0; 4096];
    volume.reader().read_data(start, &mut back, None).unwrap();
    assert_eq!(back, [5; 4096]);
    volume.chunk_map().remove(start).unwrap();
    assert!(matches!(volume.reader().read_data(start, &mut back, None), Err(Error::Unmapped { .. })));
}

#[test]
fn every_profile_that_can_be_written_reads_back() {
    if !has("zstd") || !fixtures().join("prof-raid10.0.img.zst").exists() {
        return;
    }
    for (name, is_writable) in [
        ("prof-raid0", true),
        ("prof-raid1", true),
        ("prof-raid10", true),
        ("prof-raid5", false),
        ("prof-raid6", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let paths = fixture(name, dir.path());
        let volume = open(&paths, READ_WRITE, Engine::Auto).unwrap();
        let (start, chunk) = chunk_at(&volume, of_type(&volume, BlockGroupFlags::DATA));
        let at = start.plus(chunk.length - (1 << 20));
        let data = random(1 << 20, &mut Rng::new(2));
        let submitted = volume.writer().submit(vec![Write { at, data: data.clone().into() }]);
        if !is_writable {
            assert!(matches!(submitted, Err(Error::Unwritable { .. })), "{name}");
            continue;
        }
        let written = volume.writer().wait(submitted.unwrap()).unwrap();
        let flushed = volume.writer().flush(written, volume.writer().wait_all([]).unwrap()).unwrap();
        let _ = volume.superblocks().write(&volume.superblocks().current(), Copies::All, flushed).unwrap();
        drop(volume);
        let volume = open(&paths, READ_ONLY, Engine::Auto).unwrap();
        let mut back = vec![0; data.len()];
        volume.reader().read_data(at, &mut back, None).unwrap();
        assert!(back == data, "{name}");
        volume.reader().read_node(&root_of(&volume)).unwrap();
    }
}

/// Of invariant 1: whatever a crash loses of the writes without a barrier, a superblock refers only
/// to blocks that are there.
#[test]
fn published_data_survives_any_crash() {
    let Some((_dir, path)) = made(128 << 20, &["-m", "dup"]) else { return };
    let device = Arc::new(RecordingDevice::new(memory(&path)));
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    let at = of_type(&volume, BlockGroupFlags::DATA);
    let mut superblock = volume.superblocks().current();
    let first = superblock.generation.0;
    // Commit n writes its number to an address of its own, and then publishes.
    for commit in 1..=6_u64 {
        let data = SharedBuffer::from(vec![commit as u8; 16384]);
        let ticket = volume.writer().submit(vec![Write { at: at.plus(commit * 16384), data }]).unwrap();
        let flushed = volume
            .writer()
            .flush(volume.writer().wait(ticket).unwrap(), volume.writer().wait_all([]).unwrap())
            .unwrap();
        superblock.generation = Generation(first + commit);
        let copies = if commit % 2 == 0 { Copies::All } else { Copies::Primary };
        let _ = volume.superblocks().write(&superblock, copies, flushed).unwrap();
    }
    let mut seen = std::collections::HashSet::new();
    for seed in 0..500 {
        let mut numbers = Rng::new(seed);
        let event = numbers.below(device.len() as u64 + 1) as usize;
        let state = device.crash_state(event, &mut ubtrfs_volume::random_fates(numbers.next_u64()));
        let volume = Volume::open(vec![Arc::new(state)], READ_WRITE).unwrap();
        let published = volume.superblocks().current().generation.0 - first;
        seen.insert(published);
        for commit in 1..=published {
            let mut back = vec![0; 16384];
            volume.reader().read_data(at.plus(commit * 16384), &mut back, None).unwrap();
            assert!(back == vec![commit as u8; 16384], "seed {seed}: commit {commit} of {published}");
        }
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
    let lost = device.crash_state(device.len(), &mut |_| Fate::Lost);
    let volume = Volume::open(vec![Arc::new(lost)], READ_WRITE).unwrap();
    assert_eq!(volume.superblocks().current().generation.0, first + 6);
}

#[test]
fn nodes_on_their_way_are_read_from_memory() {
    let Some((_dir, path)) = made(256 << 20, &["-m", "single"]) else { return };
    let bytes = std::fs::read(&path).unwrap();
    // A read before a write has been waited for finds the old content.
    let device = Arc::new(RecordingDevice::new(bytes.into()));
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    let root = root_of(&volume);
    let right = volume.reader().read_node(&root).unwrap();
    let node = |bytes: Vec<u8>| vec![Write { at: root.bytenr, data: SharedBuffer::from(bytes) }];
    let damage = volume.writer().submit(node(vec![0; right.len()])).unwrap();
    let _written = volume.writer().wait(damage).unwrap();
    volume.reader().read_node(&root).unwrap_err();
    let ticket = volume.writer().submit_nodes(node(right.to_vec())).unwrap();
    assert_eq!(*volume.reader().read_node(&root).unwrap(), *right);
    let _written = volume.writer().wait(ticket).unwrap();
    assert_eq!(*volume.reader().read_node(&root).unwrap(), *right);
}

#[test]
fn a_device_far_away_conforms() {
    assert_conforms(Subject::new(Arc::new(Far(MemoryDevice::new(2 << 20)))));
}
