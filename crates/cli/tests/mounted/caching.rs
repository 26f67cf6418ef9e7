//! Tests of the kernel's page cache: every reader sees the last write, whichever path it took.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{IFlags, OFlags};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::run::run;
use ubtrfs_testkit::{mapped, require};

use crate::harness::{FUSE, Volume};
use crate::posix::Diary;

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// A block with the alignment that direct writes need.
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

impl Block {
    fn new(content: u64) -> Self {
        let mut block = Self([0; BLOCK]);
        block.0[..8].copy_from_slice(&content.to_ne_bytes());
        block
    }
}

/// `struct iocb` of a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags_too: u32,
    event_descriptor: u32,
}

/// Asynchronous writes, one at a time.
struct Queue(libc::c_ulong);

impl Queue {
    fn new() -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel stores the number of the new context in the variable that the pointer
        // refers to, which has that size.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
        assert_eq!(made, 0);
        Self(context)
    }

    /// Submits a write, and waits for its completion.
    fn write(&self, file: &File, block: &Block, offset: usize) {
        let mut control = Control {
            opcode: 1,
            descriptor: file.as_raw_fd() as u32,
            buffer: std::ptr::from_ref(block) as u64,
            length: BLOCK as u64,
            offset: offset as i64,
            ..Control::default()
        };
        let mut list = [&raw mut control];
        let mut event = [0_i64; 4];
        // SAFETY: the list has one entry, which points to a control block; that and the block of
        // data outlive the write, which is waited for next.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) };
        assert_eq!(submitted, 1);
        // SAFETY: one event is requested, and the array has room for it.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                1,
                1,
                event.as_mut_ptr(),
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        assert_eq!((done, event[2]), (1, BLOCK as i64));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the context belongs to this queue alone, and none of its writes is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Returns how many reads saw data that a direct write had replaced before the read began, and the
/// number of writes.
fn stale_reads(path: &Path, write: impl Fn(&File, &Block, usize) + Sync) -> (u64, u64) {
    fs::write(path, vec![0; BLOCK * BLOCKS]).unwrap();
    let direct = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap();
    let buffered = File::open(path).unwrap();
    let written = [const { AtomicU64::new(0) }; BLOCKS];
    let (stale, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let (written, stale, ends) = (&written, &stale, &ends);
    let buffered = &buffered;
    let writes = std::thread::scope(|scope| {
        for reader in 0..2 {
            scope.spawn(move || {
                for step in 0.. {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let block = (step * (1 + 2 * reader)) % BLOCKS;
                    let least = written[block].load(Ordering::SeqCst);
                    let mut seen = [0; 8];
                    buffered.read_exact_at(&mut seen, (block * BLOCK) as u64).unwrap();
                    if u64::from_ne_bytes(seen) < least {
                        stale.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let until = Instant::now() + Duration::from_millis(1500);
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            let block = (number as usize * 7) % BLOCKS;
            write(&direct, &Block::new(number), block * BLOCK);
            written[block].store(number, Ordering::SeqCst);
        }
        ends.store(true, Ordering::Relaxed);
        number
    });
    (stale.load(Ordering::Relaxed), writes)
}

#[test]
fn readers_of_the_cache_see_direct_writes() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let queue = Queue::new();
    let path = volume.point.join("file");
    let (stale, writes) = stale_reads(&path, |file, block, at| queue.write(file, block, at));
    assert!(writes > 50, "{writes} writes");
    assert_eq!(stale, 0, "of {writes} writes that were not waited for");
    let (stale, writes) = stale_reads(&path, |file, block, at| file.write_all_at(&block.0, at as u64).unwrap());
    assert_eq!(stale, 0, "of {writes} writes");
    volume.umount();
    volume.check();
}

/// Returns where data and holes begin, from each page of a file on.
fn map(file: &File) -> Vec<String> {
    let size = file.metadata().unwrap().len();
    let seek = |from| rustix::fs::seek(file, from).map_err(rustix::io::Errno::raw_os_error);
    (0..=size)
        .step_by(BLOCK)
        .map(|at| format!("{:?} {:?}", seek(rustix::fs::SeekFrom::Data(at)), seek(rustix::fs::SeekFrom::Hole(at))))
        .collect()
}

fn mapped_holes(dir: &Path) -> Vec<String> {
    let mut diary = Diary::default();
    let path = dir.join("sparse");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.set_len(40 * BLOCK as u64).unwrap();
    file.write_all_at(&[b'w'; BLOCK], 10 * BLOCK as u64).unwrap();
    diary.note("before", map(&file));
    for pages in [3, 12] {
        // The same data is stored again, so that only these pages are dirty.
        let mut content = vec![b'm'; pages * BLOCK];
        if pages > 10 {
            content[10 * BLOCK..11 * BLOCK].fill(b'w');
        }
        let mut looked = Vec::new();
        mapped::write_and(&file, &content, || looked = map(&file)).unwrap();
        diary.note(&format!("{pages} pages stored"), looked);
        diary.note("afterwards", map(&file));
    }
    file.set_len(0).unwrap();
    file.set_len(8 * BLOCK as u64).unwrap();
    let copy = dir.join("copy");
    let mut copied = Vec::new();
    mapped::write_and(&file, b"stored", || {
        let outcome = run(std::process::Command::new("cp").arg("--reflink=never").arg(&path).arg(&copy)).ok();
        copied = fs::read(&copy).unwrap();
        assert_eq!(outcome.code(), Some(0));
    })
    .unwrap();
    diary.note("copied", String::from_utf8_lossy(&copied[..8]).into_owned());
    let mut file = File::open(&copy).unwrap();
    diary.io("end", file.seek(SeekFrom::End(0)));
    diary.0
}

#[test]
fn what_a_mapping_has_stored_in_a_hole_is_data() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let ours = mapped_holes(&volume.point);
    volume.umount();
    volume.check();
    assert!(ours.iter().any(|line| line.contains("stored\\0")), "{ours:#?}");
    volume.assert_kernels_tour_is_the_same(&ours, mapped_holes);
}

fn long_appends(dir: &Path) -> Vec<String> {
    /// More than one request can carry.
    const LONG: usize = 5 << 20;
    let mut diary = Diary::default();
    let path = dir.join("log");
    fs::write(&path, vec![b'a'; BLOCK]).unwrap();
    rustix::fs::ioctl_setflags(File::open(&path).unwrap(), IFlags::APPEND).unwrap();
    let blocks: Vec<Block> = (0..LONG / BLOCK).map(|number| Block([number as u8; BLOCK])).collect();
    // SAFETY: the blocks are arrays of bytes without gaps.
    let long = unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast::<u8>(), LONG) };
    let flags = OFlags::DIRECT.bits() as i32;
    let mut file = OpenOptions::new().append(true).custom_flags(flags).open(&path).unwrap();
    for _ in 0..2 {
        diary.note("appended", file.write(long).map_err(|error| error.raw_os_error()));
    }
    let content = fs::read(&path).unwrap();
    diary.note("as one", content[BLOCK..].chunks(LONG).map(|part| part == long).collect::<Vec<_>>());
    drop(file);
    rustix::fs::ioctl_setflags(File::open(&path).unwrap(), IFlags::empty()).unwrap();
    diary.0
}

#[test]
fn long_direct_writes_append_to_what_only_grows() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let ours = long_appends(&volume.point);
    volume.umount();
    volume.check();
    volume.assert_kernels_tour_is_the_same(&ours, long_appends);
}
