//! Listings of directories.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Reply, Waiter};
use crate::abi::messages::{Dirent, EntryOut};
use crate::abi::record_align;
use crate::attributes::Entry;

/// What readdir(3) shows of an entry.
#[derive(Debug, Clone, Copy)]
struct Listed<'a> {
    ino: u64,
    next: u64,
    mode: u32,
    name: &'a [u8],
}

/// The records of a listing, up to a limit of bytes.
#[derive(Debug)]
struct Listing {
    bytes: Vec<u8>,
    limit: usize,
}

impl Listing {
    fn add(&mut self, entry: Option<&EntryOut>, listed: Listed<'_>) -> bool {
        let dirent = Dirent {
            ino: listed.ino,
            off: listed.next,
            namelen: listed.name.len() as u32,
            kind: listed.mode >> 12 & 0xf,
        };
        let entry = entry.map_or(&[][..], IntoBytes::as_bytes);
        let length = record_align(entry.len() + size_of::<Dirent>() + listed.name.len());
        if self.bytes.len() + length > self.limit {
            return false;
        }
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(entry);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(listed.name);
        self.bytes.resize(end, 0);
        true
    }
}

/// An answer that is too short for a record: the kernel finds no name in it, but does not take the
/// listing for complete, as it does after an empty answer.
const NO_NAME: [u8; 8] = [0; 8];

macro_rules! directories {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        #[must_use = "a reply that is dropped answers EIO"]
        pub struct $name {
            reply: Reply,
            listing: Listing,
        }

        impl $name {
            pub(crate) fn new(reply: Reply, limit: u32) -> Self {
                Self { reply, listing: Listing { bytes: Vec::new(), limit: limit as usize } }
            }

            /// The number of bytes that the listing may take.
            pub fn limit(&self) -> usize {
                self.listing.limit
            }

            /// Returns whether nothing was added.
            pub fn is_empty(&self) -> bool {
                self.listing.bytes.is_empty()
            }

            /// Sends what was added. Nothing added means the end of the directory.
            pub fn done(self) {
                self.reply.send(&[&self.listing.bytes]);
            }

            /// Answers that there are no more names, but that the names that the kernel has cached
            /// are no complete listing of the directory, so that other readers continue to send
            /// requests.
            pub fn end_unkept(self) {
                self.reply.send(&[&NO_NAME]);
            }

            /// Returns whether the answer may wait for other requests, as
            /// [`inval_inode`](crate::Notifier::inval_inode) may. If not, it must be given at once:
            /// too many answers wait already, and the requests that they wait for could not arrive.
            pub fn may_wait(&mut self) -> bool {
                self.reply.may_wait(Waiter::Directory)
            }

            /// Answers with an error.
            pub fn error(self, errno: Errno) {
                self.reply.error(errno);
            }
        })*
    };
}

directories! {
    /// Names with their inodes' numbers and types.
    ReplyDirectory
    /// Names with their inodes' attributes; each name is a lookup, too.
    ReplyDirectoryPlus
}

impl ReplyDirectory {
    /// Adds a name. `next` is the offset at which the listing continues after it (not zero); only
    /// the type of `mode` is used. Returns false if the name doesn't fit any more, and then adds
    /// nothing.
    #[must_use]
    pub fn add(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.listing.add(None, Listed { ino, next, mode, name })
    }
}

impl ReplyDirectoryPlus {
    /// Adds a name with its inode; the kernel counts one more lookup of the node. Returns false if
    /// the name doesn't fit any more; then it is neither added nor counted.
    #[must_use]
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let attributes = &entry.attributes;
        let listed = Listed { ino: attributes.ino, next, mode: attributes.mode, name };
        self.listing.add(Some(&entry.to_abi()), listed)
    }

    /// Adds a name alone, without its inode and not counted as a lookup, as "." and ".." must be
    /// added.
    #[must_use]
    pub fn add_name(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.listing.add(Some(&EntryOut::default()), Listed { ino, next, mode, name })
    }
}
