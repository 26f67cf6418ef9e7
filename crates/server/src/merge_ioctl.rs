//! The ioctl by which `ubtrfs merge` has subvolumes merged on a mount. It is called on the target,
//! so that it goes through the mount that changes. Its answer is the number of a stream
//! ([`NEXT`](ubtrfs_format::ioctl::NEXT)), whose content is a JSON array of
//! [records](crate::merge_records).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs::{MergeEffect, MergeSides, Prefer};
use ubtrfs_format::TreeId;
use ubtrfs_format::ioctl::{MERGE, size_of};
use ubtrfs_format::items::FileType;
use ubtrfs_fuse::Errno;
use ubtrfs_threads::time::Instant;

use crate::btrfs_ioctls::u64_at;
use crate::merge_records;
use crate::shared::{Shared, errno};
use crate::streams::{Stream, Streams};
use crate::users_pool::User;

/// Bytes of the argument of [`MERGE`].
pub const ARGUMENT_SIZE: usize = size_of(MERGE);
/// Which side wins conflicts, by its number in the argument.
const PREFER: [Prefer; 3] = [Prefer::Neither, Prefer::Ours, Prefer::Theirs];
/// The offset in the argument of the word that says whether nothing is to be changed.
const DRY_RUN: usize = 24;

/// How often a merge checks whether its reader is still there.
const LOOK: Duration = Duration::from_millis(100);

/// A merge into the subvolume of the ioctl's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The subvolume with the state from which both sides come.
    pub base: TreeId,
    /// The subvolume with the changes to merge.
    pub changed: TreeId,
    /// Which side wins conflicts.
    pub prefer: Prefer,
    /// Only report what the merge would do.
    pub dry_run: bool,
}

/// Returns whether an argument asks only what a merge would do.
pub(crate) fn writes_nothing(data: &[u8]) -> bool {
    u64_at(data, DRY_RUN) == Some(1)
}

impl Merge {
    /// The argument of [`MERGE`].
    pub fn encode(&self) -> [u8; ARGUMENT_SIZE] {
        let prefer = PREFER.iter().position(|known| *known == self.prefer).unwrap_or_default();
        let words = [self.base.0, self.changed.0, prefer as u64, u64::from(self.dry_run)];
        let mut argument = [0; ARGUMENT_SIZE];
        for (place, word) in argument.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        argument
    }

    /// Reads the argument of [`MERGE`]. `EINVAL` if it makes no sense.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, Errno> {
        Self::of(data).ok_or(Errno::INVAL)
    }

    fn of(data: &[u8]) -> Option<Self> {
        let number = |at| u64_at(data, at);
        let prefer = *PREFER.get(usize::try_from(number(16)?).ok()?)?;
        let dry_run = number(DRY_RUN).filter(|word| *word <= 1)? == 1;
        Some(Self { base: TreeId(number(0)?), changed: TreeId(number(8)?), prefer, dry_run })
    }

    /// Begins the merge for the process `pid`; returns the argument with the number of the stream.
    pub(crate) fn begin(self, shared: &Arc<Shared>, streams: &Streams, node: u64, pid: u32) -> Result<Vec<u8>, Errno> {
        let target = shared.inode(node)?.subvolume;
        let merging = Arc::clone(shared);
        let number = streams.begin(pid, move |stream| merging.merge(target, self, stream))?;
        let mut answer = self.encode().to_vec();
        answer[..8].copy_from_slice(&number.to_le_bytes());
        Ok(answer)
    }
}

impl Shared {
    /// Merges while there is a reader, and has the kernel drop its caches of what changes. The
    /// kernel first writes back the dirty pages of the subvolumes, so that the merge also has what
    /// programs have written to mappings.
    fn merge(&self, target: TreeId, asked: Merge, stream: &Stream) -> Result<(), Errno> {
        let Merge { base, changed, prefer, dry_run } = asked;
        let sides = MergeSides { base, changed, target };
        for subvolume in BTreeSet::from([sides.base, sides.changed, sides.target]) {
            self.take_pages_of(subvolume);
        }
        let mut effect = |effect| match effect {
            MergeEffect::Name(dir, name) => self.name_changed(User::Root, self.numbers.node(dir), &name, true),
            MergeEffect::Inode(id) => {
                let node = self.numbers.node(id);
                // Only files are invalidated: a process that lists a directory may keep its pages
                // locked for as long as it likes.
                let is_file = |is: ubtrfs::Attributes| is.file_type == FileType::Regular;
                if self.engine.inodes().attributes(id).is_ok_and(is_file) {
                    self.invalidate_pages(node);
                }
                self.attributes_changed(node);
            }
            MergeEffect::Attributes(id) => self.attributes_changed(self.numbers.node(id)),
        };
        let looked: Cell<Option<Instant>> = Cell::default();
        let is_wanted = || {
            if looked.get().is_some_and(|looked| looked.elapsed() < LOOK) {
                return true;
            }
            looked.set(Some(Instant::now()));
            stream.is_wanted()
        };
        let merged = ubtrfs::merge_while(&self.engine, sides, prefer, dry_run, &mut effect, &is_wanted);
        let merged = merged.map_err(|error| errno(&error))?;
        let records = serde_json::to_vec(&merge_records::records(&merged)).map_err(|_| Errno::IO)?;
        // Without a reader nobody sees this error.
        if stream.put(&records) { Ok(()) } else { Err(Errno::IO) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use ubtrfs::{InodeId, NewInode};
    use ubtrfs_volume::MemoryDevice;

    use super::*;
    use crate::fixtures;
    use crate::shared::MountFacts;
    use crate::streams::Streams;

    #[test]
    fn the_argument_is_read() {
        for (prefer, dry_run) in [(Prefer::Neither, false), (Prefer::Ours, true), (Prefer::Theirs, false)] {
            let asked = Merge { base: TreeId(256), changed: TreeId(u64::MAX), prefer, dry_run };
            assert_eq!(Merge::parse(&asked.encode()), Ok(asked));
            assert_eq!(writes_nothing(&asked.encode()), dry_run);
        }
        let mut odd = Merge { base: TreeId(1), changed: TreeId(2), prefer: Prefer::Ours, dry_run: false }.encode();
        odd[24] = 2;
        assert_eq!(Merge::parse(&odd), Err(Errno::INVAL));
        assert!(!writes_nothing(&odd));
    }

    #[test]
    fn a_merge_whose_reader_has_ended_changes_nothing() {
        let device = Arc::new(MemoryDevice::from_bytes(fixtures::volume()));
        let shared = Arc::new(Shared::new(fixtures::engine_on(device, 1 << 20), MountFacts::default()));
        let engine = &shared.engine;
        let base = engine.subvolumes().create_subvolume(engine.root(), b"base", 0o755, (0, 0)).unwrap();
        let snapshot = |name: &[u8]| engine.subvolumes().snapshot(base, engine.root(), name, false).unwrap();
        let (changed, target) = (snapshot(b"changed"), snapshot(b"target"));
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        engine.directories().create(InodeId::root_of(changed), b"new", &new).unwrap();
        let streams = Streams::new();
        let merge_for = |pid| {
            let shared = Arc::clone(&shared);
            let asked = Merge { base, changed, prefer: Prefer::Neither, dry_run: false };
            let number = streams.begin(pid, move |stream| shared.merge(target, asked, stream)).unwrap();
            loop {
                match streams.take(number, 1 << 16) {
                    // The stream waits for its turn, or for the merge.
                    Ok(answer) if answer == [0] => std::thread::sleep(Duration::from_millis(1)),
                    answer => return answer,
                }
            }
        };
        let is_there = || engine.directories().lookup(InodeId::root_of(target), b"new").is_ok();
        assert_eq!(merge_for(i32::MAX as u32), Err(Errno::INTR));
        assert!(!is_there(), "nobody waited for this merge");
        merge_for(std::process::id()).unwrap();
        assert!(is_there());
    }
}
