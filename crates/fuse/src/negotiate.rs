//! The negotiation of INIT: what the kernel offers, what the filesystem wants, and what is granted.

use rustix::io::Errno;

use crate::abi::flags::Capabilities;
use crate::abi::messages::InitOut;
use crate::abi::{MAJOR, MINOR, OLDEST_MINOR};
use crate::request::{Form, Init};

/// How requests are to arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over rings where there are any, else over `/dev/fuse`.
    #[default]
    Auto,
    /// Over rings, or not at all.
    Ring,
    /// Over `/dev/fuse`.
    Device,
}

/// What a filesystem wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The capabilities that it wants; those that the kernel doesn't have are left out.
    pub wanted: Capabilities,
    /// The most bytes of data in a WRITE; all requests are limited to as many pages.
    pub max_write: u32,
    /// Bytes of the longest read-ahead.
    pub max_readahead: u32,
    /// How many requests the kernel may have in the background (writeback, read-ahead, asynchronous
    /// direct I/O); over `/dev/fuse` 64 at most.
    pub max_background: u16,
    /// The number of background requests from which on the kernel calls the filesystem congested.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds.
    pub time_granularity: u32,
    /// The number of threads that read requests from `/dev/fuse`. Each has a buffer for a request.
    pub threads: usize,
    /// With rings, the number of threads for requests that may wait; by default
    /// [`threads`](Self::threads).
    pub ring_threads: Option<usize>,
    /// How requests are to arrive. ([`Capabilities::OVER_IO_URING`] in [`wanted`](Self::wanted) has
    /// no effect.)
    pub transport: Transport,
}

impl Config {
    /// The capabilities that need no more of a filesystem than its methods.
    ///
    /// [`Capabilities::ASYNC_DIO`] is not among it: the kernel doesn't invalidate its page cache
    /// when an asynchronous direct write ends, and readers of the cache continue to see the old
    /// content. Nor do appending direct writes keep their order then.
    pub const BASIC: Capabilities = Capabilities::ASYNC_READ
        .union(Capabilities::BIG_WRITES)
        .union(Capabilities::HAS_IOCTL_DIR)
        .union(Capabilities::DO_READDIRPLUS)
        .union(Capabilities::READDIRPLUS_AUTO)
        .union(Capabilities::PARALLEL_DIROPS)
        .union(Capabilities::MAX_PAGES)
        .union(Capabilities::CACHE_SYMLINKS)
        .union(Capabilities::INIT_EXT)
        .union(Capabilities::HAS_EXPIRE_ONLY);

    /// The capabilities for a filesystem whose files nobody else changes, which needs no OPEN of
    /// files or directories, applies umask and ACLs by itself, and clears set-id bits and
    /// capabilities on request. With `default_permissions` add [`Capabilities::ALLOW_IDMAP`].
    pub const FULL: Capabilities = Self::BASIC
        .union(Capabilities::DONT_MASK)
        .union(Capabilities::NO_OPEN_SUPPORT)
        .union(Capabilities::NO_OPENDIR_SUPPORT)
        .union(Capabilities::POSIX_ACL)
        .union(Capabilities::HANDLE_KILLPRIV_V2)
        .union(Capabilities::SETXATTR_EXT)
        .union(Capabilities::CREATE_SUPP_GROUP);
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wanted: Self::BASIC,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 256,
            congestion_threshold: 192,
            time_granularity: 1,
            threads: std::thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2)),
            ring_threads: None,
            transport: Transport::default(),
        }
    }
}

/// What kernel and filesystem agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The protocol's minor version, the lower of both.
    pub minor: u32,
    /// The capabilities of this mount.
    pub capabilities: Capabilities,
    /// The capabilities that the kernel offered, for messages about what is missing.
    pub offered: Capabilities,
    /// Bytes of the longest WRITE.
    pub max_write: u32,
    /// Bytes of the longest read-ahead.
    pub max_readahead: u32,
    /// How many requests the kernel may have in the background.
    pub max_background: u16,
}

impl Granted {
    pub(crate) fn form(&self) -> Form {
        Form { setxattr_ext: self.capabilities.contains(Capabilities::SETXATTR_EXT) }
    }
}

/// Why there is no agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The kernel is older than the oldest version supported here.
    #[error("the kernel speaks FUSE {0}.{1}; 7.{OLDEST_MINOR} is needed")]
    TooOld(u32, u32),
    /// The filesystem refused.
    #[error("the filesystem refused to begin")]
    Refused(#[source] Errno),
}

/// An answer to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The reply to a kernel of a later major version, which says ours: the kernel sends INIT
    /// again.
    Again(InitOut),
    /// The reply that ends the negotiation, and its result.
    Settled(InitOut, Granted),
}

/// The most bytes of data in a WRITE, a multiple of the page size.
pub fn longest_write(config: &Config, page_size: usize) -> u32 {
    let page = page_size as u32;
    config.max_write.max(page).next_multiple_of(page).min(u32::from(u16::MAX) * page)
}

/// The most requests that the kernel may have in the background at a time over `/dev/fuse`. All of
/// them may be WRITEs that wait for a thread, with up to a MiB of data each.
pub const MAX_IN_BACKGROUND: u16 = 64;

/// Computes the answer to INIT. `rings` says that rings are ready.
pub fn negotiate(init: &Init, config: &Config, page_size: usize, rings: bool) -> Result<Answer, NegotiationError> {
    if init.major > MAJOR {
        return Ok(Answer::Again(InitOut { major: MAJOR, minor: MINOR, ..Default::default() }));
    }
    if init.major < MAJOR || init.minor < OLDEST_MINOR {
        return Err(NegotiationError::TooOld(init.major, init.minor));
    }
    let always = Capabilities::MAX_PAGES | Capabilities::INIT_EXT;
    let mut capabilities = (config.wanted | always) & init.capabilities;
    capabilities.set(Capabilities::OVER_IO_URING, rings);
    let max_write = longest_write(config, page_size);
    let max_readahead = config.max_readahead.min(init.max_readahead);
    let max_background = if rings { config.max_background } else { config.max_background.min(MAX_IN_BACKGROUND) };
    let (minor, offered) = (init.minor.min(MINOR), init.capabilities);
    let granted = Granted { minor, capabilities, offered, max_write, max_readahead, max_background };
    let bits = capabilities.bits();
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead,
        flags: bits as u32,
        max_background,
        congestion_threshold: config.congestion_threshold,
        max_write,
        time_gran: config.time_granularity,
        max_pages: (max_write / page_size as u32) as u16,
        flags2: (bits >> 32) as u32,
        ..Default::default()
    };
    Ok(Answer::Settled(out, granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, capabilities: Capabilities) -> Init {
        Init { major: MAJOR, minor, max_readahead: 131_072, capabilities }
    }

    #[test]
    fn grants_what_both_have() {
        let offered = Capabilities::all() - Capabilities::POSIX_ACL;
        let config = Config { wanted: Config::FULL | Capabilities::ALLOW_IDMAP, ..Config::default() };
        let Ok(Answer::Settled(out, granted)) = negotiate(&offer(45, offered), &config, 4096, false) else { panic!() };
        assert_eq!(granted.capabilities, config.wanted - Capabilities::POSIX_ACL);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, granted.capabilities.bits());
        assert_eq!((out.max_write, out.max_pages, out.max_readahead), (1 << 20, 256, 131_072));
    }

    #[test]
    fn speaks_the_lower_minor() {
        for (theirs, both) in [(31, 31), (45, 45), (99, 45)] {
            let answer = negotiate(&offer(theirs, Capabilities::empty()), &Config::default(), 4096, false);
            let Ok(Answer::Settled(_, granted)) = answer else { panic!() };
            assert_eq!(granted.minor, both);
        }
    }

    #[test]
    fn refuses_the_old_and_asks_the_new_again() {
        let old = offer(OLDEST_MINOR - 1, Capabilities::all());
        assert_eq!(negotiate(&old, &Config::default(), 4096, false), Err(NegotiationError::TooOld(7, 30)));
        let new = Init { major: 8, ..old };
        assert!(matches!(negotiate(&new, &Config::default(), 4096, false), Ok(Answer::Again(out)) if out.major == 7));
    }
}
