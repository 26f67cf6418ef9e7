//! Listings of directories.
//!
//! The kernel caches a listing in its page cache, from the beginning up to the furthest reader, and
//! extends the cache when a program reads on there. Once a program reaches the end, the cache
//! counts as complete, and serves other readers at their positions. Only a reader at the beginning
//! checks whether names have changed since. So if names have changed, the kernel must drop its
//! pages before it gets the end.
//!
//! A process that has a page locked can delay that without a limit, and meanwhile the request that
//! reached the end keeps its entry in a ring. So only a few requests wait for the pages to be
//! dropped, at most one for each directory. The others get an answer that says that there are no
//! more names, but by which the kernel neither takes the cache for complete nor drops anything: it
//! continues to send requests, and one of the next that reach the end waits.

use std::sync::Arc;

use ubtrfs::{DirectoryEntry, InodeId, Result};
use ubtrfs_format::posix::S_IFDIR;
use ubtrfs_format::{DirIndex, TreeId};
use ubtrfs_fuse::Errno;
use ubtrfs_fuse::reply::{ReplyDirectory, ReplyDirectoryPlus};
use ubtrfs_fuse::request::Read;

use crate::positions::{AFTER_DOT, AFTER_DOTS, AT_THE_END, End as ListingEnd, Position};
use crate::server::Server;
use crate::shared::errno;

/// How many entries are fetched at once.
const BATCH: usize = 128;

/// The entry at which a listing that continues at `position` ends.
fn last_of(engine: &ubtrfs::Filesystem, dir: InodeId, position: Position) -> Result<DirIndex> {
    match position.end {
        ListingEnd::At(last) => Ok(last),
        ListingEnd::AsTheLast => engine.directories().listing_end(dir),
        ListingEnd::Begins => engine.directories().begin_listing(dir),
    }
}

impl Server {
    /// Answers READDIR.
    pub(crate) fn list_names(&self, node: u64, what: &Read, mut reply: ReplyDirectory) {
        let listed = self.bound(node, what).and_then(|(dir, next, last)| {
            let numbers = &self.shared().numbers;
            list((self.engine(), numbers.top()), dir, next, last, false, &mut |row| {
                Ok(match row {
                    Row::Dots { name, id, next } => reply.add(numbers.shown(id), next, S_IFDIR, name),
                    Row::Entry { entry, next } => {
                        let mode = entry.file_type.type_bits();
                        reply.add(numbers.shown(entry.inode), next, mode, &entry.name)
                    }
                })
            })
            .map_err(|error| errno(&error))
        });
        match listed {
            Err(errno) if reply.is_empty() => reply.error(errno),
            Ok(()) if reply.is_empty() => self.end_listing(node, reply),
            // The names before the error are answered now; the next request gets the error again.
            _ => reply.done(),
        }
    }

    /// Answers READDIRPLUS.
    pub(crate) fn list_with_attributes(&self, node: u64, what: &Read, mut reply: ReplyDirectoryPlus) {
        let listed = self.bound(node, what).and_then(|(dir, next, last)| {
            let numbers = &self.shared().numbers;
            list((self.engine(), numbers.top()), dir, next, last, true, &mut |row| match row {
                Row::Dots { name, id, next } => Ok(reply.add_name(numbers.shown(id), next, S_IFDIR, name)),
                // The kernel has the inode, so returning its attributes again would only cost time.
                Row::Entry { entry, next } if self.engine().references().is_referenced(entry.inode) => {
                    let mode = entry.file_type.type_bits();
                    Ok(reply.add_name(numbers.shown(entry.inode), next, mode, &entry.name))
                }
                Row::Entry { entry, next } => {
                    let found = self.engine().directories().lookup(dir, &entry.name).map_err(|error| errno(&error));
                    match found.and_then(|id| self.shared().entry(id).map(|entry| (id, entry))) {
                        Ok((id, found)) => {
                            let fits = reply.add(&found, next, &entry.name);
                            if !fits {
                                self.engine().references().forget(id, 1);
                            }
                            Ok(fits)
                        }
                        // The name was deleted after it was listed.
                        Err(Errno::NOENT) => Ok(true),
                        // This happens in non-blocking mode: the answer has the names so far, and
                        // another request gets the rest.
                        Err(Errno::AGAIN) => Err(Errno::AGAIN.into()),
                        // The inode is damaged, but has a name all the same.
                        Err(_) => {
                            let mode = entry.file_type.type_bits();
                            Ok(reply.add_name(numbers.shown(entry.inode), next, mode, &entry.name))
                        }
                    }
                }
            })
            .map_err(|error| errno(&error))
        });
        match listed {
            Err(errno) if reply.is_empty() => reply.error(errno),
            Ok(()) if reply.is_empty() => self.end_listing(node, reply),
            _ => reply.done(),
        }
    }

    /// The directory, the first position that the request asks for, and the entry at which the
    /// listing ends.
    fn bound(&self, node: u64, what: &Read) -> std::result::Result<(InodeId, u64, DirIndex), Errno> {
        let (dir, position) = (self.inode(node)?, Position::of(what.offset));
        let last = last_of(self.engine(), dir, position).map_err(|error| errno(&error))?;
        Ok((dir, position.next, last))
    }

    /// Answers that a directory's listing has reached its end.
    fn end_listing(&self, node: u64, mut end: impl End) {
        let is_whole = self.shared().inode(node).map(|dir| self.shared().engine().directories().is_listing_whole(dir));
        if !matches!(is_whole, Ok(Ok(false))) {
            return end.done();
        }
        let Some(dropping) = self.listings.begin(node).filter(|_| end.may_wait()) else { return end.end_unkept() };
        let shared = Arc::clone(self.shared());
        let drop_pages = move || {
            if shared.invalidate_pages(node)
                && let Ok(dir) = shared.inode(node)
            {
                drop(shared.engine().directories().forget_listings(dir));
            }
        };
        // No name changes until this is answered, since the kernel has the directory locked.
        self.listings.run(dropping, drop_pages, move || end.done());
    }
}

/// The answer to a request that finds no more names.
trait End: Send + 'static {
    fn may_wait(&mut self) -> bool;
    fn done(self);
    fn end_unkept(self);
}

macro_rules! ends {
    ($($reply:ident)*) => {
        $(impl End for $reply {
            fn may_wait(&mut self) -> bool {
                self.may_wait()
            }

            fn done(self) {
                self.done();
            }

            fn end_unkept(self) {
                self.end_unkept();
            }
        })*
    };
}

ends! { ReplyDirectory ReplyDirectoryPlus }

/// A row of a listing, and the offset at which the listing continues after it.
enum Row<'a> {
    /// `.` or `..`, and the inode that it refers to.
    Dots { name: &'static [u8], id: InodeId, next: u64 },
    /// Any other name.
    Entry { entry: &'a DirectoryEntry, next: u64 },
}

/// Lists a directory from the position `next` up to the entry `last`, until `show` says that there
/// is no more room. `looks_up` says that `show` looks up the entries.
fn list(
    (engine, top): (&ubtrfs::Filesystem, TreeId),
    dir: InodeId,
    next: u64,
    last: DirIndex,
    looks_up: bool,
    show: &mut dyn FnMut(Row<'_>) -> Result<bool>,
) -> Result<()> {
    let end = ListingEnd::at(last);
    let offset = |next| Position { next, end }.offset();
    if next < AFTER_DOT && !show(Row::Dots { name: b".", id: dir, next: offset(AFTER_DOT) })? {
        return Ok(());
    }
    if next < AFTER_DOTS {
        let parent = engine.directories().parent_within(top, dir)?;
        if !show(Row::Dots { name: b"..", id: parent, next: offset(AFTER_DOTS) })? {
            return Ok(());
        }
    }
    // The entry of number n is followed by position n + 1: numbers begin at 2, and the first
    // listing continues at 2, too.
    let mut after = DirIndex(next.max(AFTER_DOTS) - 1);
    loop {
        let entries = engine.directories().list(dir, after, last, BATCH)?;
        if looks_up {
            engine.directories().will_look_up(dir, &entries);
        }
        let is_end = entries.len() < BATCH;
        for (rest, entry) in (0..entries.len()).rev().zip(&entries) {
            let is_last = entry.index == last || is_end && rest == 0;
            let next = if is_last { AT_THE_END } else { offset(entry.index.0.saturating_add(1)) };
            if !show(Row::Entry { entry, next })? {
                return Ok(());
            }
            after = entry.index;
        }
        if is_end {
            return Ok(());
        }
    }
}
