//! Files of the host, as what is copied from.

use std::cell::RefCell;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use ubtrfs::format::items::Timespec;

use crate::error::{Result, outside};
use crate::source::{Child, Description, Source, TakeData};

/// Bytes that are read at once, up to a multiple of them: blocks within are read whole.
const PIECE: u64 = 1 << 20;

/// Files by their paths. No symbolic link is followed below the path that a copy begins at.
#[derive(Debug, Default)]
pub struct HostFiles {
    /// Leave extended attributes out.
    pub without_xattrs: bool,
    /// Files were last changed at this time or before, and last read when they were changed; and
    /// blocks of zeros are holes: so neither reading a tree nor a second copy of it changes what it
    /// is described by, whatever file system has it.
    pub latest: Option<Timespec>,
    /// Files that are left out wherever they are found, such as the image that is copied to: the
    /// number of their file system, and their own.
    pub without: Vec<(u64, u64)>,
    /// Those that were found.
    pub left_out: RefCell<Vec<PathBuf>>,
}

impl HostFiles {
    fn leaves_out(&self, entry: &DirEntry) -> bool {
        let found = self.without.iter().any(|(_, ino)| *ino == entry.ino())
            && entry.metadata().is_ok_and(|found| self.without.contains(&(found.dev(), found.ino())));
        if found {
            self.left_out.borrow_mut().push(entry.path());
        }
        found
    }
}

impl Source for HostFiles {
    type Node = PathBuf;

    fn describe(&self, path: &PathBuf) -> Result<Description> {
        let found = fs::symlink_metadata(path).map_err(outside(path))?;
        let time = |sec: i64, nsec: i64| Timespec { sec: sec as u64, nsec: nsec as u32 };
        let (mut atime, mut mtime) = (time(found.atime(), found.atime_nsec()), time(found.mtime(), found.mtime_nsec()));
        if let Some(latest) = self.latest {
            let order = |time: &Timespec| (time.sec as i64, time.nsec);
            mtime = std::cmp::min_by_key(mtime, latest, order);
            atime = mtime;
        }
        let target = if found.is_symlink() {
            fs::read_link(path).map_err(outside(path))?.into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        Ok(Description {
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            rdev: u64::from(major) << 20 | u64::from(minor),
            size: found.size(),
            atime,
            mtime,
            target,
            xattrs: if self.without_xattrs { Vec::new() } else { xattrs(path).map_err(outside(path))? },
            identity: (found.nlink() > 1 && !found.is_dir()).then_some((found.dev(), found.ino())),
        })
    }

    fn children(&self, path: &PathBuf) -> Result<Vec<Child<PathBuf>>> {
        let entries = fs::read_dir(path).map_err(outside(path))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(outside(path))?;
            if !self.leaves_out(&entry) {
                names.push(entry.file_name());
            }
        }
        names.sort();
        Ok(names.into_iter().map(|name| (name.as_bytes().to_vec(), path.join(name))).collect())
    }

    fn read(&self, path: &PathBuf, size: u64, take: &mut TakeData<'_>) -> Result<()> {
        // A FIFO that has come in the file's place must not stop us.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(outside(path))?;
        let mut buf = vec![0; PIECE.min(size) as usize];
        let mut at = 0;
        if size == 0 {
            // Files of /proc and the like don't tell how much is in them.
            let mut buf = vec![0; 64 << 10];
            loop {
                let read = file.read_at(&mut buf, at).map_err(outside(path))?;
                if read == 0 {
                    return Ok(());
                }
                take(at, &buf[..read])?;
                at += read as u64;
            }
        }
        while let Some((start, end)) = next_data(&file, at, size).map_err(outside(path))? {
            at = start;
            while at < end {
                let len = (end - at).min(PIECE - at % PIECE) as usize;
                let read = file.read_at(&mut buf[..len], at).map_err(outside(path))?;
                if read == 0 {
                    return Ok(());
                }
                if self.latest.is_some() {
                    take_blocks(at, &buf[..read], take)?;
                } else {
                    take(at, &buf[..read])?;
                }
                at += read as u64;
            }
        }
        Ok(())
    }
}

/// Passes on the blocks of a file that are not zeros alone.
fn take_blocks(start: u64, data: &[u8], take: &mut TakeData<'_>) -> Result<()> {
    const BLOCK: u64 = 4096;
    let has_data = |block: &(u64, u64)| data[block.0 as usize..block.1 as usize].iter().any(|byte| *byte != 0);
    let end = data.len() as u64;
    // They are counted from the start of the file.
    let block_at = |at: u64| (at, ((start + at + 1).next_multiple_of(BLOCK) - start).min(end));
    let blocks = std::iter::successors((end > 0).then(|| block_at(0)), |(_, at)| (*at < end).then(|| block_at(*at)));
    let mut run: Option<(u64, u64)> = None;
    for block in blocks.filter(has_data) {
        run = match run {
            Some((from, to)) if to == block.0 => Some((from, block.1)),
            Some((from, to)) => {
                take(start + from, &data[from as usize..to as usize])?;
                Some(block)
            }
            None => Some(block),
        };
    }
    run.map_or(Ok(()), |(from, to)| take(start + from, &data[from as usize..to as usize]))
}

/// The next range of data of a file; all of it, where the file system doesn't know.
fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if from >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => from,
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
    Ok((start < end).then_some((start, end)))
}

/// The extended attributes that the process may see.
fn xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = match whole(|buf| rustix::fs::llistxattr(path, buf)) {
        Err(Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM) => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match whole(|buf| rustix::fs::lgetxattr(path, name, buf)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // It has been removed meanwhile, or is for others.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found)
}

/// All that a call writes, whose length may change between two calls.
fn whole(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 1024];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < 1 << 20 => buf = vec![0; buf.len() * 4],
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_are_passed_over_and_no_others() {
        let mut data = vec![0; 40_000];
        for at in [0, 4095, 4096, 12_288, 39_999] {
            data[at] = 1;
        }
        for start in [0, 100, 4096] {
            let mut taken = vec![0; data.len()];
            let mut ranges = Vec::new();
            take_blocks(start, &data, &mut |at, part| {
                let at = (at - start) as usize;
                taken[at..at + part.len()].copy_from_slice(part);
                ranges.push((at, at + part.len()));
                Ok(())
            })
            .unwrap();
            assert!(taken == data, "{start}");
            if start == 0 {
                assert_eq!(ranges, [(0, 8192), (12_288, 16_384), (36_864, 40_000)]);
            }
        }
        take_blocks(0, &[], &mut |_, _| panic!("nothing is there")).unwrap();
    }
}
