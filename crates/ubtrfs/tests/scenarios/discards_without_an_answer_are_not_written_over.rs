//! A device that is a server may carry out a discard long after nobody waits for its answer any
//! more. The mount does not write to the discarded range again (invariant 19).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Errno, Filesystem, Options};
use ubtrfs_format::{DeviceId, Physical};
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, OpenOptions, Volume, check_writes};

use crate::common::volumes::{SIZE, assert_clean, assert_holds, root, volume, write};

/// A device that does not answer discards, and carries them out when it is asked to.
#[derive(Debug)]
struct SilentDevice {
    inner: OverlayDevice,
    discards: Mutex<Vec<Range<u64>>>,
    answers: AtomicBool,
}

impl Device for SilentDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size()) {
            return DeviceTicket::done(Err(error));
        }
        for write in &writes {
            let (start, end) = (write.at.0, write.at.0 + write.data.len() as u64);
            let hit = self.discards.lock().iter().find(|it| it.start < end && start < it.end).cloned();
            assert!(hit.is_none(), "{start}..{end} is written, and the device may discard {hit:?}");
        }
        self.inner.submit(writes)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        if self.answers.load(Ordering::Relaxed) {
            return self.inner.discard(at, len);
        }
        self.discards.lock().push(at.0..at.0 + len);
        Err(io::ErrorKind::TimedOut.into())
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn mount(device: &Arc<SilentDevice>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device.clone()], OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

/// Writes files until the volume is full. Returns how many.
fn fill(fs: &Filesystem, first: u64) -> u64 {
    for number in first.. {
        let written = write(fs, &format!("file {number}"), number, 4 << 20);
        match written.and_then(|file| fs.durability().fsync(file)) {
            Ok(()) => {}
            Err(error) if error.errno() == Errno::NOSPC => return number - first,
            Err(error) => panic!("{error:?}"),
        }
    }
    unreachable!()
}

#[test]
fn discarded_space_is_not_used_before_the_next_mount() {
    let inner = volume(1, Profile::Single, Profile::Dup).swap_remove(0);
    let device = Arc::new(SilentDevice { inner, discards: Mutex::new(Vec::new()), answers: AtomicBool::new(true) });
    let fs = mount(&device);
    (0..10).for_each(|number| _ = write(&fs, &format!("old {number}"), number, 4 << 20).unwrap());
    fs.durability().sync().unwrap();
    (0..10).for_each(|number| fs.directories().unlink(root(), format!("old {number}").as_bytes()).unwrap());
    fs.close().unwrap();
    drop(fs);
    let fs = mount(&device);
    device.answers.store(false, Ordering::Relaxed);
    // These are discards of block groups, and perhaps of unallocated space; each trim ends at the
    // first one.
    for number in 1..=3 {
        assert!(fs.discarder().trim(0, u64::MAX, 1 << 20).is_err());
        assert_eq!(device.discards.lock().len(), number);
    }
    let unused: u64 = device.discards.lock().iter().map(|range| range.end - range.start).sum();
    assert!((3 << 20..SIZE / 4 * 3).contains(&unused), "{unused}");
    let written = fill(&fs, 0);
    assert!(written > 2, "{written}");
    // No chunk with such a range is removed.
    let error = fs.relocator().resize_device(DeviceId(1), SIZE / 2 / 4096 * 4096, &|_| true).unwrap_err();
    assert!([Errno::BUSY, Errno::NOSPC].contains(&error.errno()), "{error:?}");
    fs.close().unwrap();
    drop(fs);
    // The device carries out its discards now.
    let discards = std::mem::take(&mut *device.discards.lock());
    for range in discards {
        device.inner.discard(Physical(range.start), range.end - range.start).unwrap();
    }
    device.answers.store(true, Ordering::Relaxed);
    let fs = mount(&device);
    (0..written).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 4 << 20));
    (0..written).for_each(|number| fs.directories().unlink(root(), format!("file {number}").as_bytes()).unwrap());
    fs.durability().sync().unwrap();
    assert!(fill(&fs, 1000) > written, "its room is there again");
    fs.close().unwrap();
    drop(fs);
    assert_clean(&[device], "in the end");
}

#[test]
fn a_device_that_answers_discards_conforms() {
    let inner = OverlayDevice::zeroed(2 << 20);
    let device = SilentDevice { inner, discards: Mutex::default(), answers: AtomicBool::new(true) };
    assert_conforms(Subject::new(Arc::new(device)));
}
