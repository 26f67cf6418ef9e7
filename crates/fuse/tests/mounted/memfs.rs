//! A filesystem in memory that records its requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use ubtrfs_fuse::reply::*;
use ubtrfs_fuse::request::*;
use ubtrfs_fuse::*;

use crate::trial::Trial;

const DAY: Duration = Duration::from_secs(86400);
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

#[derive(Debug, Clone, Default)]
struct Inode {
    attributes: Attributes,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

/// What a test changes in the behaviour of the filesystem.
#[derive(Debug, Clone, Copy, Default)]
pub struct Behaviour {
    /// OPEN is answered ENOSYS.
    pub no_open: bool,
    /// How long DESTROY and SYNCFS take.
    pub slow: Duration,
}

pub struct MemFs {
    behaviour: Behaviour,
    inodes: Mutex<HashMap<u64, Inode>>,
    /// The requests, each with its interesting fields.
    asked: Mutex<Vec<String>>,
    pub destroyed: AtomicU32,
    pub trial: Trial,
    /// Changes of modes to [`HELD`], unanswered until a test takes them.
    pub held: Mutex<Vec<ReplyAttr>>,
    /// WRITEs wait while a test holds this lock.
    pub writes: RwLock<()>,
}

/// The mode of a file of which the reply is held.
pub const HELD: u32 = 0o751;

type Inodes = HashMap<u64, Inode>;

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

fn inode(inodes: &mut Inodes, node: u64) -> Result<&mut Inode, Errno> {
    inodes.get_mut(&node).ok_or(Errno::STALE)
}

fn child(inodes: &Inodes, parent: u64, name: &[u8]) -> Result<u64, Errno> {
    let parent = inodes.get(&parent).ok_or(Errno::STALE)?;
    parent.names.get(name).copied().ok_or(Errno::NOENT)
}

fn entry(inodes: &mut Inodes, node: u64) -> Result<Entry, Errno> {
    let inode = inode(inodes, node)?;
    inode.lookups += 1;
    let attributes = inode.attributes;
    Ok(Entry { node, generation: 0, name_ttl: DAY, attributes_ttl: DAY, attributes })
}

fn make(inodes: &mut Inodes, caller: &Caller<'_>, mode: u32) -> u64 {
    let ino = inodes.keys().max().unwrap() + 1;
    let (uid, gid) = (caller.uid, caller.gid);
    let (atime, mtime, ctime) = (now(), now(), now());
    let attributes =
        Attributes { ino, mode, uid, gid, nlink: 1, atime, mtime, ctime, blksize: 4096, ..Default::default() };
    inodes.insert(ino, Inode { attributes, ..Inode::default() });
    ino
}

fn add(inodes: &mut Inodes, parent: u64, name: &[u8], node: u64) -> Result<(), Errno> {
    let parent = inode(inodes, parent)?;
    if parent.names.contains_key(name) {
        return Err(Errno::EXIST);
    }
    parent.names.insert(name.into(), node);
    Ok(())
}

fn drop_if_unused(inodes: &mut Inodes, node: u64) {
    if inodes.get(&node).is_some_and(|inode| inode.attributes.nlink == 0 && inode.lookups == 0) {
        inodes.remove(&node);
    }
}

fn remove(inodes: &mut Inodes, parent: u64, name: &[u8], directory: bool) -> Result<(), Errno> {
    let node = child(inodes, parent, name)?;
    let inode = inode(inodes, node)?;
    match (inode.attributes.mode & TYPE == DIRECTORY, directory) {
        (true, false) => return Err(Errno::ISDIR),
        (false, true) => return Err(Errno::NOTDIR),
        _ if !inode.names.is_empty() => return Err(Errno::NOTEMPTY),
        _ => inode.attributes.nlink -= 1,
    }
    inodes.get_mut(&parent).unwrap().names.remove(name);
    drop_if_unused(inodes, node);
    Ok(())
}

impl MemFs {
    pub fn new(behaviour: Behaviour) -> Self {
        let attributes = Attributes { ino: ROOT, mode: DIRECTORY | 0o777, nlink: 2, ..Default::default() };
        let root = Inode { attributes, lookups: 1, ..Inode::default() };
        Self {
            behaviour,
            inodes: Mutex::new(HashMap::from([(ROOT, root)])),
            asked: Mutex::default(),
            destroyed: AtomicU32::new(0),
            trial: Trial::default(),
            held: Mutex::default(),
            writes: RwLock::default(),
        }
    }

    fn note(&self, what: impl Into<String>) {
        self.asked.lock().push(what.into());
    }

    /// The number of requests that begin with this.
    pub fn asked(&self, what: &str) -> usize {
        self.asked.lock().iter().filter(|asked| asked.starts_with(what)).count()
    }

    /// The requests, to be shown when a test fails.
    pub fn all_asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    /// How many inodes there are.
    pub fn count(&self) -> usize {
        self.inodes.lock().len()
    }

    /// Changes a file behind the kernel's back, and returns its node.
    pub fn change(&self, parent: u64, name: &str, content: &[u8]) -> u64 {
        let mut inodes = self.inodes.lock();
        let node = child(&inodes, parent, name.as_bytes()).unwrap();
        let inode = inodes.get_mut(&node).unwrap();
        inode.data = content.into();
        inode.attributes.size = content.len() as u64;
        node
    }

    /// Renames a file behind the kernel's back.
    pub fn move_away(&self, parent: u64, from: &str, to: &str) {
        let mut inodes = self.inodes.lock();
        let names = &mut inodes.get_mut(&parent).unwrap().names;
        let node = names.remove(from.as_bytes()).unwrap();
        names.insert(to.into(), node);
    }

    fn create_entry(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let mut inodes = self.inodes.lock();
        let node = make(&mut inodes, caller, mode);
        if let Err(errno) = add(&mut inodes, parent, name, node) {
            inodes.remove(&node);
            return Err(errno);
        }
        entry(&mut inodes, node)
    }

    /// The names of a directory with their nodes, from an offset on.
    fn names(&self, node: u64, offset: u64) -> Vec<(u64, Vec<u8>, u64)> {
        let inodes = self.inodes.lock();
        let dots = [(b".".to_vec(), node), (b"..".to_vec(), node)];
        let names = inodes[&node].names.iter().map(|(name, node)| (name.clone(), *node));
        let all = dots.into_iter().chain(names).enumerate().skip(offset as usize);
        all.map(|(index, (name, node))| (index as u64 + 1, name, node)).collect()
    }
}

fn reply_entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for MemFs {
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        self.note(format!("INIT {}", granted.minor));
        Ok(())
    }

    fn destroy(&self) {
        std::thread::sleep(self.behaviour.slow);
        self.note("DESTROY");
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }

    fn try_nonblocking(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        // A WRITE that has to wait is left to another thread.
        if matches!(request.op, Operation::Write { .. }) && self.writes.try_read().is_none() {
            return;
        }
        self.trial.try_nonblocking(request, serve);
    }

    fn lookup(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        let Some(reply) = self.trial.unless_postponed(reply) else { return };
        self.note(format!("LOOKUP {}", String::from_utf8_lossy(name)));
        let mut inodes = self.inodes.lock();
        match child(&inodes, parent, name) {
            Ok(node) => reply_entry(reply, entry(&mut inodes, node)),
            Err(Errno::NOENT) => reply.negative(DAY),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, forgets: &Forgets<'_>) {
        let mut inodes = self.inodes.lock();
        for (node, lookups) in forgets.iter() {
            let inode = inodes.get_mut(&node).expect("only what was looked up is forgotten");
            inode.lookups = inode.lookups.checked_sub(lookups).expect("no more than was looked up is forgotten");
            drop_if_unused(&mut inodes, node);
        }
    }

    fn getattr(&self, caller: &Caller<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        let Some(reply) = self.trial.unless_postponed(reply) else { return };
        self.note(format!("GETATTR uid={}", caller.uid as i32));
        match self.inodes.lock().get(&node) {
            Some(inode) => reply.attributes(&inode.attributes, DAY),
            None => reply.error(Errno::STALE),
        }
    }

    fn statx(&self, _: &Caller<'_>, node: u64, _: Option<u64>, _: u32, mask: StatxFlags, reply: ReplyStatx) {
        self.note(format!("STATX {:x}", mask.bits()));
        let attributes = self.inodes.lock()[&node].attributes;
        let btime = Some(Timestamp { seconds: 1, nanoseconds: 2 });
        reply.statx(&Statx { attributes, btime, flags: 0x10, flags_mask: 0x30 }, DAY);
    }

    fn setattr(&self, _: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        let Some(reply) = self.trial.unless_postponed(reply) else { return };
        self.note(format!("SETATTR size={:?} kill={} mode={:?}", change.size, change.kill_suidgid, change.mode));
        if change.mode.is_some_and(|mode| mode & 0o7777 == HELD) {
            return self.held.lock().push(reply);
        }
        let mut inodes = self.inodes.lock();
        let Ok(inode) = inode(&mut inodes, node) else { return reply.error(Errno::STALE) };
        let attributes = &mut inode.attributes;
        if let Some(size) = change.size {
            inode.data.resize(size as usize, 0);
            attributes.size = size;
            attributes.mtime = now();
        }
        if let Some(mode) = change.mode {
            attributes.mode = attributes.mode & TYPE | mode & 0o7777;
        }
        if change.kill_suidgid {
            attributes.mode &= !0o4000;
        }
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        if let Some(SetTime::At(mtime)) = change.mtime {
            attributes.mtime = mtime;
        }
        attributes.ctime = now();
        reply.attributes(attributes, DAY);
    }

    fn readlink(&self, _: &Caller<'_>, node: u64, reply: ReplyData) {
        self.note("READLINK");
        reply.data(&self.inodes.lock()[&node].data);
    }

    fn symlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let result = self.create_entry(caller, parent, name, LINK | 0o777);
        if let Ok(entry) = &result {
            self.inodes.lock().get_mut(&entry.node).unwrap().data = target.into();
        }
        reply_entry(reply, result);
    }

    fn mknod(&self, caller: &Caller<'_>, parent: u64, what: &MkNod<'_>, reply: ReplyEntry) {
        self.note("MKNOD");
        let mut result = self.create_entry(caller, parent, what.name, what.mode);
        if let Ok(entry) = &mut result {
            self.inodes.lock().get_mut(&entry.node).unwrap().attributes.rdev = what.rdev;
            entry.attributes.rdev = what.rdev;
        }
        reply_entry(reply, result);
    }

    fn mkdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32, umask: u32, reply: ReplyEntry) {
        let groups: Vec<u32> = caller.groups().collect();
        self.note(format!("MKDIR mode={mode:o} umask={umask:o} groups={groups:?} uid={}", caller.uid));
        reply_entry(reply, self.create_entry(caller, parent, name, DIRECTORY | mode & 0o7777));
    }

    fn unlink(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply_empty(reply, remove(&mut self.inodes.lock(), parent, name, false));
    }

    fn rmdir(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply_empty(reply, remove(&mut self.inodes.lock(), parent, name, true));
    }

    fn rename(&self, _: &Caller<'_>, parent: u64, what: &Rename<'_>, reply: ReplyEmpty) {
        self.note(format!("RENAME {:?}", what.flags));
        let mut inodes = self.inodes.lock();
        let mut run = || {
            let node = child(&inodes, parent, what.name)?;
            let target = child(&inodes, what.new_parent, what.new_name);
            if what.flags == RenameFlags::EXCHANGE {
                inode(&mut inodes, parent)?.names.insert(what.name.into(), target?);
            } else {
                if target.is_ok() && what.flags == RenameFlags::NOREPLACE {
                    return Err(Errno::EXIST);
                }
                if target.is_ok() {
                    remove(&mut inodes, what.new_parent, what.new_name, false)?;
                }
                inode(&mut inodes, parent)?.names.remove(what.name);
            }
            inode(&mut inodes, what.new_parent)?.names.insert(what.new_name.into(), node);
            Ok(())
        };
        reply_empty(reply, run());
    }

    fn link(&self, _: &Caller<'_>, node: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let mut inodes = self.inodes.lock();
        let result = add(&mut inodes, parent, name, node).and_then(|()| {
            inode(&mut inodes, node)?.attributes.nlink += 1;
            entry(&mut inodes, node)
        });
        reply_entry(reply, result);
    }

    fn open(&self, _: &Caller<'_>, _: u64, how: &Open, reply: ReplyOpen) {
        self.note(format!("OPEN {:?}", how.flags));
        if self.behaviour.no_open {
            reply.error(Errno::NOSYS);
        } else {
            reply.opened(7, OpenFlags::KEEP_CACHE);
        }
    }

    fn read(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyData) {
        self.note("READ");
        if reply.can_read_files() {
            return reply.read_files(|buffer| {
                let inodes = self.inodes.lock();
                let data = inodes[&node].data.get(what.offset as usize..).unwrap_or_default();
                Ok(self.trial.file_reads(&data[..data.len().min(buffer.len())]))
            });
        }
        reply.fill(|buffer| {
            let inodes = self.inodes.lock();
            let data = inodes[&node].data.get(what.offset as usize..).unwrap_or_default();
            let length = data.len().min(buffer.len());
            buffer[..length].copy_from_slice(&data[..length]);
            Ok(length)
        });
    }

    fn write(&self, _: &Caller<'_>, node: u64, what: &Write<'_>, reply: ReplyWrite) {
        self.note(format!("WRITE {} {:?}", what.data.len(), what.write_flags));
        let _turn = self.writes.read();
        let mut inodes = self.inodes.lock();
        let inode = inode(&mut inodes, node).unwrap();
        let (start, end) = (what.offset as usize, what.offset as usize + what.data.len());
        if inode.data.len() < end {
            inode.data.resize(end, 0);
            inode.attributes.size = end as u64;
        }
        inode.data[start..end].copy_from_slice(what.data);
        inode.attributes.mtime = now();
        reply.written(what.data.len() as u32);
    }

    fn statfs(&self, _: &Caller<'_>, _: u64, reply: ReplyStatFs) {
        let (block_size, fragment_size) = (4096, 4096);
        reply.statfs(&StatFs { blocks: 1000, free: 10, available: 9, block_size, fragment_size, ..Default::default() });
    }

    fn release(&self, _: &Caller<'_>, _: u64, what: &Release, reply: ReplyEmpty) {
        self.note(format!("RELEASE {}", what.handle));
        reply.ok();
    }

    fn flush(&self, _: &Caller<'_>, _: u64, handle: u64, _: u64, reply: ReplyEmpty) {
        self.note(format!("FLUSH {handle}"));
        reply.error(Errno::NOSYS);
    }

    fn fsync(&self, _: &Caller<'_>, _: u64, _: u64, data_only: bool, reply: ReplyEmpty) {
        self.note(format!("FSYNC {data_only}"));
        // Another thread answers later.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            reply.ok();
        });
    }

    fn setxattr(&self, _: &Caller<'_>, node: u64, what: &SetXattr<'_>, reply: ReplyEmpty) {
        self.note(format!("SETXATTR {}", String::from_utf8_lossy(what.name)));
        self.inodes.lock().get_mut(&node).unwrap().xattrs.insert(what.name.into(), what.value.into());
        reply.ok();
    }

    fn getxattr(&self, _: &Caller<'_>, node: u64, name: &[u8], reply: ReplyXattr) {
        self.note(format!("GETXATTR {}", String::from_utf8_lossy(name)));
        match (name, self.inodes.lock()[&node].xattrs.get(name)) {
            (b"user.dropped", _) => drop(reply),
            (b"user.panic", _) => panic!("asked for"),
            (_, Some(value)) => reply.value(value),
            (_, None) => reply.error(Errno::NODATA),
        }
    }

    fn listxattr(&self, _: &Caller<'_>, node: u64, reply: ReplyXattr) {
        let names =
            self.inodes.lock()[&node].xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect::<Vec<_>>();
        reply.value(&names);
    }

    fn removexattr(&self, _: &Caller<'_>, node: u64, name: &[u8], reply: ReplyEmpty) {
        let removed = self.inodes.lock().get_mut(&node).unwrap().xattrs.remove(name);
        reply_empty(reply, removed.map(drop).ok_or(Errno::NODATA));
    }

    fn opendir(&self, _: &Caller<'_>, _: u64, _: &Open, reply: ReplyOpen) {
        self.note("OPENDIR");
        reply.opened(9, OpenFlags::empty());
    }

    fn readdir(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectory) {
        self.note(format!("READDIR handle={}", what.handle));
        for (next, name, node) in self.names(node, what.offset) {
            let attributes = self.inodes.lock()[&node].attributes;
            if !reply.add(attributes.ino, next, attributes.mode, &name) {
                break;
            }
        }
        reply.done();
    }

    fn readdirplus(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectoryPlus) {
        self.note(format!("READDIRPLUS handle={}", what.handle));
        for (next, name, node) in self.names(node, what.offset) {
            let mut inodes = self.inodes.lock();
            if name == b"." || name == b".." {
                assert!(reply.add_name(node, next, DIRECTORY, &name));
                continue;
            }
            let mut entry = entry(&mut inodes, node).unwrap();
            if name.starts_with(b"impossible") {
                // The entry has no type.
                entry.attributes.mode = 0;
            }
            if !reply.add(&entry, next, &name) {
                inodes.get_mut(&node).unwrap().lookups -= 1;
                break;
            }
        }
        reply.done();
    }

    fn create(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        self.note(format!("CREATE mode={:o} umask={:o} uid={}", what.mode, what.umask, caller.uid));
        match self.create_entry(caller, parent, what.name, what.mode) {
            Ok(entry) => reply.created(&entry, 7, OpenFlags::KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    fn tmpfile(&self, caller: &Caller<'_>, _: u64, what: &Create<'_>, reply: ReplyCreate) {
        self.note(format!("TMPFILE mode={:o} name={}", what.mode, String::from_utf8_lossy(what.name)));
        let mut inodes = self.inodes.lock();
        let node = make(&mut inodes, caller, REGULAR | what.mode & 0o7777);
        inodes.get_mut(&node).unwrap().attributes.nlink = 0;
        reply.created(&entry(&mut inodes, node).unwrap(), 7, OpenFlags::empty());
    }

    fn ioctl(&self, _: &Caller<'_>, _: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        self.note(format!("IOCTL {:x} {} {}", what.command, what.data.len(), what.reply_size));
        let answer: Vec<u8> = what.data.iter().map(|byte| byte + 1).collect();
        reply.result(3, &answer);
    }

    fn fallocate(&self, _: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        self.note(format!("FALLOCATE {:?}", what.mode));
        let mut inodes = self.inodes.lock();
        let inode = inode(&mut inodes, node).unwrap();
        let end = (what.offset + what.length) as usize;
        if what.mode.is_empty() && inode.data.len() < end {
            inode.data.resize(end, 0);
            inode.attributes.size = end as u64;
        }
        reply.ok();
    }

    fn lseek(&self, _: &Caller<'_>, node: u64, what: &Lseek, reply: ReplyLseek) {
        self.note(format!("LSEEK {:?}", what.whence));
        let size = self.inodes.lock()[&node].data.len() as u64;
        match what.whence {
            _ if what.offset >= size => reply.error(Errno::NXIO),
            Seek::Data => reply.offset(what.offset),
            Seek::Hole => reply.offset(size),
        }
    }

    fn copy_file_range(&self, _: &Caller<'_>, node: u64, what: &CopyFileRange, reply: ReplyCopy) {
        self.note(format!("COPY_FILE_RANGE wide={}", what.wide));
        let mut inodes = self.inodes.lock();
        let from = &inodes[&node].data[what.offset_in as usize..];
        let bytes = from[..from.len().min(what.length as usize)].to_vec();
        let to = inode(&mut inodes, what.node_out).unwrap();
        to.data.truncate(what.offset_out as usize);
        to.data.extend_from_slice(&bytes);
        to.attributes.size = to.data.len() as u64;
        reply.copied(bytes.len() as u64);
    }

    fn syncfs(&self, _: &Caller<'_>, _: u64, reply: ReplyEmpty) {
        std::thread::sleep(self.behaviour.slow);
        self.note("SYNCFS");
        reply.ok();
    }
}
