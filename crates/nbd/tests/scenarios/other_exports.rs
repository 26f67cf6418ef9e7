//! Tests with a server that comes back with another export, or not at all.

use std::thread;
use std::time::Duration;

use ubtrfs_nbd::{Client, Options, Uri};
use ubtrfs_random::Rng;
use ubtrfs_testkit::lossy_server::{FLUSH, FUA, READ_ONLY, TRIM, WRITE_ZEROES};

use crate::{BLOCK, client, read, server, write, write_fua};

const LONG: Duration = Duration::from_secs(600);

#[test]
fn an_older_copy_is_neither_read_nor_written() {
    for by_fua in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let server = server(dir.path(), 16);
        let client = client(&server, LONG);
        write(&client, 0, 1, 1).unwrap();
        client.flush().unwrap();
        let old = server.durable();
        if by_fua {
            write(&client, 1, 1, 2).unwrap();
            client.flush().unwrap();
            write_fua(&client, 0, 1, 2).unwrap();
        } else {
            write(&client, 0, 2, 2).unwrap();
            client.flush().unwrap();
        }
        write(&client, 5, 1, 5).unwrap();
        server.come_back_with(old.clone());
        let writes = server.writes();
        for error in [read(&client, 1).unwrap_err(), write(&client, 3, 1, 3).unwrap_err(), client.flush().unwrap_err()]
        {
            assert!(error.to_string().contains("another content"), "{error}");
        }
        assert_eq!((server.writes(), server.durable() == old), (writes, true));
    }
}

#[test]
fn an_empty_export_is_refused_whatever_its_size_is() {
    for blocks in [16, 17] {
        let dir = tempfile::tempdir().unwrap();
        let server = server(dir.path(), 16);
        let client = client(&server, LONG);
        write(&client, 0, 1, 1).unwrap();
        client.flush().unwrap();
        let empty = vec![0; (blocks * BLOCK) as usize];
        server.come_back_with(empty.clone());
        let error = read(&client, 1).unwrap_err();
        assert!(error.to_string().contains("another content"), "{error}");
        assert!(server.durable() == empty, "nothing is written to it");
    }
}

#[test]
fn an_export_that_has_grown_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, LONG);
    write(&client, 0, 16, 1).unwrap();
    client.flush().unwrap();
    let mut grown = server.durable();
    grown.resize(32 * BLOCK as usize, 9);
    server.come_back_with(grown);
    assert_eq!(read(&client, 15).unwrap(), 1);
    write(&client, 15, 1, 2).unwrap();
    client.flush().unwrap();
    let disk = server.durable();
    assert_eq!((client.size(), disk[15 * BLOCK as usize], disk[16 * BLOCK as usize]), (16 * BLOCK, 2, 9));
}

/// Requests that it does not support any more are replaced: zeros are written as bytes, and
/// discards are left out.
#[test]
fn a_server_may_come_back_with_less_than_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 64);
    let client = client(&server, LONG);
    let mut rng = Rng::new(1);
    write(&client, 0, 64, 1).unwrap();
    // The first server took these zeros, and may have lost them.
    write(&client, 8, 32, 0).unwrap();
    assert!(client.can_trim());
    server.hang();
    let zeros = thread::scope(|scope| {
        // These zeros have no answer yet.
        let zeros = scope.spawn(|| write(&client, 40, 20, 0));
        thread::sleep(Duration::from_millis(100));
        server.come_back_without(TRIM | WRITE_ZEROES, 4 << 20, &mut rng);
        zeros.join().unwrap()
    });
    zeros.unwrap();
    write(&client, 60, 4, 0).unwrap();
    client.flush().unwrap();
    let disk = server.durable();
    let is_one = |block: u64| disk[(block * BLOCK) as usize] == 1;
    assert_eq!((0..64).filter(|block| is_one(*block)).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(!client.can_trim());
}

/// The server that comes back is read-only, has no flushes, or is shorter. The client waits until
/// it is as before, or the timeout ends.
#[test]
fn a_server_that_can_not_serve_yet_is_waited_for() {
    for (with, without, blocks) in [(READ_ONLY, 0, 16), (0, FLUSH, 16), (0, 0, 8)] {
        let dir = tempfile::tempdir().unwrap();
        let server = server(dir.path(), 16);
        let client = client(&server, LONG);
        let mut rng = Rng::new(1);
        write(&client, 0, 16, 1).unwrap();
        client.flush().unwrap();
        let disk = server.durable();
        thread::scope(|scope| {
            server.come_back_otherwise(with, without, &mut rng);
            server.come_back_with(disk[..(blocks * BLOCK) as usize].to_vec());
            let (connections, writes) = (server.connections(), server.writes());
            let writer = scope.spawn(|| write(&client, 3, 1, 3).and_then(|()| client.flush()));
            while server.connections() < connections + 3 {
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!((server.writes(), writer.is_finished()), (writes, false), "{with} {without} {blocks}");
            server.come_back_otherwise(without, with, &mut rng);
            server.come_back_with(disk.clone());
            writer.join().unwrap().unwrap();
        });
        assert_eq!(server.durable()[3 * BLOCK as usize], 3);
    }
}

#[test]
fn requests_end_when_a_server_stays_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, Duration::from_secs(2));
    server.come_back_otherwise(READ_ONLY, 0, &mut Rng::new(1));
    let error = write(&client, 2, 1, 2).unwrap_err();
    assert!(error.to_string().contains("away") && error.to_string().contains("read-only"), "{error}");
}

/// Requests that were made before, and those that are made then, are divided into pieces.
#[test]
fn a_server_may_come_back_with_smaller_requests() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 2049);
    let client = client(&server, LONG);
    let all: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 4096 % 251) as u8 + 1).collect();
    let half = all.len() / 2;
    let put = |from: usize| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let data = all[from..].to_vec();
        client.write(BLOCK + from as u64, &[data.into()], move |result| sender.send(result).unwrap());
        receiver
    };
    put(0).recv().unwrap().unwrap();
    server.hang();
    let written = put(half);
    thread::scope(|scope| {
        let shown = scope.spawn(|| {
            let mut shown = vec![0; half];
            client.read(BLOCK, &mut shown).map(|()| shown)
        });
        thread::sleep(Duration::from_millis(100));
        server.come_back_without(0, 40 << 10, &mut Rng::new(1));
        written.recv().unwrap().unwrap();
        assert!(shown.join().unwrap().unwrap() == all[..half]);
    });
    let mut shown = vec![0; all.len()];
    client.read(BLOCK, &mut shown).unwrap();
    assert!(shown == all);
    server.crash(&mut Rng::new(2));
    client.flush().unwrap();
    assert!(server.durable()[BLOCK as usize..] == all);
}

/// A flush follows each write that is to be durable.
#[test]
fn a_server_may_come_back_without_durable_writes() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, LONG);
    write_fua(&client, 0, 1, 1).unwrap();
    server.come_back_otherwise(0, FUA, &mut Rng::new(1));
    for round in 2..10 {
        write_fua(&client, 0, 2, round).unwrap();
        assert_eq!(server.durable()[BLOCK as usize], round);
    }
}

#[test]
fn every_state_that_a_crash_may_leave_is_the_same_export() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, LONG);
    let mut rng = Rng::new(1);
    for round in 1..40 {
        let write = if rng.one_in(3) { write_fua } else { write };
        write(&client, 0, 1, round).unwrap();
        if rng.one_in(3) {
            client.flush().unwrap();
        }
        server.crash(&mut rng);
        assert_eq!(read(&client, 0).unwrap(), round, "what was acknowledged is there again");
    }
}

/// Half of the timeout without an answer counts as a connection that broke.
#[test]
fn a_server_that_hangs_is_left_for_a_new_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, Duration::from_secs(16));
    write(&client, 1, 1, 1).unwrap();
    server.hang();
    write(&client, 2, 1, 2).unwrap();
    client.flush().unwrap();
    let disk = server.durable();
    assert_eq!((disk[BLOCK as usize], disk[2 * BLOCK as usize]), (1, 2));
}

#[test]
fn requests_end_when_the_server_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 16);
    let client = client(&server, Duration::from_secs(2));
    write(&client, 1, 1, 1).unwrap();
    drop(server);
    let error = write(&client, 2, 1, 2).unwrap_err();
    assert!(error.to_string().contains("away"), "{error}");
    assert!(read(&client, 1).is_err() && client.flush().is_err());
    std::fs::remove_file(dir.path().join("socket")).unwrap();
    // The server is back, but what was lost stays lost.
    let back = crate::server(dir.path(), 16);
    let found = std::iter::repeat_with(|| read(&client, 1)).find_map(Result::ok);
    assert_eq!(found, Some(0));
    assert!(client.flush().unwrap_err().to_string().contains("lost"));
    assert_eq!(back.writes(), 0);
}

#[test]
fn an_export_that_takes_less_than_a_block_at_a_time_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 20);
    server.come_back_without(0, 2048, &mut Rng::new(1));
    let options = Options { read_only: true, timeout: LONG, connections: 1, witnesses: vec![0], lease: None };
    let refused = Client::open(Uri::parse(server.uri()).unwrap(), &options).err().unwrap();
    assert!(refused.to_string().contains("2048 bytes at a time"), "{refused:?}");
}
