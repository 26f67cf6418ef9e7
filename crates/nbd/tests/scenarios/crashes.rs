//! Tests with a server that crashes again and again, and loses any of the writes that were not
//! flushed.

use std::time::Duration;

use ubtrfs_random::Rng;
use ubtrfs_testkit::seeds::many_seeds;

use crate::{BLOCK, client, read, server, write, write_fua};

const WRITERS: u64 = 4;
/// Blocks of each writer.
const BLOCKS: u64 = 64;
const STEPS: usize = 300;
/// The timeout never ends, since the server is back at once.
const LONG: Duration = Duration::from_secs(600);

/// The bytes that a block may have on the disk: the last flushed ones, or any written since.
type Allowed = Vec<Vec<u8>>;

/// This is invariant 32.
#[test]
fn nothing_acknowledged_is_lost_by_a_server_that_loses_what_it_can() {
    for seed in many_seeds(3, 5) {
        let dir = tempfile::tempdir().unwrap();
        // The export is recognised by its first block.
        let server = server(dir.path(), 1 + WRITERS * BLOCKS);
        let client = client(&server, LONG);
        let allowed: Vec<Allowed> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let client = &client;
                    scope.spawn(move || work(client, 1 + number * BLOCKS, Rng::new(seed * 100 + number)))
                })
                .collect();
            let mut rng = Rng::new(seed);
            let mut next = 20;
            while writers.iter().any(|writer| !writer.is_finished()) {
                if server.writes() >= next {
                    server.crash(&mut rng);
                    next = server.writes() + 10 + rng.below(100);
                }
                std::thread::yield_now();
            }
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        drop(client);
        server.crash(&mut Rng::new(seed + 1));
        let disk = server.durable();
        for (number, block) in (1..).zip(allowed.iter().flatten()) {
            let found = disk[(number * BLOCK) as usize];
            assert!(block.contains(&found), "seed {seed}, block {number}: {found} is none of {block:?}");
        }
    }
}

/// Writes and flushes blocks of its own, and reads what it wrote.
fn work(client: &ubtrfs_nbd::Client, first: u64, mut rng: Rng) -> Allowed {
    let mut allowed: Allowed = vec![vec![0]; BLOCKS as usize];
    for step in 0..STEPS {
        let start = rng.below(BLOCKS);
        let count = 1 + rng.below(8).min(BLOCKS - start - 1);
        match rng.below(8) {
            0 => {
                client.flush().unwrap();
                for block in &mut allowed {
                    block.drain(..block.len() - 1);
                }
            }
            1 => assert_eq!(read(client, first + start).unwrap(), *allowed[start as usize].last().unwrap()),
            2 => {
                if let Err(error) = client.trim((first + start) * BLOCK, count * BLOCK) {
                    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "the server has crashed: {error}");
                }
                // The block may be zero, or have its old content.
                for block in &mut allowed[start as usize..(start + count) as usize] {
                    block.push(0);
                }
                write(client, first + start, count, 0).unwrap();
            }
            3 if client.has_fua() => {
                write_fua(client, first + start, count, step as u8).unwrap();
                allowed[start as usize..(start + count) as usize].fill(vec![step as u8]);
            }
            _ => {
                let byte = step as u8;
                write(client, first + start, count, byte).unwrap();
                for block in &mut allowed[start as usize..(start + count) as usize] {
                    block.push(byte);
                }
            }
        }
    }
    allowed
}

#[test]
fn a_client_that_writes_a_lot_flushes_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 80 << 8);
    let client = client(&server, LONG);
    for round in 0..2 {
        for at in 0..20 {
            write(&client, 1 + at * 1000, 1000, round).unwrap();
        }
    }
    assert!(server.flushes() > 0, "what is kept for a crash would need all the memory");
}

/// The server has dropped the writes of a flush that failed, although reads show them: they are
/// written again before anything else succeeds.
#[test]
fn what_a_failed_flush_was_for_is_written_again_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 20);
    let client = client(&server, LONG);
    write(&client, 1, 4, 1).unwrap();
    client.flush().unwrap();
    write(&client, 3, 4, 2).unwrap();
    server.fail_next_flush();
    assert!(client.flush().is_err());
    assert!(write(&client, 8, 1, 3).is_err() && client.flush().is_err(), "it counts as lost");
    assert_eq!(read(&client, 3).unwrap(), 2);
    client.write_again();
    write(&client, 6, 4, 4).unwrap();
    client.flush().unwrap();
    drop(client);
    let disk = server.durable();
    let blocks: Vec<u8> = (0..11).map(|block| disk[(block * BLOCK) as usize]).collect();
    assert_eq!(blocks, [0, 1, 1, 2, 2, 2, 4, 4, 4, 4, 0]);
}

/// A flush that was under way, or waited, when another one failed proves nothing about the writes
/// of the failed one. This is invariant 32, too.
#[test]
fn what_a_failed_flush_was_for_is_not_forgotten_by_another_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 20);
    let client = client(&server, LONG);
    write(&client, 1, 4, 1).unwrap();
    server.fail_next_flush();
    // Both flushes are requested while this is being written.
    server.slow_down(2 * BLOCK);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&client, 8, 1, 2));
        let flushes = [(); 2].map(|()| scope.spawn(|| client.flush()));
        let succeeded = flushes.into_iter().map(|flush| flush.join().unwrap().is_ok());
        assert_eq!(succeeded.filter(|is_ok| *is_ok).count(), 0, "both were asked for after the first write");
        drop(writer.join().unwrap());
    });
    server.slow_down(0);
    client.write_again();
    client.flush().unwrap();
    drop(client);
    let disk = server.durable();
    assert_eq!([1, 2, 3, 4].map(|block| disk[(block * BLOCK) as usize]), [1; 4]);
}
