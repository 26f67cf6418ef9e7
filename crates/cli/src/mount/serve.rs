//! The life of a mount, from its beginning to its end.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions as StdOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use ubtrfs::{Filesystem, InodeId, Options, Rescue};
use ubtrfs_format::{DeviceId, TreeId};
use ubtrfs_fuse::mount::{Detached, Mount, MountError, MountKind, MountOptions, Source, Unmount, is_dead};
use ubtrfs_fuse::{Connection, Device as FuseDevice, Notifier, Session, Way};
use ubtrfs_server::{MountFacts, Server, Shared, config};
use ubtrfs_volume::{
    Device, DevicePart, Error as VolumeError, Exclusive, OpenMode, OpenOptions, Opening, Volume, is_remote, open_named,
    open_part_exclusively, patiently,
};

use super::offers::{Offer, Served};
use super::request::MountRequest;
use super::syncs::Syncs;
use super::tied::Tied;
use super::watcher::{Lifeline, Watcher};
use super::{aborted, again, ending, notify, protect};
use crate::away::{Chosen, LeftOut, choose, modes_of, open_each};
use crate::commits::with_generation;
use crate::device::{about_volume_within, claim, is_block, is_seed, within};
use crate::failure::{Failure, Result, with_advice};
use crate::looking::{NotOpened, find_part};
use crate::mount_table::{self, Mounted};
use crate::other_contents::overwritten;
use crate::process;
use crate::remedy::OF_DAMAGE;
use crate::resource_limits;

/// What to do if some of several devices are away.
const WITHOUT_THEM: &str = "; with -o degraded the volume is mounted without them, as far as it has all data on the others \
     (or ro,degraded)";
/// The flags of an open file that only serves as a place.
const PLACE: i32 = OFlags::PATH.union(OFlags::CLOEXEC).bits() as i32;

/// A mount that is to be made, with absolute paths.
#[derive(Clone)]
pub struct Job {
    pub devices: Vec<PathBuf>,
    pub directory: PathBuf,
    /// The options as they were given.
    pub options: Vec<String>,
    pub request: MountRequest,
    /// The process with whose end the mount ends.
    pub tied_to: Option<u32>,
}

impl Job {
    /// Returns the job with these devices.
    fn of_devices(&self, devices: Vec<PathBuf>) -> Self {
        Self { devices, ..self.clone() }
    }
}

/// Mounts, reports that the mount is ready, and serves it until it is unmounted and the last commit
/// is durable.
pub fn serve(job: &Job, ready: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let lifeline = Lifeline::new().inspect_err(|error| tracing::warn!("nothing watches this server: {error}")).ok();
    check_mount_point(&job.directory)?;
    // The file size limit does not apply to block devices, which may be made writable later.
    resource_limits::raise_for_server(&job.devices, !job.request.read_only)?;
    let root = rustix::process::geteuid().is_root();
    let at_rest = if root { open_at_rest(job) } else { None };
    let may_write = at_rest.is_some() || !job.request.read_only;
    let (mut opened, engine) = match at_rest {
        Some(opened) => opened,
        None => open(job, &engine_options(&job.request), root)?,
    };
    let devices = std::mem::take(&mut opened.devices);
    // From here on the job lists only the devices that are used.
    let job = &job.of_devices(std::mem::take(&mut opened.paths));

    let mut mount_options = mount_options(&job.devices, &job.request, root);
    let syncs = Syncs::prepare(&mut mount_options, root, may_write);
    if matches!(mount_options.source, Source::BlockDevice(_)) {
        // The kernel claims the device for the mount, so the claim is released.
        opened.claims.clear();
    }
    // The kernel gets the whole volume, as with its own driver, so that other subvolumes can be
    // mounted, too. It does not if the volume can't be shared, as when it is shown only in part
    // because of damage.
    let is_whole = root
        && can_be_shared(&job.request)
        && engine.root().subvolume != TreeId::FS
        && engine.directories().lookup_inode(InodeId::root_of(TreeId::FS)).is_ok();
    if is_whole {
        engine.show_whole();
    }
    let (mount, whole, fuse) = mount(&job.directory, &mount_options, is_whole)?;
    let mount = Arc::new(mount);
    if mount.kind() != MountKind::Block && opened.claims.is_empty() {
        // By descriptors that were opened before: a path may cross the mount point, where a lookup
        // would wait for this server now.
        for block in &opened.blocks {
            opened.claims.push(claim(&descriptor(block))?);
        }
    }
    let served = run(job, (&mount, whole), fuse, (engine, devices), lifeline.as_ref(), &syncs, ready);
    if served.is_err() {
        leave_nothing_mounted(&mount);
    }
    served
}

/// Unmounts a mount whose server has failed. A first attempt may fail for lack of a process or
/// descriptors, which the end of the server's threads releases.
fn leave_nothing_mounted(mount: &Mount) {
    const ATTEMPTS: u32 = 2;
    (0..ATTEMPTS).take_while(|_| mount.is_mounted()).for_each(|_| mount.unmount_lazily());
}

/// Runs the session of a mount.
fn run(
    job: &Job,
    (mount, whole): (&Arc<Mount>, Option<Detached>),
    fuse: FuseDevice,
    (engine, devices): (Arc<Filesystem>, Vec<Arc<dyn Device>>),
    lifeline: Option<&Lifeline>,
    syncs: &Syncs,
    ready: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let facts = MountFacts {
        devices: job.devices.iter().map(|path| path.display().to_string()).collect(),
        device_paths: paths_by_number(job, &devices),
        options: job.options.clone(),
        mount_type: kind_name(mount.kind()).into(),
        fallback: mount.fallback().map(Into::into),
        commit_interval: engine_options(&job.request).commit_interval,
        pid_started: process::started("self").unwrap_or_default(),
        ownership: job.request.ownership,
        unchecked: !job.request.checks_permissions(),
        user_subvol_rm_allowed: job.request.user_subvol_rm_allowed,
        check_open: job.request.check_open,
        strict_atime: job.request.strict_atime,
        device_number: mount.device_number(),
        is_whole: whole.is_some(),
    };
    let server = Server::new(engine, facts);
    let shared = Arc::clone(server.shared());
    // From here on only the volume holds the devices, so that it can close those that are removed.
    drop(devices);
    let volume = Arc::clone(shared.engine().volume());
    shared.on_stop_waiting(move || volume.devices().stop_waiting());
    let timeout = job.request.timeout;
    shared.on_new_devices(Box::new(move |path| open_new(path, timeout)));
    let transport = syncs.transport(job.request.transport);
    let session =
        Session::establish(fuse, server, &config(job.request.threads, transport, job.request.checks_permissions()))
            .map_err(|error| Failure::of(&error))?;
    shared.set_notifier(session.notifier());
    shared.set_way(session.way(), session.threads());
    if let Way::Device { why: Some(why) } = session.way() {
        tracing::info!("requests come over /dev/fuse, not io_uring: {}", with_advice(why));
    }
    syncs.begin(mount, &session);
    let (runs, is_running) = channel();
    let notifier = session.notifier();
    let begin = |is_running: Receiver<()>| {
        mount.read_far_ahead();
        if let Some(whole) = whole {
            let directory = again::directory(&whole, &job.request)?;
            mount.attach(whole, &directory).map_err(|error| Failure::of(&error))?;
        }
        ending::on_signals(Arc::clone(mount), Arc::clone(&shared))
            .map_err(|error| Failure::about("signals can't be waited for", &error))?;
        aborted::show(mount, &shared);
        let tied = job.tied_to.map(|process| Tied::new(process, mount)).transpose()?;
        if rustix::process::geteuid().is_root() {
            // The watcher inherits the score.
            protect::from_shortage_of_memory();
        }
        let watcher = lifeline.and_then(|lifeline| watch(lifeline, mount, syncs));
        let offer = offer(job, mount, notifier, Arc::downgrade(&shared));
        is_running.recv().map_err(|_| Failure::new("the threads that serve the mount can't be started"))?;
        ready()?;
        notify::ready(&list(&job.devices));
        tracing::info!("{} is mounted on {}", list(&job.devices), mount.path().display());
        Ok((tied, watcher, offer))
    };
    // Without descriptors or processes an unmount may fail exactly when the start has failed, so
    // this file is opened first.
    let abort = mount.device_number().and_then(|number| Connection::of(number).open_abort().ok());
    // The session serves the requests that `begin` causes when it mounts a directory of the whole
    // volume. If `begin` fails, nothing is mounted, and so the session ends.
    let (begun, served) = thread::scope(|scope| {
        let begin = move || {
            begin(is_running).inspect_err(|_: &Failure| {
                if mount.is_mounted()
                    && mount.unmount(Unmount::Lazy).is_err()
                    && let Some(mut abort) = abort
                {
                    let _ = abort.write_all(b"1");
                }
            })
        };
        let begun = thread::Builder::new().name("begin".into()).spawn_scoped(scope, begin);
        let begun = begun.map_err(|error| Failure::about("no thread to mount", &error))?;
        let served = session.run_and(move || {
            let _ = runs.send(());
        });
        Ok::<_, Failure>((begun.join().map_err(|_| Failure::new("the thread that mounts panicked"))?, served))
    })?;
    let (tied, watcher, offer) = begun.map_err(|failure| {
        // If the session failed for lack of a thread, that is why nothing began.
        served.as_ref().err().map_or(failure, |error| Failure::of(error))
    })?;
    drop((watcher, offer));
    notify::stopping();
    thread::scope(|scope| {
        let clear = || mount.unmount_aborted();
        let clearing = thread::Builder::new().spawn_scoped(scope, clear);
        // The last commit needs no other thread, so it proceeds even if that one can't be started.
        let ended = shared.end();
        if clearing.is_err() {
            clear();
        }
        ended
    })
    .map_err(|error| Failure::new(format!("the last commit failed: {error}")))?;
    drop(tied);
    served.map_err(|error| Failure::of(&error))?;
    tracing::info!("{} is unmounted", list(&job.devices));
    Ok(())
}

/// Offers the volume for further mounts by root.
fn offer(job: &Job, mount: &Mount, notifier: Notifier, shared: Weak<Shared>) -> Option<Offer> {
    let is_offered = rustix::process::geteuid().is_root() && can_be_shared(&job.request) && job.tied_to.is_none();
    let device = mount.device_number().filter(|_| is_offered)?;
    let options = job.options.clone();
    // The volume's devices may have changed since it was mounted.
    let served = move || {
        let devices = shared.upgrade().map(|shared| shared.device_paths()).unwrap_or_default();
        let devices = devices.into_iter().map(PathBuf::from).collect();
        Served { devices, options: options.clone(), device }
    };
    let offer = Offer::new(served, move || notifier.connection());
    offer.inspect_err(|error| tracing::info!("a further mount may not find this one: {error}")).ok()
}

/// Starts the watcher, which aborts the connection when this process is killed.
fn watch(lifeline: &Lifeline, mount: &Mount, syncs: &Syncs) -> Option<Watcher> {
    let connection = mount.device_number().map(Connection::of)?;
    let of_syncs = syncs.connection().map(|connection| connection.open_abort()).transpose();
    let aborts = connection.open_abort().and_then(|abort| Ok((abort, of_syncs?)));
    let started = aborts.and_then(|(abort, of_syncs)| Watcher::start(lifeline, abort, of_syncs));
    started.inspect_err(|error| tracing::warn!("nothing watches this server: {error}")).ok()
}

/// Opens the devices, and the file system on them.
fn open(job: &Job, options: &Options, root: bool) -> Result<(Opened, Arc<Filesystem>)> {
    let opened = open_devices(job, root, options.read_only)?;
    let job = job.of_devices(opened.paths.clone());
    let engine = open_volume(&job, opened.devices.clone(), options)?;
    Ok((opened, engine))
}

/// Opens the devices and the file system for a mount with `ro` that a remount or a further mount
/// may make writable later, as the kernel's driver allows. Nothing is written until then. Returns
/// `None` if that is impossible: if writing would have to begin with a repair, or if others may be
/// reading, as they may read images.
fn open_at_rest(job: &Job) -> Option<(Opened, Arc<Filesystem>)> {
    let request = &job.request;
    let may_be = request.read_only
        && can_be_shared(request)
        && !request.no_log_replay
        && !request.degraded
        && job.devices.iter().all(|device| is_block(device))
        && !is_seed(&job.devices, request.window());
    let options = Options { read_only: false, begins_at_rest: true, ..engine_options(request) };
    may_be.then(|| open(job, &options, true).ok())?
}

/// Open devices, and claims on those that are block devices.
struct Opened {
    /// The paths of the devices that are used.
    paths: Vec<PathBuf>,
    devices: Vec<Arc<dyn Device>>,
    claims: Vec<File>,
    /// The block devices that are claimed, opened with `O_PATH`.
    blocks: Vec<File>,
}

/// Opens the devices exclusively: all that are named, or with `degraded` those of them that are
/// present. The kernel must be able to claim block devices for root's mount, so the claim is
/// separate from the open file.
fn open_devices(job: &Job, root: bool, read_only: bool) -> Result<Opened> {
    let Job { devices, request, .. } = job;
    let (window, mode) = (request.window(), if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite });
    let paths = if request.degraded && !is_by_older_root(request) {
        let Chosen { paths, left_out } = choose(devices, window, mode, request.timeout)?;
        left_out.iter().for_each(LeftOut::warn);
        paths
    } else {
        devices.clone()
    };
    let opened = open_each(&paths, &modes_of(&paths, window, mode), |path, mode| {
        let part = find_part(path, window, request.timeout)?;
        let (device, block) = if root && is_block(path) {
            let failed = |source| VolumeError::Open { path: path.to_owned(), source };
            let block = StdOptions::new().read(true).custom_flags(PLACE).open(path).map_err(failed)?;
            let claim = ubtrfs_volume::claim(path)?;
            let how = Opening { mode, exclusive: Exclusive::ButDevice, part: DevicePart::WHOLE, timeout: None };
            let device = patiently(|| open_named(path, how))?;
            ubtrfs_volume::check_unmounted(path, mode, part)?;
            (device, Some((claim, block)))
        } else {
            (open_part_exclusively(path, mode, part, request.timeout)?, None)
        };
        Ok((within(path, device, part).map_err(NotOpened::Refused)?, block))
    });
    let opened = opened.map_err(|not_opened| match not_opened {
        NotOpened::Away(failure) if !request.degraded && devices.len() > 1 => {
            failure.map_sentence(|sentence| sentence + WITHOUT_THEM)
        }
        not_opened => not_opened.failure(),
    })?;
    let (devices, blocks): (_, Vec<_>) = opened.into_iter().unzip();
    let (claims, blocks) = blocks.into_iter().flatten().unzip();
    Ok(Opened { paths, devices, claims, blocks })
}

/// Returns the paths of devices by their numbers, except for devices whose superblock can't be
/// read.
fn paths_by_number(job: &Job, devices: &[Arc<dyn Device>]) -> BTreeMap<u64, String> {
    let mut paths = BTreeMap::new();
    for (path, device) in job.devices.iter().zip(devices) {
        if let Some(superblock) = Volume::superblock_of(&**device) {
            paths.insert(superblock.dev_item.devid.0, path.display().to_string());
        }
    }
    paths
}

/// Opens a device that is to be added to the volume, as a whole. `EEXIST` if it holds something
/// that somebody might miss: a regular file must have no data but zeros.
fn open_new(path: &Path, timeout: Option<Duration>) -> std::result::Result<Arc<dyn Device>, Errno> {
    let refused = |error: VolumeError| match error {
        VolumeError::Open { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
        VolumeError::NotADevice { .. } => Errno::INVAL,
        _ => Errno::BUSY,
    };
    let device = open_part_exclusively(path, OpenMode::ReadWrite, DevicePart::WHOLE, timeout).map_err(refused)?;
    match overwritten(path, &*device, DevicePart::WHOLE) {
        Ok(None) => Ok(device),
        Ok(Some(found)) => {
            tracing::error!("{} holds {found}: it is left alone", path.display());
            Err(Errno::EXIST)
        }
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Returns a path by which an open file can be opened again.
fn descriptor(open: &File) -> PathBuf {
    format!("/proc/self/fd/{}", open.as_raw_fd()).into()
}

/// Whether the volume may be opened by another superblock or root than the newest. In that case all
/// of its devices are needed.
fn is_by_older_root(request: &MountRequest) -> bool {
    request.rescue.use_backup_root || request.generation.is_some()
}

/// Opens the volume and its file system: with `rescue=usebackuproot` by any usable superblock or
/// backup root, with `generation=` by a root of that commit.
fn open_volume(job: &Job, devices: Vec<Arc<dyn Device>>, options: &Options) -> Result<Arc<Filesystem>> {
    if !is_by_older_root(&job.request) {
        let how = OpenOptions { read_only: options.read_only };
        let given_up = given_up(job, &devices)?;
        let opened = match (&*given_up, job.request.degraded) {
            ([], false) => Volume::open(devices, how),
            ([], true) => Volume::open_degraded(devices, how),
            (given_up, degraded) => Volume::open_giving_up(given_up, devices, degraded),
        };
        let volume = opened.map_err(|error| about_volume_within(&job.devices, job.request.window(), &error))?;
        return open_engine(job, Arc::new(volume), options);
    }
    let (candidates, mut failure) = if let Some(generation) = job.request.generation {
        let failure = format!("no root of generation {generation} is left; 'ubtrfs history' lists those that are");
        (with_generation(&devices, generation), Failure::new(format!("{}: {failure}", list(&job.devices))))
    } else {
        let failure = about_volume_within(&job.devices, job.request.window(), &VolumeError::NotBtrfs);
        (Volume::candidates(&devices), failure)
    };
    for candidate in candidates {
        let opened = Volume::open_candidate(devices.clone(), &candidate)
            .map_err(|error| about_volume_within(&job.devices, job.request.window(), &error))
            .and_then(|volume| open_engine(job, Arc::new(volume), options));
        match opened {
            Ok(engine) => {
                tracing::warn!("mounting {candidate}");
                return Ok(engine);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Returns the devices whose contents are to be discarded.
fn given_up(job: &Job, devices: &[Arc<dyn Device>]) -> Result<Vec<DeviceId>> {
    let numbers = paths_by_number(job, devices);
    let number = |wanted: &String| {
        let number = wanted.parse().ok().filter(|number| numbers.contains_key(number));
        let is_named = |(number, path): (&u64, &String)| (path == wanted).then_some(*number);
        let number = number.or_else(|| numbers.iter().find_map(is_named));
        number.map(DeviceId).ok_or_else(|| Failure::new(format!("{wanted} is none of the devices of the volume")))
    };
    job.request.given_up.iter().map(number).collect()
}

fn engine_options(request: &MountRequest) -> Options {
    let usual = Options::default();
    Options {
        read_only: request.read_only,
        no_log_replay: request.no_log_replay,
        tree_log: !request.no_tree_log,
        discard: request.discard,
        commit_interval: request.commit.unwrap_or(usual.commit_interval),
        memory: request.memory.unwrap_or(usual.memory),
        subvolume: request.subvolume.clone(),
        subvolume_id: request.subvolume_id,
        no_atime: request.no_atime,
        strict_atime: request.strict_atime,
        new_file_flags: request.new_files.flags(),
        resume_balance: !request.skip_balance,
        max_inline: request.max_inline.unwrap_or(usual.max_inline),
        compression: request.compression,
        compression_threads: request.compression_threads.unwrap_or(usual.compression_threads),
        rescue: Rescue {
            pass_over: request.rescue.ignore_bad_roots.then(Arc::default),
            ignore_data_checksums: request.rescue.ignore_data_checksums,
            ignore_metadata_checksums: request.rescue.ignore_metadata_checksums,
        },
        ..usual
    }
}

fn open_engine(job: &Job, volume: Arc<Volume>, options: &Options) -> Result<Arc<Filesystem>> {
    Filesystem::open(volume, options.clone()).map_err(|error| {
        let failure = Failure::about(list(&job.devices), &error);
        // A refusal gives its own reason; and with `ignorebadroots` a mount of what is left has
        // been tried already.
        if matches!(error, ubtrfs::Error::Refused(_)) || job.request.rescue.ignore_bad_roots {
            return failure;
        }
        failure.map_sentence(|sentence| sentence + OF_DAMAGE)
    })
}

/// Returns the options of the mount. Root's mounts are for all users, as those of the kernel's file
/// systems are; mounts of others are for themselves. The kernel checks permissions.
pub fn mount_options(devices: &[PathBuf], request: &MountRequest, root: bool) -> MountOptions {
    let source = match devices.first() {
        Some(path) if is_block(path) => Source::BlockDevice(path.clone()),
        Some(path) if is_remote(path) => Source::Uri(path.display().to_string()),
        Some(path) => Source::Image(path.clone()),
        None => Source::Name("ubtrfs".into()),
    };
    MountOptions {
        source,
        name: request.name.clone().unwrap_or_default(),
        subtype: "ubtrfs".into(),
        read_only: request.read_only,
        // If permissions are not checked, only the user who mounts may use the mount.
        allow_other: request.allow_other.unwrap_or(root && request.checks_permissions()),
        default_permissions: request.checks_permissions(),
        no_atime: request.no_atime,
        dev: request.dev,
        suid: request.suid,
        exec: !request.no_exec,
        max_read: None,
        security: request.security.clone(),
    }
}

/// Whether a volume with these options may be mounted more than once.
pub fn can_be_shared(request: &MountRequest) -> bool {
    request.given_up.is_empty()
        && request.generation.is_none()
        && !request.rescue.is_wanted()
        && request.checks_permissions()
}

/// Mounts on a directory; a whole volume is mounted without a directory at first.
fn mount(directory: &Path, options: &MountOptions, is_whole: bool) -> Result<(Mount, Option<Detached>, FuseDevice)> {
    let mounted = if is_whole {
        Mount::new_nowhere(directory, options).map(|(mount, whole, device)| (mount, Some(whole), device))
    } else {
        Mount::new(directory, options).map(|(mount, device)| (mount, None, device))
    };
    mounted.map_err(|error| match &error {
        MountError::Dead(path) => dead(path),
        MountError::Device(source) if source.kind() == io::ErrorKind::NotFound => {
            Failure::new("there is no /dev/fuse: 'modprobe fuse', by root, loads the kernel's module")
        }
        MountError::NoFusermount(source) if source.kind() == io::ErrorKind::NotFound => {
            Failure::new("mounting without root needs the program fusermount3 (in the package fuse3)")
        }
        MountError::Device(source) if source.kind() == io::ErrorKind::PermissionDenied => no_permission(),
        MountError::Fusermount(said) if said.contains("/dev/fuse") && said.contains("ermission denied") => {
            no_permission()
        }
        MountError::Fusermount(said) if said.contains("fuse device not found") => {
            Failure::new("there is no /dev/fuse: 'modprobe fuse', by root, loads the kernel's module")
        }
        MountError::Fusermount(_) => about_place(directory).unwrap_or_else(|| Failure::of(&error)),
        error => Failure::of(error),
    })
}

/// Returns why fusermount3 can't mount on a directory, if that is known.
fn about_place(directory: &Path) -> Option<Failure> {
    let (shown, on) = (directory.display(), mount_table::holding(directory)?);
    if on.point == mount_table::resolve(directory).ok()? {
        return Some(occupied(directory, &on));
    }
    if on.kind.starts_with("fuse") {
        let point = on.point.display();
        return Some(Failure::new(format!(
            "{shown} is on the mount on {point}, into which fusermount3 can't look: mount on a directory outside of it"
        )));
    }
    let may_write = rustix::fs::access(directory, Access::WRITE_OK).is_ok();
    (!may_write).then(|| {
        Failure::new(format!(
            "you may not write to {shown}: without root one mounts on a directory of one's own ('mkdir' makes one)"
        ))
    })
}

/// Returns the failure about a mount point on which something is mounted already.
fn occupied(directory: &Path, mounted: &Mounted) -> Failure {
    let (shown, source) = (directory.display(), mounted.source.display());
    let who = mount_table::mounter_of(mounted).map(|user| format!(" by {user}")).unwrap_or_default();
    let end = if mounted.is_ours() { format!("'ubtrfs umount {shown}' ends it") } else { "unmount it".into() };
    Failure::new(format!("{source} is mounted on {shown} already{who}: {end}, or mount on another directory"))
}

fn no_permission() -> Failure {
    Failure::new(
        "you may not open /dev/fuse: root lets everybody, as is usual, with 'chmod 666 /dev/fuse' (to keep it: the line \
         KERNEL==\"fuse\", MODE=\"0666\" in /etc/udev/rules.d/99-fuse.rules), or puts you into the group that it belongs to",
    )
}

/// Checks the mount point, before anything else is done.
pub fn check_mount_point(directory: &Path) -> Result<()> {
    let shown = directory.display();
    if is_dead(directory) {
        return Err(dead(directory));
    }
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(format!("the mount point {shown} is not a directory"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::new(format!("the mount point {shown} does not exist: 'mkdir {shown}' makes it")))
        }
        Err(error) => match mount_table::mounted_on(&mount_table::resolve(directory)?)? {
            Some(mounted) if error.kind() == io::ErrorKind::PermissionDenied => Err(occupied(directory, &mounted)),
            _ => Err(Failure::about(format_args!("the mount point {shown}"), &error)),
        },
    }
}

fn dead(path: &Path) -> Failure {
    let path = path.display();
    Failure::new(format!("{path} is the mount of a server that is no more; clear it with `ubtrfs umount {path}`"))
}

fn kind_name(kind: MountKind) -> &'static str {
    match kind {
        MountKind::Block => "fuseblk",
        MountKind::Plain => "fuse",
        MountKind::Fusermount => "fuse (fusermount3)",
    }
}

fn list(devices: &[PathBuf]) -> String {
    devices.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_device_takes_no_file_with_data() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let asked = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            let opened = open_new(&file, None).map(drop);
            assert!(std::fs::read(&file).unwrap() == content);
            opened
        };
        let mut content = vec![0; 1 << 20];
        assert_eq!(asked(&content), Ok(()));
        content[700_000] = 1;
        assert_eq!(asked(&content), Err(Errno::EXIST));
        assert_eq!(asked(b"a letter"), Err(Errno::EXIST));
    }
}
