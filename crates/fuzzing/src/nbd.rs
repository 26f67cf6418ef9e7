use std::io::{self, Read, Write};

use ubtrfs_nbd::{Decoder, Error, Expected, Line, negotiate};

/// The first byte of an input: the kind of the rest.
const HANDSHAKE: u8 = 0;
const HANDSHAKE_WITH_TLS: u8 = 1;
const SIMPLE: u8 = 2;
const STRUCTURED: u8 = 3;

/// Cookies below `READS` are those of reads of 16 bytes at 4096, and those from there on, below
/// `REQUESTS`, are those of other requests.
const READS: u64 = 4;
const REQUESTS: u64 = 8;
const READ: u32 = 16;

/// Reads arbitrary bytes as what a server sends: in the handshake, or as replies to some requests.
pub fn nbd(data: &[u8]) {
    let Some((kind, said)) = data.split_first() else { return };
    if *kind <= HANDSHAKE_WITH_TLS {
        let mut server = Server(said);
        if let Ok(export) = negotiate(&mut server, "disk", *kind == HANDSHAKE_WITH_TLS) {
            assert!(i64::try_from(export.size).is_ok() && export.smallest_block.is_power_of_two());
            assert!(export.largest_request >= export.smallest_block && export.largest_request <= 32 << 20);
        }
        return;
    }
    let mut said = said;
    let mut decoder = Decoder::new(*kind == STRUCTURED);
    let expected = |cookie| match cookie {
        0..READS => Some(Expected { at: 4096, reads: Some(READ) }),
        READS..REQUESTS => Some(Expected { at: 0, reads: None }),
        _ => None,
    };
    while let Ok(answer) = decoder.read(&mut said, expected) {
        if let Some((cookie, Ok(bytes))) = answer.map(|answer| (answer.cookie, answer.result)) {
            let wanted = if cookie < READS { READ as usize } else { 0 };
            assert_eq!(bytes.len(), wanted, "of request {cookie}");
        }
    }
}

/// A server that sends these bytes, whatever it receives.
struct Server<'a>(&'a [u8]);

impl Read for Server<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Server<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line for Server<'_> {
    fn start_tls(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The inputs of the corpus, by name.
pub fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    const ACK: u32 = 1;
    const INFO: u32 = 3;
    const UNSUPPORTED: u32 = (1 << 31) + 1;
    const UNKNOWN: u32 = (1 << 31) + 6;
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat();
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let fields = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
        [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &fields, data].concat()
    };
    let export = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &[1, 0x6d]].concat();
    let blocks = [&[0, 3][..], &[1, 4096, 32 << 20].map(u32::to_be_bytes).concat()].concat();
    let name = [&3_u32.to_be_bytes()[..], b"one"].concat();
    let entered = [reply(8, ACK, &[]), reply(7, INFO, &blocks), reply(7, INFO, &export), reply(7, ACK, &[])].concat();
    let unknown =
        [reply(8, ACK, &[]), reply(7, UNKNOWN, b"no"), reply(3, 2, &name), reply(3, 2, &name), reply(3, ACK, &[])];
    let old = [reply(8, UNSUPPORTED, &[]), reply(7, UNSUPPORTED, &[]), export[2..].to_vec()];
    let simple = |errno: u32, cookie: u64, data: &[u8]| {
        [&0x6744_6698_u32.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    };
    let chunk = |flags: u8, kind: u16, cookie: u64, data: &[u8]| {
        let header = [&0x668e_33ef_u32.to_be_bytes()[..], &[0, flags], &kind.to_be_bytes()].concat();
        [&header[..], &cookie.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let at = |at: u64, rest: &[u8]| [&at.to_be_bytes()[..], rest].concat();
    let error = [&5_u32.to_be_bytes()[..], &[0, 3], b"bad"].concat();
    let input = |kind: u8, said: &[Vec<u8>]| [&[kind][..], &said.concat()].concat();
    vec![
        ("handshake", input(HANDSHAKE, &[greeting.clone(), entered.clone()])),
        ("handshake-tls", input(HANDSHAKE_WITH_TLS, &[greeting.clone(), reply(5, ACK, &[]), entered])),
        ("handshake-unknown", input(HANDSHAKE, &[greeting.clone(), unknown.concat()])),
        ("handshake-old", input(HANDSHAKE, &[greeting, old.concat()])),
        (
            "simple",
            input(SIMPLE, &[simple(0, 4, &[]), simple(0, 1, &[7; 16]), simple(28, 5, &[]), simple(0, 0, &[1; 16])]),
        ),
        (
            "structured",
            input(
                STRUCTURED,
                &[
                    chunk(0, 1, 1, &at(4100, &[7; 12])),
                    simple(0, 4, &[]),
                    chunk(0, 1, 2, &at(4096, &[8; 8])),
                    chunk(1, 2, 1, &at(4096, &[0, 0, 0, 4])),
                    chunk(1, 2, 2, &at(4104, &[0, 0, 0, 8])),
                    chunk(1, 0, 5, &[]),
                ],
            ),
        ),
        (
            "structured-errors",
            input(
                STRUCTURED,
                &[
                    chunk(1, (1 << 15) + 1, 1, &error),
                    chunk(0, (1 << 15) + 2, 2, &[&error[..], &at(9, &[])].concat()),
                    chunk(1, 0, 2, &[]),
                ],
            ),
        ),
    ]
}
