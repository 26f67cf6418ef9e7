//! The FUSE protocol and its transports. This crate knows nothing of any file system.
//!
//! A program implements [`Filesystem`], mounts with [`mount::Mount`], and serves with [`Session`]:
//!
//! ```no_run
//! use ubtrfs_fuse::{mount::{Mount, MountOptions}, Config, Filesystem, Session};
//!
//! struct Nothing;
//! impl Filesystem for Nothing {}
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mount, device) = Mount::new("/mnt".as_ref(), &MountOptions::default())?;
//! let session = Session::establish(device, Nothing, &Config::default())?;
//! session.run()?; // until an unmount
//! drop(mount);
//! # Ok(())
//! # }
//! ```
//!
//! Every request reaches one method of the trait, with a reply object that the method owns: it
//! answers at once, or keeps the object and answers later from any thread. Three layers are between
//! the kernel and the trait: a transport ([`device`], or rings) delivers messages, [`request`]
//! turns bytes into a typed [`Request`], and [`Session`] dispatches it. A reply knows only the
//! route back, not which transport that is.
//!
//! The protocol spoken is FUSE 7.45, down to kernels of 7.31.

pub mod abi;
mod arrivals;
pub mod attributes;
pub mod caller_file;
mod connection;
pub mod device;
mod dispatch;
mod filesystem;
pub mod kernel_pages;
pub mod mount;
mod negotiate;
mod notify;
pub mod reply;
pub mod request;
mod ring;
mod session;
mod sync_device;
mod writes;

pub use abi::flags::{Capabilities, OpenFlags};
pub use attributes::{Attributes, Entry, StatFs, Statx, Timestamp};
pub use connection::{Connection, Observed};
pub use device::Device;
pub use filesystem::Filesystem;
pub use negotiate::{Config, Granted, NegotiationError, Transport};
pub use notify::Notifier;
pub use request::{Caller, Operation, ParseError, Request};
pub use ring::{HopCounters, Hops, MAX_LONG, NoRing};
pub use rustix::fs::{FallocateFlags, OFlags, RenameFlags, StatxFlags, XattrFlags};
pub use rustix::io::Errno;
pub use session::{Session, SessionError, Way};
pub use sync_device::SyncDevice;

/// The node number of the root directory, which the kernel never looks up and never forgets.
pub const ROOT: u64 = 1;
