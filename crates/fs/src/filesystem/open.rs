//! Opening a volume as a file system, and closing it.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{
    CompatRo, Header, Incompat, ItemContext, Logical, Node, NodeExpectation, Superblock, SuperblockFlags, TreeId,
    check_chunk, check_header, check_leaf,
};
use ubtrfs_tree::{BoxError, Geometry, NodeCache, NodeSource};
use ubtrfs_volume::{Device, OpenMode, OpenOptions, Volume, claim, open_exclusively};

use super::Filesystem;
use crate::commit::{load_device_stats, merges_reloc_trees};
use crate::committed::Committed;
use crate::committed_entries::subvolume_at;
use crate::error::{Errno, Error, Refusal, Result, Step};
use crate::fs_info::FsInfo;
use crate::options::Options;
use crate::replay::Replayer;
use ubtrfs_space::{Space, SpaceSources, load_space};

/// Incompatible features that the reading code supports.
const KNOWN_INCOMPAT: u64 = Incompat::MIXED_BACKREF.0
    | Incompat::DEFAULT_SUBVOL.0
    | Incompat::MIXED_GROUPS.0
    | Incompat::COMPRESS_LZO.0
    | Incompat::COMPRESS_ZSTD.0
    | Incompat::BIG_METADATA.0
    | Incompat::EXTENDED_IREF.0
    | Incompat::RAID56.0
    | Incompat::SKINNY_METADATA.0
    | Incompat::NO_HOLES.0
    | Incompat::METADATA_UUID.0
    | Incompat::RAID1C34.0
    | Incompat::SIMPLE_QUOTA.0;

/// Incompatible features that the reading code supports and the writing code does not.
const READ_ONLY_INCOMPAT: u64 = Incompat::SIMPLE_QUOTA.0;

/// Read-only compatible features that the writing code supports.
const KNOWN_COMPAT_RO: u64 =
    CompatRo::FREE_SPACE_TREE.0 | CompatRo::FREE_SPACE_TREE_VALID.0 | CompatRo::BLOCK_GROUP_TREE.0 | CompatRo::VERITY.0;

/// A source of tree blocks that reads from the volume, which verifies them.
struct VolumeNodes {
    volume: Arc<Volume>,
    /// Whether a block with a malformed item is refused as a whole: no tree that is written to may
    /// contain such a block. Read-only mounts check items one by one instead, so that as much as
    /// possible of a damaged volume can be read.
    whole: bool,
}

impl NodeSource for VolumeNodes {
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError> {
        let block = self.volume.reader().read_node(expected)?;
        if self.whole {
            self.check(expected.bytenr, &block)?;
        }
        Ok(block.to_vec())
    }

    fn reads_ahead(&self) -> usize {
        self.volume.devices().reads_ahead()
    }
}

impl VolumeNodes {
    fn check(&self, at: Logical, block: &[u8]) -> Result<()> {
        let malformed = |source| ubtrfs_volume::Error::Node { at, source };
        let header = Header::parse(block).map_err(malformed)?;
        check_header(&header, self.volume.chunk_tree_uuid()).map_err(malformed)?;
        if let Node::Leaf(leaf) = Node::view(block).map_err(malformed)? {
            check_leaf(header.owner, &leaf, &ItemContext::from(&self.volume.superblocks().current()))
                .map_err(|fault| Error::MalformedItem { block: at, fault })?;
        }
        Ok(())
    }
}

/// Returns a cache for the tree blocks of a volume, for a read-only or a writable mount.
fn node_cache(volume: &Arc<Volume>, options: &Options, read_only: bool) -> Arc<NodeCache> {
    let superblock = volume.superblocks().current();
    let geometry = Geometry {
        node_size: superblock.node_size,
        sector_size: superblock.sector_size,
        fsid: superblock.metadata_fsid(),
        chunk_tree_uuid: volume.chunk_tree_uuid(),
        checksum: superblock.checksum,
    };
    let source = VolumeNodes { volume: volume.clone(), whole: !read_only };
    // The cache's allocators round up, so nodes whose sizes add up to a fourth of the memory take
    // three tenths of it.
    let cache = NodeCache::new(Arc::new(source), geometry, options.memory / 4);
    Arc::new(match &options.rescue.pass_over {
        Some(damage) => cache.passing_over(Arc::clone(damage)),
        None => cache,
    })
}

impl Filesystem {
    /// Opens the volume in an image file or on a block device, and locks it against other users:
    /// two programs of ubtrfs can't write to one volume, and one can't read what another writes. A
    /// device that the kernel has mounted or otherwise in use is refused, and so is an image that a
    /// loop device uses.
    ///
    /// Refuses a volume of several devices, which needs all of them: see [`Self::open_devices`].
    pub fn open_path(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let path = path.as_ref();
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device = open_exclusively(path, mode)?;
        // A device that is opened for writing is claimed by that already.
        let is_block = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        let claim = if options.read_only && is_block { Some(claim(path)?) } else { None };
        let volume = Volume::open(vec![device], OpenOptions { read_only: options.read_only })?;
        Self::open_claimed(Arc::new(volume), options, claim)
    }

    /// Opens the volume on `devices`, which must be all of its devices, in any order.
    pub fn open_devices(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Arc<Self>> {
        let volume = Volume::open(devices, OpenOptions { read_only: options.read_only })?;
        Self::open(Arc::new(volume), options)
    }

    /// Opens a volume. An error says in a sentence why the volume can't be opened with these
    /// options.
    pub fn open(volume: Arc<Volume>, options: Options) -> Result<Arc<Self>> {
        Self::open_claimed(volume, options, None)
    }

    fn open_claimed(volume: Arc<Volume>, options: Options, claim: Option<File>) -> Result<Arc<Self>> {
        let superblock = volume.superblocks().current();
        let read_only = options.read_only || volume.is_read_only();
        check_features(&superblock, read_only)?;
        if !read_only {
            check_chunks(&superblock, &volume)?;
        }
        let has_log_to_replay = check_log(&superblock, read_only, options.no_log_replay)?;
        let rescue = &options.rescue;
        let ignores_checksums = rescue.ignore_data_checksums || rescue.ignore_metadata_checksums;
        if !read_only && (rescue.pass_over.is_some() || ignores_checksums) {
            return Err(Error::Refused(Refusal::RescueOfWriters));
        }
        if rescue.ignore_metadata_checksums {
            volume.reader().ignore_node_checksums();
        }
        let cache = node_cache(&volume, &options, read_only);
        let committed = Committed::load(superblock, cache.clone(), &options.rescue)?;
        if !read_only {
            check_writable_state(&committed, &volume)?;
            load_device_stats(&volume, &committed.tree(TreeId::DEV)?)?;
        }
        let space =
            if read_only { empty_space(&committed, &volume) } else { read_space(&committed, &volume, &options)? };
        if options.faults().forgets_global_reserve() {
            space.lock().forget_global_reserve();
        }
        let mounted = find_subvolume(&committed, &options)?;
        if !read_only {
            // The program that wrote what has been read may have been killed before its barrier.
            // After this barrier it counts as durable (invariant 22).
            volume.writer().barrier()?;
        }
        let device_tree = if read_only { None } else { Some(committed.tree(TreeId::DEV)?) };
        let background = options.background_commits && !read_only;
        let mut fs = Self::of(Arc::new(FsInfo::new(volume, cache, options, committed, space, read_only, mounted)));
        fs.claim = claim;
        if let Some(device_tree) = device_tree {
            fs.committer.replacement().load(&device_tree)?;
        }
        let fs = Arc::new(fs);
        fs.check_root()?;
        let at_rest = fs.info.options.begins_at_rest && !read_only;
        if at_rest && (has_log_to_replay || fs.has_work_left()?) {
            return Err(Error::Refused(Refusal::ReadOnlyState("something is to be done before it is used".into())));
        }
        if has_log_to_replay {
            fs.replayer().replay_log()?;
            fs.check_root()?;
        }
        if !read_only {
            fs.committer.drop_reloc_trees()?;
            fs.inactivator.find_orphans();
        }
        // A read-only mount shows a balance that was left, too, if it can read its item.
        fs.balancer.load().or_else(|error| if read_only { Ok(()) } else { Err(error) })?;
        if fs.info.options.catches_up_first && !read_only {
            fs.catch_up_all()?;
        }
        if fs.info.options.discard && !read_only {
            fs.info.space.lock().start_discards();
        }
        if background {
            let failed = |error| Error::Posix(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
            let mut threads = fs.threads.lock();
            threads.push(fs.committer.start().map_err(failed)?);
            threads.push(fs.inactivator.start().map_err(failed)?);
            threads.push(fs.scrubber.start().map_err(failed)?);
            if fs.info.options.resume_balance && !at_rest {
                threads.extend(fs.balancer.start_what_was_left().map_err(failed)?);
            }
            threads.extend(fs.replacer.start().map_err(failed)?);
            if fs.info.options.discard {
                threads.push(fs.discards.start().map_err(failed)?);
            }
        }
        Ok(fs)
    }

    fn replayer(&self) -> Replayer {
        Replayer { info: self.info.clone(), names: self.names.clone(), reserver: self.reserver.clone() }
    }

    /// Whether a writable mount finds work that it would start at once: a lagging device, a device
    /// replacement or a reloc tree.
    fn has_work_left(&self) -> Result<bool> {
        let lags = !self.info.volume.devices().lagging().is_empty();
        Ok(lags || self.committer.replacement().item().is_in_progress() || self.committer.has_reloc_trees()?)
    }

    /// Brings all lagging devices up to date, which takes a commit. Refuses the mount if one still
    /// lags.
    fn catch_up_all(&self) -> Result<()> {
        self.scrubber.catch_up(&mut |_| true)?;
        match self.info.volume.devices().lagging().first() {
            None => Ok(()),
            Some(devid) => {
                let why =
                    format!("device {devid} lacks something that the others have, and can't be brought up to them");
                Err(Error::Refused(Refusal::ReadOnlyState(why)))
            }
        }
    }

    /// Refuses a mount whose root can't be read or is not a directory, since it would be useless. A
    /// rescue mount is allowed, since it may still find inodes that no directory refers to.
    fn check_root(&self) -> Result<()> {
        let is_dir = self.info.inode(self.info.root())?.read().is_dir();
        if is_dir || self.info.options.rescue.pass_over.is_some() {
            return Ok(());
        }
        Err(Error::Refused(Refusal::RootIsNoDirectory(self.info.root().subvolume)))
    }

    /// Ends the mount: stops the background threads, frees the inodes and extents that can be freed
    /// soon, and commits. To be called when the file system is not used any more. Nothing can be
    /// changed afterwards, and the devices are released when the last reference to the file system
    /// is dropped.
    pub fn close(&self) -> Result<()> {
        self.stop_threads();
        self.info.volume.devices().say_bad_copies();
        if self.info.is_read_only() && self.info.aborted().is_none() {
            return Ok(());
        }
        self.inactivator.free_before_the_end()?;
        self.replacer.suspend();
        self.ops.durability.stop_writing()?;
        self.info.space.unpin();
        if let Err(error) = self.discards.discard_freed() {
            self.info.writability.note_error(&error.at(Step::Discard));
        }
        Ok(())
    }
}

impl Filesystem {
    /// Tells the background threads to end, and waits for them. Returns whether the calling thread
    /// is not one of them.
    fn stop_threads(&self) -> bool {
        self.info.commit_request.stop();
        self.info.resilver_request.stop();
        self.inactivator.stop();
        self.discards.stop();
        self.scrubber.stop();
        self.info.exclusive_op.end();
        self.replacer.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        let this = ubtrfs_threads::thread::current().id();
        let is_outside = threads.iter().all(|thread| thread.thread().id() != this);
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != this) {
            let _ = thread.join();
        }
        is_outside
    }
}

impl Drop for Filesystem {
    /// With background commits this does the same as [`Filesystem::close`], but only traces an
    /// error. Without them, and while a thread panics, all changes that neither a commit nor an
    /// fsync has made durable are lost as in a crash.
    fn drop(&mut self) {
        if self.threads.get_mut().is_empty() {
            return;
        }
        if !self.stop_threads() {
            tracing::error!("the file system ends within its own commit: what changed since then is lost");
        } else if ubtrfs_threads::thread::panicking() {
            tracing::error!("the file system ends by a panic: what changed since its last commit is lost");
        } else if let Err(error) = self.close() {
            tracing::error!("the last commit failed: {}", error.chain());
        }
    }
}

/// Returns the subvolume that the options name by its path or its id, or the default subvolume.
fn find_subvolume(committed: &Committed, options: &Options) -> Result<TreeId> {
    if let (Some(id), Some(path)) = (options.subvolume_id, &options.subvolume) {
        let found = subvolume_at(committed, path)?;
        let found = found.ok_or_else(|| Error::Refused(Refusal::NoSubvolume(format!("at '{path}'"))))?;
        let wanted = if id == 0 { TreeId::FS } else { TreeId(id) };
        return if found == wanted {
            Ok(found)
        } else {
            Err(Error::Refused(Refusal::OtherSubvolume { path: path.clone(), found, wanted }))
        };
    }
    if let Some(id) = options.subvolume_id {
        let id = if id == 0 { TreeId::FS } else { TreeId(id) };
        return if committed.has_subvolume(id) {
            Ok(id)
        } else {
            Err(Error::Refused(Refusal::NoSubvolume(format!("with the id {id}"))))
        };
    }
    let Some(path) = &options.subvolume else {
        let id = committed.default_subvolume()?;
        return if committed.has_subvolume(id) { Ok(id) } else { Ok(TreeId::FS) };
    };
    subvolume_at(committed, path)?.ok_or_else(|| Error::Refused(Refusal::NoSubvolume(format!("at '{path}'"))))
}

fn check_features(superblock: &Superblock, read_only: bool) -> Result<()> {
    let refuse = |refusal| Err(Error::Refused(refusal));
    let unknown = Incompat(superblock.incompat.0 & !KNOWN_INCOMPAT);
    if unknown.0 != 0 {
        return refuse(Refusal::UnknownIncompat(unknown.names()));
    }
    if read_only {
        return Ok(());
    }
    let mut names = CompatRo(superblock.compat_ro.0 & !KNOWN_COMPAT_RO).names();
    names.extend(Incompat(superblock.incompat.0 & READ_ONLY_INCOMPAT).names());
    if !names.is_empty() {
        return refuse(Refusal::ReadOnlyFeatures(names));
    }
    // A volume that was restored from a dump of its metadata can be written like any other,
    // although its files do not have their former content.
    let of_dumps = SuperblockFlags::METADUMP.with(SuperblockFlags::METADUMP_V2);
    let known_flags = SuperblockFlags::WRITTEN.with(SuperblockFlags::ERROR).with(of_dumps);
    let odd = superblock.flags.without(known_flags);
    if odd.0 != 0 {
        let state = format!("the superblock has the flags {}", odd.names().join(", "));
        return refuse(Refusal::ReadOnlyState(state));
    }
    Ok(())
}

/// Checks the rules for the superblock, the chunks and the devices that only a writable mount
/// needs.
fn check_chunks(superblock: &Superblock, volume: &Volume) -> Result<()> {
    superblock.check_mountable()?;
    let context = ItemContext::from(superblock);
    for (start, chunk) in volume.chunk_map().all() {
        check_chunk(start, &chunk, &context)?;
    }
    for device in volume.devices().items() {
        if device.bytes_used > device.total_bytes {
            let what = "device item bytes_used";
            return Err(ubtrfs_format::Error::BadValue { what, value: device.bytes_used }.into());
        }
    }
    Ok(())
}

/// Returns whether there is a log to replay. Fails if the log may neither be replayed nor ignored.
fn check_log(superblock: &Superblock, read_only: bool, no_log_replay: bool) -> Result<bool> {
    if superblock.log_root.0 == 0 {
        return Ok(false);
    }
    if no_log_replay {
        return if read_only { Ok(false) } else { Err(Error::Refused(Refusal::LogPassedOver)) };
    }
    let unknown = CompatRo(superblock.compat_ro.0 & !KNOWN_COMPAT_RO);
    if unknown.0 != 0 {
        return Err(Error::Refused(Refusal::LogOfUnknownFeatures(unknown.names())));
    }
    Ok(true)
}

/// Refuses a volume in a state that the writing code can't maintain.
fn check_writable_state(committed: &Committed, volume: &Volume) -> Result<()> {
    let refuse = |state: String| Err(Error::Refused(Refusal::ReadOnlyState(state)));
    if committed.has_tree(TreeId::QUOTA) {
        return refuse("the volume has quotas enabled".into());
    }
    if merges_reloc_trees(committed)? {
        return refuse("a balance of the volume was interrupted while it merged reloc trees".into());
    }
    let has_parity = |flags: BlockGroupFlags| flags.raid().is_none_or(|raid| raid.parities > 0);
    if let Some((_, chunk)) = volume.chunk_map().all().into_iter().find(|(_, chunk)| has_parity(chunk.flags)) {
        return refuse(format!("the volume has {} chunks", chunk.flags.profile_name()));
    }
    Ok(())
}

fn read_space(committed: &Committed, volume: &Volume, options: &Options) -> Result<Space> {
    let superblock = &committed.superblock;
    let extent_tree = committed.tree(TreeId::EXTENT)?;
    let block_group_tree = committed.tree(committed.block_group_tree_id())?;
    let valid = CompatRo::FREE_SPACE_TREE.with(CompatRo::FREE_SPACE_TREE_VALID);
    let free_space_tree = if superblock.compat_ro.contains(valid) && committed.has_tree(TreeId::FREE_SPACE) {
        Some(committed.tree(TreeId::FREE_SPACE)?)
    } else {
        None
    };
    let mut inner = load_space(&SpaceSources {
        extent_tree: &extent_tree,
        block_group_tree: &block_group_tree,
        dev_tree: &committed.tree(TreeId::DEV)?,
        free_space_tree: free_space_tree.as_ref(),
        keeps_free_space_tree: superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE),
        chunks: &volume.chunk_map().all(),
        devices: &volume.devices().items(),
        closed_devices: &volume.devices().closed(),
        seed_devices: &volume.devices().seeds(),
        node_size: superblock.node_size.into(),
        sector_size: superblock.sector_size.into(),
        max_chunk: options.largest_chunk,
        mixed: superblock.incompat.contains(Incompat::MIXED_GROUPS),
        chunk_tree_uuid: volume.chunk_tree_uuid(),
    })?;
    inner.set_needs(committed.needs());
    Ok(Space::new(inner))
}

/// Returns the space of a file system that allocates nothing. A damaged extent tree must not
/// prevent a volume from being read.
fn empty_space(committed: &Committed, volume: &Volume) -> Space {
    read_space(committed, volume, &Options::default()).unwrap_or_else(|error| {
        tracing::debug!("free space is not known: {}", error.chain());
        let superblock = &committed.superblock;
        Space::unknown(&volume.devices().items(), superblock.node_size.into(), superblock.sector_size.into())
    })
}
