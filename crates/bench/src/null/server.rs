//! Requests and their answers.

use std::io;
use std::path::Path;

use parking_lot::Mutex;
use ubtrfs_fuse::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatFs, ReplyWrite, ReplyXattr,
};
use ubtrfs_fuse::request::{Create, Fallocate, Forgets, MkNod, Open, Read, Rename, SetAttr, SetTime, SetXattr, Write};
use ubtrfs_fuse::{Caller, Entry, Errno, Filesystem, OpenFlags, RenameFlags, Request, StatFs};

use super::barrier::Barrier;
use super::inodes::{Content, DAY, DIRECTORY, Inodes, LINK, New, REGULAR, now};

/// The minimal size of an entry in a listing, by which a listing takes no more entries than can
/// fit.
const MIN_ENTRY: usize = 24;

/// The server.
pub struct Null {
    inodes: Mutex<Inodes>,
    barrier: Barrier,
}

impl Null {
    /// Makes an empty file system whose barriers use `backing`.
    pub fn new(backing: &Path) -> io::Result<Self> {
        Ok(Self { inodes: Mutex::new(Inodes::new()), barrier: Barrier::new(backing)? })
    }

    fn make(&self, parent: u64, name: &[u8], new: New) -> Result<Entry, Errno> {
        let mut inodes = self.inodes.lock();
        if inodes.find(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let node = inodes.make(new, parent);
        inodes.add(parent, name, node)?;
        inodes.entry(node)
    }

    fn sync(&self, node: u64, reply: ReplyEmpty) {
        let bytes = self.inodes.lock().data(node).map_or(0, |data| data.take_dirty());
        self.barrier.wait(bytes, reply);
    }
}

fn new(caller: &Caller<'_>, mode: u32, rdev: u32) -> New {
    New { mode, owner: (caller.uid, caller.gid), rdev }
}

fn entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn created(reply: ReplyCreate, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.created(&entry, 0, OpenFlags::KEEP_CACHE),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Null {
    /// Never blocks, since all data is in memory, and the thread of the barriers answers fsyncs.
    fn try_nonblocking(&self, _: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        serve();
    }

    fn lookup(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        let mut inodes = self.inodes.lock();
        let found = inodes.find(parent, name).and_then(|node| inodes.entry(node));
        drop(inodes);
        if found == Err(Errno::NOENT) { reply.negative(DAY) } else { entry(reply, found) }
    }

    fn forget(&self, forgets: &Forgets<'_>) {
        let mut inodes = self.inodes.lock();
        for (node, lookups) in forgets.iter() {
            inodes.forget(node, lookups);
        }
    }

    fn getattr(&self, _: &Caller<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        let shown = self.inodes.lock().get(node).map(super::inodes::Inode::shown);
        match shown {
            Ok(shown) => reply.attributes(&shown, DAY),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(&self, _: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        let mut inodes = self.inodes.lock();
        let inode = match inodes.get_mut(node) {
            Ok(inode) => inode,
            Err(errno) => return reply.error(errno),
        };
        let time = now();
        let at = |set: SetTime| if let SetTime::At(at) = set { at } else { time };
        if let (Some(size), Content::File(data)) = (change.size, &inode.content) {
            data.resize(size);
            inode.attributes.mtime = time;
        }
        let attributes = &mut inode.attributes;
        attributes.mode = change.mode.map_or(attributes.mode, |mode| attributes.mode & !0o7777 | mode & 0o7777);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.atime = change.atime.map_or(attributes.atime, at);
        attributes.mtime = change.mtime.map_or(attributes.mtime, at);
        attributes.ctime = time;
        let shown = inode.shown();
        drop(inodes);
        reply.attributes(&shown, DAY);
    }

    fn readlink(&self, _: &Caller<'_>, node: u64, reply: ReplyData) {
        match self.inodes.lock().get(node).map(|inode| &inode.content) {
            Ok(Content::Link(target)) => reply.data(target),
            Ok(_) => reply.error(Errno::INVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn symlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let made = self.make(parent, name, new(caller, LINK | 0o777, 0)).and_then(|mut entry| {
            let mut inodes = self.inodes.lock();
            let inode = inodes.get_mut(entry.node)?;
            inode.content = Content::Link(target.into());
            entry.attributes = inode.shown();
            Ok(entry)
        });
        entry(reply, made);
    }

    fn mknod(&self, caller: &Caller<'_>, parent: u64, what: &MkNod<'_>, reply: ReplyEntry) {
        entry(reply, self.make(parent, what.name, new(caller, what.mode & !what.umask, what.rdev)));
    }

    fn mkdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32, umask: u32, reply: ReplyEntry) {
        entry(reply, self.make(parent, name, new(caller, DIRECTORY | mode & !umask & 0o7777, 0)));
    }

    fn unlink(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let result = self.inodes.lock().remove(parent, name, false);
        empty(reply, result);
    }

    fn rmdir(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let result = self.inodes.lock().remove(parent, name, true);
        empty(reply, result);
    }

    fn rename(&self, _: &Caller<'_>, parent: u64, what: &Rename<'_>, reply: ReplyEmpty) {
        if !(what.flags - RenameFlags::NOREPLACE).is_empty() {
            return reply.error(Errno::INVAL);
        }
        let replace = !what.flags.contains(RenameFlags::NOREPLACE);
        let result = self.inodes.lock().rename((parent, what.name), (what.new_parent, what.new_name), replace);
        empty(reply, result);
    }

    fn link(&self, _: &Caller<'_>, node: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let mut inodes = self.inodes.lock();
        let result = inodes.add(parent, name, node).and_then(|()| {
            let attributes = &mut inodes.get_mut(node)?.attributes;
            attributes.nlink += 1;
            attributes.ctime = now();
            inodes.entry(node)
        });
        drop(inodes);
        entry(reply, result);
    }

    fn read(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyData) {
        let data = self.inodes.lock().data(node);
        reply.fill(|buffer| {
            let length = buffer.len().min(what.size as usize);
            Ok(data?.read(what.offset, &mut buffer[..length]))
        });
    }

    fn write(&self, _: &Caller<'_>, node: u64, what: &Write<'_>, reply: ReplyWrite) {
        let mut inodes = self.inodes.lock();
        let data = inodes.data(node);
        if let Ok(inode) = inodes.get_mut(node) {
            let time = now();
            (inode.attributes.mtime, inode.attributes.ctime) = (time, time);
        }
        drop(inodes);
        match data {
            Ok(data) => {
                data.write(what.offset, what.data);
                reply.written(what.data.len() as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Caller<'_>, _: u64, reply: ReplyStatFs) {
        let blocks = 2 << 20;
        reply.statfs(&StatFs {
            blocks,
            free: blocks / 2,
            available: blocks / 2,
            files: 1 << 30,
            files_free: 1 << 30,
            block_size: 4096,
            name_length: 255,
            fragment_size: 4096,
        });
    }

    fn fsync(&self, _: &Caller<'_>, node: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(node, reply);
    }

    fn fsyncdir(&self, _: &Caller<'_>, node: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(node, reply);
    }

    fn syncfs(&self, _: &Caller<'_>, _: u64, reply: ReplyEmpty) {
        let bytes = self.inodes.lock().take_dirty();
        self.barrier.wait(bytes, reply);
    }

    fn setxattr(&self, _: &Caller<'_>, _: u64, _: &SetXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::OPNOTSUPP);
    }

    fn getxattr(&self, _: &Caller<'_>, _: u64, _: &[u8], reply: ReplyXattr) {
        reply.error(Errno::NODATA);
    }

    fn listxattr(&self, _: &Caller<'_>, _: u64, reply: ReplyXattr) {
        reply.value(&[]);
    }

    fn opendir(&self, _: &Caller<'_>, _: u64, _: &Open, reply: ReplyOpen) {
        reply.error(Errno::NOSYS);
    }

    fn readdir(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectory) {
        let inodes = self.inodes.lock();
        let names = match inodes.list(node, what.offset, what.size as usize / MIN_ENTRY) {
            Ok(names) => names,
            Err(errno) => return reply.error(errno),
        };
        for (next, name, node) in names {
            let mode = inodes.get(node).map_or(DIRECTORY, |inode| inode.attributes.mode);
            if !reply.add(node, next, mode, &name) {
                break;
            }
        }
        reply.done();
    }

    fn readdirplus(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectoryPlus) {
        let mut inodes = self.inodes.lock();
        let names = match inodes.list(node, what.offset, what.size as usize / MIN_ENTRY) {
            Ok(names) => names,
            Err(errno) => return reply.error(errno),
        };
        for (next, name, node) in names {
            if inodes.is_looked_up(node) || matches!(&*name, b"." | b"..") {
                let mode = inodes.get(node).map_or(DIRECTORY, |inode| inode.attributes.mode);
                if !reply.add_name(node, next, mode, &name) {
                    break;
                }
                continue;
            }
            let Ok(entry) = inodes.entry(node) else { continue };
            if !reply.add(&entry, next, &name) {
                inodes.forget(node, 1);
                break;
            }
        }
        reply.done();
    }

    fn create(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let mode = REGULAR | what.mode & !what.umask & 0o7777;
        let made = match self.make(parent, what.name, new(caller, mode, 0)) {
            Err(Errno::EXIST) => {
                let mut inodes = self.inodes.lock();
                inodes.find(parent, what.name).and_then(|node| inodes.entry(node))
            }
            made => made,
        };
        created(reply, made);
    }

    fn tmpfile(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let mut inodes = self.inodes.lock();
        let node = inodes.make(new(caller, REGULAR | what.mode & !what.umask & 0o7777, 0), parent);
        let made = inodes.get_mut(node).map(|inode| inode.attributes.nlink = 0).and_then(|()| inodes.entry(node));
        drop(inodes);
        created(reply, made);
    }

    fn fallocate(&self, _: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        if !what.mode.is_empty() {
            return reply.error(Errno::OPNOTSUPP);
        }
        let data = self.inodes.lock().data(node);
        empty(reply, data.map(|data| data.extend(what.offset + what.length)));
    }
}
