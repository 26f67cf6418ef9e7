//! Operations on names: create, link, rename, remove.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{Step, Workload, errno, expect};
use crate::content::Content;
use crate::model::{Body, NodeId};
use crate::names::random_name;
use crate::walk::Kind;

/// The maximum depth of directories, by which paths of long names stay within `PATH_MAX`.
const MAX: usize = 6;

/// The maximum number of files that are open at a time.
const MAX_OPEN: usize = 8;

impl Workload {
    /// Returns a name for `dir`: usually a new one, at times a taken one.
    fn name_in(&mut self, dir: NodeId) -> Vec<u8> {
        let taken: Vec<Vec<u8>> = self.model.names_in(dir).keys().cloned().collect();
        if !taken.is_empty() && self.rng.one_in(12) {
            self.rng.pick(&taken).clone()
        } else {
            random_name(&mut self.rng)
        }
    }

    /// Returns the error with which making `name` in `dir` must end, if any.
    fn taken(&self, dir: NodeId, name: &[u8]) -> Option<Errno> {
        self.model.lookup(dir, name).map(|_| Errno::EXIST)
    }

    /// Adds an inode `body` under `name` in `dir`.
    fn born(&mut self, dir: NodeId, name: &[u8], body: Body, mode: u32) -> NodeId {
        let id = self.new_node(dir, body, mode);
        self.model.attach(dir, name, id);
        self.touch(dir);
        id
    }

    pub(super) fn create(&mut self) -> Step {
        let dir = self.random_dir();
        let name = self.name_in(dir);
        let (path, shown) = self.place(dir, &name);
        let mode = *self.rng.pick(&[0o644, 0o600, 0o666, 0o755, 0o777]);
        self.note(&format!("create {shown} {mode:o}"));
        let opened = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(|error| errno(&error));
        let wanted = self.taken(dir, &name);
        let file = opened.as_ref().ok().and_then(|file| file.try_clone().ok());
        expect(opened, wanted, "create")?;
        if let Some(file) = file {
            let body = Body::File(Content::default());
            let id = self.born(dir, &name, body, mode & !self.umask);
            if self.rng.one_in(8) {
                self.write_in_place(&file)?;
            }
            if !self.rng.one_in(4) {
                self.write_to(id, &file)?;
            }
        }
        Ok(())
    }

    pub(super) fn mkdir(&mut self) -> Step {
        let dir = self.random_dir();
        if self.model.depth(dir) >= MAX {
            return Ok(());
        }
        let name = self.name_in(dir);
        let (path, shown) = self.place(dir, &name);
        self.note(&format!("mkdir {shown}"));
        let made = std::fs::DirBuilder::new().mode(0o777).create(&path);
        let wanted = self.taken(dir, &name);
        expect(made.map_err(|e| errno(&e)), wanted, "mkdir")?;
        if wanted.is_none() {
            let body = Body::Dir { names: BTreeMap::new(), parent: None };
            self.born(dir, &name, body, 0o777 & !self.umask);
        }
        Ok(())
    }

    pub(super) fn symlink(&mut self) -> Step {
        let dir = self.random_dir();
        let name = self.name_in(dir);
        let (path, shown) = self.place(dir, &name);
        let length = match self.rng.below(4) {
            0 => self.limits.target,
            1 => 1 + self.rng.below(self.limits.target),
            _ => 1 + self.rng.below(60),
        };
        let target: Vec<u8> = self.rng.noise(length as usize);
        let target: Vec<u8> = target.iter().map(|byte| byte.max(&1)).copied().collect();
        self.note(&format!("symlink {shown} to {length} bytes"));
        let made = rustix::fs::symlinkat(&target[..], CWD, &path);
        let wanted = self.taken(dir, &name);
        expect(made, wanted, "symlink")?;
        if wanted.is_none() {
            self.born(dir, &name, Body::Symlink(target), 0o777);
        }
        Ok(())
    }

    pub(super) fn mknod(&mut self) -> Step {
        let dir = self.random_dir();
        let name = self.name_in(dir);
        let (path, shown) = self.place(dir, &name);
        let kinds: &[(Kind, FileType)] = &[
            (Kind::Fifo, FileType::Fifo),
            (Kind::Socket, FileType::Socket),
            (Kind::Char, FileType::CharacterDevice),
            (Kind::Block, FileType::BlockDevice),
        ];
        let &(kind, file_type) = self.rng.pick(if self.root { kinds } else { &kinds[..2] });
        let numbers = (self.rng.below(1 << 12) as u32, self.rng.below(1 << 20) as u32);
        let device = matches!(kind, Kind::Char | Kind::Block).then_some(numbers);
        self.note(&format!("mknod {shown} {kind:?} {device:?}"));
        let raw = device.map_or(0, |(major, minor)| rustix::fs::makedev(major, minor));
        let made = rustix::fs::mknodat(CWD, &path, file_type, Mode::from_raw_mode(0o640), raw);
        let wanted = self.taken(dir, &name);
        expect(made, wanted, "mknod")?;
        if wanted.is_none() {
            self.born(dir, &name, Body::Special(kind, device), 0o640 & !self.umask);
        }
        Ok(())
    }

    pub(super) fn link(&mut self) -> Step {
        let Some(old) = self.random_entry(|_| true) else {
            return Ok(());
        };
        let dir = self.random_dir();
        let name = self.name_in(dir);
        self.link_as(old.dir, &old.name, old.node, dir, &name)
    }

    /// Links an inode many times, at times with long names: more than fit into one item of the file
    /// system's tree.
    pub(super) fn link_storm(&mut self) -> Step {
        let Some(old) = self.random_entry(|node| !node.is_dir()) else {
            return Ok(());
        };
        let dir = self.random_dir();
        let long = self.rng.one_in(2);
        for number in 0..24 {
            let mut name = format!("link-{:x}-{number}", self.rng.below(1 << 20)).into_bytes();
            if long {
                name.resize(250, b'l');
            }
            self.link_as(old.dir, &old.name, old.node, dir, &name)?;
        }
        Ok(())
    }

    fn link_as(&mut self, from: NodeId, old: &[u8], node: NodeId, dir: NodeId, name: &[u8]) -> Step {
        let (old_path, old_shown) = self.place(from, old);
        let (path, shown) = self.place(dir, name);
        self.note(&format!("link {old_shown} as {shown}"));
        let wanted = self.taken(dir, name).or_else(|| self.model.node(node).is_dir().then_some(Errno::PERM));
        let made = rustix::fs::linkat(CWD, &old_path, CWD, &path, AtFlags::empty());
        expect(made, wanted, "link")?;
        if wanted.is_none() {
            self.model.attach(dir, name, node);
            self.model.node_mut(node).nlink += 1;
            self.touch(dir);
        }
        Ok(())
    }

    /// Removes a name with `unlink` or `rmdir`, at times the wrong one of them.
    pub(super) fn remove(&mut self) -> Step {
        let Some(entry) = self.random_entry(|_| true) else {
            return Ok(());
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        let is_dir = self.model.node(entry.node).is_dir();
        let as_dir = is_dir != self.rng.one_in(20);
        let wanted = match (is_dir, as_dir) {
            (true, false) => Some(Errno::ISDIR),
            (false, true) => Some(Errno::NOTDIR),
            (true, true) if !self.model.names_in(entry.node).is_empty() => Some(Errno::NOTEMPTY),
            _ => None,
        };
        let flags = if as_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.note(&format!("{} {shown}", if as_dir { "rmdir" } else { "unlink" }));
        expect(rustix::fs::unlinkat(CWD, &path, flags), wanted, "remove")?;
        if wanted.is_none() {
            self.model.detach(entry.dir, &entry.name);
            self.drop_link(entry.node);
            self.touch(entry.dir);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self) -> Step {
        let Some(old) = self.random_entry(|_| true) else {
            return Ok(());
        };
        let (dir, name) = match self.random_entry(|_| true) {
            Some(other) if self.rng.one_in(3) => (other.dir, other.name),
            _ => {
                let dir = self.random_dir();
                (dir, self.name_in(dir))
            }
        };
        let flags = match self.rng.below(if self.root { 7 } else { 6 }) {
            0 | 1 => RenameFlags::EXCHANGE,
            2 => RenameFlags::NOREPLACE,
            6 => RenameFlags::WHITEOUT,
            _ => RenameFlags::empty(),
        };
        let target = self.model.lookup(dir, &name);
        let exchange = flags == RenameFlags::EXCHANGE;
        let old_is_dir = self.model.node(old.node).is_dir();
        let new_is_dir = target.map(|id| self.model.node(id).is_dir());
        let into_itself = old_is_dir && self.model.ancestors(dir).contains(&old.node);
        let onto_ancestor = target.is_some_and(|id| self.model.ancestors(old.dir).contains(&id));
        let too_deep = (old_is_dir || new_is_dir == Some(true)) && self.model.depth(dir) + 3 > MAX;
        let same = target == Some(old.node);
        if too_deep || (same && flags == RenameFlags::WHITEOUT) {
            return Ok(());
        }
        let wanted = match target {
            Some(_) if flags == RenameFlags::NOREPLACE => Some(Errno::EXIST),
            None if exchange => Some(Errno::NOENT),
            _ if into_itself => Some(Errno::INVAL),
            _ if onto_ancestor => Some(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }),
            _ if same || exchange => None,
            Some(id) => match (old_is_dir, new_is_dir == Some(true)) {
                (false, true) => Some(Errno::ISDIR),
                (true, false) => Some(Errno::NOTDIR),
                (true, true) if !self.model.names_in(id).is_empty() => Some(Errno::NOTEMPTY),
                _ => None,
            },
            None => None,
        };
        let (old_path, old_shown) = self.place(old.dir, &old.name);
        let (path, shown) = self.place(dir, &name);
        self.note(&format!("rename {old_shown} to {shown} {flags:?}"));
        let renamed = rustix::fs::renameat_with(CWD, &old_path, CWD, &path, flags);
        expect(renamed, wanted, "rename")?;
        // A rename of two names of one inode changes neither.
        if wanted.is_some() || same {
            return Ok(());
        }
        self.model.detach(old.dir, &old.name);
        if let Some(id) = target {
            self.model.detach(dir, &name);
            if exchange {
                self.model.attach(old.dir, &old.name, id);
            } else {
                self.drop_link(id);
            }
        }
        self.model.attach(dir, &name, old.node);
        self.touch(old.dir);
        self.touch(dir);
        if flags == RenameFlags::WHITEOUT {
            self.born(old.dir, &old.name, Body::Special(Kind::Char, Some((0, 0))), 0);
        }
        Ok(())
    }

    /// Opens a file and removes one of its names. Without names, the file exists as long as it is
    /// open.
    pub(super) fn open_and_remove(&mut self) -> Step {
        if self.open.len() >= MAX_OPEN {
            let index = self.rng.index(self.open.len());
            self.note("close a file");
            self.close(index);
        }
        let Some(entry) = self.random_entry(|node| node.content().is_some()) else {
            return Ok(());
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("open and unlink {shown}"));
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| format!("open: {error}"))?;
        self.open.push((entry.node, file));
        expect(rustix::fs::unlinkat(CWD, &path, AtFlags::empty()), None, "unlink")?;
        self.model.detach(entry.dir, &entry.name);
        self.drop_link(entry.node);
        self.touch(entry.dir);
        Ok(())
    }

    /// Makes a file without a name, and sometimes links it.
    pub(super) fn tmpfile(&mut self) -> Step {
        let dir = self.random_dir();
        let name = self.name_in(dir);
        let (path, shown) = self.place(dir, &name);
        let parent = path.parent().expect("a directory above a name").to_owned();
        self.note(&format!("O_TMPFILE for {shown}"));
        let opened =
            rustix::fs::open(&parent, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) => {
                // A file system that does not support it returns one of two errors.
                let error = if error == Errno::ISDIR { Errno::OPNOTSUPP } else { error };
                return self.supported("O_TMPFILE", Err(error)).map(|_| ());
            }
        };
        let id = self.new_node(dir, Body::File(Content::default()), 0o600 & !self.umask);
        self.model.node_mut(id).nlink = 0;
        self.write_to(id, &file)?;
        if self.rng.one_in(2) {
            let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            let linked = rustix::fs::linkat(CWD, by_number, CWD, &path, AtFlags::SYMLINK_FOLLOW);
            let wanted = self.taken(dir, &name);
            expect(linked, wanted, "give an O_TMPFILE a name")?;
            if wanted.is_none() {
                self.model.attach(dir, &name, id);
                self.model.node_mut(id).nlink = 1;
                self.touch(dir);
            }
        }
        self.open.push((id, file));
        if self.open.len() > MAX_OPEN || self.rng.one_in(2) {
            self.close(self.open.len() - 1);
        }
        Ok(())
    }
}
