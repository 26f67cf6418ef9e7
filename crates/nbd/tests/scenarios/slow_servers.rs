//! Tests that slow servers and links do not count as away, but those over which nothing moves do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use ubtrfs_random::Rng;
use ubtrfs_testkit::lossy_server::{LossyServer, Refusing};
use ubtrfs_testkit::slow_link::SlowLink;

use crate::{BLOCK, client, client_of, read, server, write};

const LONG: Duration = Duration::from_secs(600);

fn link(dir: &Path, blocks: u64, rate: Option<u64>) -> (LossyServer, SlowLink) {
    let server = server(dir, blocks);
    let link = SlowLink::start(&dir.join("link"), &dir.join("socket"), rate);
    (server, link)
}

/// One request takes longer than a server may be silent, but something moves all the time.
#[test]
fn a_link_that_is_slow_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (server, link) = link(dir.path(), 300, Some(200_000));
    let client = client_of(&link.uri(), Duration::from_secs(6));
    let connections = link.connections();
    write(&client, 1, 256, 7).unwrap();
    let mut bytes = vec![0; 200 * BLOCK as usize];
    client.read(BLOCK, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    client.flush().unwrap();
    assert!(server.durable()[BLOCK as usize..].starts_with(&bytes));
    assert_eq!(link.connections(), connections, "no connection was made again");
}

/// The server gets little at a time, so that it answers often enough.
#[test]
fn a_server_that_is_slow_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 1100);
    let client = client(&server, Duration::from_secs(16));
    let connections = server.connections();
    server.slow_down(400_000);
    write(&client, 1, 1024, 7).unwrap();
    assert_eq!(read(&client, 1024).unwrap(), 7);
    assert_eq!(server.connections(), connections, "no connection was made again");
}

/// Writing the lost data again takes longer than a server may be away.
#[test]
fn a_slow_link_is_kept_while_what_was_lost_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let (server, slow) = link(dir.path(), 600, Some(400_000));
    let client = client_of(&slow.uri(), Duration::from_secs(4));
    for block in [1, 257] {
        write(&client, block, 256, 7).unwrap();
    }
    server.crash(&mut ubtrfs_random::Rng::new(1));
    assert_eq!(read(&client, 1).unwrap(), 7);
    client.flush().unwrap();
    assert!(server.durable()[BLOCK as usize..513 * BLOCK as usize].iter().all(|byte| *byte == 7));
}

/// The queue of a connection over which nothing moves is full, and the client uses a new connection
/// after half of the timeout.
#[test]
fn a_link_that_moves_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (server, link) = link(dir.path(), 1100, None);
    let client = client_of(&link.uri(), Duration::from_secs(4));
    let connections = link.connections();
    link.pause();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&client, 1, 1024, 7));
        while link.connections() == connections {
            std::thread::yield_now();
        }
        link.resume();
        writer.join().unwrap().unwrap();
    });
    client.flush().unwrap();
    assert!(server.durable()[BLOCK as usize..1025 * BLOCK as usize].iter().all(|byte| *byte == 7));
}

#[test]
fn who_writes_does_not_wait_while_nothing_moves() {
    let dir = tempfile::tempdir().unwrap();
    let (server, link) = link(dir.path(), 1 + 48 * 256, None);
    let client = client_of(&link.uri(), LONG);
    let answered = Arc::new(AtomicUsize::new(0));
    link.pause();
    for number in 0..48 {
        let answered = Arc::clone(&answered);
        let data = vec![number as u8; 1 << 20];
        client.write((1 + number * 256) * BLOCK, &[data.into()], move |result| {
            result.unwrap();
            answered.fetch_add(1, SeqCst);
        });
    }
    assert_eq!(answered.load(SeqCst), 0, "nothing is answered yet, and all of it is written");
    link.resume();
    while answered.load(SeqCst) < 48 {
        std::thread::yield_now();
    }
    client.flush().unwrap();
    assert_eq!(server.durable()[(1 + 47 * 256) * BLOCK as usize], 47);
}

/// A request that is never answered fails after a time, while others are answered and succeed.
#[test]
fn a_request_that_alone_gets_no_answer_fails() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 20);
    let client = client(&server, Duration::from_millis(1600));
    write(&client, 1, 1, 7).unwrap();
    server.refuse_reads_of(5 * BLOCK, Refusing::Silently);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| read(&client, 5));
        let mut answered = 0;
        while !refused.is_finished() {
            assert_eq!(read(&client, 1).unwrap(), 7);
            answered += 1;
        }
        assert!(refused.join().unwrap().is_err() && answered > 10, "{answered}");
    });
    write(&client, 2, 1, 8).unwrap();
    client.flush().unwrap();
    assert_eq!(read(&client, 2).unwrap(), 8);
}

/// A server may execute a request although nobody waits for it any more. So a slow discard is
/// waited for, is sent only once, and delays no other request.
#[test]
fn a_slow_discard_is_asked_for_once_and_holds_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4000);
    let client = client(&server, Duration::from_millis(1600));
    let discard = || client.trim(100 * BLOCK, 3000 * BLOCK);
    let connections = server.connections();
    server.delay_discards(Duration::from_millis(1200));
    write(&client, 1, 1, 7).unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(discard);
        let mut answered = 0;
        while !slow.is_finished() {
            write(&client, 2, 80, answered as u8).unwrap();
            assert_eq!(read(&client, 1).unwrap(), 7);
            answered += 1;
        }
        slow.join().unwrap().unwrap();
        assert!(answered > 3, "{answered}");
    });
    assert_eq!((server.discards(), server.connections()), (1, connections));
    // No other requests are sent meanwhile.
    discard().unwrap();
    assert_eq!((server.discards(), server.connections()), (2, connections));
    // A discard that takes longer than the server may be away is not waited for, and not sent
    // again.
    server.delay_discards(Duration::from_millis(2400));
    assert_eq!(discard().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    server.delay_discards(Duration::from_millis(10));
    assert_eq!(read(&client, 1).unwrap(), 7);
    assert_eq!((server.discards(), server.connections()), (3, connections));
    // No other discard is sent before that one is answered: it fails at once, and its range may be
    // reused.
    assert_eq!(discard().unwrap_err().kind(), std::io::ErrorKind::Other);
    assert_eq!((server.discards(), server.connections()), (3, connections));
    while discard().is_err() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.discards(), 4);
    // The same applies when the connection ends.
    server.delay_discards(Duration::from_millis(600));
    std::thread::scope(|scope| {
        let lost = scope.spawn(discard);
        while server.discards() < 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.crash(&mut Rng::new(1));
        assert_eq!(lost.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    });
    assert_eq!(read(&client, 1).unwrap(), 7);
    assert_eq!((server.discards(), server.connections()), (5, 2 * connections));
}

/// A single request without an answer does not take the room of others, although that is small at
/// first.
#[test]
fn a_request_without_an_answer_leaves_the_others_their_room() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4000);
    let client = client(&server, Duration::from_secs(30));
    server.refuse_reads_of(5 * BLOCK, Refusing::Silently);
    let connections = server.connections();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| read(&client, 5));
        // Each write has as many bytes as may be under way at first.
        for round in 0..40 {
            write(&client, 10, 256, round).unwrap();
            assert_eq!(read(&client, 10).unwrap(), round);
        }
        client.flush().unwrap();
        assert!(!refused.is_finished() && server.connections() == connections);
        client.stop_waiting();
        assert!(refused.join().unwrap().is_err());
    });
}

/// A server that ends all connections because of one request counts as away.
#[test]
fn a_request_that_ends_each_connection_fails() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 20);
    let client = client(&server, Duration::from_millis(1600));
    server.refuse_reads_of(5 * BLOCK, Refusing::ByTheEnd);
    assert!(read(&client, 5).is_err());
    assert!(server.connections() < 4 * 40, "without a pause: {}", server.connections());
}

/// What was not durable by then is lost, as the caller that asks for this knows.
#[test]
fn a_server_that_was_away_for_too_long_takes_writes_again_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (server, link) = link(dir.path(), 20, None);
    let client = client_of(&link.uri(), Duration::from_millis(800));
    write(&client, 1, 2, 1).unwrap();
    client.flush().unwrap();
    write(&client, 2, 2, 2).unwrap();
    link.pause();
    assert!(write(&client, 4, 1, 3).is_err());
    client.write_again();
    assert!(write(&client, 4, 1, 3).is_err(), "it is still away");
    server.crash(&mut ubtrfs_random::Rng::new(1));
    link.resume();
    while read(&client, 1).is_err() {
        std::thread::yield_now();
    }
    assert!(write(&client, 4, 1, 3).is_err() && client.flush().is_err(), "what was acknowledged is lost");
    client.write_again();
    write(&client, 4, 1, 4).unwrap();
    client.flush().unwrap();
    let disk = server.durable();
    assert_eq!([1, 4].map(|block| disk[(block * BLOCK) as usize]), [1, 4]);
}
