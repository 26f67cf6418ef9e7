//! The state that the server shares with the threads of slow requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ubtrfs::{CompressionMode, Filesystem, InodeId};
use ubtrfs_errors::sentence;
use ubtrfs_format::TreeId;
use ubtrfs_fuse::{Attributes, Capabilities, Entry, Errno, Granted, HopCounters, Notifier, ROOT, Way};
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Mutex, OnceLock, Rank};

use crate::attributes;
use crate::changed_names::ChangedNames;
use crate::control::{Report, is_of_new_files, name_of_new_files};
use crate::counters::{Counters, Kind};
use crate::devices::{Devices, Opener};
use crate::long_ioctls::LongIoctls;
use crate::mapped_pages::MappedPages;
use crate::nodes::NodeNumbers;
use crate::ownership::OwnershipOverride;
use crate::refusals::Refusals;
use crate::repeated::Repeated;
use crate::scrub::Scrubs;
use crate::users_pool::User;

/// How long the kernel caches an answer. Nothing but this mount changes the volume, so the kernel's
/// caches do not become stale.
pub(crate) const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// For how long after its announcement an end of the connection counts as an unmount by force.
const TIME_OF_FORCE: Duration = Duration::from_secs(60);
/// The prefix of the option that says how many threads compress data of one file.
const THREADS: &str = "thread_pool=";

/// Whether the kernel sends OPEN for each open(2) of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CheckOpen {
    /// If there is a read-only subvolume or fs-verity when the first file is opened.
    #[default]
    Auto,
    /// Yes.
    Always,
    /// No.
    Never,
}

/// The facts of a mount that the server shows.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountFacts {
    /// The devices' paths, as they were given.
    pub devices: Vec<String>,
    /// The paths by the devices' numbers.
    pub device_paths: BTreeMap<u64, String>,
    /// The options that it was mounted with.
    pub options: Vec<String>,
    /// `fuseblk`, `fuse` or `fuse (fusermount3)`.
    pub mount_type: String,
    /// Why the type is not `fuseblk`, where it could be.
    pub fallback: Option<String>,
    /// The longest time from a change to its commit.
    pub commit_interval: Duration,
    /// When this process started, in the clock ticks of `/proc/PID/stat`.
    pub pid_started: u64,
    /// The owners and modes that files show.
    pub ownership: OwnershipOverride,
    /// Whether nothing checks permissions, since the mount is for one user.
    pub unchecked: bool,
    /// Whether ordinary users may delete subvolumes that they could empty.
    pub user_subvol_rm_allowed: bool,
    /// Whether the kernel sends OPEN for each open(2) of a file.
    pub check_open: CheckOpen,
    /// Whether each read(2) changes the time of access. The kernel then sends OPEN for each
    /// open(2), and keeps no pages of a file from one to the next.
    pub strict_atime: bool,
    /// The device number that files of the mount show, major and minor.
    pub device_number: Option<(u32, u32)>,
    /// Whether the kernel has the whole volume, of which the mount shows the engine's subvolume.
    pub is_whole: bool,
}

/// How requests arrive, and why not over rings if these were requested.
struct TransportFacts {
    name: &'static str,
    /// How many threads serve requests.
    threads: usize,
    why: Option<String>,
    hops: HopCounters,
}

/// The engine and the state of the server.
pub struct Shared {
    pub(crate) engine: Arc<Filesystem>,
    pub(crate) numbers: NodeNumbers,
    pub(crate) counters: Counters,
    pub(crate) scrubs: Scrubs,
    pub(crate) long_ioctls: LongIoctls,
    pub(crate) mapped_pages: Arc<MappedPages>,
    syncs: OnceLock<String>,
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) changed_names: ChangedNames,
    /// Deleted subvolumes that may have names in the kernel, and the users who have deleted them.
    pub(crate) deleted_names: Mutex<Vec<(User, TreeId)>>,
    /// Has the kernel forget these names again and again.
    pub(crate) names_forgotten: Repeated,
    pub(crate) granted: OnceLock<Granted>,
    transport: OnceLock<TransportFacts>,
    pub(crate) block_size: u32,
    facts: MountFacts,
    pub(crate) devices: Devices,
    /// The owner that is reported to the kernel for all files, if there is such an override.
    known_owner: Option<u32>,
    /// Whether the last commit has been requested.
    ending: AtomicBool,
    ended: Mutex<Option<Result<(), String>>>,
    /// Whether the kernel sends OPEN for each open(2), decided at the first one.
    checks_opens: OnceLock<bool>,
    pub(crate) refusals: Refusals,
    /// Whether a remount has set the number of threads that compress data.
    threads_changed: AtomicBool,
    disconnected: AtomicBool,
    /// When an unmount by force was announced.
    force_expected: Mutex<Option<Instant>>,
    /// Makes requests to devices that are away fail soon.
    stop_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The action after the last commit, before the kernel gets the answer.
    on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    pub(crate) fn new(engine: Arc<Filesystem>, facts: MountFacts) -> Self {
        Self {
            numbers: if facts.is_whole { NodeNumbers::of_whole } else { NodeNumbers::new }(engine.root().subvolume),
            counters: Counters::new(),
            notifier: OnceLock::new(),
            changed_names: ChangedNames::new(),
            deleted_names: Mutex::with_default(Rank::DeletedNames),
            names_forgotten: Repeated::new(),
            granted: OnceLock::new(),
            transport: OnceLock::new(),
            block_size: engine.volume().sector_size(),
            known_owner: facts.ownership.known_owner(),
            devices: Devices::new(facts.devices.clone(), facts.device_paths.clone()),
            facts,
            ending: AtomicBool::new(false),
            ended: Mutex::with_default(Rank::ServerEnded),
            checks_opens: OnceLock::new(),
            refusals: Refusals::default(),
            threads_changed: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
            force_expected: Mutex::with_default(Rank::ForceExpected),
            stop_waiting: OnceLock::new(),
            engine,
            scrubs: Scrubs::default(),
            long_ioctls: LongIoctls::default(),
            mapped_pages: Arc::default(),
            syncs: OnceLock::new(),
            on_end: OnceLock::new(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Filesystem> {
        &self.engine
    }

    /// Returns whether the kernel shall send OPEN for each open(2). The first call decides.
    pub(crate) fn checks_opens(&self) -> bool {
        *self.checks_opens.get_or_init(|| match self.facts().check_open {
            _ if self.facts.strict_atime => true,
            CheckOpen::Auto => self.engine.has_read_only_subvolumes() || self.engine.uses_verity(),
            CheckOpen::Always => true,
            CheckOpen::Never => false,
        })
    }

    /// Returns whether it was decided that the kernel shall not send OPEN.
    pub(crate) fn leaves_opens_unchecked(&self) -> bool {
        self.checks_opens.get() == Some(&false)
    }

    /// Returns whether the kernel granted a capability.
    pub(crate) fn has_capability(&self, capability: Capabilities) -> bool {
        self.granted.get().is_some_and(|granted| granted.capabilities.contains(capability))
    }

    /// Invalidates the attributes of an inode that the kernel has cached.
    pub(crate) fn attributes_changed(&self, node: u64) {
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_attributes(node)
        {
            tracing::debug!(%error, "the attributes that the kernel has cached were not invalidated");
        }
    }

    /// Has the kernel write a node's dirty pages back and drop all of its pages; returns whether it
    /// has. Threads that serve requests must not call this, since the WRITEs come to them.
    pub(crate) fn invalidate_pages(&self, node: u64) -> bool {
        self.invalidate_range(node, 0, 0)
    }

    /// The same for a range of the file's bytes; a length of zero means to the end.
    pub(crate) fn invalidate_range(&self, node: u64, offset: u64, length: u64) -> bool {
        let taken = self.notifier.get().map(|notifier| notifier.inval_inode(node, offset, length));
        let is_invalidated = matches!(taken, Some(Ok(())));
        if !is_invalidated {
            tracing::debug!(?taken, "the kernel keeps pages");
        }
        is_invalidated
    }

    /// Gives the server the handle to invalidate the kernel's caches.
    pub fn set_notifier(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Sets the text for the report that says whether sync(2), syncfs(2) and remounts by the kernel
    /// alone arrive, and how.
    pub fn set_syncs(&self, syncs: String) {
        let _ = self.syncs.set(syncs);
    }

    /// Sets for the report how requests arrive, and how many threads serve them.
    pub fn set_way(&self, way: &Way, threads: usize) {
        let _ = self.transport.set(match way {
            Way::Rings { hops, .. } => TransportFacts { name: "io_uring", threads, why: None, hops: hops.clone() },
            Way::Device { why } => TransportFacts {
                name: "/dev/fuse",
                threads,
                why: why.as_ref().map(|why| sentence(why)),
                hops: HopCounters::default(),
            },
        });
    }

    /// Invalidates the cached attributes of all files of a subvolume.
    pub(crate) fn attributes_changed_in(&self, subvolume: TreeId) {
        for id in self.engine.references().referenced() {
            if id.subvolume == subvolume {
                self.attributes_changed(self.numbers.node(id));
            }
        }
    }

    /// Has the kernel look up a name again that `user` has had made or removed. With `waits`, waits
    /// a moment for that. Since the kernel takes the directory's lock for it, threads that serve
    /// requests must not wait.
    pub(crate) fn name_changed(&self, user: User, dir: u64, name: &[u8], waits: bool) {
        if let Some(notifier) = self.notifier.get() {
            let (notifier, name) = (notifier.clone(), name.to_vec());
            self.changed_names.add(user, dir, waits, move || {
                if let Err(error) = notifier.inval_entry(dir, &name) {
                    tracing::debug!(%error, "a name that the kernel has cached was not invalidated");
                }
            });
        }
        self.attributes_changed(dir);
    }

    /// The facts of the mount.
    pub(crate) fn facts(&self) -> &MountFacts {
        &self.facts
    }

    /// Sets how devices that are added to the volume are opened.
    pub fn on_new_devices(&self, opener: Box<Opener>) {
        let _ = self.devices.opener.set(opener);
    }

    /// Sets what [`Self::stop_waiting`] does.
    pub fn on_stop_waiting(&self, stop: impl Fn() + Send + Sync + 'static) {
        let _ = self.stop_waiting.set(Box::new(stop));
    }

    /// Sets the action after the last commit, before the kernel gets the answer.
    pub fn on_end(&self, action: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_end.set(Box::new(action));
    }

    /// Sets the function that has the kernel write all dirty pages of the mount. The kernel sends a
    /// SYNCFS for that from the thread that calls the function.
    pub fn on_mapped_pages(&self, write_all: impl Fn() -> std::io::Result<()> + Send + Sync + 'static) {
        self.mapped_pages.set(write_all);
    }

    /// Serves a sync of the kernel that comes by another way than SYNCFS, and that over `/dev/fuse`
    /// may be ahead of pages that it includes.
    pub fn sync(&self) -> Result<(), Errno> {
        let _timed = self.counters.count(Kind::SyncFs);
        if let Some(notifier) = self.notifier.get() {
            notifier.settle(|| self.regular_files())?;
        }
        self.engine.durability().sync().map_err(|error| errno(&error))
    }

    /// Makes requests to devices that are away fail soon, since no program of the mount waits any
    /// more.
    pub fn stop_waiting(&self) {
        if let Some(stop) = self.stop_waiting.get() {
            stop();
        }
    }

    /// Notes that the mount is about to be unmounted by force.
    pub(crate) fn expect_force(&self) {
        *self.force_expected.lock() = Some(Instant::now());
    }

    /// Returns whether an unmount by force was announced a short while ago.
    pub(crate) fn is_force_expected(&self) -> bool {
        self.force_expected.lock().is_some_and(|announced| announced.elapsed() < TIME_OF_FORCE)
    }

    /// Notes that the kernel's connection has ended.
    pub(crate) fn disconnected(&self) {
        self.disconnected.store(true, Ordering::Relaxed);
    }

    /// Returns whether the kernel's connection has ended.
    pub fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed)
    }

    /// Commits for the last time and ends the engine. Later calls only return the result of the
    /// first one.
    pub fn end(&self) -> Result<(), String> {
        self.ending.store(true, Ordering::Release);
        self.names_forgotten.end();
        let end = || {
            let closed = self.engine.close().map_err(|error| error.chain());
            // A program that unmounts may use the devices at once, although this process takes a
            // while to end.
            self.engine.volume().release();
            if let Some(on_end) = self.on_end.get() {
                on_end();
            }
            closed
        };
        self.ended.lock().get_or_insert_with(end).clone()
    }

    /// Returns whether the last commit has been requested.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// The options of the mount; those for data have their present values.
    fn options_in_force(&self) -> Vec<String> {
        let is_threads = |option: &String| option.starts_with(THREADS);
        let is_other =
            |option: &&String| !CompressionMode::is_option(option) && !is_threads(option) && !is_of_new_files(option);
        // Without flags, new files have the default, which needs no option.
        let flags = Some(self.engine.new_file_flags()).filter(|flags| *flags != 0);
        let threads = self.engine.compression_threads();
        let has_threads = self.facts.options.iter().any(is_threads) || self.threads_changed.load(Ordering::Relaxed);
        let others = self.facts.options.iter().filter(is_other).cloned();
        let others = others.chain(flags.and_then(name_of_new_files).map(str::to_owned));
        let others = others.chain(has_threads.then(|| format!("{THREADS}{threads}")));
        others.chain(self.engine.compression().map(CompressionMode::to_option)).collect()
    }

    /// Sets how many threads at most compress data of one file.
    pub(crate) fn set_compression_threads(&self, threads: usize) {
        self.engine.set_compression_threads(threads);
        self.threads_changed.store(true, Ordering::Relaxed);
    }

    /// The present paths of the volume's devices.
    pub fn device_paths(&self) -> Vec<String> {
        self.devices.paths(&self.engine)
    }

    /// What [`control::STATS`](crate::control::STATS) shows.
    pub fn report(&self) -> Report {
        let stats = self.engine.stats();
        let device = stats.volume.devices;
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            pid_started: self.facts.pid_started,
            devices: self.device_paths(),
            lagging_devices: self.engine.volume().devices().lagging().iter().map(|device| device.0).collect(),
            options: self.options_in_force(),
            mount_type: self.facts.mount_type.clone(),
            mount_fallback: self.facts.fallback.clone(),
            syncs: self.syncs.get().cloned().unwrap_or_default(),
            transport: self.transport.get().map_or("/dev/fuse", |transport| transport.name).into(),
            transport_fallback: self.transport.get().and_then(|transport| transport.why.clone()),
            threads: self.transport.get().map_or(0, |transport| transport.threads) as u64,
            read_only: self.engine.is_read_only(),
            aborted: stats.aborted,
            errors: stats.errors,
            last_errors: stats.last_errors.iter().map(Into::into).collect(),
            commit_interval_seconds: self.facts.commit_interval.as_secs(),
            generation: stats.generation,
            commits: stats.commits,
            commit_micros: stats.commit_micros,
            commit_bytes: stats.commit_bytes,
            fsyncs: stats.fsyncs,
            fsyncs_without_work: stats.fsyncs_without_work,
            fsync_micros: self.counters.fsync_micros(),
            log_writes: stats.log_writes,
            log_requests: stats.log_requests,
            log_bytes: stats.log_bytes,
            log_searches: stats.log_searches,
            log_fallbacks: stats
                .log_fallbacks
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.name().to_owned(), *count))
                .collect(),
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            bytes_reserved: stats.bytes_reserved,
            bytes_placed: stats.bytes_placed,
            bytes_cloned: stats.bytes_cloned,
            dirty_bytes: stats.dirty_bytes,
            changed_bytes: stats.changed_bytes,
            bytes_in_flight: stats.bytes_in_flight,
            inodes_in_memory: stats.inodes,
            orphans_cleaned: stats.orphans_cleaned,
            nodes_unshared: stats.nodes_unshared,
            leaves_written_early: stats.leaves_written_early,
            subvolumes_deleted_left: self.engine.subvolumes().deleted_subvolumes().len() as u64,
            subvolumes_undropped: stats.subvolumes_undropped,
            inactivation_inodes: stats.inactivation.inodes,
            inactivation_bytes: stats.inactivation.bytes,
            inactivation_orphans_left: stats.inactivation.orphans_left,
            inactivation_steps: stats.inactivation.steps,
            inactivation_extents: stats.inactivation.extents,
            inactivation_waits: stats.inactivation.waits,
            data_bytes: stats.space.data_total,
            data_bytes_used: stats.space.data_total - stats.space.data_free,
            metadata_bytes: stats.space.metadata_total,
            metadata_bytes_used: stats.space.metadata_total - stats.space.metadata_free,
            unallocated_bytes: stats.space.unallocated,
            chunks_made: stats.chunks_made,
            chunks_given_back: stats.chunks_given_back,
            bytes_discarded: stats.bytes_discarded,
            device_reads: device.reads,
            device_bytes_read: device.read_bytes,
            device_writes: device.writes,
            device_bytes_written: device.written_bytes,
            device_flushes: device.flushes,
            device_discards: device.discards,
            checksum_errors: stats.volume.checksum_errors,
            repairs: stats.volume.repairs,
            cache_hits: stats.cache.hits,
            cache_misses: stats.cache.misses,
            cache_bytes: stats.cache.bytes,
            lock_acquisitions: stats.locks.iter().map(|(name, lock)| ((*name).into(), lock.acquisitions)).collect(),
            lock_waits: stats.locks.iter().map(|(name, lock)| ((*name).into(), lock.contended)).collect(),
            requests: self.counters.requests(),
            request_nanos: self.counters.nanos(),
            hops: self.counters.hops(self.transport.get().map(|transport| transport.hops.read()).unwrap_or_default()),
            callers_read: crate::privileges::files_read(),
            cpu_micros: cpu_micros(),
        }
    }

    /// The inode of a node.
    pub(crate) fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.numbers.inode(node)
    }

    /// The flags of an inode in the form of the format.
    pub(crate) fn flags_of(&self, id: InodeId) -> Result<u64, Errno> {
        self.engine.inodes().flags(id).map_err(|error| errno(&error))
    }

    /// The entry of an inode that has just been referenced for the kernel. On an error, gives the
    /// reference back.
    pub(crate) fn entry(&self, id: InodeId) -> Result<Entry, Errno> {
        let attributes = self.engine.inodes().attributes(id).map_err(|error| {
            self.engine.references().forget(id, 1);
            errno(&error)
        })?;
        let node = self.numbers.node(id);
        // The kernel knows the root before its first request. A later mount may reuse the numbers
        // of other inodes, and a file handle must not refer to a new inode of the same number.
        let generation = if node == ROOT { 0 } else { attributes.generation.0 };
        let attributes = self.attributes_for_kernel(&attributes);
        let ttl = if self.known_owner.is_some() { Duration::ZERO } else { TTL };
        Ok(Entry { node, generation, name_ttl: ttl, attributes_ttl: ttl, attributes })
    }

    /// The attributes that are reported to the kernel when it may check the owner next.
    pub(crate) fn attributes_for_kernel(&self, of: &ubtrfs::Attributes) -> Attributes {
        let mut shown = self.shown(of);
        shown.uid = self.known_owner.unwrap_or(shown.uid);
        shown
    }

    /// How long the kernel caches attributes of a file that has just been opened by its name, or
    /// changed. If another owner is reported than the volume has, that is only the time that a
    /// program needs until its fstat(2) and its next step; a lookup of the name requests the
    /// attributes again.
    pub(crate) fn attributes_ttl(&self, node: u64) -> Duration {
        match self.known_owner {
            None => TTL,
            // The root has no name whose lookup would request them again.
            Some(_) if node == ROOT => Duration::ZERO,
            Some(_) => Duration::from_secs(1),
        }
    }

    /// Attributes as this mount shows them.
    pub(crate) fn shown(&self, of: &ubtrfs::Attributes) -> Attributes {
        let mut shown = attributes::attributes(&self.numbers, self.block_size, of);
        self.ownership().show(&mut shown);
        shown
    }

    /// The owners and modes that files show.
    pub(crate) fn ownership(&self) -> &OwnershipOverride {
        &self.facts.ownership
    }
}

/// The errno that answers a request. Errors of the volume (`EIO`) are also logged.
pub(crate) fn errno(error: &ubtrfs::Error) -> Errno {
    let errno = error.errno();
    if errno == Errno::IO {
        tracing::warn!("{}", error.chain());
    }
    errno
}

/// The processor time that the process has used so far in user and kernel mode, in microseconds.
fn cpu_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::thread;

    use super::*;
    use crate::fixtures;

    /// A signal that ends the mount would be lost if threads that check whether it ends could see
    /// it ending when it does not.
    #[test]
    fn nobody_who_looks_whether_it_ends_makes_it_seem_so() {
        const LOOKS: usize = 200_000;
        let shared = Shared::new(fixtures::engine(&fixtures::volume(), 1 << 20), MountFacts::default());
        let seen = thread::scope(|scope| {
            let looking = [(); 4].map(|()| scope.spawn(|| (0..LOOKS).filter(|_| shared.is_ending()).count()));
            looking.map(|thread| thread.join().unwrap()).iter().sum::<usize>()
        });
        assert_eq!(seen, 0);
        shared.end().unwrap();
        assert!(shared.is_ending());
    }
}
