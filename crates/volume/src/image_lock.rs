//! Locks of image files: of a whole one, or of the part that a volume is in.
//!
//! A writer of a whole image locks the file exclusively (flock(2)). All others lock it shared, and
//! in addition lock their part by an open file description lock (fcntl(2)): writers of a part
//! exclusively, readers shared. So a writer of a whole image excludes all others, as it always did,
//! and a user of a part excludes those whose part overlaps with it.
//!
//! Every user who may read a file can take any of these locks except those of fcntl(2) for writing.
//! So the writer of a whole image takes one of those, too, behind all content. It identifies an
//! image that shows nothing yet of what it will be.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::device_part::DevicePart;
use crate::error::{Error, Result};

/// The range that the writer of a whole image locks by fcntl(2).
const OF_WRITER: DevicePart = DevicePart { start: 1 << 62, size: Some(512) };

/// Locks a part of an image file: shared, or exclusively.
pub(crate) fn lock(image: &File, is_shared: bool, part: DevicePart, path: &Path) -> Result<()> {
    let is_alone = !is_shared && part.is_whole();
    let operation =
        if is_alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    judge(rustix::fs::flock(image, operation), path, || holder(image))?;
    if is_alone {
        if let Err(error) = lock_part(image, libc::F_WRLCK, OF_WRITER) {
            tracing::debug!(%error, "others can't see that the image is written to");
        }
        return Ok(());
    }
    judge(lock_part(image, if is_shared { libc::F_RDLCK } else { libc::F_WRLCK }, part), path, || None)
}

/// Gives up all locks of an image file.
pub(crate) fn unlock(image: &File) {
    let part = lock_part(image, libc::F_UNLCK, DevicePart::WHOLE);
    if let Err(error) = rustix::fs::flock(image, FlockOperation::Unlock).and(part) {
        tracing::debug!(%error, "cannot unlock the image");
    }
}

fn judge(locked: rustix::io::Result<()>, path: &Path, holder: impl FnOnce() -> Option<String>) -> Result<()> {
    match locked {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => {
            return Err(Error::Held { path: path.to_owned(), by: holder() });
        }
        // A file system without locks, such as some network ones.
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot lock the image"),
    }
    Ok(())
}

/// Returns the process that has locked an image by flock(2), if `/proc/locks` shows one. Since
/// every user who may read the image can lock it, the name helps against programs that are not
/// ours.
fn holder(image: &File) -> Option<String> {
    let image = image.metadata().ok()?;
    let (major, minor) = (libc::major(image.dev()), libc::minor(image.dev()));
    let of_image = format!("{major:02x}:{minor:02x}:{}", image.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let process = locks.lines().find_map(|line| {
        // As in "1: FLOCK  ADVISORY  WRITE 708 00:13:2390 0 EOF".
        let mut fields = line.split_whitespace().skip(1);
        let (kind, process, inode) = (fields.next()?, fields.nth(2)?, fields.next()?);
        (kind == "FLOCK" && inode == of_image).then(|| process.parse::<u32>().ok()).flatten()
    })?;
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(format!("another program, {} (process {process})", name.trim_end().escape_debug()))
}

/// Returns whether another process uses a file as an image and writes to it, judged by the range of
/// its lock.
pub(crate) fn is_written(file: &File) -> bool {
    other_lock(file, libc::F_RDLCK).is_some_and(|lock| lock.l_start % 4096 == 0 && lock.l_len % 512 == 0)
}

/// Returns the offset of the part of a file that another process has locked by fcntl(2).
pub(crate) fn locked_place(file: &File) -> Option<u64> {
    other_lock(file, libc::F_WRLCK).and_then(|lock| u64::try_from(lock.l_start).ok())
}

/// Returns another process's lock that conflicts with one of this kind.
fn other_lock(file: &File, kind: i32) -> Option<libc::flock> {
    let mut request = request(kind, DevicePart::WHOLE);
    // SAFETY: the request takes a pointer to a `struct flock`, in which it returns a lock.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) };
    (result == 0 && i32::from(request.l_type) != libc::F_UNLCK).then_some(request)
}

fn lock_part(image: &File, kind: i32, part: DevicePart) -> rustix::io::Result<()> {
    let request = request(kind, part);
    // SAFETY: the request takes a pointer to a `struct flock`, which it only reads.
    let result = unsafe { libc::fcntl(image.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn request(kind: i32, part: DevicePart) -> libc::flock {
    let range = part.range();
    // Beyond the largest offset there is nothing; a length of zero reaches to the end.
    let offset = |at: u64| libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX);
    let start = offset(range.start);
    let len = if range.end > libc::off_t::MAX as u64 { 0 } else { offset(range.end) - start };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_exclude_those_that_they_overlap_and_nobody_else() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(image.path()).unwrap();
        let part = |start: u64, size: u64| DevicePart { start, size: Some(size) };
        let rest = DevicePart { start: 3 << 20, size: None };
        let (first, second) = (part(0, 1 << 20), part(1 << 20, 1 << 20));
        // The first lock and the second one, each shared or not, and whether both can be held.
        let cases = [
            ((first, false), (second, false), true),
            ((first, false), (first, false), false),
            ((first, false), (first, true), false),
            ((first, true), (first, true), true),
            ((first, false), (part(4096, 4096), true), false),
            ((rest, false), (second, false), true),
            ((rest, false), (part(5 << 20, 4096), true), false),
            ((first, false), (DevicePart::WHOLE, true), false),
            ((first, false), (DevicePart::WHOLE, false), false),
            ((first, true), (DevicePart::WHOLE, false), false),
            ((first, true), (DevicePart::WHOLE, true), true),
            ((DevicePart::WHOLE, true), (DevicePart::WHOLE, true), true),
            ((DevicePart::WHOLE, true), (DevicePart::WHOLE, false), false),
        ];
        for ((held, is_shared), (asked, asked_shared), may) in cases {
            let cases = [((held, is_shared), (asked, asked_shared)), ((asked, asked_shared), (held, is_shared))];
            for ((held, held_shared), (asked, asked_shared)) in cases {
                let (one, other) = (open(), open());
                lock(&one, held_shared, held, image.path()).unwrap();
                let locked = lock(&other, asked_shared, asked, image.path());
                assert_eq!(locked.is_ok(), may, "{held:?} {held_shared}, {asked:?} {asked_shared}");
                drop(other);
                unlock(&one);
                lock(&open(), false, DevicePart::WHOLE, image.path()).unwrap();
            }
        }
    }

    #[test]
    fn writers_are_distinguished_from_readers() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = |writes| File::options().read(true).write(writes).open(image.path()).unwrap();
        let part = DevicePart { start: 1 << 20, size: None };
        let look = || (is_written(&open(false)), locked_place(&open(false)));
        for (is_shared, part, seen) in [
            (false, DevicePart::WHOLE, (true, Some(OF_WRITER.start))),
            (false, part, (true, Some(part.start))),
            (true, part, (false, Some(part.start))),
        ] {
            assert_eq!(look(), (false, None));
            let holder = open(true);
            lock(&holder, is_shared, part, image.path()).unwrap();
            assert_eq!(look(), seen);
        }
        let user = open(false);
        rustix::fs::flock(&user, FlockOperation::LockExclusive).unwrap();
        assert!(lock_part(&user, libc::F_WRLCK, OF_WRITER).is_err());
        assert_eq!(look(), (false, None));
    }

    #[test]
    fn who_has_locked_an_image_is_named() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).open(image.path()).unwrap();
        let (first, second) = (open(), open());
        assert_eq!(holder(&second), None);
        lock(&first, true, DevicePart::WHOLE, image.path()).unwrap();
        let refused = lock(&second, false, DevicePart::WHOLE, image.path()).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("(process {})", std::process::id())), "{refused}");
    }
}
