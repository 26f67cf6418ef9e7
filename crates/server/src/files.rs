//! Opening, reading, writing and allocating of files.

use std::sync::Arc;

use ubtrfs::scheduling::DeferredRead;
use ubtrfs::volume::DirectRead;
use ubtrfs::{Filesystem as Engine, InodeId, SetAttributes, WriteAt};
use ubtrfs_format::posix::{S_IFMT, S_IFREG, SET_ID};
use ubtrfs_fuse::abi::flags::WriteFlags;
use ubtrfs_fuse::reply::{FileRead, FileReads, ReplyEmpty};
use ubtrfs_fuse::request::{Create, Fallocate, Read, Write};
use ubtrfs_fuse::{Caller, Entry, Errno, FallocateFlags, OFlags};

use crate::answers::answer;
use crate::server::Server;
use crate::shared::errno;
use crate::users_pool::User;

impl Server {
    pub(crate) fn open_file(&self, parent: u64, caller: &Caller<'_>, what: &Create<'_>) -> Result<Entry, Errno> {
        let dir = self.inode(parent)?;
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        let new = self.shared().new_inode(dir, caller, mode, what.umask, 0)?;
        match self.engine().directories().create(dir, what.name, &new) {
            Ok(id) => self.shared().entry(id),
            Err(error) if error.errno() == Errno::EXIST && !what.flags.contains(OFlags::EXCL) => {
                let id = self.engine().directories().lookup(dir, what.name).map_err(|error| errno(&error))?;
                if what.flags.contains(OFlags::TRUNC) {
                    let changes = SetAttributes {
                        size: Some(0),
                        kill_privileges: what.kill_suidgid,
                        kill_group_id: self.takes_group_id(caller, id, what.kill_suidgid),
                        ..SetAttributes::default()
                    };
                    self.engine().inodes().set_attributes(id, &changes).map_err(|error| {
                        self.engine().references().forget(id, 1);
                        errno(&error)
                    })?;
                }
                self.shared().entry(id)
            }
            Err(error) => Err(errno(&error)),
        }
    }

    /// Answers fallocate(2). For a range that may have many pieces, a thread for long requests does
    /// the work.
    pub(crate) fn answer_fallocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        /// A range of fewer bytes than this has fewer pieces than one step changes.
        const LONG: u64 = 8 << 20;
        let user = (what.length >= LONG).then(|| User::of(caller));
        // A request that is refused since too many are queued must not clear set-id bits.
        let may_come = user.map_or(Ok(()), |user| self.long.check(user));
        let id = match may_come.and_then(|()| self.may_allocate(caller, node, what)) {
            Ok(id) => id,
            Err(errno) => return reply.error(errno),
        };
        let Some(user) = user else { return answer(reply, allocate(self.engine(), id, what)) };
        let (shared, what) = (Arc::clone(self.shared()), *what);
        self.long.run(user, move || answer(reply, allocate(&shared.engine, id, &what)));
    }

    fn may_allocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate) -> Result<InodeId, Errno> {
        let kind = what.mode - FallocateFlags::KEEP_SIZE;
        if !(kind.is_empty() || kind == FallocateFlags::ZERO_RANGE || punches(what)) {
            return Err(Errno::OPNOTSUPP);
        }
        let id = self.inode(node)?;
        self.drop_privileges(caller, node, id)?;
        Ok(id)
    }

    /// Begins to read a file. The ring's thread completes the answer by reading the device.
    pub(crate) fn begin_read(&self, node: u64, what: &Read, buffer: &mut [u8]) -> Result<FileReads, Errno> {
        let seen = !what.flags.contains(OFlags::NOATIME);
        let begun = self.engine().files().begin_read(self.inode(node)?, what.offset, buffer, seen);
        let begun = begun.map_err(|error| errno(&error))?;
        let read = |part: &DeferredRead| {
            let DirectRead { file, at, .. } = &part.from;
            FileRead { file: Arc::clone(file), at: *at, range: part.range.clone() }
        };
        let (length, reads) = (begun.len, begun.missing().iter().map(read).collect());
        let shared = Arc::clone(self.shared());
        let check = move |buffer: &[u8]| begun.is_right(shared.engine().volume(), buffer);
        Ok(FileReads { length, reads, check: Box::new(check) })
    }

    pub(crate) fn write_to(&self, caller: &Caller<'_>, node: u64, what: &Write<'_>) -> Result<u32, Errno> {
        let id = self.inode(node)?;
        let kill = what.write_flags.contains(WriteFlags::KILL_SUIDGID);
        let loses = kill && self.engine().inodes().mode(id).is_ok_and(|mode| mode & SET_ID != 0);
        if loses && self.takes_group_id(caller, id, kill) {
            let changes = SetAttributes { kill_group_id: true, ..SetAttributes::default() };
            self.engine().inodes().set_attributes(id, &changes).map_err(|error| errno(&error))?;
        }
        let is_of_page = what.write_flags.contains(WriteFlags::CACHE);
        // For a page in writeback, the flags may be those of any open file of the inode.
        let appends = what.flags.contains(OFlags::APPEND) && !is_of_page;
        let at = if appends { WriteAt::Appending(what.offset) } else { WriteAt::Offset(what.offset) };
        let direct = what.flags.contains(OFlags::DIRECT) && !is_of_page;
        let written = if direct {
            self.engine().files().write_directly(id, at, what.data, kill)
        } else {
            self.engine().files().write(id, at, what.data, kill)
        };
        let written = match written {
            Err(error) if is_of_page && self.forbids(id, error.errno()) => {
                // The kernel would report the error to every syncfs(2), of all users.
                self.engine().durability().fail_next_fsync(id, error).map_err(|error| errno(&error))?;
                self.discard_pages(node);
                return Ok(u32::try_from(what.data.len()).unwrap_or(u32::MAX));
            }
            written => written.map_err(|error| errno(&error))?,
        };
        if loses {
            self.shared().attributes_changed(node);
        }
        Ok(u32::try_from(written).unwrap_or(u32::MAX))
    }

    /// Returns whether an error says that a file must not be changed, because of its flags or its
    /// subvolume.
    fn forbids(&self, id: InodeId, error: Errno) -> bool {
        match error {
            Errno::PERM => true,
            Errno::ROFS => self.engine().is_in_read_only_subvolume(id),
            _ => false,
        }
    }
}

fn punches(what: &Fallocate) -> bool {
    what.mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

fn allocate(engine: &Engine, id: InodeId, what: &Fallocate) -> Result<(), Errno> {
    let keep_size = what.mode.contains(FallocateFlags::KEEP_SIZE);
    let done = if punches(what) {
        engine.files().punch_hole(id, what.offset, what.length)
    } else if what.mode.contains(FallocateFlags::ZERO_RANGE) {
        engine.files().zero_range(id, what.offset, what.length, keep_size)
    } else {
        engine.files().allocate(id, what.offset, what.length, keep_size)
    };
    done.map_err(|error| errno(&error))
}
