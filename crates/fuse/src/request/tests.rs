//! Tests that parse every request from its bytes, and bytes that are no request.

use proptest::prelude::*;
use rustix::fs::OFlags;
use zerocopy::{Immutable, IntoBytes};

use super::*;
use crate::abi::flags::{Capabilities, WriteFlags};
use crate::abi::messages as m;
use crate::abi::{EXT_GROUPS, opcode as op};
use crate::attributes::Timestamp;

const NODE: u64 = 42;
const EXTENDED: Form = Form { setxattr_ext: true };

/// A message with its header; `extensions` come last.
fn message_with(opcode: u32, parts: &[&[u8]], extensions: &[u8]) -> Vec<u8> {
    let body = [&parts.concat(), extensions].concat();
    let header = InHeader {
        len: (IN_HEADER + body.len()) as u32,
        opcode,
        unique: 7,
        nodeid: NODE,
        uid: 1000,
        gid: 100,
        pid: 1,
        extension_words: (extensions.len() / 8) as u16,
        padding: 0,
    };
    [header.as_bytes(), &body].concat()
}

fn message(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
    message_with(opcode, parts, &[])
}

fn bytes<T: IntoBytes + Immutable>(value: &T) -> &[u8] {
    value.as_bytes()
}

/// Asserts that a message is parsed as `pattern`.
macro_rules! parsed {
    ($opcode:expr, [$($part:expr),*], $pattern:pat $(if $guard:expr)?) => {{
        let message = message($opcode, &[$($part),*]);
        let request = Request::parse(&message, EXTENDED).unwrap();
        assert_eq!((request.unique, request.nodeid, request.uid, request.gid, request.pid), (7, NODE, 1000, 100, 1));
        assert!(matches!(request.op, $pattern $(if $guard)?), "{:?}", request.op);
    }};
}

#[test]
fn names() {
    parsed!(op::LOOKUP, [b"name\0"], Operation::Lookup { name: b"name" });
    parsed!(op::UNLINK, [b"name\0"], Operation::Unlink { name: b"name" });
    parsed!(op::RMDIR, [b"name\0"], Operation::RmDir { name: b"name" });
    parsed!(op::REMOVEXATTR, [b"user.x\0"], Operation::RemoveXattr { name: b"user.x" });
    parsed!(op::SYMLINK, [b"name\0", b"to\0"], Operation::SymLink { name: b"name", target: b"to" });
    parsed!(op::READLINK, [], Operation::ReadLink);
    let arg = m::MknodIn { mode: 0o100_644, rdev: 5, umask: 0o22, padding: 0 };
    parsed!(
        op::MKNOD,
        [bytes(&arg), b"n\0"],
        Operation::MkNod(MkNod { name: b"n", mode: 0o100_644, umask: 0o22, rdev: 5 })
    );
    let arg = m::MkdirIn { mode: 0o755, umask: 0o22 };
    parsed!(op::MKDIR, [bytes(&arg), b"n\0"], Operation::MkDir { name: b"n", mode: 0o755, umask: 0o22 });
    let arg = m::RenameIn { newdir: 9 };
    parsed!(op::RENAME, [bytes(&arg), b"a\0b\0"],
        Operation::Rename(Rename { name: b"a", new_parent: 9, new_name: b"b", flags }) if flags.is_empty());
    let arg = m::Rename2In { newdir: 9, flags: 2, padding: 0 };
    parsed!(
        op::RENAME2,
        [bytes(&arg), b"a\0b\0"],
        Operation::Rename(Rename {
            name: b"a",
            new_parent: 9,
            new_name: b"b",
            flags: rustix::fs::RenameFlags::EXCHANGE
        })
    );
    let arg = m::LinkIn { oldnodeid: 9 };
    parsed!(op::LINK, [bytes(&arg), b"n\0"], Operation::Link { node: 9, name: b"n" });
}

#[test]
fn attributes() {
    let arg = m::GetattrIn { flags: 0, dummy: 0, fh: 3 };
    parsed!(op::GETATTR, [bytes(&arg)], Operation::GetAttr { handle: None });
    let arg = m::GetattrIn { flags: 1, ..arg };
    parsed!(op::GETATTR, [bytes(&arg)], Operation::GetAttr { handle: Some(3) });
    let arg = m::StatxIn { getattr_flags: 1, reserved: 0, fh: 3, sx_flags: 0x100, sx_mask: 0xfff };
    parsed!(op::STATX, [bytes(&arg)], Operation::Statx { handle: Some(3), flags: 0x100, mask } if mask.bits() == 0xfff);

    let arg = m::SetattrIn {
        valid: 0,
        fh: 1,
        size: 2,
        atime: -3,
        mtime: 4,
        ctime: 5,
        atimensec: 6,
        mtimensec: 7,
        ctimensec: 8,
        mode: 9,
        uid: 10,
        gid: 11,
        ..Default::default()
    };
    parsed!(op::SETATTR, [bytes(&arg)], Operation::SetAttr(change) if change == SetAttr::default());
    let all = m::SetattrIn { valid: 0xf7f & !(1 << 8), ..arg };
    let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let wanted = SetAttr {
        mode: Some(9),
        uid: Some(10),
        gid: Some(11),
        size: Some(2),
        atime: Some(SetTime::At(at(-3, 6))),
        mtime: Some(SetTime::At(at(4, 7))),
        ctime: Some(at(5, 8)),
        handle: Some(1),
        kill_suidgid: true,
    };
    parsed!(op::SETATTR, [bytes(&all)], Operation::SetAttr(change) if change == wanted);
    let now = m::SetattrIn { valid: 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8, ..arg };
    let wanted = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    parsed!(op::SETATTR, [bytes(&now)], Operation::SetAttr(change) if change == wanted);
}

#[test]
fn files() {
    let arg = m::OpenIn { flags: 0o2, open_flags: 1 };
    parsed!(op::OPEN, [bytes(&arg)], Operation::Open(Open { flags: OFlags::RDWR, kill_suidgid: true }));
    parsed!(op::OPENDIR, [bytes(&arg)], Operation::OpenDir(Open { .. }));
    let arg = m::CreateIn { flags: 0o301, mode: 0o100_600, umask: 0o77, open_flags: 0 };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    parsed!(op::CREATE, [bytes(&arg), b"n\0"],
        Operation::Create(create) if create.name == b"n" && create.flags == flags && create.mode == 0o100_600
            && create.umask == 0o77 && !create.kill_suidgid);
    parsed!(op::TMPFILE, [bytes(&arg), b"/\0"], Operation::TmpFile(Create { mode: 0o100_600, .. }));

    let arg = m::ReadIn { fh: 1, offset: 2, size: 3, read_flags: 2, lock_owner: 4, flags: 0, padding: 0 };
    parsed!(op::READ, [bytes(&arg)], Operation::Read(Read { handle: 1, offset: 2, size: 3, lock_owner: Some(4), .. }));
    let arg = m::ReadIn { read_flags: 0, ..arg };
    parsed!(
        op::READDIR,
        [bytes(&arg)],
        Operation::ReadDir(Read { handle: 1, offset: 2, size: 3, lock_owner: None, .. })
    );
    parsed!(op::READDIRPLUS, [bytes(&arg)], Operation::ReadDirPlus(Read { handle: 1, offset: 2, size: 3, .. }));
    let arg = m::WriteIn { fh: 1, offset: 2, size: 4, write_flags: 7, lock_owner: 5, flags: 1, padding: 0 };
    parsed!(op::WRITE, [bytes(&arg), b"data"],
        Operation::Write(Write { handle: 1, offset: 2, data: b"data", write_flags, lock_owner: Some(5), .. })
            if write_flags == WriteFlags::all());

    let arg = m::ReleaseIn { fh: 1, flags: 2, release_flags: 1, lock_owner: 3 };
    parsed!(op::RELEASE, [bytes(&arg)], Operation::Release(Release { handle: 1, flush: true, lock_owner: 3, .. }));
    parsed!(op::RELEASEDIR, [bytes(&arg)], Operation::ReleaseDir(Release { handle: 1, .. }));
    let arg = m::FsyncIn { fh: 1, fsync_flags: 1, padding: 0 };
    parsed!(op::FSYNC, [bytes(&arg)], Operation::Fsync { handle: 1, data_only: true });
    let arg = m::FsyncIn { fsync_flags: 0, ..arg };
    parsed!(op::FSYNCDIR, [bytes(&arg)], Operation::FsyncDir { handle: 1, data_only: false });
    let arg = m::FlushIn { fh: 1, lock_owner: 2, ..Default::default() };
    parsed!(op::FLUSH, [bytes(&arg)], Operation::Flush { handle: 1, lock_owner: 2 });

    let arg = m::FallocateIn { fh: 1, offset: 2, length: 3, mode: 3, padding: 0 };
    parsed!(op::FALLOCATE, [bytes(&arg)],
        Operation::Fallocate(Fallocate { handle: 1, offset: 2, length: 3, mode }) if mode.bits() == 3);
    let arg = m::LseekIn { fh: 1, offset: 2, whence: 3, padding: 0 };
    parsed!(op::LSEEK, [bytes(&arg)], Operation::Lseek(Lseek { handle: 1, offset: 2, whence: Seek::Data }));
    let arg = m::LseekIn { whence: 4, ..arg };
    parsed!(op::LSEEK, [bytes(&arg)], Operation::Lseek(Lseek { whence: Seek::Hole, .. }));
    let arg = m::CopyFileRangeIn { fh_in: 1, off_in: 2, nodeid_out: 3, fh_out: 4, off_out: 5, len: 1 << 40, flags: 0 };
    for (opcode, is_wide) in [(op::COPY_FILE_RANGE, false), (op::COPY_FILE_RANGE_64, true)] {
        parsed!(opcode, [bytes(&arg)],
            Operation::CopyFileRange(CopyFileRange { handle_in: 1, offset_in: 2, node_out: 3, handle_out: 4, offset_out: 5,
                length: 0x100_0000_0000, wide }) if wide == is_wide);
    }
    let arg = m::IoctlIn { fh: 1, flags: 16, cmd: 2, arg: 3, in_size: 4, out_size: 5 };
    parsed!(
        op::IOCTL,
        [bytes(&arg), b"data"],
        Operation::Ioctl(Ioctl { handle: 1, command: 2, argument: 3, data: b"data", reply_size: 5, .. })
    );
}

#[test]
fn extended_attributes() {
    let arg = m::SetxattrIn { size: 3, flags: 1, setxattr_flags: 1, padding: 0 };
    parsed!(
        op::SETXATTR,
        [bytes(&arg), b"user.x\0", b"v\0w"],
        Operation::SetXattr(SetXattr { name: b"user.x", value: b"v\0w", kill_sgid: true, .. })
    );
    let arg = m::SetxattrInShort { size: 3, flags: 1 };
    let message = message(op::SETXATTR, &[bytes(&arg), b"user.x\0", b"v\0w"]);
    let request = Request::parse(&message, Form::default()).unwrap();
    let Operation::SetXattr(set) = request.op else { panic!() };
    assert_eq!((set.name, set.value, set.kill_sgid), (&b"user.x"[..], &b"v\0w"[..], false));
    let arg = m::GetxattrIn { size: 9, padding: 0 };
    parsed!(op::GETXATTR, [bytes(&arg), b"user.x\0"], Operation::GetXattr { name: b"user.x", size: 9 });
    parsed!(op::LISTXATTR, [bytes(&arg)], Operation::ListXattr { size: 9 });
}

#[test]
fn the_whole_filesystem() {
    parsed!(op::STATFS, [], Operation::StatFs);
    parsed!(op::SYNCFS, [bytes(&m::SyncfsIn::default())], Operation::SyncFs);
    parsed!(op::DESTROY, [], Operation::Destroy);
    parsed!(op::ACCESS, [bytes(&m::AccessIn { mask: 4, padding: 0 })], Operation::Access { mask: 4 });
    parsed!(op::INTERRUPT, [bytes(&m::InterruptIn { unique: 5 })], Operation::Interrupt { unique: 5 });
    parsed!(op::NOTIFY_REPLY, [], Operation::NotifyReply);
    parsed!(op::BMAP, [&[0; 16]], Operation::Unknown { opcode: op::BMAP });
    parsed!(9999, [], Operation::Unknown { opcode: 9999 });
}

#[test]
fn forgets() {
    let list = |message: &[u8]| {
        let Ok(Request { op: Operation::Forget(forgets), .. }) = Request::parse(message, EXTENDED) else { panic!() };
        forgets.iter().collect::<Vec<_>>()
    };
    assert_eq!(list(&message(op::FORGET, &[bytes(&m::ForgetIn { nlookup: 3 })])), [(NODE, 3)]);
    let count = m::BatchForgetIn { count: 2, dummy: 0 };
    let one = m::ForgetOne { nodeid: 1, nlookup: 2 };
    let two = m::ForgetOne { nodeid: 3, nlookup: 4 };
    assert_eq!(list(&message(op::BATCH_FORGET, &[bytes(&count), bytes(&one), bytes(&two)])), [(1, 2), (3, 4)]);
    let too_many = m::BatchForgetIn { count: 3, dummy: 0 };
    let message = message(op::BATCH_FORGET, &[bytes(&too_many), bytes(&one), bytes(&two)]);
    assert_eq!(Request::parse(&message, EXTENDED).unwrap_err(), ParseError::Short(op::BATCH_FORGET));
}

#[test]
fn init_has_two_lengths() {
    let short = m::InitInShort { major: 7, minor: 31, max_readahead: 4096, flags: 0x21 };
    parsed!(op::INIT, [bytes(&short)], Operation::Init(init) if init.minor == 31 && init.capabilities.bits() == 0x21);
    let long = m::InitIn { major: 7, minor: 45, flags: 1 << 30, flags2: 1 << 2, ..Default::default() };
    let wanted = Capabilities::INIT_EXT | Capabilities::CREATE_SUPP_GROUP;
    parsed!(op::INIT, [bytes(&long)], Operation::Init(init) if init.capabilities == wanted);
    let lying = m::InitInShort { flags: 1 << 30, ..short };
    let message = message(op::INIT, &[bytes(&lying)]);
    assert_eq!(Request::parse(&message, EXTENDED).unwrap_err(), ParseError::Short(op::INIT));
}

/// An extension with its header, padded.
fn extension(kind: u32, body: &[u8]) -> Vec<u8> {
    let header = m::ExtHeader { size: 8 + body.len() as u32, kind };
    let mut bytes = [header.as_bytes(), body].concat();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

#[test]
fn groups_come_as_an_extension() {
    let arg = m::MkdirIn { mode: 0o755, umask: 0 };
    let parts: [&[u8]; 2] = [bytes(&arg), b"name\0"];
    let numbers = [2u32, 1234, 5678];
    let extensions = [extension(1, b"a context"), extension(EXT_GROUPS, numbers.as_bytes())].concat();
    let message = message_with(op::MKDIR, &parts, &extensions);
    let request = Request::parse(&message, EXTENDED).unwrap();
    assert!(matches!(request.op, Operation::MkDir { name: b"name", .. }));
    let caller = request.caller();
    assert_eq!(caller.groups().collect::<Vec<_>>(), [1234, 5678]);
    assert!(caller.is_in_group(1234) && caller.is_in_group(100) && !caller.is_in_group(7));

    let too_many = [3u32, 1234, 5678];
    let message = message_with(op::MKDIR, &parts, &extension(EXT_GROUPS, too_many.as_bytes()));
    assert_eq!(Request::parse(&message, EXTENDED).unwrap_err(), ParseError::Extension(op::MKDIR));
    // A size of zero must not be read over and over.
    let message = message_with(op::MKDIR, &parts, &[0; 16]);
    assert_eq!(Request::parse(&message, EXTENDED).unwrap_err(), ParseError::Extension(op::MKDIR));
}

#[test]
fn malformed_requests_are_errors() {
    let error = |opcode, parts: &[&[u8]]| Request::parse(&message(opcode, parts), EXTENDED).unwrap_err();
    assert_eq!(Request::parse(b"", EXTENDED).unwrap_err(), ParseError::Length);
    assert_eq!(Request::parse(&message(op::STATFS, &[])[..39], EXTENDED).unwrap_err(), ParseError::Length);
    assert_eq!(
        Request::parse(&[message(op::STATFS, &[]), vec![0]].concat(), EXTENDED).unwrap_err(),
        ParseError::Length
    );
    assert_eq!(error(op::LOOKUP, &[b"endless"]), ParseError::Name(op::LOOKUP));
    assert_eq!(error(op::LOOKUP, &[b"\0"]), ParseError::Name(op::LOOKUP));
    assert_eq!(error(op::RENAME2, &[&[0; 16], b"one\0"]), ParseError::Name(op::RENAME2));
    assert_eq!(error(op::WRITE, &[&[0; 39]]), ParseError::Short(op::WRITE));
    let write = m::WriteIn { size: 5, ..Default::default() };
    assert_eq!(error(op::WRITE, &[bytes(&write), b"four"]), ParseError::Short(op::WRITE));
    let seek = m::LseekIn { whence: 1, ..Default::default() };
    assert_eq!(error(op::LSEEK, &[bytes(&seek)]), ParseError::Value(op::LSEEK));
    let batch = m::BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert_eq!(error(op::BATCH_FORGET, &[bytes(&batch)]), ParseError::Value(op::BATCH_FORGET));
}

/// A ring delivers the three pieces apart, the second padded.
#[test]
fn pieces_that_arrive_apart() {
    let whole = message(op::MKDIR, &[bytes(&m::MkdirIn { mode: 0o755, umask: 0 }), b"name\0"]);
    let header = super::header(&whole).unwrap();
    let mut fixed = [0; 128];
    fixed[..8].copy_from_slice(&whole[40..48]);
    let request = Request::assemble(&header, &fixed, &whole[48..], EXTENDED).unwrap();
    assert!(matches!(request.op, Operation::MkDir { name: b"name", mode: 0o755, .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes give a request or an error, and what a request borrows can be iterated to its end.
    #[test]
    fn bytes_never_panic(
        opcode in prop_oneof![0u32..56, any::<u32>()],
        words in prop_oneof![Just(0u16), 0u16..8, any::<u16>()],
        body in prop::collection::vec(prop_oneof![Just(0u8), 0u8..10, any::<u8>()], 0..200),
        setxattr_ext: bool,
        honest: bool,
    ) {
        let mut message = message(opcode, &[&body]);
        message[36..38].copy_from_slice(&words.to_ne_bytes());
        if !honest {
            message.truncate(message.len() * 3 / 4);
        }
        if let Ok(request) = Request::parse(&message, Form { setxattr_ext }) {
            prop_assert!(request.caller().groups().count() * 4 <= body.len());
            if let Operation::Forget(forgets) = request.op {
                prop_assert!(forgets.iter().count() <= body.len());
            }
        }
    }
}
