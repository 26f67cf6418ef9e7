//! `SEEK_DATA` and `SEEK_HOLE`.
//!
//! The kernel keeps stores to mappings in its page cache until it writes them back, and it does not
//! write them back before it asks for data and holes. So if an answer would be a hole, the server
//! has the kernel write back that part of the file and then seeks again, since a program's stores
//! there are data. The kernel's WRITEs are requests, so this is done by a thread for which none of
//! them waits. Only some requests may wait for it, since over rings each of them occupies an entry.
//! Others get an answer that is correct for any file: all of it is data.

use std::ops::Range;
use std::sync::Arc;

use ubtrfs::InodeId;
use ubtrfs_fuse::reply::ReplyLseek;
use ubtrfs_fuse::request::{Lseek, Seek};
use ubtrfs_fuse::{Caller, Errno};

use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::users_pool::User;

type Found = Result<u64, Errno>;

fn answer(reply: ReplyLseek, found: Found) {
    match found {
        Ok(offset) => reply.offset(offset),
        Err(errno) => reply.error(errno),
    }
}

/// The range that an answer for a file of this size takes for a hole. `data_after` finds where data
/// begins from an offset on.
fn hole_in(
    whence: Seek,
    offset: u64,
    found: Found,
    size: u64,
    data_after: impl FnOnce(u64) -> Found,
) -> Option<Range<u64>> {
    let hole = match (whence, found) {
        (Seek::Data, Ok(data)) => offset..data,
        (Seek::Data, Err(Errno::NXIO)) => offset..size,
        (Seek::Hole, Ok(hole)) => hole..if hole < size { data_after(hole).unwrap_or(size) } else { size },
        (_, Err(_)) => return None,
    };
    (!hole.is_empty()).then_some(hole)
}

/// The answer for a file of this size whose holes are unknown.
fn without_holes(whence: Seek, offset: u64, size: u64) -> Found {
    match whence {
        _ if offset >= size => Err(Errno::NXIO),
        Seek::Data => Ok(offset),
        Seek::Hole => Ok(size),
    }
}

impl Server {
    /// Answers LSEEK with the offset at which data or a hole begins.
    pub(crate) fn seek(&self, caller: &Caller<'_>, node: u64, what: &Lseek, mut reply: ReplyLseek) {
        // An offset below 0 is taken for the start, as the kernel's btrfs does.
        let offset = if what.offset > i64::MAX as u64 { 0 } else { what.offset };
        let whence = what.whence;
        let shared = self.shared();
        let seeking = shared.inode(node).map(|id| (id, shared.look(id, whence, offset)));
        let (id, found) = match seeking {
            Ok(seeking) => seeking,
            Err(errno) => return reply.error(errno),
        };
        let Some(hole) = shared.hole_in(id, whence, offset, found) else { return answer(reply, found) };
        if !reply.may_wait() {
            let size = shared.engine.inodes().size(id).map_err(|error| errno(&error));
            return answer(reply, size.and_then(|size| without_holes(whence, offset, size)));
        }
        let shared = Arc::clone(shared);
        let look_again = move || answer(reply, shared.look_again(node, id, whence, offset, hole));
        self.notifying.run(User::of(caller), look_again);
    }
}

impl Shared {
    fn look(&self, id: InodeId, whence: Seek, offset: u64) -> Found {
        match whence {
            Seek::Data => self.engine.files().seek_data(id, offset),
            Seek::Hole => self.engine.files().seek_hole(id, offset),
        }
        .map_err(|error| errno(&error))
    }

    /// The hole of an answer, if mappings may have changed something in it.
    fn hole_in(&self, id: InodeId, whence: Seek, offset: u64, found: Found) -> Option<Range<u64>> {
        if self.engine.is_read_only() || self.engine.is_in_read_only_subvolume(id) {
            return None;
        }
        let size = self.engine.inodes().size(id).ok()?;
        hole_in(whence, offset, found, size, |from| self.look(id, Seek::Data, from))
    }

    /// Seeks again after the kernel has written back its pages of a hole, until the hole that is
    /// found is one for which it has done so.
    fn look_again(&self, node: u64, id: InodeId, whence: Seek, offset: u64, mut hole: Range<u64>) -> Found {
        loop {
            let is_invalidated = self.invalidate_range(node, hole.start, hole.end - hole.start);
            let found = self.look(id, whence, offset);
            match self.hole_in(id, whence, offset, found) {
                // This is a later hole, behind data that was a hole before.
                Some(next) if is_invalidated && next.start >= hole.end => hole = next,
                _ => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 100;

    fn hole(whence: Seek, offset: u64, found: Found) -> Option<Range<u64>> {
        hole_in(whence, offset, found, SIZE, |from| if from < 50 { Ok(50) } else { Err(Errno::NXIO) })
    }

    #[test]
    fn answers_that_see_no_hole_are_final() {
        assert_eq!(hole(Seek::Data, 7, Ok(7)), None);
        assert_eq!(hole(Seek::Data, SIZE, Err(Errno::NXIO)), None);
        assert_eq!(hole(Seek::Hole, 7, Ok(SIZE)), None);
        assert_eq!(hole(Seek::Hole, SIZE, Err(Errno::NXIO)), None);
        assert_eq!(hole(Seek::Data, 7, Err(Errno::IO)), None);
    }

    #[test]
    fn without_holes_all_is_data_up_to_the_end() {
        assert_eq!(without_holes(Seek::Data, 7, SIZE), Ok(7));
        assert_eq!(without_holes(Seek::Hole, 7, SIZE), Ok(SIZE));
        for whence in [Seek::Data, Seek::Hole] {
            assert_eq!(without_holes(whence, SIZE, SIZE), Err(Errno::NXIO));
        }
    }

    #[test]
    fn holes_reach_to_the_next_data_or_to_the_end() {
        assert_eq!(hole(Seek::Data, 7, Ok(50)), Some(7..50));
        assert_eq!(hole(Seek::Data, 60, Err(Errno::NXIO)), Some(60..SIZE));
        assert_eq!(hole(Seek::Hole, 7, Ok(10)), Some(10..50));
        assert_eq!(hole(Seek::Hole, 7, Ok(70)), Some(70..SIZE));
    }
}
