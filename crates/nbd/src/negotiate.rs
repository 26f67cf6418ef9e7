//! The handshake: TLS, structured replies, the export and its limits. The size of everything that
//! the server sends is bounded.

use std::io::{Read, Write};

use ubtrfs_errors::sentence;

use crate::abi::{
    FIXED_NEWSTYLE, GREETING, INFO_BLOCK_SIZE, INFO_EXPORT, MAX_PAYLOAD, MAX_STRING, NO_ZEROES, OLD_MAGIC,
    OPT_EXPORT_NAME, OPT_GO, OPT_LIST, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTION_MAGIC, OPTION_REPLY_MAGIC, REP_ACK,
    REP_ERR_TLS_REQD, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_ERROR, REP_INFO, REP_SERVER, readable,
};
use crate::error::Error;

/// The longest reply to an option that is read.
const MAX_REPLY: usize = 64 << 10;
/// How many replies there may be to one option.
const MAX_REPLIES: usize = 1024;
/// How many names of exports are shown.
const MAX_NAMES: usize = 64;

/// The connection as the handshake sees it.
pub trait Line: Read + Write {
    /// Encrypts everything from now on.
    fn start_tls(&mut self) -> Result<(), Error>;
}

/// What the server says about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size in bytes.
    pub size: u64,
    /// Its flags: what it supports.
    pub flags: u16,
    /// Addresses and lengths of requests are multiples of this, a power of two.
    pub smallest_block: u32,
    /// The most bytes of one request.
    pub largest_request: u32,
    /// Whether reads are answered by structured replies.
    pub structured: bool,
}

/// Executes the handshake, after which requests can be sent.
pub fn negotiate(line: &mut impl Line, name: &str, tls: bool) -> Result<Export, Error> {
    let no_zeroes = greet(line)?;
    if tls {
        match ask(line, OPT_STARTTLS, &[], |_, _| Ok(()))? {
            Reply::Done => line.start_tls()?,
            Reply::Failed(_, said) => return Err(Error::NoTls { said }),
        }
    }
    let structured = match ask(line, OPT_STRUCTURED_REPLY, &[], |_, _| Ok(()))? {
        Reply::Done => true,
        Reply::Failed(REP_ERR_TLS_REQD, _) => return Err(Error::TlsRequired),
        Reply::Failed(..) => false,
    };
    let mut export = Export { size: 0, flags: 0, smallest_block: 1, largest_request: MAX_PAYLOAD, structured };
    let mut is_known = false;
    let mut wanted = with_length(name);
    wanted.extend_from_slice(&1_u16.to_be_bytes());
    wanted.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    let answered = ask(line, OPT_GO, &wanted, |kind, data| {
        if kind == REP_INFO {
            is_known |= export.learn(data)?;
        }
        Ok(())
    })?;
    match answered {
        Reply::Done if is_known => {}
        Reply::Done => return Err(Error::Protocol("it says nothing of the export".into())),
        Reply::Failed(REP_ERR_UNSUP, _) => export.enter_by_name(line, name, no_zeroes)?,
        Reply::Failed(REP_ERR_UNKNOWN, said) => {
            // The names are only for the message; without them the error is the same.
            let exports = list(line).unwrap_or_default();
            return Err(Error::NoExport { name: name.into(), exports, said });
        }
        Reply::Failed(REP_ERR_TLS_REQD, _) => return Err(Error::TlsRequired),
        Reply::Failed(_, said) => return Err(Error::Refused { what: "the export", said }),
    }
    export.check()?;
    Ok(export)
}

impl Export {
    /// Reads an INFO reply. Returns whether it describes the export.
    fn learn(&mut self, data: &[u8]) -> Result<bool, Error> {
        let Some((kind, data)) = data.split_first_chunk::<2>() else { return Err(bad("an empty information")) };
        match (u16::from_be_bytes(*kind), data) {
            (INFO_EXPORT, [size @ .., high, low]) if size.len() == 8 => {
                self.size = number(size);
                self.flags = u16::from_be_bytes([*high, *low]);
                Ok(true)
            }
            (INFO_BLOCK_SIZE, data) if data.len() == 12 => {
                let largest = number(&data[8..]) as u32;
                self.smallest_block = number(&data[..4]) as u32;
                self.largest_request = largest.min(MAX_PAYLOAD);
                Ok(false)
            }
            (INFO_EXPORT | INFO_BLOCK_SIZE, _) => Err(bad("an information of a wrong length")),
            _ => Ok(false),
        }
    }

    /// Enters an export by `EXPORT_NAME`, for servers that support no other option.
    fn enter_by_name(&mut self, line: &mut impl Line, name: &str, no_zeroes: bool) -> Result<(), Error> {
        send_option(line, OPT_EXPORT_NAME, name.as_bytes())?;
        let mut answer = [0; 10];
        line.read_exact(&mut answer)
            .map_err(|error| Error::Refused { what: "the export, or has none of this name", said: sentence(&error) })?;
        self.size = number(&answer[..8]);
        self.flags = u16::from_be_bytes([answer[8], answer[9]]);
        if !no_zeroes {
            line.read_exact(&mut [0; 124])?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if i64::try_from(self.size).is_err() {
            return Err(Error::Protocol(format!("an export of {} bytes", self.size)));
        }
        if !self.smallest_block.is_power_of_two() || self.largest_request < self.smallest_block {
            let (from, to) = (self.smallest_block, self.largest_request);
            return Err(Error::Protocol(format!("requests of {from} to {to} bytes")));
        }
        Ok(())
    }
}

/// Exchanges the greetings. Returns whether the server leaves out the zeroes after the export.
fn greet(line: &mut impl Line) -> Result<bool, Error> {
    let mut greeting = [0; 16];
    line.read_exact(&mut greeting)?;
    let (first, second) = (number(&greeting[..8]), number(&greeting[8..]));
    if first != GREETING || second != OPTION_MAGIC {
        let is_old = first == GREETING && second == OLD_MAGIC;
        return Err(Error::NotNbd(if is_old {
            "the server speaks only the protocol's first version, without names of exports"
        } else {
            "what answers there is not an NBD server"
        }));
    }
    let mut flags = [0; 2];
    line.read_exact(&mut flags)?;
    let flags = u16::from_be_bytes(flags);
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(Error::NotNbd("the server is too old: it has no fixed newstyle handshake"));
    }
    let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
    line.write_all(&u32::from(ours).to_be_bytes())?;
    line.flush()?;
    Ok(flags & NO_ZEROES != 0)
}

/// How an option ended.
enum Reply {
    Done,
    /// The kind of error, and what the server said.
    Failed(u32, String),
}

/// Sends an option and reads all replies to it.
fn ask(
    line: &mut impl Line,
    option: u32,
    data: &[u8],
    mut take: impl FnMut(u32, &[u8]) -> Result<(), Error>,
) -> Result<Reply, Error> {
    send_option(line, option, data)?;
    for _ in 0..MAX_REPLIES {
        let mut header = [0; 20];
        line.read_exact(&mut header)?;
        let kind = number(&header[12..16]) as u32;
        let len = number(&header[16..]) as usize;
        if number(&header[..8]) != OPTION_REPLY_MAGIC || number(&header[8..12]) != u64::from(option) {
            return Err(bad("the reply to an option has a wrong beginning"));
        }
        if len > MAX_REPLY {
            return Err(bad("the reply to an option is too long"));
        }
        let mut data = vec![0; len];
        line.read_exact(&mut data)?;
        match kind {
            REP_ACK => return Ok(Reply::Done),
            error if error & REP_ERROR != 0 => return Ok(Reply::Failed(error, readable(&data))),
            kind => take(kind, &data)?,
        }
    }
    Err(bad("the replies to an option never end"))
}

/// The names of the server's exports.
fn list(line: &mut impl Line) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    ask(line, OPT_LIST, &[], |kind, data| {
        if kind == REP_SERVER
            && names.len() < MAX_NAMES
            && let Some((len, rest)) = data.split_first_chunk::<4>()
            && let Some(name) = rest.get(..(u32::from_be_bytes(*len) as usize).min(MAX_STRING))
        {
            names.push(readable(name));
        }
        Ok(())
    })?;
    Ok(names)
}

fn send_option(line: &mut impl Line, option: u32, data: &[u8]) -> Result<(), Error> {
    let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    line.write_all(&message)?;
    line.flush()?;
    Ok(())
}

fn with_length(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat()
}

/// A number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn bad(what: &str) -> Error {
    Error::Protocol(what.into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A server that sends a prepared text, whatever it is asked.
    struct Script {
        says: io::Cursor<Vec<u8>>,
        hears: Vec<u8>,
        has_tls: bool,
    }

    impl Read for Script {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.says.read(buf)
        }
    }

    impl Write for Script {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.hears.write(buf)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Line for Script {
        fn start_tls(&mut self) -> Result<(), Error> {
            self.has_tls = true;
            Ok(())
        }
    }

    fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        for field in [option, kind, data.len() as u32] {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        [bytes, data.to_vec()].concat()
    }

    fn greeting() -> Vec<u8> {
        [&GREETING.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &3_u16.to_be_bytes()].concat()
    }

    fn run(says: &[Vec<u8>], tls: bool) -> (Result<Export, Error>, Script) {
        let mut script = Script { says: io::Cursor::new(says.concat()), hears: Vec::new(), has_tls: false };
        (negotiate(&mut script, "disk", tls), script)
    }

    fn export_info(size: u64, flags: u16) -> Vec<u8> {
        [&INFO_EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
    }

    fn block_info(smallest: u32, largest: u32) -> Vec<u8> {
        let sizes = [smallest, 4096, largest].map(u32::to_be_bytes).concat();
        [&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes].concat()
    }

    #[test]
    fn an_export_is_entered_with_its_limits() {
        let (export, script) = run(
            &[
                greeting(),
                reply(OPT_STARTTLS, REP_ACK, &[]),
                reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]),
                reply(OPT_GO, REP_INFO, &block_info(512, u32::MAX)),
                reply(OPT_GO, REP_INFO, &[0, 1, b'n']),
                reply(OPT_GO, REP_INFO, &export_info(1 << 30, 0x105)),
                reply(OPT_GO, REP_ACK, &[]),
            ],
            true,
        );
        let expected =
            Export { size: 1 << 30, flags: 0x105, smallest_block: 512, largest_request: MAX_PAYLOAD, structured: true };
        assert_eq!(export.unwrap(), expected);
        assert!(script.has_tls);
        let go = [&5_u32.to_be_bytes()[..0], &with_length("disk"), &[0, 1, 0, 3]].concat();
        assert!(script.hears.ends_with(&go));
    }

    #[test]
    fn an_old_server_is_entered_by_the_name_alone() {
        let unsupported = |option| reply(option, REP_ERR_UNSUP, b"what?");
        let end = [&(9_u64 << 20).to_be_bytes()[..], &7_u16.to_be_bytes()].concat();
        let (export, _) = run(&[greeting(), unsupported(OPT_STRUCTURED_REPLY), unsupported(OPT_GO), end], false);
        let expected =
            Export { size: 9 << 20, flags: 7, smallest_block: 1, largest_request: MAX_PAYLOAD, structured: false };
        assert_eq!(export.unwrap(), expected);
    }

    #[test]
    fn what_the_server_refuses_is_said_with_a_remedy() {
        let structured = reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]);
        let (none, _) = run(
            &[
                greeting(),
                structured.clone(),
                reply(OPT_GO, REP_ERR_UNKNOWN, b"no\x1b[31m such"),
                reply(OPT_LIST, REP_SERVER, &with_length("one")),
                reply(OPT_LIST, REP_SERVER, &with_length("two")),
                reply(OPT_LIST, REP_ACK, &[]),
            ],
            false,
        );
        let said = none.unwrap_err().to_string();
        assert_eq!(said, "the server has no export 'disk'; it has: 'one', 'two' (it says: no [31m such)");
        let (tls, _) = run(&[greeting(), reply(OPT_STRUCTURED_REPLY, REP_ERR_TLS_REQD, &[])], false);
        assert!(tls.unwrap_err().to_string().contains("nbds://"));
        let (no_tls, script) = run(&[greeting(), reply(OPT_STARTTLS, REP_ERR_UNSUP, &[])], true);
        assert!(matches!(no_tls, Err(Error::NoTls { .. })) && !script.has_tls, "it does not go on unencrypted");
    }

    #[test]
    fn what_the_protocol_forbids_ends_the_handshake() {
        let structured = reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]);
        let info = |data: &[u8]| reply(OPT_GO, REP_INFO, data);
        let ack = reply(OPT_GO, REP_ACK, &[]);
        let mut endless = info(&[9, 9]);
        endless[16..20].fill(0xff);
        for (what, says) in [
            ("HTTP", vec![b"HTTP/1.1 400 Bad Request".to_vec()]),
            ("nothing", vec![]),
            ("another option", vec![greeting(), reply(OPT_GO, REP_ACK, &[])]),
            ("too long", vec![greeting(), structured.clone(), endless]),
            ("no information", vec![greeting(), structured.clone(), ack.clone()]),
            ("short", vec![greeting(), structured.clone(), info(&[0, 0, 1]), ack.clone()]),
            ("a size beyond files", vec![greeting(), structured.clone(), info(&export_info(1 << 63, 1)), ack.clone()]),
            (
                "blocks of three",
                vec![greeting(), structured.clone(), info(&export_info(9, 1)), info(&block_info(3, 9)), ack.clone()],
            ),
            (
                "nothing fits",
                vec![greeting(), structured.clone(), info(&export_info(9, 1)), info(&block_info(4096, 0)), ack],
            ),
        ] {
            let (export, _) = run(&says, false);
            assert!(export.is_err(), "{what}: {export:?}");
        }
        let many = vec![info(&[9, 9]); MAX_REPLIES + 1].concat();
        assert!(run(&[greeting(), structured, many], false).0.is_err());
    }
}
