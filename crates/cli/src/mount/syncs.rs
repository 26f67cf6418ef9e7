//! How sync(2), syncfs(2) and a remount by the kernel alone reach a mount, which is a matter of the
//! kernel.
//!
//! | Linux | on root's mounts | on others |
//! |---|---|---|
//! | 6.18 and later | the kernel sends SYNCFS to servers of `fuseblk` | nothing arrives |
//! | before | the device that is the mount's source is written to ([`SyncDevice`]) | nothing arrives |
//!
//! Where nothing arrives, a remount to read-only can be seen in the mount table, afterwards.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags};
use ubtrfs_fuse::mount::{Mount, MountKind, MountOptions, Source};
use ubtrfs_fuse::{Connection, Session, SyncDevice, Transport, Way};
use ubtrfs_server::{Server, Shared};

/// From this version on the kernel sends SYNCFS to all servers of `fuseblk`.
const SENDS_SYNCFS: Release = Release(6, 18);
/// The minor version of the FUSE protocol of that kernel.
const MINOR_WITH_SYNCFS: u32 = 45;
/// From this version on a dirty page counts as written when its WRITE is answered, not when it is
/// queued.
const WAITS_FOR_WRITES: Release = Release(6, 16);

/// A version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32, u32);

impl Release {
    /// Returns the version of the running kernel. One without numbers counts as the oldest.
    fn running() -> Self {
        Self::parse(&rustix::system::uname().release().to_string_lossy())
    }

    fn parse(text: &str) -> Self {
        let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        Self(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// The ways by which syncs may arrive, before it is known which of them the kernel uses.
pub struct Syncs {
    release: Release,
    may_write: bool,
    device: Option<Arc<SyncDevice>>,
    /// Why there is no device although one is needed.
    lacks: Option<String>,
}

impl Syncs {
    /// Prepares the options of the mount so that syncs arrive, if anything may ever be written.
    pub fn prepare(options: &mut MountOptions, root: bool, may_write: bool) -> Self {
        let release = Release::running();
        let mut syncs = Self { release, may_write, device: None, lacks: None };
        if !root || !may_write || release >= SENDS_SYNCFS {
            return syncs;
        }
        let name = match &options.source {
            Source::BlockDevice(path) | Source::Image(path) => path.display().to_string(),
            Source::Uri(uri) => uri.clone(),
            Source::Name(_) | Source::Served { .. } => return syncs,
        };
        match SyncDevice::new(name.as_ref()) {
            Ok(device) => {
                options.source = Source::Served { device: PathBuf::from(device.path()), name };
                syncs.device = Some(Arc::new(device));
            }
            Err(error) => syncs.lacks = Some(format!("no loop device for that: {error}")),
        }
        syncs
    }

    /// Returns the transport for requests. Over rings nobody can wait for the WRITEs that a kernel
    /// has only queued, so a kernel that does not wait for them gets `/dev/fuse`, unless the user
    /// has chosen.
    pub fn transport(&self, wanted: Transport) -> Transport {
        match wanted {
            Transport::Auto if self.device.is_some() && self.release < WAITS_FOR_WRITES => Transport::Device,
            wanted => wanted,
        }
    }

    /// Returns the connection that sync(2) waits for besides that of the mount.
    pub fn connection(&self) -> Option<Connection> {
        self.device.as_ref().map(|device| Connection::of(device.number_of_file()))
    }

    /// Enables syncs once the session is established, and reports how they arrive.
    pub fn begin(&self, mount: &Arc<Mount>, session: &Session<Server>) {
        let server = session.filesystem().shared();
        if let Some(device) = self.device.clone() {
            server.on_end(move || device.end());
        }
        let way = if self.may_write { self.way(mount, session, server) } else { SyncWay::Needless };
        let sentence = self.sentence(way, mount);
        if matches!(way, SyncWay::Nothing | SyncWay::DeviceWithoutMappings) && mount.kind() != MountKind::Fusermount {
            tracing::warn!("{sentence}");
        } else {
            tracing::info!("{sentence}");
        }
        server.set_syncs(sentence);
    }

    /// Enables the best way that is available.
    fn way(&self, mount: &Arc<Mount>, session: &Session<Server>, server: &Arc<Shared>) -> SyncWay {
        let is_block = mount.kind() == MountKind::Block;
        match &self.device {
            Some(device) if is_block => {
                let syncing = Arc::clone(server);
                match device.begin(move || syncing.sync()) {
                    Ok(()) if self.release < WAITS_FOR_WRITES && matches!(session.way(), Way::Rings { .. }) => {
                        return SyncWay::DeviceWithoutMappings;
                    }
                    Ok(()) => return SyncWay::Device,
                    Err(error) => tracing::error!("{} can't be written to: {error}", device.path()),
                }
            }
            None if is_block && self.release >= SENDS_SYNCFS && session.granted().minor >= MINOR_WITH_SYNCFS => {
                let source = Arc::clone(mount);
                server.on_mapped_pages(move || source.write_pages());
                return SyncWay::SyncFs;
            }
            _ => {}
        }
        watch(mount, server);
        SyncWay::Nothing
    }

    /// Returns the description of this way for the user.
    fn sentence(&self, way: SyncWay, mount: &Mount) -> String {
        const ALL: &str = "sync(2), syncfs(2) and remounts by the kernel alone";
        let device = self.device.as_ref().map_or("", |device| device.path());
        match way {
            SyncWay::Needless => "nothing is written".into(),
            SyncWay::SyncFs => format!("{ALL} commit (Linux sends SYNCFS since 6.18)"),
            SyncWay::Device => format!("{ALL} commit, by writing to {device} (Linux before 6.18 sends no SYNCFS)"),
            SyncWay::DeviceWithoutMappings => format!(
                "{ALL} commit, by writing to {device} (Linux before 6.18 sends no SYNCFS), but before 6.16 may miss \
                 stores to mappings over io_uring: 'transport=dev' does not"
            ),
            SyncWay::Nothing => {
                let no_root = "root has not mounted it";
                let why = if mount.kind() == MountKind::Fusermount { Some(no_root) } else { self.lacks.as_deref() };
                let why = why.or(mount.fallback()).unwrap_or("Linux before 6.18 sends no SYNCFS");
                format!("{ALL} do not commit ({why}): 'ubtrfs sync {}' does", mount.path().display())
            }
        }
    }
}

impl Drop for Syncs {
    /// Has all further writes to the device fail. When this process ends, even after a panic, it
    /// closes the device and waits for them, but it would have to serve them itself.
    fn drop(&mut self) {
        if let Some(connection) = self.connection() {
            connection.abort();
        }
    }
}

/// The way by which syncs arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncWay {
    /// Nothing is ever written, so nothing has to be synced.
    Needless,
    /// The kernel sends SYNCFS.
    SyncFs,
    /// Through the device that is the mount's source.
    Device,
    /// Through that device, but pages that mappings have changed may arrive after the sync.
    DeviceWithoutMappings,
    /// Not at all.
    Nothing,
}

/// Commits when the mount table shows that the mount has become read-only.
fn watch(mount: &Arc<Mount>, server: &Arc<Shared>) {
    let (mount, server) = (Arc::clone(mount), Arc::clone(server));
    let started = thread::Builder::new().name("mount-table".into()).spawn(move || {
        let Ok(table) = File::open(ubtrfs_mounts::TABLE) else { return };
        let mut was_read_only = false;
        loop {
            // The first poll reports a change at once.
            let mut poll = [PollFd::new(&table, PollFlags::PRI)];
            let polled = rustix::event::poll(&mut poll, None);
            if server.is_ending() || polled.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return;
            }
            let is_read_only = mount.is_listed_read_only();
            if is_read_only
                && !was_read_only
                && let Err(errno) = server.sync()
            {
                tracing::error!("the commit of a remount failed: {errno}");
            }
            was_read_only = is_read_only;
        }
    });
    if let Err(error) = started {
        tracing::debug!(%error, "remounts by the kernel alone are not noticed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for (text, release) in [
            ("6.1.0-56-cloud-amd64", Release(6, 1)),
            ("6.12.117+deb12-amd64", Release(6, 12)),
            ("6.18.44-fc-v669", Release(6, 18)),
            ("7.0-rc1", Release(7, 0)),
            ("strange", Release(0, 0)),
        ] {
            assert_eq!(Release::parse(text), release, "{text}");
        }
        assert!(Release(6, 2) < SENDS_SYNCFS && Release(6, 18) >= SENDS_SYNCFS && Release(10, 0) >= SENDS_SYNCFS);
    }
}
