//! Damaged copies are found and never returned (invariant 11), other copies are used instead, and
//! the damaged ones are rewritten, or left alone where rewriting would be wrong.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{READ_ONLY, READ_WRITE, bytes_at, copies, has, mkfs, open, root_of, scribble};
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{CHECKSUM_FIELD, ChecksumType, Error as FormatError, Logical, Physical};
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{
    Buffer, Device, DeviceCounters, DeviceTicket, DeviceWrite, Engine, Error, FaultyDevice, Lasting, MemoryDevice,
    Operation, ParityScrub, ScrubScope, Volume, Write,
};

const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Threads];
const NODE: usize = 16384;

struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn image(options: &[&str]) -> Option<Image> {
    has("mkfs.btrfs").then(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = mkfs(dir.path(), 256 << 20, options);
        Image { _dir: dir, path }
    })
}

fn root_copies(path: &Path) -> (Logical, Vec<Physical>) {
    let volume = open(&[path.to_owned()], READ_ONLY, Engine::Threads).unwrap();
    let root = root_of(&volume).bytenr;
    (root, copies(&volume, root))
}

fn memory(path: &Path) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_bytes(std::fs::read(path).unwrap()))
}

#[test]
fn one_bad_copy_of_a_tree_block_is_read_around_and_repaired() {
    for engine in ENGINES {
        let Some(image) = image(&["-m", "dup"]) else { return };
        let (_, copies) = root_copies(&image.path);
        assert_eq!(copies.len(), 2);
        let right = bytes_at(&image.path, copies[0], NODE);
        scribble(&image.path, copies[0].plus(5000), b"rubbish");

        let paths = [image.path.clone()];
        let volume = open(&paths, READ_ONLY, engine).unwrap();
        assert_eq!(*volume.reader().read_node(&root_of(&volume)).unwrap(), *right);
        assert_eq!((volume.counters().checksum_errors, volume.counters().repairs), (1, 0));
        drop(volume);
        assert_ne!(bytes_at(&image.path, copies[0], NODE), right, "a read-only volume writes nothing");

        let volume = open(&paths, READ_WRITE, engine).unwrap();
        assert_eq!(*volume.reader().read_node(&root_of(&volume)).unwrap(), *right);
        assert_eq!((volume.counters().checksum_errors, volume.counters().repairs), (1, 1));
        let written = volume.counters().devices.written_bytes;
        assert_eq!(written, NODE as u64, "nothing but the bad copy is written");
        volume.reader().read_node(&root_of(&volume)).unwrap();
        assert_eq!(volume.counters().checksum_errors, 1);
        drop(volume);
        assert_eq!(bytes_at(&image.path, copies[0], NODE), right);
    }
}

#[test]
fn a_tree_block_with_no_good_copy_is_an_error() {
    let Some(image) = image(&["-m", "dup"]) else { return };
    let (root, copies) = root_copies(&image.path);
    for copy in &copies {
        scribble(&image.path, copy.plus(200), b"rubbish");
    }
    let volume = open(std::slice::from_ref(&image.path), READ_WRITE, Engine::Auto).unwrap();
    let error = volume.reader().read_node(&root_of(&volume)).unwrap_err();
    let expected = FormatError::BadChecksum { what: "tree block" };
    assert!(matches!(&error, Error::Node { at, source } if *at == root && *source == expected), "{error:?}");
    assert_eq!((volume.counters().checksum_errors, volume.counters().repairs), (2, 0));
}

#[test]
fn a_copy_that_cannot_be_read_is_rewritten() {
    let Some(image) = image(&["-m", "dup"]) else { return };
    let device = Arc::new(FaultyDevice::new(memory(&image.path)));
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    device.fail(Operation::Read, 0, libc::EIO, Lasting::Once);
    volume.reader().read_node(&root_of(&volume)).unwrap();
    assert_eq!(volume.counters().repairs, 0, "it was only a hiccup: the second look found it good");
    device.fail(Operation::Read, 0, libc::EIO, Lasting::Forever);
    let error = volume.reader().read_node(&root_of(&volume)).unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error:?}");
}

#[test]
fn a_copy_newer_than_the_reader_is_left_alone() {
    const LEVEL: usize = 100;
    for has_other_level in [false, true] {
        let Some(image) = image(&["-m", "dup"]) else { return };
        let (_, copies) = root_copies(&image.path);
        // The first copy as a later transaction would write it, with everything right.
        let mut newer = bytes_at(&image.path, copies[0], NODE);
        newer[80..88].copy_from_slice(&1000_u64.to_le_bytes());
        newer[LEVEL] += u8::from(has_other_level);
        let sum = ChecksumType::Crc32c.compute(&newer[CHECKSUM_FIELD..]);
        newer[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
        scribble(&image.path, copies[0], &newer);
        let volume = open(std::slice::from_ref(&image.path), READ_WRITE, Engine::Auto).unwrap();
        volume.reader().read_node(&root_of(&volume)).unwrap();
        assert_eq!((volume.counters().checksum_errors, volume.counters().repairs), (1, 0));
        assert_eq!(bytes_at(&image.path, copies[0], NODE), newer);
    }
}

#[test]
fn nothing_is_repaired_under_a_write_in_flight() {
    let Some(image) = image(&["-m", "dup"]) else { return };
    let (root, copies) = root_copies(&image.path);
    let device = memory(&image.path);
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    let right = volume.reader().read_node(&root_of(&volume)).unwrap();
    let ticket = volume.writer().submit(vec![Write { at: root, data: Buffer::from(&*right).share() }]).unwrap();
    let rubbish = Buffer::zeroed(4096).share();
    device.submit(vec![ubtrfs_volume::DeviceWrite { at: copies[0], data: rubbish }]).wait().unwrap();
    volume.reader().read_node(&root_of(&volume)).unwrap();
    assert_eq!(volume.counters().repairs, 0);
    let _ = volume.writer().wait(ticket).unwrap();
    volume.reader().read_node(&root_of(&volume)).unwrap();
    assert_eq!(volume.counters().repairs, 1);
}

/// Returns a data chunk of two copies.
fn data_chunk(volume: &Volume) -> Logical {
    let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
    volume.chunk_map().all().iter().find(|(_, chunk)| is_data(chunk.flags)).expect("a data chunk").0
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = ubtrfs_volume::Rng::new(seed);
    (0..len / 8).flat_map(|_| numbers.next_u64().to_le_bytes()).collect()
}

#[test]
fn bad_data_sectors_come_from_the_other_copy() {
    for algorithm in ["crc32c", "sha256"] {
        let Some(image) = image(&["-d", "dup", "-m", "dup", "--csum", algorithm]) else { return };
        let paths = [image.path.clone()];
        let volume = open(&paths, READ_WRITE, Engine::Auto).unwrap();
        let at = data_chunk(&volume);
        let data = random(64 << 10, 3);
        let size = volume.checksum().size();
        let sums: Vec<u8> =
            data.chunks(4096).flat_map(|sector| volume.checksum().compute(sector).0[..size].to_vec()).collect();
        let ticket = volume.writer().submit(vec![Write { at, data: data.clone().into() }]).unwrap();
        let _ = volume.writer().wait(ticket).unwrap();
        let places = copies(&volume, at);
        assert_eq!(places.len(), 2);
        scribble(&image.path, places[0].plus(4096 * 3 + 7), b"x");
        scribble(&image.path, places[0].plus(4096 * 15), b"x");
        scribble(&image.path, places[1].plus(4096 * 4), b"x");

        // The memory is not aligned.
        let mut memory = vec![0; data.len() + 1];
        volume.reader().read_data(at, &mut memory[1..], Some(&sums)).unwrap();
        assert!(memory[1..] == data, "{algorithm}");
        assert_eq!(volume.counters().repairs, 2);
        assert_eq!(bytes_at(&image.path, places[0], data.len()), data);
        assert_ne!(bytes_at(&image.path, places[1], data.len()), data, "nobody looked at the second copy");

        scribble(&image.path, places[0].plus(4096 * 4), b"x");
        let error = volume.reader().read_data(at, &mut memory[1..], Some(&sums)).unwrap_err();
        assert!(matches!(error, Error::Data { at: bad } if bad == at.plus(4096 * 4)), "{error:?}");
        volume.reader().read_data(at, &mut memory[1..], None).unwrap();
        assert!(matches!(volume.reader().read_data(at, &mut memory[1..], Some(&sums[1..])), Err(Error::BadRequest(_))));
        assert!(matches!(volume.reader().read_data(at.plus(1), &mut memory[1..], None), Err(Error::BadRequest(_))));
    }
}

/// Faults that no caller gets as an error are in the statistics nevertheless, with their place.
#[test]
fn bad_copies_that_others_make_up_for_are_counted() {
    let Some(image) = image(&["-d", "dup", "-m", "dup"]) else { return };
    let (root, of_root) = root_copies(&image.path);
    let paths = [image.path.clone()];
    let volume = open(&paths, READ_WRITE, Engine::Auto).unwrap();
    let at = data_chunk(&volume);
    let data = random(64 << 10, 5);
    let sums: Vec<u8> =
        data.chunks(4096).flat_map(|sector| volume.checksum().compute(sector).0[..4].to_vec()).collect();
    let ticket = volume.writer().submit(vec![Write { at, data: data.clone().into() }]).unwrap();
    let _ = volume.writer().wait(ticket).unwrap();
    assert_eq!(volume.devices().last_faults(), (0, vec![]));
    let places = copies(&volume, at);
    scribble(&image.path, places[0].plus(4096 * 3), &vec![0x11; 4096 * 5]);
    volume.reader().read_data(at, &mut vec![0; data.len()], Some(&sums)).unwrap();
    let (total, faults) = volume.devices().last_faults();
    let [neighbours] = &faults[..] else { panic!("{faults:?}") };
    let place = (neighbours.device.physical, neighbours.device.logical, neighbours.device.len);
    assert_eq!(place, (Some(places[0].plus(4096 * 3)), Some(at.plus(4096 * 3)), 4096 * 5));
    assert_eq!((total, neighbours.count, neighbours.device.devid.0), (5, 5, 1));
    // A tree block with one good copy left, and then none.
    scribble(&image.path, of_root[0].plus(5000), b"rubbish");
    volume.reader().read_node(&root_of(&volume)).unwrap();
    let (total, faults) = volume.devices().last_faults();
    let newest = faults.last().unwrap();
    assert_eq!((total, newest.device.physical, newest.device.logical), (6, Some(of_root[0]), Some(root)));
    assert!(newest.cause.contains("tree block"), "{newest:?}");
    let errors = volume.devices().errors()[0].1;
    assert_eq!(errors.of(ubtrfs_volume::DeviceErrorKind::Corruption), 6, "{errors:?}");
    for place in &of_root {
        scribble(&image.path, place.plus(5000), b"rubbish");
    }
    volume.reader().read_node(&root_of(&volume)).unwrap_err();
    // The caller gets this error and notes it, so it is not counted here.
    assert_eq!(volume.devices().last_faults().0, 6);
}

#[test]
fn one_unreadable_sector_does_not_cost_the_others() {
    let Some(image) = image(&["-d", "single"]) else { return };
    let device = Arc::new(FaultyDevice::new(memory(&image.path)));
    let volume = Volume::open(vec![device.clone()], READ_WRITE).unwrap();
    let at = data_chunk(&volume);
    let data = random(16 << 10, 4);
    let ticket = volume.writer().submit(vec![Write { at, data: data.clone().into() }]).unwrap();
    let _ = volume.writer().wait(ticket).unwrap();
    let mut memory = vec![0; data.len()];
    device.fail(Operation::Read, 0, libc::EIO, Lasting::Once);
    volume.reader().read_data(at, &mut memory, None).unwrap();
    assert!(memory == data);
    device.fail(Operation::Read, 0, libc::EIO, Lasting::Forever);
    let error = volume.reader().read_data(at, &mut memory, None).unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error:?}");
    assert_eq!(volume.reader().read_data(at, &mut [], None).ok(), Some(()));
    assert!(matches!(volume.reader().read_data(Logical(0), &mut memory, None), Err(Error::Unmapped { .. })));
}

/// A device in memory. One of its reads, once, lets another thread go on and gives it some time.
#[derive(Debug)]
struct Watched {
    inner: Arc<MemoryDevice>,
    reads: Mutex<Option<Sender<()>>>,
}

/// The time that another thread needs until it waits for a lock that is held.
const TIME_TO_WAIT: Duration = Duration::from_millis(100);

impl Device for Watched {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, at: Physical, buf: &mut [u8]) -> std::io::Result<()> {
        let reader = self.reads.lock().unwrap().take();
        if let Some(reader) = reader {
            reader.send(()).unwrap();
            std::thread::sleep(TIME_TO_WAIT);
        }
        self.inner.read_at(at, buf)
    }
    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.inner.submit(writes)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, at: Physical, len: u64) -> std::io::Result<()> {
        self.inner.discard(at, len)
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[test]
fn chunks_are_added_and_removed_while_a_scrub_repairs() {
    const LIMIT: Duration = Duration::from_secs(60);
    let Some(image) = image(&["-m", "dup"]) else { return };
    let (root, copies) = root_copies(&image.path);
    let sums: Vec<u8> = bytes_at(&image.path, copies[0], NODE)
        .chunks(4096)
        .flat_map(|sector| ChecksumType::Crc32c.compute(sector).0[..4].to_vec())
        .collect();
    scribble(&image.path, copies[0].plus(5000), b"rubbish");
    let device = Arc::new(Watched { inner: memory(&image.path), reads: Mutex::default() });
    let volume = Arc::new(Volume::open(vec![device.clone()], READ_WRITE).unwrap());
    let (reads, read) = channel();
    let (ends, end) = channel();
    *device.reads.lock().unwrap() = Some(reads);
    let (scrubbed, ended) = (Arc::clone(&volume), ends.clone());
    std::thread::spawn(move || {
        let found =
            scrubbed.scrub().data(root, NODE as u64, Some(&sums), ScrubScope::default(), &mut ParityScrub::default());
        ended.send(found.is_ok_and(|found| found.corrected == 1)).unwrap();
    });
    std::thread::spawn(move || {
        read.recv().unwrap();
        // There is no such chunk, but the call takes the lock that all changes of chunks need.
        ends.send(volume.chunk_map().remove(Logical(1)).is_err()).unwrap();
    });
    for _ in 0..2 {
        assert!(end.recv_timeout(LIMIT).expect("neither waits for the other"));
    }
}

#[test]
fn a_device_that_is_watched_conforms() {
    let device = Watched { inner: Arc::new(MemoryDevice::new(2 << 20)), reads: Mutex::default() };
    assert_conforms(Subject::new(Arc::new(device)));
}
