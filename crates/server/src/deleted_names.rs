//! Has the kernel forget names of deleted subvolumes.
//!
//! Names of files that a program has closed, or only looked up, stay in the kernel's dentry cache
//! until memory is short. They keep references to the subvolume, and as long as there are any, it
//! is not dropped. The kernel's btrfs drops such dentries with their last use. FUSE has no such
//! feature, so this invalidates the names when the subvolume is deleted, and from time to time
//! while there are references to its inodes. Files that are in use stay; getcwd(3) and /proc show
//! them as deleted.

use std::sync::Arc;

use ubtrfs_format::TreeId;
use ubtrfs_fuse::Caller;
use ubtrfs_threads::time::Duration;

use crate::shared::Shared;
use crate::users_pool::User;

/// The number of inodes of a subvolume whose names are invalidated at a time.
const MAX: usize = 10_000;
/// The time until they are invalidated again.
const PAUSE: Duration = Duration::from_secs(5);

impl Shared {
    /// Has the kernel forget the names of a deleted subvolume, again and again as long as it refers
    /// to any.
    pub(crate) fn forget_names_of(self: &Arc<Self>, user: User, deleted: TreeId) {
        self.invalidate_names_of(user, deleted);
        self.deleted_names.lock().push((user, deleted));
        let shared = Arc::downgrade(self);
        let forget_again = move || {
            let Some(shared) = shared.upgrade() else { return false };
            let left = {
                let mut waiting = shared.deleted_names.lock();
                waiting.retain(|(_, deleted)| shared.engine.references().is_in_use(*deleted));
                waiting.clone()
            };
            for (user, deleted) in &left {
                shared.invalidate_names_of(*user, *deleted);
            }
            !left.is_empty()
        };
        if let Err(error) = self.names_forgotten.ask("deleted-names", PAUSE, forget_again) {
            tracing::debug!(%error, "names of a deleted subvolume may stay");
        }
    }

    /// Has the kernel forget a negative entry that it caches after a lookup, if the directory is
    /// the root of a deleted subvolume, which has no name itself.
    pub(crate) fn forget_absent_name(&self, caller: &Caller<'_>, dir: u64, name: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        if self.inode(dir).is_ok_and(|id| self.engine.directories().is_deleted_root(id)) {
            let (notifier, name) = (notifier.clone(), name.to_vec());
            self.changed_names.add(User::of(caller), dir, false, move || {
                let _ = notifier.inval_entry(dir, &name);
            });
        }
    }

    fn invalidate_names_of(&self, user: User, deleted: TreeId) {
        let Some(notifier) = self.notifier.get() else { return };
        for (dir, names) in self.engine.references().referenced_names(deleted, MAX) {
            let (notifier, dir) = (notifier.clone(), self.numbers.node(dir));
            self.changed_names.add(user, dir, false, move || {
                for name in names {
                    // Mostly the kernel has no entry of this name any more.
                    let _ = notifier.inval_entry(dir, &name);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::shared::MountFacts;

    fn has_thread() -> bool {
        std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "deleted-names")
        })
    }

    #[test]
    fn no_thread_outlives_the_mount() {
        let shared = Arc::new(Shared::new(fixtures::engine(&fixtures::volume(), 1 << 20), MountFacts::default()));
        let engine = Arc::clone(shared.engine());
        let id = engine.subvolumes().create_subvolume(engine.root(), b"gone", 0o755, (0, 0)).unwrap();
        engine.subvolumes().delete_subvolume(engine.root(), b"gone").unwrap();
        shared.forget_names_of(User::Root, id);
        // A thread sets its name itself, and is listed for a moment after it was joined.
        let comes_to = |is_there: bool, seconds: u64| {
            let begun = std::time::Instant::now();
            while has_thread() != is_there && begun.elapsed() < Duration::from_secs(seconds) {
                std::thread::yield_now();
            }
            has_thread() == is_there
        };
        assert!(comes_to(true, 20), "no thread looks after the names");
        shared.end().unwrap();
        assert!(comes_to(false, PAUSE.as_secs() / 2), "the thread goes on");
    }
}
