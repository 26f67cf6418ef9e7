//! Opening a volume as a file system, and closing it.

use std::sync::Arc;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{
    CompatRo, Header, Incompat, ItemContext, ItemType, Key, Node, NodeExpectation, Superblock, SuperblockFlags, TreeId,
    check_chunk, check_header, check_leaf, objectid,
};
use ubtrfs_tree::{BoxError, Geometry, NodeCache, NodeSource};
use ubtrfs_volume::{CompletedWrites, Volume};

use super::Filesystem;
use crate::committed::Committed;
use crate::committed_entries::subvolume_at;
use crate::error::{Errno, Error, Refusal, Result};
use crate::fs_info::FsInfo;
use crate::options::Options;
use crate::space::{Space, SpaceSources, load_space};

/// Incompatible features that reading knows.
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

/// Incompatible features that writing does not know.
const READ_ONLY_INCOMPAT: u64 = Incompat::SIMPLE_QUOTA.0;

/// Features that writing knows.
const KNOWN_COMPAT_RO: u64 =
    CompatRo::FREE_SPACE_TREE.0 | CompatRo::FREE_SPACE_TREE_VALID.0 | CompatRo::BLOCK_GROUP_TREE.0;

/// Tree blocks as the volume verified them.
struct VolumeNodes {
    volume: Arc<Volume>,
    /// Blocks with a malformed item are refused whole: no tree that is written to may hold one.
    /// Reading looks at items one by one, so that a damaged volume can be read as far as it goes.
    whole: bool,
}

impl NodeSource for VolumeNodes {
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError> {
        let block = self.volume.read_node(expected)?;
        if self.whole {
            self.check(&block).map_err(|error| format!("tree block {}: {error}", expected.bytenr))?;
        }
        Ok(block.to_vec())
    }
}

impl VolumeNodes {
    fn check(&self, block: &[u8]) -> std::result::Result<(), BoxError> {
        let header = Header::parse(block)?;
        check_header(&header, self.volume.chunk_tree_uuid())?;
        if let Node::Leaf(leaf) = Node::view(block)? {
            check_leaf(header.owner, &leaf, &ItemContext::from(&self.volume.superblock()))?;
        }
        Ok(())
    }
}

/// The trees of a volume through a cache, for reading only or for writing too.
fn node_cache(volume: &Arc<Volume>, options: &Options, read_only: bool) -> Arc<NodeCache> {
    let superblock = volume.superblock();
    let geometry = Geometry {
        node_size: superblock.node_size,
        sector_size: superblock.sector_size,
        fsid: superblock.metadata_fsid(),
        chunk_tree_uuid: volume.chunk_tree_uuid(),
        checksum: superblock.checksum,
    };
    let source = VolumeNodes { volume: volume.clone(), whole: !read_only };
    // The memory of a node is not all that it takes: so this is three tenths of what is allowed.
    let cache = NodeCache::new(Arc::new(source), geometry, options.memory / 4);
    Arc::new(match &options.rescue.pass_over {
        Some(damage) => cache.passing_over(Arc::clone(damage)),
        None => cache,
    })
}

impl Filesystem {
    /// Opens a volume. Says in a sentence why it can't be opened the way that is asked for.
    pub fn open(volume: Arc<Volume>, options: Options) -> Result<Arc<Self>> {
        let superblock = volume.superblock();
        let read_only = options.read_only || volume.is_read_only();
        check_features(&superblock, read_only)?;
        if !read_only {
            check_chunks(&superblock, &volume, options.recount_space)?;
        }
        let has_log_to_replay = check_log(&superblock, read_only, options.no_log_replay)?;
        if !read_only && (options.rescue.pass_over.is_some() || options.rescue.ignore_data_checksums) {
            return Err(Error::Refused(Refusal::RescueOfWriters));
        }
        let cache = node_cache(&volume, &options, read_only);
        let committed = Committed::load(superblock, cache.clone(), &options.rescue)?;
        if !read_only {
            check_writable_state(&committed, &volume)?;
        }
        let space = if read_only {
            empty_space(&committed, &volume)
        } else {
            read_space(&committed, &volume, options.recount_space)?
        };
        if options.forget_global_reserve {
            space.lock().forget_global_reserve();
        }
        let mounted = find_subvolume(&committed, &options)?;
        if !read_only {
            // Whoever wrote what has been read may have been killed before the barrier that was to
            // follow. From here on it counts as durable (invariant 22).
            let _flushed = volume.flush(CompletedWrites::nothing())?;
        }
        let background = options.background_commits && !read_only;
        let fs =
            Arc::new(Self::of(Arc::new(FsInfo::new(volume, cache, options, committed, space, read_only, mounted))));
        fs.check_root()?;
        if has_log_to_replay {
            fs.ops.replay_log()?;
            fs.check_root()?;
        }
        if !read_only {
            fs.inactivator.find_orphans();
        }
        if fs.info.options.discard && !read_only {
            fs.info.space.lock().start_discards();
        }
        if background {
            let failed = |error| Error::Posix(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
            let mut threads = fs.threads.lock();
            threads.push(fs.committer.start().map_err(failed)?);
            threads.push(fs.inactivator.start().map_err(failed)?);
            if fs.info.options.discard {
                threads.push(fs.discards.start().map_err(failed)?);
            }
        }
        Ok(fs)
    }

    /// Of a mount whose root can't be read, or is no directory, nothing can be reached: it shall
    /// not come about. Who reads a damaged volume as far as it goes may find what no directory
    /// leads to.
    fn check_root(&self) -> Result<()> {
        let is_dir = self.info.inode(self.info.root())?.read().is_dir();
        if is_dir || self.info.options.rescue.pass_over.is_some() {
            return Ok(());
        }
        Err(Error::Refused(Refusal::RootIsNoDirectory(self.info.root().subvolume)))
    }

    /// Ends: stops what works in the background, frees what can be freed soon, and commits what is
    /// not durable. Called once nobody uses the file system.
    pub fn close(&self) -> Result<()> {
        self.info.commit_request.stop();
        self.inactivator.stop();
        self.discards.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
        if self.info.is_read_only() && self.info.abort_reason().is_none() {
            return Ok(());
        }
        self.inactivator.free_before_the_end()?;
        self.committer.commit()?;
        self.info.space.unpin();
        if let Err(error) = self.discards.discard_freed() {
            tracing::warn!("what was freed last is not discarded: {error}");
        }
        Ok(())
    }
}

/// The subvolume named by a path or an id.
fn find_subvolume(committed: &Committed, options: &Options) -> Result<TreeId> {
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
    let known_flags = SuperblockFlags::WRITTEN.with(SuperblockFlags::ERROR);
    let odd = superblock.flags.without(known_flags);
    if odd.0 != 0 {
        let state = format!("the superblock has the flags {}", odd.names().join(", "));
        return refuse(Refusal::ReadOnlyState(state));
    }
    Ok(())
}

/// The rules for the superblock, the chunks and the devices that reading does without.
fn check_chunks(superblock: &Superblock, volume: &Volume, recount: bool) -> Result<()> {
    superblock.check_mountable()?;
    let context = ItemContext::from(superblock);
    for (start, chunk) in volume.chunks() {
        check_chunk(start, &chunk, &context)?;
    }
    for device in volume.devices() {
        if device.bytes_used > device.total_bytes && !recount {
            let what = "device item bytes_used";
            return Err(ubtrfs_format::Error::BadValue { what, value: device.bytes_used }.into());
        }
    }
    Ok(())
}

/// Whether there is a log to replay; an error if it may neither be replayed nor passed over.
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

/// States that writing can't keep right.
fn check_writable_state(committed: &Committed, volume: &Volume) -> Result<()> {
    let refuse = |state: String| Err(Error::Refused(Refusal::ReadOnlyState(state)));
    if committed.has_tree(TreeId::QUOTA) {
        return refuse("the volume has quotas enabled".into());
    }
    if committed.has_tree(TreeId::RELOC) {
        return refuse("a balance of the volume was interrupted".into());
    }
    let root_tree = committed.tree(TreeId::ROOT)?;
    let balance = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);
    if root_tree.get(&balance)?.is_some() {
        return refuse("a balance of the volume is under way or paused".into());
    }
    if let Some(item) = committed.tree(TreeId::DEV)?.get(&Key::new(0, ItemType::DEV_REPLACE, 0))?
        && matches!(item.get(16..24), Some(&[1 | 4, 0, 0, 0, 0, 0, 0, 0]))
    {
        return refuse("a device replacement is under way".into());
    }
    let striped = |flags: BlockGroupFlags| !matches!(flags.profile(), BlockGroupFlags(0) | BlockGroupFlags::DUP);
    if let Some((_, chunk)) = volume.chunks().into_iter().find(|(_, chunk)| striped(chunk.flags)) {
        return refuse(format!("the volume has {} chunks", chunk.flags.profile_name()));
    }
    if volume.devices().len() != 1 {
        return refuse("the volume has several devices".into());
    }
    Ok(())
}

fn read_space(committed: &Committed, volume: &Volume, recount: bool) -> Result<Space> {
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
        free_space_tree: free_space_tree.as_ref(),
        keeps_free_space_tree: superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE),
        chunks: &volume.chunks(),
        devices: &volume.devices(),
        node_size: superblock.node_size.into(),
        sector_size: superblock.sector_size.into(),
        mixed: superblock.incompat.contains(Incompat::MIXED_GROUPS),
        chunk_tree_uuid: volume.chunk_tree_uuid(),
        recount,
    })?;
    inner.set_needs(committed.needs());
    Ok(Space::new(inner))
}

/// Space of a file system that allocates nothing: a damaged extent tree must not keep a volume from
/// being read.
fn empty_space(committed: &Committed, volume: &Volume) -> Space {
    read_space(committed, volume, false).unwrap_or_else(|error| {
        tracing::debug!("free space is not known: {error}");
        let superblock = &committed.superblock;
        Space::unknown(&volume.devices(), superblock.node_size.into(), superblock.sector_size.into())
    })
}
