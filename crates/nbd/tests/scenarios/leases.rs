//! A writer with a lease sends nothing after its end (invariant 55).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use ubtrfs_nbd::{Access, Client, Clock, Holder, Lease, Lost, Options, Uri};
use ubtrfs_testkit::slow_link::SlowLink;

use crate::{BLOCK, server};

const LONG: Duration = Duration::from_secs(600);
/// Writes of a MiB each.
const WRITES: u64 = 24;
const MEGABYTE: u64 = 1 << 20;

/// A clock that is set by hand.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(SeqCst))
    }
}

/// A holder that has lost the export, or extends the lease.
struct Asked {
    lease: Weak<Lease>,
    is_lost: bool,
    times: AtomicU64,
}

impl Holder for Asked {
    fn hold(&self, export: &mut dyn Access) -> Result<(), Lost> {
        self.times.fetch_add(1, SeqCst);
        assert_eq!(export.read(0, 4096)?, vec![0; 4096]);
        if self.is_lost {
            return Err(Lost::To("somebody".into()));
        }
        export.write(0, vec![0; 4096])?;
        let lease = self.lease.upgrade().unwrap();
        lease.end_at(lease.now() + Duration::from_secs(100));
        Ok(())
    }
}

/// Queues writes while a link moves nothing and the lease ends. Returns how many of them the server
/// got by then, their results, and how many it got in the end.
fn write_beyond_the_lease(is_leased: bool, is_lost: bool) -> (u64, Vec<io::Result<()>>, u64) {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 1 + WRITES * 256);
    let link = SlowLink::start(&dir.path().join("link"), &dir.path().join("socket"), None);
    let hands = Arc::new(Hands::default());
    let lease = Arc::new(Lease::new(hands.clone()));
    let holder = Arc::new(Asked { lease: Arc::downgrade(&lease), is_lost, times: AtomicU64::new(0) });
    let weak: Weak<dyn Holder> = Arc::downgrade(&holder) as _;
    lease.is_held_by(weak);
    let leased = is_leased.then(|| lease.clone());
    let options = Options { read_only: false, timeout: LONG, connections: 4, witnesses: vec![0], lease: leased };
    let client = Client::open(Uri::parse(link.uri()).unwrap(), &options).unwrap();
    lease.end_at(Duration::from_secs(15));
    link.pause();
    let (sender, receiver) = channel();
    for number in 0..WRITES {
        let (sender, data) = (sender.clone(), vec![1 + number as u8; MEGABYTE as usize]);
        client.write(BLOCK + number * MEGABYTE, &[data.into()], move |result| sender.send(result).unwrap());
    }
    // Some of the data gets into the buffers of the connections.
    thread::sleep(Duration::from_millis(300));
    hands.0.store(20, SeqCst);
    let before = server.writes();
    link.resume();
    let results: Vec<_> = receiver.iter().take(WRITES as usize).collect();
    assert_eq!(holder.times.load(SeqCst) > 0, is_leased, "who has the lease is asked when it has ended");
    (before, results, server.writes())
}

#[test]
fn nothing_is_sent_after_a_lease_has_ended() {
    let (before, results, after) = write_beyond_the_lease(true, true);
    assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.to_string().contains("somebody"))));
    assert_eq!((before, after), (0, 0), "invariant 55: nothing that was queued has arrived");
    // Without a lease all of it arrives, so the test can distinguish the two.
    let (before, results, after) = write_beyond_the_lease(false, true);
    assert!(results.iter().all(Result::is_ok) && before == 0 && after >= WRITES);
}

#[test]
fn everything_is_sent_when_there_is_a_lease_again() {
    let (before, results, after) = write_beyond_the_lease(true, false);
    assert!(results.iter().all(Result::is_ok) && before == 0 && after >= WRITES);
}
