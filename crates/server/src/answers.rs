//! Makes replies to requests from the results of the engine.

use ubtrfs_fuse::reply::{ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry};
use ubtrfs_fuse::{Entry, Errno, OpenFlags};

use crate::shared::{Shared, TTL};

pub(crate) fn answer_attributes(shared: &Shared, reply: ReplyAttr, result: Result<ubtrfs::Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.attributes(&shared.shown(&attributes), TTL),
        Err(errno) => reply.error(errno),
    }
}

/// Answers a change of attributes.
pub(crate) fn answer_changed(shared: &Shared, node: u64, reply: ReplyAttr, result: Result<ubtrfs::Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.attributes(&shared.attributes_for_kernel(&attributes), shared.attributes_ttl(node)),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn answer_entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn answer_create(shared: &Shared, reply: ReplyCreate, result: Result<Entry, Errno>) {
    let shown = |entry: Entry| Entry { attributes_ttl: shared.attributes_ttl(entry.node), ..entry };
    match result.map(shown) {
        Ok(entry) => reply.created(&entry, 0, OpenFlags::KEEP_CACHE),
        Err(errno) => reply.error(errno),
    }
}
