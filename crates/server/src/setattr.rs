//! SETATTR: changes of attributes and sizes.

use std::sync::Arc;

use ubtrfs::{InodeId, SetAttributes, TimeChange};
use ubtrfs_format::posix::{S_IFMT, S_IFREG};
use ubtrfs_fuse::reply::ReplyAttr;
use ubtrfs_fuse::request::{SetAttr, SetTime};
use ubtrfs_fuse::{Caller, Errno};

use crate::answers::answer_changed;
use crate::attributes::timespec;
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::users_pool::User;

impl Server {
    /// Answers a change of attributes. If it takes several commits, a thread of the pool does it.
    pub(crate) fn set_attributes(&self, caller: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        let change = match self.shared().ownership().wanted(change) {
            Ok(change) => change,
            Err(errno) => return reply.error(errno),
        };
        if self.takes_long(node, &change) {
            let (shared, user) = (Arc::clone(self.shared()), User::of(caller));
            if let Err(errno) = self.long.check(user) {
                return reply.error(errno);
            }
            let takes = self.inode(node).is_ok_and(|id| self.takes_group_id(caller, id, change.kill_suidgid));
            return self.long.run(user, move || {
                let changed = shared.inode(node).and_then(|id| apply(&shared, id, &change, takes));
                answer_changed(&shared, node, reply, changed);
            });
        }
        answer_changed(self.shared(), node, reply, self.change(caller, node, &change));
    }

    fn change(&self, caller: &Caller<'_>, node: u64, change: &SetAttr) -> Result<ubtrfs::Attributes, Errno> {
        let id = self.inode(node)?;
        let nothing = SetAttr { handle: change.handle, ..SetAttr::default() };
        if *change == nothing {
            return self.change_of_nothing(caller, id);
        }
        // truncate(2), unlike ftruncate(2), does not change the times of a file that has the size
        // already. A truncation to zero bytes can't be distinguished from O_TRUNC.
        let only_size = SetAttr { size: change.size, handle: None, ..nothing };
        if *change == only_size && change.size != Some(0) {
            let attributes = self.engine().inodes().attributes(id).map_err(|error| errno(&error))?;
            if change.size == Some(attributes.size) && attributes.mode & S_IFMT == S_IFREG {
                self.engine().inodes().check_resizable(id).map_err(|error| errno(&error))?;
                return Ok(attributes);
            }
        }
        apply(self.shared(), id, change, self.takes_group_id(caller, id, change.kill_suidgid))
    }

    /// Returns whether a change truncates so much that it takes several commits.
    fn takes_long(&self, node: u64, change: &SetAttr) -> bool {
        let in_steps = |size| self.inode(node).is_ok_and(|id| self.engine().files().is_truncated_in_steps(id, size));
        change.size.is_some_and(in_steps)
    }
}

fn apply(shared: &Shared, id: InodeId, change: &SetAttr, kill_group_id: bool) -> Result<ubtrfs::Attributes, Errno> {
    let changes = SetAttributes { kill_group_id, ..changes(change) };
    shared.engine.inodes().put_attributes(id, &changes).map_err(|error| errno(&error))
}

fn changes(change: &SetAttr) -> SetAttributes {
    let time = |time: SetTime| match time {
        SetTime::Now => TimeChange::Now,
        SetTime::At(at) => TimeChange::To(timespec(at)),
    };
    SetAttributes {
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime: change.atime.map(time),
        mtime: change.mtime.map(time),
        ctime: change.ctime.map(timespec),
        kill_privileges: change.kill_suidgid,
        kill_group_id: false,
        btime: None,
    }
}
