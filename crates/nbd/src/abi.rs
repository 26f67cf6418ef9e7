//! The numbers of the protocol, as `doc/proto.md` of the project `NetworkBlockDevice` defines them.

/// The first number of a server's greeting.
pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// The number that follows it in the handshake with options, and begins each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The number that follows it in the obsolete handshake without options.
pub(crate) const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;
/// The number that begins the reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of the greeting, and of the answer to it.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERROR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub(crate) const HAS_FLAGS: u16 = 1;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_FUA: u16 = 1 << 3;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;

pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The flag of a write that must be durable when it is answered.
pub(crate) const CMD_FLAG_FUA: u16 = 1;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;

/// The flag of the last chunk of a structured reply.
pub(crate) const REPLY_DONE: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_OFFSET_DATA: u16 = 1;
pub(crate) const CHUNK_OFFSET_HOLE: u16 = 2;
pub(crate) const CHUNK_ERROR: u16 = (1 << 15) + 1;
pub(crate) const CHUNK_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// The request failed for a reason that the server does not tell.
pub(crate) const EIO: u32 = 5;
/// The server is about to end, so the request must be sent to its successor.
pub(crate) const ESHUTDOWN: u32 = 108;

/// The largest read or write in bytes that the client sends, even if the server accepts larger
/// ones.
pub(crate) const MAX_REQUEST: u32 = 4 << 20;
/// The largest request in bytes that every server accepts.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;
/// The most bytes of the name of an export, or of any other string.
pub(crate) const MAX_STRING: usize = 4096;

/// The header of a request.
pub(crate) fn request(flags: u16, command: u16, cookie: u64, at: u64, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&at.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Makes a text of a server fit for messages: cuts it, and replaces control characters.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_STRING)]);
    text.trim().chars().map(|shown| if shown.is_control() { ' ' } else { shown }).collect()
}

/// Returns whether an export has a flag.
pub(crate) fn has(flags: u16, flag: u16) -> bool {
    flags & HAS_FLAGS != 0 && flags & flag != 0
}
