//! Files of the host as a source of copies (invariant 47).

use std::cell::RefCell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::FileType;
use rustix::io::Errno;
use ubtrfs::format::items::Timespec;

use crate::error::{Error, Result, outside, shown};
use crate::host_tree::{BLOCK, HostFile, HostTree, OpenFile, next_blocks, next_data};
use crate::preloaded;
use crate::selection::Selection;
use crate::source::{Child, Description, Source, TakeData};

/// How many bytes are read at once. A read ends at a multiple of this, so that blocks within are
/// read whole.
const PIECE: u64 = 1 << 20;

/// The most bytes of a file that has data although its size is zero.
const MAX_OF_NO_SIZE: u64 = 64 << 20;

/// Attributes that other file systems show in a form of their own, or that only the kernel may
/// write. cp(1) also leaves these out, by the list of libattr in `/etc/xattr.conf`. A name that
/// ends with a dot or an underscore is a prefix.
const OF_OTHERS: [&[u8]; 11] = [
    b"system.nfs4_acl",
    b"system.nfs4acl",
    b"trusted.SGI_ACL_DEFAULT",
    b"trusted.SGI_ACL_FILE",
    b"trusted.SGI_CAP_FILE",
    b"trusted.SGI_DMI_",
    b"trusted.SGI_MAC_FILE",
    b"xfsroot.",
    b"user.Beagle.",
    b"security.evm",
    b"afs.",
];

fn is_of_others(name: &[u8]) -> bool {
    OF_OTHERS.iter().any(|known| {
        let is_beginning = known.ends_with(b".") || known.ends_with(b"_");
        if is_beginning { name.starts_with(known) } else { name == *known }
    })
}

/// Files of the host, accessed by descriptors. Below the point where a copy begins, no symbolic
/// link is followed.
///
/// A file is read up to the size that it had when it was described, even if it grows meanwhile.
#[derive(Debug, Default)]
pub struct HostFiles {
    /// Leave extended attributes out.
    pub without_xattrs: bool,
    /// If set, no mtime is later than this time, each atime is the mtime, and blocks of zeros are
    /// holes. So the description of a tree changes neither by reading it nor by copying it, on
    /// whatever file system it is.
    pub latest: Option<Timespec>,
    /// Files that are left out wherever they are found, such as the image that is copied to: device
    /// number and inode number.
    pub without: Vec<(u64, u64)>,
    /// What else is left out, and the owners of the rest. Patterns of paths begin at `top`.
    pub selection: Selection,
    /// The path at which the tree begins.
    pub top: PathBuf,
    /// The paths at which files of `without` were found.
    pub left_out: RefCell<Vec<PathBuf>>,
    /// The open directories.
    pub tree: HostTree,
}

impl HostFiles {
    fn leaves_out(&self, file: &HostFile) -> bool {
        let found = self.without.iter().any(|(_, ino)| *ino == file.listed_ino())
            && self.tree.glance(file).is_ok_and(|found| self.without.contains(&(found.st_dev, found.st_ino)));
        if found {
            self.left_out.borrow_mut().push(file.path());
        }
        found
    }

    /// Returns whether the selection excludes a file.
    fn excludes(&self, file: &HostFile) -> bool {
        let above = file.matched_above(&self.selection.excluded);
        self.selection.excluded.step(&above, file.name().as_bytes()).1
    }

    /// Returns whether another file system is mounted on a directory, and its content is to be left
    /// out.
    fn is_other_file_system(&self, dir: &HostFile) -> Result<bool> {
        if !self.selection.one_file_system {
            return Ok(false);
        }
        let (of_top, _) = self.open(&HostFile::named(&self.top, true))?.id();
        Ok(self.open(dir)?.id().0 != of_top)
    }

    fn open<'a>(&self, file: &'a HostFile) -> Result<&'a OpenFile> {
        self.tree.open(file).map_err(|error| about(file, error))
    }
}

/// An error about a file. Its path is composed only here.
fn about(file: &HostFile, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    if error.kind() == io::ErrorKind::NotFound && !file.begins_walk() {
        return outside(file.path())(io::Error::new(error.kind(), "it vanished while its directory was read"));
    }
    outside(file.path())(error)
}

impl Source for HostFiles {
    type Node = HostFile;

    fn describe(&self, file: &HostFile) -> Result<Description> {
        let opened = self.open(file)?;
        if self.without.contains(&opened.id()) {
            return Err(Error::Refused(format!("{}: it is the image itself", shown(&file.path()))));
        }
        let found = opened.status();
        let time = |sec: i64, nsec: u64| Timespec { sec: sec as u64, nsec: nsec as u32 };
        let (mut atime, mut mtime) =
            (time(found.st_atime, found.st_atime_nsec), time(found.st_mtime, found.st_mtime_nsec));
        if let Some(latest) = self.latest {
            let order = |time: &Timespec| (time.sec as i64, time.nsec);
            mtime = std::cmp::min_by_key(mtime, latest, order);
            atime = mtime;
        }
        let target = if opened.file_type() == FileType::Symlink {
            rustix::fs::readlinkat(opened, "", Vec::new()).map_err(|error| about(file, error))?.into_bytes()
        } else {
            Vec::new()
        };
        let xattrs = if self.without_xattrs { Ok(Vec::new()) } else { xattrs(opened) };
        let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
        let may_have_names = found.st_nlink > 1 && opened.file_type() != FileType::Directory;
        let mut of = Description {
            mode: found.st_mode,
            uid: found.st_uid,
            gid: found.st_gid,
            rdev: u64::from(major) << 20 | u64::from(minor),
            size: found.st_size as u64,
            atime,
            mtime,
            target,
            xattrs: xattrs.map_err(|error| about(file, error))?,
            identity: may_have_names.then_some(opened.id()),
        };
        self.selection
            .owners
            .change(&mut of)
            .map_err(|why| Error::Refused(format!("{}: {why}", shown(&file.path()))))?;
        Ok(of)
    }

    fn children(&self, dir: &HostFile) -> Result<Vec<Child<HostFile>>> {
        if self.is_other_file_system(dir)? {
            return Ok(Vec::new());
        }
        let mut files = self.tree.children(dir).map_err(|error| about(dir, error))?;
        files.retain(|file| !self.excludes(file) && !self.leaves_out(file));
        files.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(files.into_iter().map(|file| (file.name().as_bytes().to_vec(), file)).collect())
    }

    fn read(&self, file: &HostFile, size: u64, take: &mut TakeData<'_>) -> Result<u64> {
        let opened = self.open(file)?;
        if size == 0 {
            return read_of_no_size(file, opened, take).map(|()| 0);
        }
        let mut buf = vec![0; PIECE.min(size) as usize];
        let mut at = 0;
        let next = |at| if self.latest.is_some() { next_blocks(opened, at, size) } else { next_data(opened, at, size) };
        while let Some((start, end)) = next(at).map_err(|error| about(file, error))? {
            at = start;
            while at < end {
                let len = (end - at).min(PIECE - at % PIECE) as usize;
                let read = rustix::io::pread(opened, &mut buf[..len], at).map_err(|error| about(file, error))?;
                if read == 0 {
                    break;
                }
                if self.latest.is_some() {
                    take_blocks(at, &buf[..read], take)?;
                } else {
                    take(at, &buf[..read])?;
                }
                at += read as u64;
            }
            if at < end {
                break;
            }
        }
        // Behind the end of a shrunk file no data is found, as in a hole.
        let now = rustix::fs::fstat(opened).map_err(|error| about(file, error))?.st_size as u64;
        Ok(now.min(size))
    }
}

/// Reads a file whose size was zero. Files of /proc and the like don't say how much is in them;
/// others have grown since.
fn read_of_no_size(file: &HostFile, opened: &OpenFile, take: &mut TakeData<'_>) -> Result<()> {
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        let read = rustix::io::pread(opened, &mut buf, at).map_err(|error| about(file, error))?;
        if read == 0 || rustix::fs::fstat(opened).map_err(|error| about(file, error))?.st_size != 0 {
            return Ok(());
        }
        if at + read as u64 > MAX_OF_NO_SIZE {
            let error = io::Error::other("it has more than 64 MiB, though its size is said to be 0");
            return Err(about(file, error));
        }
        take(at, &buf[..read])?;
        at += read as u64;
    }
}

/// Passes the blocks of a file that are not all zeros to `take`.
fn take_blocks(start: u64, data: &[u8], take: &mut TakeData<'_>) -> Result<()> {
    let has_data = |block: &(u64, u64)| data[block.0 as usize..block.1 as usize].iter().any(|byte| *byte != 0);
    let end = data.len() as u64;
    // Blocks are aligned to the start of the file.
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

/// The extended attributes that the process may see.
fn xattrs(file: &OpenFile) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let reference = file.reference();
    let list = |buf: &mut [u8]| match &reference {
        Some(path) => rustix::fs::listxattr(path, buf),
        None if preloaded::is_loaded() => preloaded::list_xattrs(file, buf),
        None => rustix::fs::flistxattr(file, buf),
    };
    let names = match whole(list) {
        Err(Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM) => return Ok(Vec::new()),
        Err(Errno::NOENT | Errno::NOTDIR) if reference.is_some() => {
            return Err(io::Error::other("its extended attributes can't be read where /proc is not mounted"));
        }
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_of_others(name)) {
        let value = |buf: &mut [u8]| match &reference {
            Some(path) => rustix::fs::getxattr(path, name, buf),
            None if preloaded::is_loaded() => preloaded::get_xattr(file, name, buf),
            None => rustix::fs::fgetxattr(file, name, buf),
        };
        match whole(value) {
            Ok(value) => found.push((name.to_vec(), value)),
            // The attribute has been removed meanwhile, or the process may not read it.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found)
}

/// Returns all that a call writes; its length may change between two calls.
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
    use std::fs;
    use std::io::Write;

    use super::*;

    fn child(source: &HostFiles, dir: &HostFile, name: &str) -> HostFile {
        let children = source.children(dir).unwrap();
        children.into_iter().find(|(found, _)| found == name.as_bytes()).unwrap().1
    }

    fn content(source: &HostFiles, file: &HostFile) -> Vec<u8> {
        let (mut content, size) = (Vec::new(), source.describe(file).unwrap().size);
        source
            .read(file, size, &mut |at, data| {
                assert_eq!(at, content.len() as u64);
                content.extend_from_slice(data);
                Ok(())
            })
            .unwrap();
        content
    }

    /// Of invariant 47: the owner of a tree may exchange files in it at any time.
    #[test]
    fn what_is_read_is_the_file_that_was_described() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, mode) in [("tree", 0o755), ("secret", 0o700)] {
            fs::create_dir(at(name)).unwrap();
            fs::create_dir(at(name).join("sub")).unwrap();
            for file in ["file", "sub/one", "sub/two", "sub/three"] {
                fs::write(at(name).join(file), format!("{name}'s {file}")).unwrap();
            }
            fs::set_permissions(at(name).join("file"), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let source = HostFiles::default();
        let top = HostFile::named(at("tree"), false);
        let (file, sub) = (child(&source, &top, "file"), child(&source, &top, "sub"));
        source.describe(&file).unwrap();
        let one = child(&source, &sub, "one");
        // The whole directory and the file are replaced by symbolic links to files of another user.
        fs::rename(at("tree/sub"), at("tree/old")).unwrap();
        std::os::unix::fs::symlink(at("secret/sub"), at("tree/sub")).unwrap();
        fs::remove_file(at("tree/file")).unwrap();
        std::os::unix::fs::symlink(at("secret/file"), at("tree/file")).unwrap();
        assert_eq!(content(&source, &file), b"tree's file");
        assert_eq!(source.describe(&file).unwrap().mode & 0o777, 0o755);
        assert_eq!(content(&source, &one), b"tree's sub/one");
        assert_eq!(content(&source, &child(&source, &sub, "two")), b"tree's sub/two");
        // The top is replaced, too, and a file that was listed and not opened yet.
        let three = child(&source, &sub, "three");
        fs::remove_file(at("tree/old/three")).unwrap();
        std::os::unix::fs::symlink(at("secret/sub/three"), at("tree/old/three")).unwrap();
        fs::rename(at("tree"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("secret"), at("tree")).unwrap();
        let described = source.describe(&three).unwrap();
        assert_eq!(described.target, at("secret/sub/three").as_os_str().as_bytes());
        assert!(source.read(&three, described.size, &mut |_, _| panic!("a link has no content")).is_err());
        assert_eq!(content(&source, &child(&source, &child(&source, &top, "old"), "two")), b"tree's sub/two");
        let link = HostFile::named(at("tree"), false);
        assert_eq!(source.describe(&link).unwrap().target, at("secret").as_os_str().as_bytes());
        assert!(source.children(&link).is_err());
    }

    #[test]
    fn a_file_that_grows_is_read_up_to_the_size_that_it_had() {
        let dir = tempfile::tempdir().unwrap();
        for size in [0, 10, 3 << 20] {
            let path = dir.path().join("file");
            fs::write(&path, vec![7; size]).unwrap();
            let source = HostFiles::default();
            let file = HostFile::named(&path, false);
            let described = source.describe(&file).unwrap();
            let append =
                || fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&vec![8; 1 << 20]).unwrap();
            append();
            let mut taken = 0;
            source
                .read(&file, described.size, &mut |at, data| {
                    assert_eq!(at, taken as u64);
                    assert!(data.iter().all(|byte| *byte == 7));
                    taken += data.len();
                    append();
                    assert!(taken <= size, "it is read as it grows");
                    Ok(())
                })
                .unwrap();
            assert_eq!(taken, size);
        }
    }

    #[test]
    fn a_file_that_shrinks_is_as_large_as_what_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for left in [0, 5, 1 << 20, (1 << 20) + 5] {
            fs::write(&path, vec![7; 3 << 20]).unwrap();
            let source = HostFiles::default();
            let file = HostFile::named(&path, false);
            let described = source.describe(&file).unwrap();
            let shrink = || fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
            let found = source.read(&file, described.size, &mut |_, _| {
                shrink();
                Ok(())
            });
            assert_eq!(found.unwrap(), left);
        }
        let source = HostFiles::default();
        let file = HostFile::named(&path, false);
        let size = source.describe(&file).unwrap().size;
        assert_eq!(source.read(&file, size, &mut |_, _| Ok(())).unwrap(), size);
    }

    #[test]
    fn a_file_that_tells_no_size_is_read_to_its_end_unless_it_has_none() {
        let source = HostFiles::default();
        let version = content(&source, &HostFile::named("/proc/version", false));
        assert_eq!(version, fs::read("/proc/version").unwrap());
        assert!(!version.is_empty());
        // The file has 8 bytes for each page that a process could have.
        let mut taken = 0;
        let endless = HostFile::named("/proc/self/pagemap", false);
        assert_eq!(source.describe(&endless).unwrap().size, 0);
        let error = source.read(&endless, 0, &mut |_, data| {
            taken += data.len() as u64;
            Ok(())
        });
        assert!(error.is_err() && taken <= MAX_OF_NO_SIZE, "{taken}");
    }

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
