//! A client of the NBD protocol, as `doc/proto.md` of the project `NetworkBlockDevice` specifies
//! it: exports of servers over TCP or Unix domain sockets, encrypted or not.
//!
//! Many threads use one [`Client`]; their requests are on their way at the same time, over several
//! connections where the server allows it. A connection that breaks is made again: requests without
//! an answer are sent again, and so is what was written and not flushed, since a server that was
//! restarted may have lost it. Before that the export is compared with what it was.
//!
//! Who writes may have an export for a time only ([`Lease`]): then nothing is sent after that, and
//! what the kernel has not sent by then is dropped with the connection.
//!
//! Nothing that a server sends is trusted: it is bounded, and what the protocol forbids ends the
//! connection.

mod abi;
mod channel;
mod client;
mod connect;
mod error;
mod kept;
mod lane;
mod lease;
mod negotiate;
mod reply;
mod requests;
mod resume;
mod session;
mod supervisor;
mod tls;
mod uri;
mod watch;
mod window;
mod witness;

pub use bytes::Bytes;
pub use client::{Client, Options};
pub use error::Error;
pub use lease::{Access, BootTime, Clock, Holder, Lease, Lost};
pub use negotiate::{Export, Line, negotiate};
pub use reply::{Answer, Decoder, Expected, Refusal};
pub use uri::{Address, DEFAULT_PORT, TlsOptions, Uri};
