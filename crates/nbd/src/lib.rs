//! A client of the NBD protocol, as `doc/proto.md` of the project `NetworkBlockDevice` specifies
//! it: exports of servers over TCP or Unix domain sockets, encrypted or not.
//!
//! Many threads can use one [`Client`]; their requests are under way at the same time, over several
//! connections if the server allows it. A connection that breaks is made again. Then requests
//! without an answer are sent again, and so are writes that were not flushed, since a server that
//! was restarted may have lost them. Before that, the client checks that the export is still the
//! same.
//!
//! A writer may have an export for a limited time only ([`Lease`]): nothing is sent after its end,
//! and what the kernel has not sent by then is dropped with the connection.
//!
//! The client does not trust what a server sends: sizes are bounded, and anything that the protocol
//! forbids ends the connection.

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
