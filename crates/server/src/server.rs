//! Requests, one method each.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use ubtrfs::{Filesystem as Engine, InodeId, RenameFlags, SetAttributes, TimeChange, WriteAt};
use ubtrfs_fuse::abi::flags::WriteFlags;
use ubtrfs_fuse::reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatFs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use ubtrfs_fuse::request::{
    CopyFileRange, Create, Fallocate, Forgets, Ioctl, Lseek, MkNod, Open, Read, Rename, SetAttr, SetTime, SetXattr,
    Write,
};
use ubtrfs_fuse::{
    Caller, Capabilities, Config, Entry, Errno, FallocateFlags, Filesystem, Granted, OFlags, OpenFlags, ROOT, Request,
    StatxFlags, Transport,
};

use crate::attributes as ours;
use crate::btrfs_ioctls::VolumeIoctl;
use crate::control;
use crate::counters::{Kind, Timed};
use crate::directories::{Row, end, list};
use crate::flags::MaySet;
use crate::pool::Pool;
use crate::privileges::{Capability, Powers};
use crate::set_id::SET_ID;
use crate::shared::{MountFacts, Shared, TTL, errno};

/// Threads for requests that wait for a commit.
const SLOW_THREADS: usize = 16;
/// Threads that wait for the kernel.
const TELLING_THREADS: usize = 4;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFMT: u32 = 0o170_000;

/// What to ask of the kernel for a [`Server`] that `threads` threads serve. Without `checked` the
/// kernel checks no permissions.
pub fn config(threads: usize, transport: Transport, checked: bool) -> Config {
    let wanted = Config::FULL | Capabilities::ALLOW_IDMAP | Capabilities::EXPORT_SUPPORT;
    // Both turn the kernel's checks on, or need them.
    let wanted = if checked { wanted } else { wanted - Capabilities::POSIX_ACL - Capabilities::ALLOW_IDMAP };
    Config { wanted, threads, transport, ..Config::default() }
}

/// The server of one mount. The kernel checks permissions (`default_permissions`), not the server;
/// without that nobody does.
pub struct Server {
    shared: Arc<Shared>,
    pub(crate) slow: Pool,
    /// For telling the kernel what it has to write or to forget. That may wait for requests which
    /// `slow` serves.
    pub(crate) telling: Pool,
    /// For having the kernel forget pages that could not be written. Whoever goes on changing them
    /// holds up nobody else.
    dropping: Pool,
    /// Nodes whose pages are to be forgotten, and are not yet being.
    to_drop: Arc<Mutex<HashSet<u64>>>,
}

impl Server {
    /// A server of the engine's mounted subvolume.
    pub fn new(engine: Arc<Engine>, facts: MountFacts) -> Self {
        Self {
            shared: Arc::new(Shared::new(engine, facts)),
            slow: Pool::new(SLOW_THREADS),
            telling: Pool::new(TELLING_THREADS),
            dropping: Pool::new(1),
            to_drop: Arc::default(),
        }
    }

    /// What outlives the session: the engine and how it ended.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn count(&self, kind: Kind) -> Timed<'_> {
        self.shared.counters.count(kind)
    }

    fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.shared.inode(node)
    }

    fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Runs what may wait for a commit in a thread of its own, and answers from there.
    fn slowly(
        &self,
        node: u64,
        reply: ReplyEmpty,
        work: impl FnOnce(&Engine, InodeId) -> ubtrfs::Result<()> + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        self.slow.run(move || {
            let result = shared.inode(node).and_then(|id| work(&shared.engine, id).map_err(|error| errno(&error)));
            answer(reply, result);
        });
    }

    /// Most fsyncs wait for the write of another: no thread is held up by that.
    fn sync_inode(&self, node: u64, data_only: bool, done: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let (shared, began) = (Arc::clone(&self.shared), Instant::now());
        let done = move |result| {
            shared.counters.fsync_answered(began);
            done(result);
        };
        match self.shared.inode(node) {
            Ok(id) => {
                let done = move |result: ubtrfs::Result<()>| done(result.map_err(|error| errno(&error)));
                let Some(leader) = self.engine().join_fsync(id, data_only, Box::new(done)) else { return };
                if ubtrfs::may_wait() {
                    return self.engine().lead_fsync(leader);
                }
                let shared = Arc::clone(&self.shared);
                self.slow.run(move || shared.engine.lead_fsync(leader));
            }
            Err(errno) => done(Err(errno)),
        }
    }

    fn get_control(&self, caller: &Caller<'_>, name: &[u8], reply: ReplyXattr) {
        const OK: &[u8] = b"ok";
        let work = match name {
            name if name == control::SYNC.as_bytes() => Engine::sync,
            name if name == control::READ_ONLY.as_bytes() => Engine::stop_writing,
            name if name == control::WRITABLE.as_bytes() => Engine::write_again,
            name if name == control::STATS.as_bytes() => {
                return match serde_json::to_vec(&self.shared.report()) {
                    Ok(report) => reply.value(&report),
                    Err(_) => reply.error(Errno::IO),
                };
            }
            _ => return reply.error(Errno::NODATA),
        };
        if name != control::SYNC.as_bytes() && !Powers::of(caller).has(Capability::Administrator) {
            return reply.error(Errno::PERM);
        }
        if reply.room() == 0 {
            return reply.length(OK.len());
        }
        let shared = Arc::clone(&self.shared);
        self.slow.run(move || match work(&shared.engine) {
            Ok(()) => reply.value(OK),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn open_file(&self, parent: u64, caller: &Caller<'_>, what: &Create<'_>) -> Result<Entry, Errno> {
        let dir = self.inode(parent)?;
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        let new = self.shared.new_inode(dir, caller, mode, what.umask, 0)?;
        match self.engine().create(dir, what.name, &new) {
            Ok(id) => self.shared.entry(id),
            Err(error) if error.errno() == Errno::EXIST && !what.flags.contains(OFlags::EXCL) => {
                let id = self.engine().lookup(dir, what.name).map_err(|error| errno(&error))?;
                if what.flags.contains(OFlags::TRUNC) {
                    let changes = SetAttributes {
                        size: Some(0),
                        kill_privileges: what.kill_suidgid,
                        kill_group_id: self.takes_group_id(caller, id, what.kill_suidgid),
                        ..SetAttributes::default()
                    };
                    self.engine().set_attributes(id, &changes).map_err(|error| {
                        self.engine().forget(id, 1);
                        errno(&error)
                    })?;
                }
                self.shared.entry(id)
            }
            Err(error) => Err(errno(&error)),
        }
    }

    fn change(&self, caller: &Caller<'_>, node: u64, change: &SetAttr) -> Result<ubtrfs::Attributes, Errno> {
        let id = self.inode(node)?;
        let nothing = SetAttr { handle: change.handle, ..SetAttr::default() };
        if *change == nothing {
            return self.change_of_nothing(caller, id);
        }
        // truncate(2), unlike ftruncate(2), leaves the times of a file as they are that has the
        // wanted size; to nothing, it can't be told from O_TRUNC.
        let only_size = SetAttr { size: change.size, handle: None, ..nothing };
        if *change == only_size && change.size != Some(0) {
            let attributes = self.engine().attributes(id).map_err(|error| errno(&error))?;
            if change.size == Some(attributes.size) && attributes.mode & S_IFMT == S_IFREG {
                return Ok(attributes);
            }
        }
        apply(&self.shared, id, change, self.takes_group_id(caller, id, change.kill_suidgid))
    }

    /// Whether a change cuts so much off that it takes several commits.
    fn takes_long(&self, node: u64, change: &SetAttr) -> bool {
        let cuts = |size| self.inode(node).is_ok_and(|id| self.engine().is_cut_in_steps(id, size));
        change.size.is_some_and(cuts)
    }

    /// Finds a name. `.` is an inode itself and `..` the directory that it lies in: so the kernel
    /// asks for what a file handle names.
    fn find(&self, dir: InodeId, name: &[u8]) -> ubtrfs::Result<InodeId> {
        let id = match name {
            b"." => dir,
            b".." => self.engine().parent(dir)?,
            name => return self.engine().lookup(dir, name),
        };
        self.engine().lookup_inode(id)?;
        Ok(id)
    }

    fn allocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate) -> Result<(), Errno> {
        let keep_size = what.mode.contains(FallocateFlags::KEEP_SIZE);
        let kind = what.mode - FallocateFlags::KEEP_SIZE;
        let punches = kind == FallocateFlags::PUNCH_HOLE && keep_size;
        if !(kind.is_empty() || kind == FallocateFlags::ZERO_RANGE || punches) {
            return Err(Errno::OPNOTSUPP);
        }
        let id = self.inode(node)?;
        self.drop_privileges(caller, node, id)?;
        let engine = self.engine();
        let done = if punches {
            engine.punch_hole(id, what.offset, what.length)
        } else if kind == FallocateFlags::ZERO_RANGE {
            engine.zero_range(id, what.offset, what.length, keep_size)
        } else {
            engine.allocate(id, what.offset, what.length, keep_size)
        };
        done.map_err(|error| errno(&error))
    }

    /// Trims the volume or tells about it, in a thread that may take its time.
    fn answer_about_volume(&self, caller: &Caller<'_>, node: u64, asked: VolumeIoctl, reply: ReplyIoctl) {
        if asked.needs().is_some_and(|capability| !Powers::of(caller).has(capability)) {
            return reply.error(Errno::PERM);
        }
        let shared = Arc::clone(&self.shared);
        self.slow.run(move || {
            let answer = shared.inode(node).and_then(|id| {
                let answer = asked.answer(&shared.engine, id.subvolume, shared.device_paths());
                answer.map_err(|error| errno(&error))
            });
            match answer {
                Ok(answer) => reply.result(0, &answer),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers an ioctl that forbids changes, after what mappings of the file have changed so far
    /// has been written.
    fn forbid(&self, node: u64, what: &Ioctl<'_>, may: MaySet, reply: ReplyIoctl) {
        let shared = Arc::clone(&self.shared);
        let (what, data) = (what.with_data(&[]), what.data.to_vec());
        self.telling.run(move || {
            shared.take_pages(node);
            let what = what.with_data(&data);
            let result = shared.inode(node);
            let result = result.and_then(|id| shared.flags_ioctl(id, &what, &may).unwrap_or(Err(Errno::NOTTY)));
            shared.answer_flags(node, &what, result, reply);
        });
    }

    /// The kernel is to read the file's pages anew: somebody has changed them who may not.
    fn drop_pages(&self, node: u64) {
        if !self.to_drop.lock().insert(node) {
            return;
        }
        let (shared, to_drop) = (Arc::clone(&self.shared), Arc::clone(&self.to_drop));
        self.dropping.run(move || {
            to_drop.lock().remove(&node);
            shared.take_pages(node);
        });
    }

    fn write_to(&self, caller: &Caller<'_>, node: u64, what: &Write<'_>) -> Result<u32, Errno> {
        let id = self.inode(node)?;
        let kill = what.write_flags.contains(WriteFlags::KILL_SUIDGID);
        let loses = kill && self.engine().mode(id).is_ok_and(|mode| mode & SET_ID != 0);
        if loses && self.takes_group_id(caller, id, kill) {
            let changes = SetAttributes { kill_group_id: true, ..SetAttributes::default() };
            self.engine().set_attributes(id, &changes).map_err(|error| errno(&error))?;
        }
        let is_of_page = what.write_flags.contains(WriteFlags::CACHE);
        // Of a page it is anybody's flags.
        let appends = what.flags.contains(OFlags::APPEND) && !is_of_page;
        let at = if appends { WriteAt::Appending(what.offset) } else { WriteAt::Offset(what.offset) };
        let written = self.engine().write(id, at, what.data, kill).map_err(|error| {
            if is_of_page && error.errno() == Errno::PERM {
                self.drop_pages(node);
            }
            errno(&error)
        })?;
        if loses {
            self.shared.attributes_changed(node);
        }
        Ok(u32::try_from(written).unwrap_or(u32::MAX))
    }

    fn bound(&self, node: u64, what: &Read) -> Result<(InodeId, ubtrfs_format::DirIndex), Errno> {
        let dir = self.inode(node)?;
        let last = end(self.engine(), dir, what.offset).map_err(|error| errno(&error))?;
        Ok((dir, last))
    }
}

fn apply(shared: &Shared, id: InodeId, change: &SetAttr, kill_group_id: bool) -> Result<ubtrfs::Attributes, Errno> {
    let changes = SetAttributes { kill_group_id, ..changes(change) };
    let changed = match change.mode {
        Some(mode) => shared.chmod(id, mode, &changes),
        None => shared.engine.set_attributes(id, &changes),
    };
    changed.map_err(|error| errno(&error))
}

fn answer_attributes(shared: &Shared, reply: ReplyAttr, result: Result<ubtrfs::Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.attributes(&shared.shown(&attributes), TTL),
        Err(errno) => reply.error(errno),
    }
}

/// Answers a change of attributes.
fn answer_changed(shared: &Shared, node: u64, reply: ReplyAttr, result: Result<ubtrfs::Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.attributes(&shared.told(&attributes), shared.told_ttl(node)),
        Err(errno) => reply.error(errno),
    }
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

fn answer_create(shared: &Shared, reply: ReplyCreate, result: Result<Entry, Errno>) {
    let told = |entry: Entry| Entry { attributes_ttl: shared.told_ttl(entry.node), ..entry };
    match result.map(told) {
        Ok(entry) => reply.created(&entry, 0, OpenFlags::KEEP_CACHE),
        Err(errno) => reply.error(errno),
    }
}

fn changes(change: &SetAttr) -> SetAttributes {
    let time = |time: SetTime| match time {
        SetTime::Now => TimeChange::Now,
        SetTime::At(at) => TimeChange::To(ours::timespec(at)),
    };
    SetAttributes {
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime: change.atime.map(time),
        mtime: change.mtime.map(time),
        ctime: change.ctime.map(ours::timespec),
        kill_privileges: change.kill_suidgid,
        kill_group_id: false,
    }
}

impl Filesystem for Server {
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        let _ = self.shared.granted.set(*granted);
        Ok(())
    }

    fn destroy(&self) {
        if let Err(error) = self.shared.end() {
            tracing::error!("the last commit failed: {error}");
        }
    }

    fn at_once(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        if self.is_quick(request) && !ubtrfs::without_waiting(serve) {
            drop(self.count(Kind::Postponed));
        }
    }

    fn lookup(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::Lookup);
        let found = self.inode(parent).and_then(|dir| self.find(dir, name).map_err(|error| errno(&error)));
        match found {
            // A file handle may name what is gone, and that is no name to remember.
            Err(Errno::NOENT) if !matches!(name, b"." | b"..") => reply.negative(TTL),
            found => answer_entry(reply, found.and_then(|id| self.shared.entry(id))),
        }
    }

    fn forget(&self, forgets: &Forgets<'_>) {
        let _timed = self.count(Kind::Forget);
        for (node, lookups) in forgets.iter().filter(|(node, _)| *node != ROOT) {
            if let Ok(id) = self.inode(node) {
                self.engine().forget(id, lookups);
            }
        }
    }

    fn getattr(&self, _: &Caller<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        let _timed = self.count(Kind::GetAttr);
        let found = self.inode(node).and_then(|id| self.engine().attributes(id).map_err(|error| errno(&error)));
        answer_attributes(&self.shared, reply, found);
    }

    fn statx(&self, _: &Caller<'_>, node: u64, _: Option<u64>, _: u32, _: StatxFlags, reply: ReplyStatx) {
        let _timed = self.count(Kind::Statx);
        match self.inode(node).and_then(|id| self.engine().attributes(id).map_err(|error| errno(&error))) {
            Ok(attributes) => {
                let mut shown = ours::statx(&self.shared.numbers, self.shared.block_size, &attributes);
                self.shared.guise().show(&mut shown.attributes);
                reply.statx(&shown, TTL);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(&self, caller: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        let _timed = self.count(Kind::SetAttr);
        let change = match self.shared.guise().wanted(change) {
            Ok(change) => change,
            Err(errno) => return reply.error(errno),
        };
        if self.takes_long(node, &change) {
            let shared = Arc::clone(&self.shared);
            let takes = self.inode(node).is_ok_and(|id| self.takes_group_id(caller, id, change.kill_suidgid));
            return self.slow.run(move || {
                let changed = shared.inode(node).and_then(|id| apply(&shared, id, &change, takes));
                answer_changed(&shared, node, reply, changed);
            });
        }
        answer_changed(&self.shared, node, reply, self.change(caller, node, &change));
    }

    fn readlink(&self, _: &Caller<'_>, node: u64, reply: ReplyData) {
        let _timed = self.count(Kind::ReadLink);
        match self.inode(node).and_then(|id| self.engine().read_link(id).map_err(|error| errno(&error))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn symlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::SymLink);
        let made = self.inode(parent).and_then(|dir| {
            let new = self.shared.new_symlink(caller, target);
            let id = self.engine().create(dir, name, &new).map_err(|error| errno(&error))?;
            self.shared.entry(id)
        });
        answer_entry(reply, made);
    }

    fn mknod(&self, caller: &Caller<'_>, parent: u64, what: &MkNod<'_>, reply: ReplyEntry) {
        let _timed = self.count(Kind::MkNod);
        let made = self.inode(parent).and_then(|dir| {
            let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
            let new = self.shared.new_inode(dir, caller, mode, what.umask, what.rdev)?;
            let id = self.engine().create(dir, what.name, &new).map_err(|error| errno(&error))?;
            self.shared.entry(id)
        });
        answer_entry(reply, made);
    }

    fn mkdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32, umask: u32, reply: ReplyEntry) {
        let _timed = self.count(Kind::MkDir);
        let made = self.inode(parent).and_then(|dir| {
            let new = self.shared.new_inode(dir, caller, mode & !S_IFMT | S_IFDIR, umask, 0)?;
            let id = self.engine().create(dir, name, &new).map_err(|error| errno(&error))?;
            self.shared.entry(id)
        });
        answer_entry(reply, made);
    }

    fn unlink(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::Unlink);
        let done = self.inode(parent).and_then(|dir| self.engine().unlink(dir, name).map_err(|error| errno(&error)));
        answer(reply, done);
    }

    fn rmdir(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::RmDir);
        let done = self.inode(parent).and_then(|dir| self.engine().rmdir(dir, name).map_err(|error| errno(&error)));
        answer(reply, done);
    }

    fn rename(&self, caller: &Caller<'_>, parent: u64, what: &Rename<'_>, reply: ReplyEmpty) {
        use ubtrfs_fuse::RenameFlags as Wanted;
        let _timed = self.count(Kind::Rename);
        if !(Wanted::NOREPLACE | Wanted::EXCHANGE | Wanted::WHITEOUT).contains(what.flags) {
            return reply.error(Errno::INVAL);
        }
        let flags = RenameFlags {
            no_replace: what.flags.contains(Wanted::NOREPLACE),
            exchange: what.flags.contains(Wanted::EXCHANGE),
            whiteout: what.flags.contains(Wanted::WHITEOUT),
            whiteout_owner: (caller.uid, caller.gid),
        };
        let done = self.inode(parent).and_then(|dir| {
            let new_dir = self.inode(what.new_parent)?;
            self.engine().rename(dir, what.name, new_dir, what.new_name, flags).map_err(|error| errno(&error))
        });
        answer(reply, done);
    }

    fn link(&self, _: &Caller<'_>, node: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::Link);
        let linked = self.inode(node).and_then(|id| {
            let dir = self.inode(parent)?;
            self.engine().link(id, dir, name).map_err(|error| errno(&error))?;
            self.engine().reference(id);
            self.shared.entry(id)
        });
        answer_entry(reply, linked);
    }

    /// No file needs opening: the kernel asks this once. But where a subvolume is read-only,
    /// opening to write has to be refused.
    fn open(&self, _: &Caller<'_>, node: u64, what: &Open, reply: ReplyOpen) {
        let _timed = self.count(Kind::Open);
        if !self.engine().has_read_only_subvolumes() {
            return reply.error(Errno::NOSYS);
        }
        let writes = what.flags & OFlags::RWMODE != OFlags::RDONLY;
        match self.inode(node) {
            Ok(id) if writes && self.engine().is_in_read_only_subvolume(id) => reply.error(Errno::ROFS),
            Ok(_) => reply.opened(0, OpenFlags::KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyData) {
        let _timed = self.count(Kind::Read);
        reply.fill(|buffer| {
            let id = self.inode(node)?;
            let read = if what.flags.contains(OFlags::NOATIME) {
                self.engine().read_into_unseen(id, what.offset, buffer)
            } else {
                self.engine().read_into(id, what.offset, buffer)
            };
            read.map_err(|error| errno(&error))
        });
    }

    fn write(&self, caller: &Caller<'_>, node: u64, what: &Write<'_>, reply: ReplyWrite) {
        let _timed = self.count(Kind::Write);
        let is_synchronous = self.inode(node).is_ok_and(|id| self.engine().is_synchronous(id));
        match self.write_to(caller, node, what) {
            Ok(bytes) if is_synchronous => self.sync_inode(node, false, move |result| match result {
                Ok(()) => reply.written(bytes),
                Err(errno) => reply.error(errno),
            }),
            Ok(bytes) => reply.written(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Caller<'_>, _: u64, reply: ReplyStatFs) {
        let _timed = self.count(Kind::StatFs);
        reply.statfs(&ours::statfs(&self.engine().statfs()));
    }

    fn fsync(&self, _: &Caller<'_>, node: u64, _: u64, data_only: bool, reply: ReplyEmpty) {
        let _timed = self.count(Kind::Fsync);
        self.sync_inode(node, data_only, |result| answer(reply, result));
    }

    fn fsyncdir(&self, _: &Caller<'_>, node: u64, _: u64, data_only: bool, reply: ReplyEmpty) {
        let _timed = self.count(Kind::FsyncDir);
        self.sync_inode(node, data_only, |result| answer(reply, result));
    }

    fn syncfs(&self, _: &Caller<'_>, node: u64, reply: ReplyEmpty) {
        let _timed = self.count(Kind::SyncFs);
        self.slowly(node, reply, |engine, _| engine.sync());
    }

    fn setxattr(&self, _: &Caller<'_>, node: u64, what: &SetXattr<'_>, reply: ReplyEmpty) {
        let _timed = self.count(Kind::SetXattr);
        answer(reply, self.inode(node).and_then(|id| self.shared.set_xattr(id, what)));
    }

    fn getxattr(&self, caller: &Caller<'_>, node: u64, name: &[u8], reply: ReplyXattr) {
        let _timed = self.count(Kind::GetXattr);
        if name.starts_with(control::NAMESPACE) {
            return self.get_control(caller, name, reply);
        }
        match self.inode(node).and_then(|id| self.shared.get_xattr(id, name)) {
            Ok(value) => reply.value(&value),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _: &Caller<'_>, node: u64, reply: ReplyXattr) {
        let _timed = self.count(Kind::ListXattr);
        match self.inode(node).and_then(|id| self.shared.list_xattrs(id)) {
            Ok(list) => reply.value(&list),
            Err(errno) => reply.error(errno),
        }
    }

    fn removexattr(&self, _: &Caller<'_>, node: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::RemoveXattr);
        answer(reply, self.inode(node).and_then(|id| self.shared.remove_xattr(id, name)));
    }

    /// Directories are not opened: the kernel keeps their listings, and drops them when names
    /// change.
    fn opendir(&self, _: &Caller<'_>, _: u64, _: &Open, reply: ReplyOpen) {
        let _timed = self.count(Kind::OpenDir);
        if self.shared.has_capability(Capabilities::NO_OPENDIR_SUPPORT) {
            return reply.error(Errno::NOSYS);
        }
        reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR);
    }

    fn readdir(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectory) {
        let _timed = self.count(Kind::ReadDir);
        let listed = self.bound(node, what).and_then(|(dir, last)| {
            let numbers = &self.shared.numbers;
            list(self.engine(), dir, what.offset, last, &mut |row| {
                Ok(match row {
                    Row::Dots { name, id, next } => reply.add(numbers.shown(id), next, S_IFDIR, name),
                    Row::Entry { entry, next } => {
                        let mode = ours::type_bits(entry.file_type);
                        reply.add(numbers.shown(entry.inode), next, mode, &entry.name)
                    }
                })
            })
            .map_err(|error| errno(&error))
        });
        match listed {
            Err(errno) if reply.is_empty() => reply.error(errno),
            Ok(()) if reply.is_empty() => self.end_listing(node, move || reply.done()),
            // What was listed before the error is told now; the error comes again with the next
            // request.
            _ => reply.done(),
        }
    }

    fn readdirplus(&self, _: &Caller<'_>, node: u64, what: &Read, mut reply: ReplyDirectoryPlus) {
        let _timed = self.count(Kind::ReadDirPlus);
        let listed = self.bound(node, what).and_then(|(dir, last)| {
            let numbers = &self.shared.numbers;
            list(self.engine(), dir, what.offset, last, &mut |row| match row {
                Row::Dots { name, id, next } => Ok(reply.add_name(numbers.shown(id), next, S_IFDIR, name)),
                // The kernel has it: to tell its attributes again would only cost time.
                Row::Entry { entry, next } if self.engine().is_referenced(entry.inode) => {
                    let mode = ours::type_bits(entry.file_type);
                    Ok(reply.add_name(numbers.shown(entry.inode), next, mode, &entry.name))
                }
                Row::Entry { entry, next } => {
                    let found = self.engine().lookup(dir, &entry.name).map_err(|error| errno(&error));
                    match found.and_then(|id| self.shared.entry(id).map(|entry| (id, entry))) {
                        Ok((id, told)) => {
                            let fits = reply.add(&told, next, &entry.name);
                            if !fits {
                                self.engine().forget(id, 1);
                            }
                            Ok(fits)
                        }
                        // Gone since it was listed.
                        Err(Errno::NOENT) => Ok(true),
                        // Where there is no waiting: what was added goes now, the rest with another
                        // request.
                        Err(Errno::AGAIN) => Err(Errno::AGAIN.into()),
                        // A damaged inode has a name all the same.
                        Err(_) => {
                            let mode = ours::type_bits(entry.file_type);
                            Ok(reply.add_name(numbers.shown(entry.inode), next, mode, &entry.name))
                        }
                    }
                }
            })
            .map_err(|error| errno(&error))
        });
        match listed {
            Err(errno) if reply.is_empty() => reply.error(errno),
            Ok(()) if reply.is_empty() => self.end_listing(node, move || reply.done()),
            _ => reply.done(),
        }
    }

    fn create(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let _timed = self.count(Kind::Create);
        answer_create(&self.shared, reply, self.open_file(parent, caller, what));
    }

    fn tmpfile(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let _timed = self.count(Kind::TmpFile);
        let made = self.inode(parent).and_then(|dir| {
            let mode = what.mode & !S_IFMT | S_IFREG;
            let new = self.shared.new_inode(dir, caller, mode, what.umask, 0)?;
            let id = self.engine().create_unnamed(dir, &new).map_err(|error| errno(&error))?;
            self.shared.entry(id)
        });
        answer_create(&self.shared, reply, made);
    }

    fn ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        let _timed = self.count(Kind::Ioctl);
        let may = self.shared.may_set(caller, what);
        if self.inode(node).is_ok_and(|id| self.shared.begins_to_forbid(id, what, &may)) {
            return self.forbid(node, what, may, reply);
        }
        if let Some(result) =
            self.inode(node).map_or_else(|errno| Some(Err(errno)), |id| self.shared.flags_ioctl(id, what, &may))
        {
            return self.shared.answer_flags(node, what, result, reply);
        }
        match VolumeIoctl::parse(what.command, what.data) {
            Some(Ok(asked)) => self.answer_about_volume(caller, node, asked, reply),
            Some(Err(error)) => reply.error(errno(&error)),
            None => reply.error(Errno::NOTTY),
        }
    }

    /// What is refused is not refused once for all (as ENOSYS would be): it depends on the mode.
    fn fallocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        let _timed = self.count(Kind::Fallocate);
        answer(reply, self.allocate(caller, node, what));
    }

    fn lseek(&self, _: &Caller<'_>, node: u64, what: &Lseek, reply: ReplyLseek) {
        let _timed = self.count(Kind::Lseek);
        self.seek(node, what, reply);
    }

    /// Shares extents. What can't be shared the kernel copies by reading and writing (not once for
    /// all, as after ENOSYS).
    fn copy_file_range(&self, caller: &Caller<'_>, node: u64, what: &CopyFileRange, reply: ReplyCopy) {
        /// The most that an answer of 32 bits can tell, in whole sectors of any size.
        const NARROW: u64 = u32::MAX as u64 & !0xffff;
        let _timed = self.count(Kind::CopyFileRange);
        let length = if what.wide { what.length } else { what.length.min(NARROW) };
        let shared = self.inode(node).and_then(|source| {
            let target = self.inode(what.node_out)?;
            self.drop_privileges(caller, what.node_out, target)?;
            let engine = self.engine();
            engine.clone_range(source, what.offset_in, target, what.offset_out, length).map_err(|error| errno(&error))
        });
        match shared {
            Ok(bytes) => reply.copied(bytes),
            Err(errno) => reply.error(errno),
        }
    }
}
