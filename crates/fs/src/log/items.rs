//! Gathers the log's items of one inode.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs_file::{CommittedExtents, ExtentPiece, Mapped, Piece, Stack, SumMap};
use ubtrfs_format::items::{self, DIR_ENTRY_HEADER, DirEntry, FileType, InodeFlags, InodeItem, encode_dir_entry};
use ubtrfs_format::{ItemType, Key, Logical, leaf_data_size, name_hash, objectid};

use super::gather::{Gatherer, Result};
use super::reason::{OrElse, Reason, Stop};
use crate::backrefs::can_grow_in_replay;
use crate::faults::LogFault;
use crate::inode::{EntryChange, Inode, InodeId, InodeState, Logged, LoggedAs};
use crate::writeback::Packed;

/// Checksums of data that is written in place are logged in windows of this many bytes of the
/// extent, so that no two items of a log overlap, and a small write logs few checksums.
const SUM_WINDOW: u64 = 256 << 10;

impl Gatherer<'_> {
    /// Gathers all xattrs, even unchanged ones, since replay removes the xattrs of a logged inode
    /// that the log lacks. `now` selects the present xattrs, otherwise those of the last commit.
    pub(super) fn xattrs(&mut self, id: InodeId, state: &InodeState, known: bool, now: bool) -> Result<()> {
        if state.no_xattrs {
            return Ok(());
        }
        let range = Key::new(id.ino.0, ItemType::XATTR_ITEM, 0)..=Key::new(id.ino.0, ItemType::XATTR_ITEM, u64::MAX);
        self.clear(id.subvolume, range.clone());
        let mut xattrs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        if known && !self.gets_wrong(LogFault::ForgetXattr) {
            self.count_searches(1);
            for item in self.tree(id.subvolume)?.range(range) {
                for entry in items::dir_entries(&item.or_commit()?) {
                    let entry = entry.or_commit()?;
                    xattrs.insert(entry.name.to_vec(), entry.value.to_vec());
                }
            }
        }
        let before = lengths(&xattrs);
        for (name, value) in state.pending.xattrs.iter().filter(|_| now) {
            match value {
                Some(value) => drop(xattrs.insert(name.to_vec(), value.to_vec())),
                None => drop(xattrs.remove(&**name)),
            }
        }
        self.check_replay_of_xattrs(&before, &xattrs)?;
        let mut items: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (name, value) in &xattrs {
            let entry = DirEntry {
                location: Key::MIN,
                transid: self.transaction.generation,
                file_type: FileType::Xattr,
                name,
                value,
            };
            encode_dir_entry(items.entry(name_hash(name)).or_default(), &entry);
        }
        for (hash, item) in items {
            self.put(id.subvolume, Key::new(id.ino.0, ItemType::XATTR_ITEM, hash), item);
        }
        Ok(())
    }

    /// Refuses xattrs that can't be replayed. The kernel's replay deletes xattrs that the log
    /// lacks, and then makes their item as large as the log's, without checking the free space of
    /// the leaf. `before` contains names and lengths in the last commit.
    fn check_replay_of_xattrs(&self, before: &Lengths, now: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
        let now = lengths(now);
        let bytes = |item: &BTreeMap<Vec<u8>, usize>| {
            item.iter().map(|(name, value)| DIR_ENTRY_HEADER + name.len() + value).sum::<usize>()
        };
        let node_size = self.log.info.volume.node_size() as usize;
        let fits = |(hash, item): (&u64, &BTreeMap<Vec<u8>, usize>)| {
            let before = before.get(hash);
            before.is_none_or(|before| before == item || can_grow_in_replay(bytes(before), bytes(item), node_size))
        };
        if now.iter().all(fits) { Ok(()) } else { Err(Reason::CrowdedItem.into()) }
    }

    /// Gathers attributes and content of an inode, as far as the log lacks them. Returns the
    /// changed entries of a directory.
    pub(super) fn whole(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        logged: &mut Logged,
        known: bool,
    ) -> Result<Vec<EntryChange>> {
        let id = inode.id;
        let mut entries = Vec::new();
        match state.file_type() {
            FileType::Regular => self.content(inode, state, logged)?,
            FileType::Symlink if logged.whole().is_none() && !known => self.pieces(id, state, &[(0, u64::MAX)])?,
            FileType::Directory if logged.whole().is_some() => {
                let changed = logged.take_entries();
                entries.extend(changed.iter().filter_map(|name| state.pending.entries.by_name.get(name)));
            }
            FileType::Directory => entries.extend(state.pending.entries.by_name.values()),
            _ => {}
        }
        if logged.whole() != Some(&state.item) {
            let item = InodeItem { transid: self.transaction.generation, ..state.item };
            self.put(id.subvolume, Key::new(id.ino.0, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec());
            logged.how = LoggedAs::Whole(state.item);
        }
        Ok(entries)
    }

    /// Gathers the content of a regular file that changed since it was logged.
    fn content(&mut self, inode: &Arc<Inode>, state: &mut InodeState, logged: &Logged) -> Result<()> {
        if !state.dirty.is_empty() {
            let transaction = self.log.info.gate.enter();
            // The data is not compressed, since others wait for the tree log. On an error the file
            // system is read-only already.
            self.log.write_back_for_log(inode, state, &transaction, Packed::default()).map_err(Stop::Abort)?;
        }
        state.ordered.reap();
        self.gathered.ordered.extend(state.ordered.iter().cloned());
        let sector = u64::from(self.log.info.volume.sector_size());
        let end = state.item.size.next_multiple_of(sector);
        if let Some(before) = logged.whole() {
            // A part that was behind the end, and so was left out, may be before the end now.
            state.pending.layout.note_changed(before.size - before.size % sector, end);
        }
        let changed = state.pending.layout.take_changed();
        let id = inode.id;
        let key = |offset| Key::new(id.ino.0, ItemType::EXTENT_DATA, offset);
        if logged.whole().is_some() {
            for (from, to) in &changed {
                self.clear(id.subvolume, key(*from)..=key(to - 1));
            }
        } else if state.item.flags & InodeFlags::PREALLOC != 0 {
            // Space that was preallocated beyond the end when only the names were logged may be
            // before the end now.
            self.clear(id.subvolume, key(0)..=key(u64::MAX));
        }
        self.pieces(id, state, &changed)?;
        if state.item.flags & InodeFlags::PREALLOC != 0 {
            self.clear(id.subvolume, key(end)..=key(u64::MAX));
            self.prealloc(id, state, end, true)?;
        }
        Ok(())
    }

    /// Gathers the pieces of the open transaction's layout that start in these ranges.
    pub(super) fn pieces(&mut self, id: InodeId, state: &InodeState, ranges: &[(u64, u64)]) -> Result<()> {
        let sector = u64::from(self.log.info.volume.sector_size());
        let end = state.item.size.next_multiple_of(sector);
        for (from, to) in ranges {
            for mapped in state.pending.layout.pieces_in(*from, *to) {
                let mapped = match mapped.piece {
                    Piece::Hole if mapped.start >= end => continue,
                    Piece::Hole => Mapped { len: mapped.len.min(end - mapped.start), ..mapped },
                    // Preallocated space behind the end is gathered as a whole later, so that no
                    // two items overlap.
                    Piece::Extent(extent) if extent.prealloc && mapped.start < end => {
                        Mapped { len: mapped.len.min(end - mapped.start), ..mapped }
                    }
                    _ => mapped,
                };
                if let Piece::Extent(extent) = &mapped.piece {
                    self.extent(id, extent, mapped.len)?;
                }
                self.put_piece(id, &mapped);
            }
        }
        Ok(())
    }

    fn put_piece(&mut self, id: InodeId, mapped: &Mapped) {
        self.log.info.features.assert_has(&mapped.piece, self.transaction.generation);
        let item = mapped.piece.to_item(mapped.len, self.transaction.generation);
        self.put(id.subvolume, Key::new(id.ino.0, ItemType::EXTENT_DATA, mapped.start), item);
    }

    /// Gathers the checksums of a piece of an extent that no commit has, unless the log has them.
    fn extent(&mut self, id: InodeId, extent: &ExtentPiece, len: u64) -> Result<()> {
        if self.log.info.space.is_in_new_chunk(extent.disk_bytenr) {
            return Err(Reason::NewChunk.into());
        }
        self.new_extent_sums(id, extent)?;
        if !extent.prealloc && !self.gets_wrong(LogFault::ForgetPlacedSums) {
            self.placed_sums(id, extent, len);
        }
        Ok(())
    }

    /// Gathers the checksums of a new extent. If the extent has grown since it was logged, so that
    /// another file refers to more of it than the log has, the file by which it grew is logged
    /// again: all items of a log that refer to an extent must have the same length of it
    /// (invariant 21).
    fn new_extent_sums(&mut self, id: InodeId, extent: &ExtentPiece) -> Result<()> {
        let sum_size = self.log.info.volume.checksum().size();
        // Items are as large as possible while two of them fit in a leaf. They always start at the
        // same addresses, so that no two overlap.
        let most = leaf_data_size(self.log.info.volume.node_size() as usize) / 2 - ubtrfs_format::ITEM_HEADER_SIZE;
        let most = most / sum_size * sum_size;
        let mut extents = self.transaction.extents();
        let Some(new) = extents.get_mut(&extent.disk_bytenr).filter(|new| new.logged < new.length) else {
            return Ok(());
        };
        let stale = new.grown_by.filter(|owner| new.logged > 0 && *owner != id);
        let covered = (most / sum_size) as u64 * u64::from(self.log.info.volume.sector_size());
        // The last logged item may be short, if the extent has grown since.
        let first = std::mem::replace(&mut new.logged, new.length) / covered;
        let sums = new.sums.as_ref().map_or_else(Vec::new, |sums| sums[first as usize * most..].to_vec());
        drop(extents);
        let starts = (first..).map(|number| extent.disk_bytenr.plus(number * covered));
        for (part, start) in sums.chunks(most).zip(starts) {
            self.put(id.subvolume, sum_key(start), part.to_vec());
        }
        match stale {
            Some(owner) if !self.gets_wrong(LogFault::ForgetGrownExtent) => self.log_again(owner),
            _ => Ok(()),
        }
    }

    /// Gathers the checksums of a piece that was written in place, and no others, since other files
    /// that share the extent may not be in the log. They are arranged in windows of the extent. A
    /// window is logged again when a part of it changes.
    fn placed_sums(&mut self, id: InodeId, extent: &ExtentPiece, len: u64) {
        let (at, len) = if self.gets_wrong(LogFault::MistakePackedLength) {
            (extent.disk_bytenr.plus(extent.offset), len)
        } else {
            extent.on_disk(len)
        };
        let unlogged = self.transaction.take_unlogged_sums(at, len);
        if unlogged.is_empty() {
            return;
        }
        let volume = &self.log.info.volume;
        let empty = || SumMap::new(volume.sector_size(), volume.checksum().size());
        let logged = self.tree_log.placed_sums.get_or_insert_with(empty);
        let (sector, sum_size) = (u64::from(volume.sector_size()), volume.checksum().size());
        let mut windows = BTreeSet::new();
        for (at, sums) in unlogged {
            logged.put(at, &sums);
            let (offset, covered) = (at.0 - extent.disk_bytenr.0, (sums.len() / sum_size) as u64 * sector);
            windows.extend(offset / SUM_WINDOW..=(offset + covered - 1) / SUM_WINDOW);
        }
        for window in windows {
            let start = extent.disk_bytenr.plus(window * SUM_WINDOW);
            let len = SUM_WINDOW.min(extent.disk_num_bytes.saturating_sub(window * SUM_WINDOW));
            let runs = self.tree_log.placed_sums.iter().flat_map(|logged| logged.runs(start, len)).collect::<Vec<_>>();
            self.clear(id.subvolume, sum_key(start)..=sum_key(Logical(start.plus(len).0.saturating_sub(1))));
            for (at, sums) in runs {
                self.put(id.subvolume, sum_key(at), sums);
            }
        }
    }

    /// Gathers space that the last commit has preallocated beyond the end of a file, since replay
    /// drops extents that the log lacks.
    pub(super) fn committed_prealloc(&mut self, id: InodeId, state: &InodeState) -> Result<()> {
        if state.item.flags & InodeFlags::PREALLOC == 0 {
            return Ok(());
        }
        self.count_searches(1);
        let key = Key::new(id.ino.0, ItemType::INODE_ITEM, 0);
        let Some(item) = self.tree(id.subvolume)?.get(&key).or_commit()? else { return Ok(()) };
        let sector = u64::from(self.log.info.volume.sector_size());
        let Some(end) = InodeItem::parse(&item).or_commit()?.size.checked_next_multiple_of(sector) else {
            return Ok(());
        };
        self.prealloc(id, state, end, false)
    }

    /// Gathers preallocated space from `end` on: as it is now, or as in the last commit.
    fn prealloc(&mut self, id: InodeId, state: &InodeState, end: u64, now: bool) -> Result<()> {
        self.count_searches(1);
        let pieces = CommittedExtents::new(self.tree(id.subvolume)?, id.ino, self.log.info.volume.sector_size());
        let layers = if now { vec![&state.pending.layout] } else { Vec::new() };
        for mapped in Stack::new(&layers, &pieces).pieces(end..u64::MAX) {
            let mapped = mapped.or_commit()?;
            if matches!(&mapped.piece, Piece::Extent(extent) if extent.prealloc) {
                self.put_piece(id, &mapped);
            }
        }
        Ok(())
    }
}

/// Lengths of values by name, for each hash of a name.
type Lengths = BTreeMap<u64, BTreeMap<Vec<u8>, usize>>;

fn lengths(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Lengths {
    let mut lengths = Lengths::new();
    for (name, value) in xattrs {
        lengths.entry(name_hash(name)).or_default().insert(name.clone(), value.len());
    }
    lengths
}

fn sum_key(at: Logical) -> Key {
    Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at.0)
}
