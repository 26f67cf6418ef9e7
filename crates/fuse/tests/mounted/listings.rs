//! Tests of what the kernel caches of a directory, depending on the answer at the end of a listing.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ubtrfs_fuse::mount::{Mount, MountOptions};
use ubtrfs_fuse::reply::{ReplyAttr, ReplyDirectory, ReplyDirectoryPlus, ReplyOpen};
use ubtrfs_fuse::request::{Open, Read};
use ubtrfs_fuse::{Attributes, Caller, Config, Filesystem, OpenFlags, ROOT, Session};

use crate::harness::{TRANSPORT, possible, unmount_now};

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];

/// A directory of three names, which the kernel may keep.
#[derive(Default)]
struct Three {
    /// The end of a listing says that the kernel may not keep it.
    unkept: AtomicBool,
    ends: AtomicUsize,
}

macro_rules! list {
    ($self:ident, $what:ident, $reply:ident, $add:ident) => {{
        for (number, name) in NAMES.iter().enumerate().skip($what.offset as usize) {
            let number = number as u64;
            assert!($reply.$add(number + 2, number + 1, REGULAR, name));
        }
        if !$reply.is_empty() {
            return $reply.done();
        }
        $self.ends.fetch_add(1, Ordering::Relaxed);
        assert!($reply.may_wait());
        if $self.unkept.load(Ordering::Relaxed) { $reply.end_unkept() } else { $reply.done() }
    }};
}

impl Filesystem for Three {
    fn getattr(&self, _: &Caller<'_>, _: u64, _: Option<u64>, reply: ReplyAttr) {
        let attributes = Attributes { ino: ROOT, mode: DIRECTORY, nlink: 1, ..Attributes::default() };
        reply.attributes(&attributes, Duration::from_secs(60));
    }

    fn opendir(&self, _: &Caller<'_>, _: u64, _: &Open, reply: ReplyOpen) {
        reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR);
    }

    fn readdir(&self, _: &Caller<'_>, _: u64, what: &Read, mut reply: ReplyDirectory) {
        list!(self, what, reply, add);
    }

    fn readdirplus(&self, _: &Caller<'_>, _: u64, what: &Read, mut reply: ReplyDirectoryPlus) {
        list!(self, what, reply, add_name);
    }
}

#[test]
fn a_listing_is_cached_only_if_its_end_allows_it() {
    if !possible("a_listing_is_cached_only_if_its_end_allows_it") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mount, device) = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    let config = Config { wanted: Config::FULL, transport: TRANSPORT, ..Config::default() };
    let session = Arc::new(Session::establish(device, Three::default(), &config).unwrap());
    let serving = {
        let session = Arc::clone(&session);
        std::thread::spawn(move || session.run())
    };
    let list = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_encoded_bytes());
        assert_eq!(names.collect::<BTreeSet<_>>(), NAMES.map(<[u8]>::to_vec).into());
        session.filesystem().ends.swap(0, Ordering::Relaxed)
    };
    for unkept in [true, false] {
        session.filesystem().unkept.store(unkept, Ordering::Relaxed);
        let asked = [(); 4].map(|()| list());
        assert_eq!(asked, if unkept { [1; 4] } else { [1, 0, 0, 0] });
    }
    unmount_now(&mount);
    serving.join().unwrap().unwrap();
}
