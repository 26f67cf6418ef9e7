//! Tests of what a client keeps when its server loses it.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod crashes;
mod leases;
mod other_exports;
mod slow_servers;

use std::path::Path;
use std::time::Duration;

use ubtrfs_nbd::{Client, Options, Uri};
use ubtrfs_testkit::lossy_server::LossyServer;

const BLOCK: u64 = 4096;

/// Starts a server with an export of so many blocks of zeros.
fn server(dir: &Path, blocks: u64) -> LossyServer {
    LossyServer::start_with_fua(&dir.join("socket"), vec![0; (blocks * BLOCK) as usize])
}

fn client(server: &LossyServer, timeout: Duration) -> Client {
    client_of(&server.uri(), timeout)
}

fn client_of(uri: &str, timeout: Duration) -> Client {
    let options = Options { read_only: false, timeout, connections: 4, witnesses: vec![0], lease: None };
    Client::open(Uri::parse(uri).unwrap(), &options).unwrap()
}

/// Writes blocks of this byte, and returns when the write is answered.
fn write(client: &Client, block: u64, count: u64, byte: u8) -> std::io::Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let data = vec![byte; (count * BLOCK) as usize];
    client.write(block * BLOCK, &[data.into()], move |result| sender.send(result).unwrap());
    receiver.recv().unwrap()
}

/// The same with FUA, so that the write is durable when this returns.
fn write_fua(client: &Client, block: u64, count: u64, byte: u8) -> std::io::Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let data = vec![byte; (count * BLOCK) as usize];
    client.write_fua(block * BLOCK, &[data.into()], move |result| sender.send(result).unwrap());
    receiver.recv().unwrap()
}

fn read(client: &Client, block: u64) -> std::io::Result<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    client.read(block * BLOCK, &mut bytes).map(|()| bytes[0])
}
