//! Tests of the form of replies, and that each request gets one.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::abi::{messages::Dirent, opcode as op};
use crate::filesystem::Filesystem;
use crate::request::Form;

/// Keeps the replies that are sent: number, error, bytes.
#[derive(Default)]
struct Sent(Mutex<Vec<(u64, i32, Vec<u8>)>>);

impl Responder for Sent {
    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) {
        self.0.lock().push((unique, error, parts.iter().flat_map(|part| part.to_vec()).collect()));
    }
}

/// What `answer` sends when it gets a reply for request 7.
fn sent(answer: impl FnOnce(Reply)) -> (i32, Vec<u8>) {
    let responder = Arc::new(Sent::default());
    answer(Reply::new(7, Arc::clone(&responder) as Arc<dyn Responder>));
    let mut sent = responder.0.lock();
    assert_eq!(sent.len(), 1, "one reply");
    let (unique, error, bytes) = sent.remove(0);
    assert_eq!(unique, 7);
    (error, bytes)
}

/// The message that `answer` sends.
fn message<T: FromBytes>(answer: impl FnOnce(Reply)) -> T {
    let (error, bytes) = sent(answer);
    assert_eq!(error, 0);
    T::read_from_bytes(&bytes).expect("of this length")
}

fn entry() -> Entry {
    Entry {
        node: 5,
        generation: 6,
        name_ttl: Duration::new(7, 8),
        attributes_ttl: Duration::new(9, 10),
        attributes: Attributes { ino: 11, size: 12, mode: 0o100_644, rdev: 0x1234_5678, ..Default::default() },
    }
}

#[test]
fn entries_and_attributes() {
    let reported: m::EntryOut = message(|reply| ReplyEntry::new(reply).entry(&entry()));
    assert_eq!((reported.nodeid, reported.generation, reported.attr.ino, reported.attr.size), (5, 6, 11, 12));
    assert_eq!(
        (reported.entry_valid, reported.entry_valid_nsec, reported.attr_valid, reported.attr_valid_nsec),
        (7, 8, 9, 10)
    );
    let reported: m::EntryOut = message(|reply| ReplyEntry::new(reply).negative(Duration::from_secs(3)));
    assert_eq!(reported, m::EntryOut { entry_valid: 3, ..Default::default() });
    let attributes = entry().attributes;
    let reported: m::AttrOut = message(|reply| ReplyAttr::new(reply).attributes(&attributes, Duration::new(1, 2)));
    assert_eq!((reported.attr_valid, reported.attr_valid_nsec, reported.attr.mode), (1, 2, 0o100_644));
    let statx = Statx { attributes, btime: None, flags: 1, flags_mask: 3 };
    let reported: m::StatxOut = message(|reply| ReplyStatx::new(reply).statx(&statx, Duration::ZERO));
    assert_eq!((reported.mask, reported.mode, reported.attributes, reported.attributes_mask), (0x7ff, 0o100_644, 1, 3));
    assert_eq!((reported.rdev_major, reported.rdev_minor), (0x456, 0x12378));
}

#[test]
fn opened_files() {
    let flags = OpenFlags::KEEP_CACHE;
    let reported: m::OpenOut = message(|reply| ReplyOpen::new(reply).opened(3, flags));
    assert_eq!((reported.fh, reported.open_flags), (3, 2));
    let (_, bytes) = sent(|reply| ReplyCreate::new(reply).created(&entry(), 3, flags));
    let (first, second) = m::EntryOut::read_from_prefix(&bytes).unwrap();
    assert_eq!((first.nodeid, m::OpenOut::read_from_bytes(second).unwrap().fh), (5, 3));
}

#[test]
fn data_keeps_to_its_limit() {
    assert_eq!(sent(|reply| ReplyData::new(reply, 3).data(b"four")), (0, b"fou".to_vec()));
    assert_eq!(sent(|reply| ReplyData::new(reply, 5).gather(&[b"one", b"", b"two", b"three"])), (0, b"onetw".to_vec()));
    let filled = sent(|reply| {
        ReplyData::new(reply, 6).fill(|buffer| {
            assert_eq!(buffer.len(), 6);
            buffer[..4].copy_from_slice(b"abcd");
            Ok(4)
        });
    });
    assert_eq!(filled, (0, b"abcd".to_vec()));
    assert_eq!(sent(|reply| ReplyData::new(reply, 2).fill(|_| Ok(9))).1.len(), 2);
    assert_eq!(sent(|reply| ReplyData::new(reply, 2).fill(|_| Err(Errno::IO))), (-5, vec![]));
}

#[test]
fn extended_attributes_fit_or_answer_their_length() {
    let value = |room| sent(|reply| ReplyXattr::new(reply, room).value(b"value"));
    assert_eq!(value(0), (0, vec![5, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(value(4), (-34, vec![]));
    assert_eq!(value(5), (0, b"value".to_vec()));
    assert_eq!(sent(|reply| ReplyXattr::new(reply, 9).length(5)), (-34, vec![]));
}

#[test]
fn copies_and_ioctls() {
    let copied = |wide| sent(|reply| ReplyCopy::new(reply, wide).copied(1 << 32));
    assert_eq!(copied(true).1, (1u64 << 32).to_ne_bytes());
    assert_eq!(copied(false).1, u64::from(u32::MAX).to_le_bytes());
    let (_, bytes) = sent(|reply| ReplyIoctl::new(reply, 2).result(-1, b"ok"));
    assert_eq!((&bytes[..4], &bytes[16..]), (&[255; 4][..], &b"ok"[..]));
    assert_eq!(sent(|reply| ReplyIoctl::new(reply, 1).result(0, b"ok")), (-22, vec![]));
}

#[test]
fn listings_end_at_their_limit() {
    let (_, bytes) = sent(|reply| {
        let mut listing = ReplyDirectory::new(reply, 70);
        assert!(listing.is_empty());
        assert!(listing.add(1, 1, 0o040_755, b"nine long"));
        assert!(!listing.add(2, 2, 0o100_644, b"nine long"), "40 and 40 are more than 70");
        assert!(!listing.add(2, 2, 0o100_644, b"x"), "40 and 32 neither");
        listing.done();
    });
    let (dirent, rest) = Dirent::read_from_prefix(&bytes).unwrap();
    assert_eq!((dirent.ino, dirent.off, dirent.namelen, dirent.kind), (1, 1, 9, 4));
    assert_eq!(&rest[..16], b"nine long\0\0\0\0\0\0\0");
    assert_eq!(bytes.len() % 8, 0);

    let (_, bytes) = sent(|reply| {
        let mut listing = ReplyDirectoryPlus::new(reply, 4096);
        assert!(listing.add_name(1, 1, 0o040_755, b"."));
        assert!(listing.add(&entry(), 2, b"name"));
        listing.done();
    });
    assert_eq!(bytes.len(), 2 * (128 + 24 + 8));
    assert_eq!(m::EntryOut::read_from_bytes(&bytes[..128]).unwrap().nodeid, 0);
    assert_eq!(m::EntryOut::read_from_bytes(&bytes[160..288]).unwrap().nodeid, 5);
    assert_eq!(Dirent::read_from_bytes(&bytes[288..312]).unwrap().ino, 11);
}

#[test]
fn dropped_replies_and_panics_are_errors() {
    assert_eq!(sent(drop), (-5, vec![]));
    assert_eq!(sent(|reply| ReplyEmpty::new(reply).error(Errno::NOSPC)), (-28, vec![]));
    let panicked = sent(|reply| {
        let fill = || ReplyData::new(reply, 4).fill(|_| panic!("asked for"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    });
    assert_eq!(panicked, (-5, vec![]));
}

struct Nothing;
impl Filesystem for Nothing {}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Each message gets one answer, or none if its kind has none.
    #[test]
    fn each_message_gets_one_answer(
        opcode in prop_oneof![0u32..56, any::<u32>()],
        body in prop::collection::vec(prop_oneof![Just(0u8), 0u8..10, any::<u8>()], 0..200),
    ) {
        let header = m::InHeader { len: (40 + body.len()) as u32, opcode, unique: 7, ..Default::default() };
        let bytes = [header.as_bytes(), &body].concat();
        let kept = Arc::new(Sent::default());
        let responder = Arc::clone(&kept) as Arc<dyn Responder>;
        crate::dispatch::message(&Nothing, || {}, &bytes, Form::default(), &responder);
        let silent = matches!(opcode, op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY);
        prop_assert_eq!(kept.0.lock().len(), usize::from(!silent));
    }
}
