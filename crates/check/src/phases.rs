//! The phases of a check, in order.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use ubtrfs_format::items::sys_chunks;
use ubtrfs_format::{CompatRo, Incompat, ItemContext, ItemType, Key, Logical, Superblock, TreeId};
use ubtrfs_volume::Device;

use crate::chunks::{Layout, judge_used};
use crate::csums::{Covered, DataCheck, MAX_WRONG};
use crate::data::{DataJob, DataOutcome};
use crate::error::{Error, Result};
use crate::extents::{Allocated, Comparison};
use crate::fault::{FaultKind, Location};
use crate::free_space::FreeSpace;
use crate::groups::Groups;
use crate::log::Contents;
use crate::media::Media;
use crate::naming::Naming;
use crate::options::Options;
use crate::parity::ParityCheck;
use crate::quota::Quota;
use crate::ranges::RangeSet;
use crate::report::{Faults, LogStats, Report};
use crate::roots::{Roots, Uuids};
use crate::sharing::Sharing;
use crate::subvolume::{Finished, Rules, SubvolumeCheck};
use crate::superblock::{Copies, judge_fields};
use crate::uses::User;
use crate::walk::{BlocksOnly, Geometry, Items, TreeRoot, Visitor, Walker};

/// The state that all phases share.
struct Check<'a> {
    superblock: Superblock,
    walker: Walker<'a>,
    faults: Faults,
    /// The trees that were walked.
    walked: HashSet<TreeId>,
    options: &'a Options<'a>,
}

/// The contents of the extent tree, and whether all of it could be read.
struct Space {
    allocated: Allocated,
    groups: Groups,
    complete: bool,
}

pub(crate) fn run(devices: &[Arc<dyn Device>], options: &Options<'_>) -> Result<Report> {
    let mut faults = Faults::new(options.keep);
    let copies = Copies::read(devices);
    let start = options.start;
    let mut superblock = match start.superblock {
        Some(number) => copies.numbered(number).ok_or(Error::NoSuperblockCopy(number))?.clone(),
        None => copies.current().ok_or(Error::NoSuperblock)?.clone(),
    };
    refuse_unknown(&superblock)?;
    copies.judge(&superblock, &mut faults);
    judge_fields(&superblock, &mut faults);
    let mut media = Media::new(copies.by_devid(devices));
    for (key, chunk) in sys_chunks(&superblock.sys_chunk_array).unwrap_or_default() {
        media.add_chunk(Logical(key.offset), chunk);
    }
    start.apply(&mut superblock, &media)?;
    let geometry = Geometry {
        node_size: superblock.node_size,
        sector_size: superblock.sector_size,
        checksum: superblock.checksum,
        fsid: superblock.metadata_fsid(),
        generation: superblock.generation,
    };
    let walker = Walker::new(media, geometry, ItemContext::from(&superblock), options.progress);
    let walker = walker.with_seeds(copies.seeds(&superblock));
    Check { superblock, walker, faults, walked: HashSet::new(), options }.run()
}

/// Returns an error for features that change the meaning of what the checker compares.
fn refuse_unknown(superblock: &Superblock) -> Result<()> {
    let known = [
        Incompat::MIXED_BACKREF,
        Incompat::DEFAULT_SUBVOL,
        Incompat::MIXED_GROUPS,
        Incompat::COMPRESS_LZO,
        Incompat::COMPRESS_ZSTD,
        Incompat::BIG_METADATA,
        Incompat::EXTENDED_IREF,
        Incompat::RAID56,
        Incompat::SKINNY_METADATA,
        Incompat::NO_HOLES,
        Incompat::METADATA_UUID,
        Incompat::RAID1C34,
        Incompat::SIMPLE_QUOTA,
    ];
    let unknown = known.into_iter().fold(superblock.incompat, Incompat::without);
    if unknown == Incompat::default() { Ok(()) } else { Err(Error::Unsupported(unknown.names().join(", "))) }
}

impl<'a> Check<'a> {
    fn run(mut self) -> Result<Report> {
        let mut layout = self.chunk_tree()?;
        let (roots_complete, mut roots) = self.root_tree()?;
        let space = self.extent_tree(&roots);
        self.device_tree(&roots, &mut layout);
        self.judge_layout(&layout, &space);
        self.free_space_tree(&roots, &space);
        let covered = self.checksum_tree(&roots, &space);
        self.uuid_tree(&roots);
        let quota = self.quota_tree(&roots);
        self.other_trees(&roots);
        let job = self.data_job(&roots, covered.as_ref());
        thread::scope(|scope| {
            let beside = job.as_ref().filter(|_| self.options.threads);
            let beside = beside.and_then(|job| thread::Builder::new().spawn_scoped(scope, || job.run()).ok());
            self.files(&mut roots, roots_complete, &space, covered.as_ref(), &quota);
            if let Some(job) = &job {
                job.show();
                let found = beside.map_or_else(|| job.run(), |thread| thread.join().unwrap_or_else(resume));
                self.data(found, covered.as_ref());
            }
        });
        self.name_places(&roots);
        let stats = &mut self.faults.report.stats;
        stats.blocks = self.walker.blocks.len() as u64;
        stats.block_copies = self.walker.copies_read();
        Ok(self.faults.finish())
    }

    /// Checks subvolumes, the log, and what depends on them.
    fn files(
        &mut self,
        roots: &mut Roots,
        roots_complete: bool,
        space: &Space,
        covered: Option<&Covered>,
        quota: &Quota,
    ) {
        self.subvolumes(roots, &space.allocated.shared, covered);
        self.judge_quota(quota);
        self.log(space, covered);
        if roots_complete {
            roots.judge_links(&mut self.faults);
        } else {
            self.faults.not_compared("links between subvolumes, since the root tree could not all be read");
        }
        let lost = self.compare_uses(roots, roots_complete, space);
        if roots_complete {
            roots.judge_lost(&lost, &mut self.faults);
        }
    }

    fn walk(&mut self, root: &TreeRoot, visitor: &mut dyn Visitor) -> bool {
        self.faults.report.stats.trees += 1;
        self.walked.insert(root.tree);
        self.walker.walk(root, visitor, &mut self.faults)
    }

    /// Walks the tree of this id. Returns whether all of it could be read; `None` if it is missing.
    fn walk_tree(&mut self, roots: &Roots, tree: TreeId, visitor: &mut dyn Visitor) -> Option<bool> {
        let root = root_of(roots, tree)?;
        Some(self.walk(&root, visitor))
    }

    fn missing(&mut self, tree: TreeId) {
        self.faults.add(FaultKind::MissingTree, Location::tree(tree));
    }

    fn phase(&mut self, phase: &'static str) {
        self.walker.phase = phase;
        if let Some(progress) = self.options.progress {
            progress.report(phase, self.walker.blocks.len() as u64, self.walker.expected_blocks);
        }
    }

    fn chunk_tree(&mut self) -> Result<Layout> {
        self.phase("chunks");
        let superblock = &self.superblock;
        let root = TreeRoot::new(
            TreeId::CHUNK,
            superblock.chunk_root,
            superblock.chunk_root_generation,
            superblock.chunk_root_level,
        );
        let mut layout = Layout::default();
        let mut items = Items(|_, key, data: &[u8], _: &mut Faults| layout.take_chunk_item(key, data));
        if !self.walk(&root, &mut items) {
            let reason = self.faults.reason();
            return Err(Error::ChunkTree(reason));
        }
        for (start, chunk) in &layout.chunks {
            self.walker.media.add_chunk(Logical(*start), chunk.clone());
        }
        layout.judge_chunks(&self.superblock, &mut self.faults);
        self.options.start.apply_root(&mut self.superblock, &self.walker.media)?;
        self.walker.geometry.generation = self.superblock.generation;
        Ok(layout)
    }

    fn root_tree(&mut self) -> Result<(bool, Roots)> {
        self.phase("roots");
        let root = root_tree(&self.superblock);
        let mut roots = Roots::default();
        let complete = self.walk(&root, &mut Items(|_, key, data: &[u8], _: &mut Faults| roots.take(key, data)));
        if roots.items.is_empty() {
            let reason = self.faults.reason();
            return Err(Error::RootTree(reason));
        }
        self.walker.uses.dropping =
            roots.items.iter().any(|(key, item)| TreeId(key.objectid).is_subvolume() && item.refs == 0);
        Ok((complete, roots))
    }

    fn extent_tree(&mut self, roots: &Roots) -> Space {
        self.phase("extents");
        let mut allocated = Allocated::new(self.superblock.node_size);
        let complete = self.walk_tree(roots, TreeId::EXTENT, &mut allocated);
        if complete.is_none() {
            self.missing(TreeId::EXTENT);
        }
        let mut groups = std::mem::take(&mut allocated.groups);
        if self.superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            groups = Groups::default();
            let mut items = Items(|_, key, data: &[u8], _: &mut Faults| groups.take(key, data));
            if self.walk_tree(roots, TreeId::BLOCK_GROUP, &mut items).is_none() {
                self.missing(TreeId::BLOCK_GROUP);
            }
        }
        groups.list.sort_by_key(|group| group.start);
        self.walker.full_backref = allocated.full_backref.drain(..).collect();
        self.faults.report.stats.extents = allocated.extents;
        self.faults.report.stats.used_bytes = allocated.used.iter().map(|(start, end)| end - start).sum();
        let data: u64 = allocated.data.iter().map(|(start, end)| end - start).sum();
        let metadata = self.faults.report.stats.used_bytes.saturating_sub(data);
        self.walker.expected_blocks = metadata / u64::from(self.superblock.node_size.max(1));
        Space { allocated, groups, complete: complete == Some(true) }
    }

    fn device_tree(&mut self, roots: &Roots, layout: &mut Layout) {
        let mut items = Items(|_, key, data: &[u8], _: &mut Faults| layout.take_device_item(key, data));
        if self.walk_tree(roots, TreeId::DEV, &mut items).is_none() {
            self.missing(TreeId::DEV);
        }
    }

    fn judge_layout(&mut self, layout: &Layout, space: &Space) {
        let faults = &mut self.faults;
        layout.judge_groups(&space.groups, faults);
        layout.judge_devices(&self.walker.media, faults);
        let used = space.complete.then_some(faults.report.stats.used_bytes);
        layout.judge_totals(&self.superblock, used, faults);
        layout.judge_superblock_space(&space.allocated.used, faults);
        if space.complete {
            judge_used(&space.groups, &space.allocated.used, faults);
        } else {
            faults.not_compared("use of block groups, since the extent tree could not all be read");
        }
    }

    fn free_space_tree(&mut self, roots: &Roots, space: &Space) {
        let compat = self.superblock.compat_ro;
        if !compat.contains(CompatRo::FREE_SPACE_TREE) {
            return;
        }
        self.phase("free space");
        // The next mount rebuilds a tree that is not marked valid, so only its blocks are checked.
        if !compat.contains(CompatRo::FREE_SPACE_TREE_VALID) || !space.complete {
            if !space.complete {
                self.faults.not_compared("free space, since the extent tree could not all be read");
            }
            self.walk_tree(roots, TreeId::FREE_SPACE, &mut BlocksOnly);
            return;
        }
        let mut free = FreeSpace::new(&space.groups, &space.allocated.used, self.superblock.sector_size);
        if self.walk_tree(roots, TreeId::FREE_SPACE, &mut free).is_some() {
            free.finish(&mut self.faults);
        } else {
            self.missing(TreeId::FREE_SPACE);
        }
    }

    /// Walks the csum tree. Returns the addresses that have csums, if all of the tree could be
    /// read.
    fn checksum_tree(&mut self, roots: &Roots, space: &Space) -> Option<Covered> {
        self.phase("checksums");
        let mut covered = Covered::new(self.superblock.checksum, self.superblock.sector_size);
        let complete = self.walk_tree(roots, TreeId::CSUM, &mut covered);
        match complete {
            None => self.missing(TreeId::CSUM),
            Some(false) => self.faults.not_compared("missing checksums, since the tree could not all be read"),
            Some(true) => {}
        }
        if space.complete {
            covered.judge(&space.allocated.data, &mut self.faults);
        }
        (complete == Some(true)).then_some(covered)
    }

    fn uuid_tree(&mut self, roots: &Roots) {
        let mut uuids = Uuids::default();
        let mut items = Items(|_, key, data: &[u8], _: &mut Faults| uuids.take(key, data));
        match self.walk_tree(roots, TreeId::UUID, &mut items) {
            Some(true) => {
                let current = self.superblock.uuid_tree_generation == self.superblock.generation;
                roots.judge_uuids(&uuids, current, &mut self.faults);
            }
            Some(false) => {}
            None => self.faults.add(FaultKind::UuidTreeMissing, Location::tree(TreeId::UUID)),
        }
    }

    /// Reads the quota tree, and starts to count what the subvolumes share if its groups are to be
    /// compared with that.
    fn quota_tree(&mut self, roots: &Roots) -> Quota {
        let mut quota = Quota::default();
        let mut items = Items(|_, key, data: &[u8], faults: &mut Faults| quota.take(key, data, faults));
        match self.walk_tree(roots, TreeId::QUOTA, &mut items) {
            Some(true) => quota.judge_items(&self.superblock, roots, &mut self.faults),
            // Groups would be missing.
            Some(false) => quota = Quota::default(),
            None => {}
        }
        let is_wanted = self.options.qgroups && quota.counts_references();
        let is_listed = self.options.extents_of.is_some();
        if quota.is_consistent(&self.superblock) || is_wanted || is_listed {
            self.walker.sharing = Some(Sharing::default());
        }
        quota
    }

    /// Compares quota groups with what the subvolumes share.
    fn judge_quota(&mut self, quota: &Quota) {
        let Some(sharing) = self.walker.sharing.take() else { return };
        if sharing.is_too_large() || self.walker.uses.incomplete {
            self.faults.not_compared("use of quota groups, since not all that subvolumes share is known");
            return;
        }
        if let Some(subvolume) = self.options.extents_of {
            self.faults.report.extents = sharing.extents_of(subvolume);
        }
        if !quota.counts_references() {
            return;
        }
        let report = quota.report(&sharing);
        // A subvolume counts for a part of its extents only while it is dropped.
        if quota.is_consistent(&self.superblock) && !self.walker.uses.dropping {
            Quota::judge_use(&report, &mut self.faults);
        }
        self.faults.report.qgroups = report;
    }

    /// Walks trees of which only blocks and items are checked.
    fn other_trees(&mut self, roots: &Roots) {
        for (key, item) in &roots.items {
            let tree = TreeId(key.objectid);
            let later = tree.is_subvolume() || tree == TreeId::DATA_RELOC;
            // Only relocation trees have several root items.
            if later || (self.walked.contains(&tree) && tree != TreeId::RELOC) {
                continue;
            }
            let mut root = TreeRoot::new(tree, item.bytenr, item.generation, item.level);
            if tree == TreeId::RELOC {
                root.user = User::block(item.bytenr);
            }
            self.walk(&root, &mut BlocksOnly);
        }
    }

    fn subvolumes(&mut self, roots: &mut Roots, shared: &RangeSet, covered: Option<&Covered>) {
        self.phase("files");
        // Without either of these a mount is refused.
        for tree in [TreeId::FS, TreeId::DATA_RELOC] {
            if roots.get(tree).is_none() {
                self.missing(tree);
            }
        }
        let rules = Rules {
            sector_size: self.superblock.sector_size.into(),
            no_holes: self.superblock.incompat.contains(Incompat::NO_HOLES),
            covered: covered.map(|covered| &covered.ranges),
            shared,
        };
        let trees: Vec<_> = subvolume_roots(roots).collect();
        // Trees with the same root block are one tree with several ids, and are checked once.
        let mut seen: HashMap<Logical, TreeId> = HashMap::new();
        for (root, refs) in trees {
            let first = seen.insert(root.bytenr, root.tree).is_none();
            if refs == 0 || !first {
                self.walk(&root, &mut BlocksOnly);
                roots.unread.insert(root.tree.0);
                continue;
            }
            // Relocation writes data before its csums, and copies space that has none.
            let covered = rules.covered.filter(|_| root.tree != TreeId::DATA_RELOC);
            let mut check = SubvolumeCheck::new(root.tree, Rules { covered, ..rules });
            self.walk(&root, &mut check);
            let Finished { complete, links, inodes, entries } = check.finish(&self.walker, &root, &mut self.faults);
            let stats = &mut self.faults.report.stats;
            stats.subvolumes += u64::from(root.tree.is_subvolume());
            stats.inodes += inodes;
            stats.entries += entries;
            roots.entries.extend(links);
            if !complete {
                roots.unread.insert(root.tree.0);
            }
        }
    }

    /// Checks the log tree, which is not in the extent tree: it must be readable and in space that
    /// nothing else uses, and its data must match its csums.
    fn log(&mut self, space: &Space, covered: Option<&Covered>) {
        let log_root = self.superblock.log_root;
        if log_root.0 == 0 {
            return;
        }
        self.phase("log");
        self.faults.report.stats.has_log = true;
        let generation = self.superblock.generation.next();
        let accounted = std::mem::take(&mut self.walker.blocks);
        let uses = std::mem::take(&mut self.walker.uses);
        self.walker.geometry.generation = generation;
        let root = TreeRoot::new(TreeId::LOG, log_root, generation, self.superblock.log_root_level);
        let mut logs = Vec::new();
        let mut items = Items(|_, key: Key, data: &[u8], _: &mut Faults| {
            if key.item_type == ItemType::ROOT_ITEM
                && let Ok(item) = ubtrfs_format::items::RootItem::parse(data)
            {
                logs.push((key, item));
            }
        });
        self.walker.walk(&root, &mut items, &mut self.faults);
        let mut contents = Contents::default();
        for (key, item) in logs {
            if item.generation != generation {
                let kind = FaultKind::LogGeneration { found: item.generation.0, expected: generation.0 };
                self.faults.add(kind, Location::item(TreeId::LOG, key));
            }
            contents.begin_subvolume();
            let root = TreeRoot::new(TreeId::LOG, item.bytenr, item.generation, item.level);
            self.walker.walk(&root, &mut contents, &mut self.faults);
        }
        let mut blocks: Vec<_> = self.walker.blocks.keys().copied().collect();
        blocks.sort_unstable();
        let node_size = u64::from(self.superblock.node_size);
        if space.complete {
            contents.judge_space(&blocks, node_size, &space.allocated, &space.groups, &mut self.faults);
        } else {
            self.faults.not_compared("space of the log, since the extent tree could not all be read");
        }
        let kind = (self.superblock.checksum, self.superblock.sector_size);
        let mut data = DataCheck::new(&self.walker.media, self.superblock.checksum, self.superblock.sector_size);
        let reads = self.options.data_checksums.then_some(&mut data);
        contents.judge_data(kind, covered, reads, &mut self.faults);
        data.finish(&mut self.faults);
        self.faults.report.stats.log = LogStats { blocks: blocks.len() as u64, ..contents.stats };
        self.walker.geometry.generation = self.superblock.generation;
        self.walker.blocks = accounted;
        self.walker.uses = uses;
    }

    /// Walks the extent tree once more, and compares it with all uses that were found.
    /// Returns how many references belong to each subvolume that has no root item.
    fn compare_uses(&mut self, roots: &Roots, roots_complete: bool, space: &Space) -> BTreeMap<u64, u64> {
        self.phase("references");
        self.walker.uses.list.sort_unstable();
        let Some(root) = root_of(roots, TreeId::EXTENT) else { return BTreeMap::new() };
        let walker = &self.walker;
        let sizes = (self.superblock.node_size, self.superblock.sector_size);
        let mut comparison = Comparison::new(&walker.uses, &walker.blocks, &space.groups, sizes, !space.complete);
        if roots_complete {
            comparison = comparison.with_trees(roots.items.keys().map(|key| TreeId(key.objectid)).collect());
        }
        walker.walk_again(&root, &mut comparison, &mut self.faults);
        comparison.finish(&mut self.faults)
    }

    /// Returns the reader of the data, if it is to be read and can be verified.
    fn data_job(&self, roots: &Roots, covered: Option<&Covered>) -> Option<DataJob<'a>> {
        let root = root_of(roots, TreeId::CSUM).filter(|_| self.options.data_checksums)?;
        let total = covered.map_or(0, |covered| covered.ranges.iter().map(|(start, end)| end - start).sum());
        let of_volume = (&self.superblock, self.walker.geometry, self.walker.seeds().to_vec());
        let options = (self.options.keep, self.options.progress);
        Some(DataJob::new(of_volume, self.walker.media.clone(), root, total, options))
    }

    /// Adds what was found in the data, and compares parity with it.
    fn data(&mut self, found: DataOutcome, covered: Option<&Covered>) {
        self.faults.absorb(found.faults);
        self.faults.report.stats.data_bytes = found.read;
        self.parity(covered, found.wrong);
    }

    /// Compares parity with data that csums have proved, and with valid blocks.
    fn parity(&mut self, covered: Option<&Covered>, mut wrong: BTreeSet<u64>) {
        if self.walker.media.chunks_with_parity().next().is_none() {
            return;
        }
        if wrong.len() >= MAX_WRONG {
            self.faults.not_compared("parity, since too much data is wrong");
            return;
        }
        let (node_size, sector_size) = (u64::from(self.superblock.node_size), u64::from(self.superblock.sector_size));
        let mut proven: Vec<(u64, u64)> = covered.map(|covered| covered.ranges.iter().collect()).unwrap_or_default();
        for (at, block) in &self.walker.blocks {
            let end = at.0.saturating_add(node_size);
            proven.push((at.0, end));
            if block.bad {
                wrong.extend((at.0..end).step_by(sector_size as usize));
            }
        }
        let proven = RangeSet::from_unsorted(proven);
        let parity = ParityCheck { media: &self.walker.media, proven: &proven, wrong: &wrong, sector_size };
        parity.judge(&mut self.faults);
    }

    /// Adds paths to the locations of faults.
    fn name_places(&mut self, roots: &Roots) {
        let trees = subvolume_roots(roots).map(|(root, _)| (root.tree, root)).collect();
        let naming = Naming::new(&self.walker, roots, trees);
        let report = &mut self.faults.report;
        naming.name(&mut report.faults);
        naming.name(&mut report.warnings);
    }
}

/// Continues the panic of a thread.
fn resume(panic: Box<dyn Any + Send>) -> DataOutcome {
    std::panic::resume_unwind(panic)
}

fn root_tree(superblock: &Superblock) -> TreeRoot {
    TreeRoot::new(TreeId::ROOT, superblock.root, superblock.generation, superblock.root_level)
}

fn root_of(roots: &Roots, tree: TreeId) -> Option<TreeRoot> {
    roots.get(tree).map(|item| TreeRoot::new(tree, item.bytenr, item.generation, item.level))
}

/// The roots of subvolumes and of the data relocation tree, each with the reference count of its
/// root item.
fn subvolume_roots(roots: &Roots) -> impl Iterator<Item = (TreeRoot, u32)> + '_ {
    roots.items.iter().filter_map(|(key, item)| {
        let tree = TreeId(key.objectid);
        if !tree.is_subvolume() && tree != TreeId::DATA_RELOC {
            return None;
        }
        let mut root = TreeRoot::new(tree, item.bytenr, item.generation, item.level);
        root.dropped_to = Some(item.drop_progress).filter(|key| item.refs == 0 && key.objectid != 0);
        Some((root, item.refs))
    })
}
