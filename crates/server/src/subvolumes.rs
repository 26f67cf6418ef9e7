//! Serves the ioctls about subvolumes: checks each as the kernel's driver does (invariant 27),
//! executes it, and invalidates the kernel's caches.
//!
//! Making a subvolume waits for a commit; a snapshot first waits for the dirty pages of its source.
//! Names are invalidated before a request is answered, so that the caller finds what it made. The
//! kernel takes the directory's lock for that, so no request waits for it for long
//! (`changed_names`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use ubtrfs::{InodeId, NewInode, Received, SubvolumeInfo};
use ubtrfs_format::items::{FileType, RootRef, Timespec};
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_fuse::Errno;
use ubtrfs_fuse::reply::ReplyIoctl;

use crate::admission::Admitted;
use crate::permissions::{READ, SEARCH, WRITE};
use crate::privileges::{Powers, umask};
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::subvolume_ioctls::{READ_ONLY, SubvolumeIoctl, answer_to_received};
use crate::users_pool::User;

/// A name that was made or removed.
struct Changed {
    /// The node of its directory.
    dir: u64,
    name: Vec<u8>,
    /// The subvolume that was deleted with it.
    gone: Option<TreeId>,
}

/// The bytes for names and paths in the answers.
const NAME_SIZE: usize = 256;
const PATH_SIZE: usize = 4080;
const USER_PATH_SIZE: usize = PATH_SIZE - NAME_SIZE;
/// How often to try again when a subvolume that is to be deleted by its number gets another name
/// meanwhile.
const MAX_RENAMES: u32 = 1000;
/// How many subvolumes fit into one answer.
const MAX_CHILDREN: usize = 255;

/// The result of ioctl(2), and the bytes that it leaves in the argument.
type Answer = (i32, Vec<u8>);

/// The caller, and the inode of the ioctl.
struct Asked {
    powers: Powers,
    pid: u32,
    node: u64,
    /// The attributes of a new subvolume's root directory, or why the caller can make none.
    new: Option<Result<NewInode, Errno>>,
}

impl Server {
    /// Answers an ioctl about subvolumes, in a thread for long requests.
    pub(crate) fn answer_about_subvolumes(
        &self,
        admitted: &Admitted<'_>,
        node: u64,
        what: SubvolumeIoctl,
        mut reply: ReplyIoctl,
    ) {
        let asked = match self.asked(admitted, node, &what) {
            Ok(asked) => asked,
            Err(errno) => return reply.error(errno),
        };
        let (shared, user) = (Arc::clone(self.shared()), User::of(admitted.caller));
        let names = || if what.changes_names() { shared.changed_names.check(user) } else { Ok(()) };
        if let Err(errno) = self.long.check(user).and_then(|()| names()) {
            return reply.error(errno);
        }
        let answer = |reply: ReplyIoctl, result: Result<Answer, Errno>| match result {
            Ok((result, data)) => reply.result(result, &data),
            Err(errno) => reply.error(errno),
        };
        if !what.changes_names() && !what.waits_for_pages() {
            return self.long.run(user, move || answer(reply, shared.subvolume_question(&asked, &what)));
        }
        let may_wait = reply.may_wait();
        if what.waits_for_pages() && !may_wait {
            return reply.error(Errno::BUSY);
        }
        self.long.run(user, move || {
            let changed = shared.change_subvolumes(&asked, &what).map_err(|errno| match errno {
                // The directory or the source is in a subvolume that was deleted; the error is that
                // of the kernel's driver.
                Errno::STALE if what.makes_subvolume() => Errno::NOENT,
                errno => errno,
            });
            let (result, name) = match changed {
                Ok(name) => (Ok((0, Vec::new())), name),
                Err(errno) => (Err(errno), None),
            };
            // If too many requests wait already, the kernel's entry is invalidated a moment after
            // the answer.
            let mut reply = Some(reply);
            if !may_wait && let Some(reply) = reply.take() {
                answer(reply, result.clone());
            }
            if let Some(Changed { dir, name, gone }) = name {
                shared.name_changed(user, dir, &name, may_wait);
                if let Some(gone) = gone {
                    shared.forget_names_of(user, gone);
                }
            }
            if let Some(reply) = reply {
                answer(reply, result);
            }
        });
    }

    fn asked(&self, admitted: &Admitted<'_>, node: u64, what: &SubvolumeIoctl) -> Result<Asked, Errno> {
        let (caller, powers) = (admitted.caller, admitted.powers());
        let new = if matches!(what, SubvolumeIoctl::Create { .. }) {
            let dir = self.inode(node)?;
            // To the kernel an ioctl creates nothing, so the request may lack the caller's ids.
            let owner = if self.shared().ownership().fakeroot {
                Ok(self.shared().ownership().maker(caller))
            } else {
                powers.ids()
            };
            let root = |owner| self.shared().engine.inodes().inheriting_root(dir, owner, umask(caller.pid));
            Some(owner.and_then(|owner| root(owner).map_err(|error| errno(&error))))
        } else {
            None
        };
        Ok(Asked { powers, pid: caller.pid, node, new })
    }
}

impl SubvolumeIoctl {
    /// Returns whether it makes or removes an entry.
    fn changes_names(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Snapshot { .. }
                | Self::Delete { .. }
                | Self::DeleteById(_)
                | Self::Reset { .. }
        )
    }

    /// Returns whether it makes a subvolume.
    fn makes_subvolume(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Snapshot { .. })
    }

    /// Returns whether the kernel has to write back dirty pages first.
    fn waits_for_pages(&self) -> bool {
        matches!(self, Self::Snapshot { .. } | Self::Reset { .. } | Self::SetFlags(READ_ONLY))
    }
}

impl Shared {
    fn subvolume_question(&self, asked: &Asked, what: &SubvolumeIoctl) -> Result<Answer, Errno> {
        let id = self.inode(asked.node)?;
        let only = |data| Ok((0, data));
        match what {
            SubvolumeIoctl::Flags => {
                check_root(id)?;
                let is_read_only = self.subvolume_info(id.subvolume)?.read_only;
                only((if is_read_only { READ_ONLY } else { 0 }).to_le_bytes().to_vec())
            }
            SubvolumeIoctl::Info => only(described(&self.subvolume_info(id.subvolume)?)),
            SubvolumeIoctl::Children { least } => self.children(id.subvolume, *least),
            SubvolumeIoctl::Path { tree, ino } => only(self.path_of(asked, id, *tree, *ino)?),
            SubvolumeIoctl::PathOfSubvolume { dir, id: child } => {
                only(self.path_of_subvolume(asked, id, *dir, *child)?)
            }
            SubvolumeIoctl::SetFlags(flags) => self.set_subvolume_flags(asked, id, *flags).map(|()| (0, Vec::new())),
            SubvolumeIoctl::SetReceived(from) => only(self.set_received(asked, id, from)?),
            SubvolumeIoctl::SetDefault(default) => {
                self.engine.subvolumes().set_default_subvolume(*default).map_err(|error| errno(&error))?;
                only(Vec::new())
            }
            SubvolumeIoctl::Sync | SubvolumeIoctl::WaitSync(0) => {
                self.engine.durability().sync().map_err(|error| errno(&error))?;
                only(Vec::new())
            }
            SubvolumeIoctl::StartSync => {
                self.engine.durability().sync().map_err(|error| errno(&error))?;
                only(self.engine.stats().generation.to_le_bytes().to_vec())
            }
            SubvolumeIoctl::WaitSync(generation) => {
                let committed = self.engine.stats().generation;
                if *generation > committed + 1 {
                    return Err(Errno::INVAL);
                }
                if *generation > committed {
                    self.engine
                        .subvolumes()
                        .wait_for_generation(Generation(*generation))
                        .map_err(|error| errno(&error))?;
                }
                only(Vec::new())
            }
            _ => Err(Errno::NOTTY),
        }
    }

    /// Makes a change, and returns the name that was made or removed.
    fn change_subvolumes(&self, asked: &Asked, what: &SubvolumeIoctl) -> Result<Option<Changed>, Errno> {
        let id = self.inode(asked.node)?;
        let changed = |name: &Vec<u8>, gone| Ok(Some(Changed { dir: asked.node, name: name.clone(), gone }));
        match what {
            SubvolumeIoctl::Create { name } => {
                self.check_new_entry(asked, id, name)?;
                let new = asked.new.as_ref().ok_or(Errno::INVAL)?.as_ref().map_err(|errno| *errno)?;
                self.engine.subvolumes().create_subvolume_with(id, name, new).map_err(|error| errno(&error))?;
                changed(name, None)
            }
            SubvolumeIoctl::Snapshot { source, name, read_only } => {
                let (source, open) = self.source_of_snapshot(asked, *source)?;
                self.check_new_entry(asked, id, name)?;
                self.write_pages_of(source, open);
                self.engine.subvolumes().snapshot(source, id, name, *read_only).map_err(|error| errno(&error))?;
                changed(name, None)
            }
            SubvolumeIoctl::Delete { name } => {
                let gone = self.delete_subvolume(asked, id, name, None)?;
                changed(name, Some(gone))
            }
            SubvolumeIoctl::Reset { source, name } => {
                let (source, open) = self.source_of_snapshot(asked, *source)?;
                let gone = self.reset_subvolume(asked, id, name, source, open)?;
                changed(name, Some(gone))
            }
            SubvolumeIoctl::DeleteById(subvolume) => {
                if subvolume.0 < Ino::FIRST_FREE.0 {
                    return Err(Errno::INVAL);
                }
                self.delete_by_number(asked, id, *subvolume).map(Some)
            }
            SubvolumeIoctl::SetFlags(flags) => self.set_subvolume_flags(asked, id, *flags).map(|()| None),
            _ => Err(Errno::NOTTY),
        }
    }

    fn subvolume_info(&self, id: TreeId) -> Result<SubvolumeInfo, Errno> {
        self.engine.subvolumes().subvolume_info(id).map_err(|error| errno(&error))
    }

    /// Checks whether the caller may make an entry, as mkdir(2) does.
    fn check_new_entry(&self, asked: &Asked, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        self.check_is_directory(dir)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EXIST);
        }
        match self.engine.directories().lookup(dir, name) {
            Ok(found) => {
                self.engine.references().forget(found, 1);
                return Err(Errno::EXIST);
            }
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(errno(&error)),
        }
        if !self.facts().unchecked {
            // The kernel's driver checks this whether the owner is the caller's or copied.
            asked.powers.ids()?;
        }
        self.check_access(&asked.powers, dir, WRITE | SEARCH)
    }

    fn check_is_directory(&self, dir: InodeId) -> Result<(), Errno> {
        let attributes = self.engine.inodes().attributes(dir).map_err(|error| errno(&error))?;
        if attributes.file_type == FileType::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }

    /// The subvolume whose root directory a process has open by this descriptor, if the process may
    /// make snapshots of it. `EXDEV` if the directory is on another volume or mounted by another
    /// server.
    fn source_of_snapshot(&self, asked: &Asked, descriptor: i64) -> Result<(TreeId, OwnedFd), Errno> {
        if descriptor < 0 {
            return Err(Errno::INVAL);
        }
        if asked.pid == 0 {
            // The caller is in another pid namespace.
            return Err(Errno::PERM);
        }
        // This path refers to the open file itself, and opening it sends no request.
        let path = format!("/proc/{}/fd/{descriptor}", asked.pid);
        let opened = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let found = opened.and_then(|opened| {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            Ok((rustix::fs::statx(&opened, "", flags, StatxFlags::INO)?, opened))
        });
        let (open, opened) = found.map_err(|error| match error {
            Errno::NOENT => Errno::INVAL,
            error => {
                tracing::warn!(%error, path, "the source of a snapshot may not be looked at: only root can make it");
                Errno::PERM
            }
        })?;
        if self.facts().device_number != Some((open.stx_dev_major, open.stx_dev_minor)) {
            return Err(Errno::XDEV);
        }
        let source = self.numbers.shown_as(open.stx_ino)?;
        self.check_owner(&asked.powers, source)?;
        check_root(source)?;
        Ok((source.subvolume, opened))
    }

    /// Deletes the subvolume with this number, by the name that it has now. `EBUSY` if the name
    /// changes all the time. `EOPNOTSUPP` if the caller's mount is idmapped and `shown`, the
    /// directory that the caller has open, is not the one with the name, since the mount may not
    /// show that one.
    fn delete_by_number(&self, asked: &Asked, shown: InodeId, subvolume: TreeId) -> Result<Changed, Errno> {
        for _ in 0..MAX_RENAMES {
            let (dir, name) = self.subvolume_info(subvolume)?.entry.ok_or(Errno::NOENT)?;
            if dir != shown && asked.powers.is_idmapped() {
                return Err(Errno::OPNOTSUPP);
            }
            match self.delete_subvolume(asked, dir, &name, Some(subvolume)) {
                Err(Errno::AGAIN) => {}
                done => return done.map(|gone| Changed { dir: self.numbers.node(dir), name, gone: Some(gone) }),
            }
        }
        Err(Errno::BUSY)
    }

    /// Deletes a subvolume. A caller that does not administer the volume needs the mount option for
    /// that, and must be able to change the subvolume's root directory. `EAGAIN` if `wanted` does
    /// not have this name any more.
    fn delete_subvolume(
        &self,
        asked: &Asked,
        dir: InodeId,
        name: &[u8],
        wanted: Option<TreeId>,
    ) -> Result<TreeId, Errno> {
        self.check_is_directory(dir)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::ACCESS);
        }
        loop {
            let found = self.engine.directories().lookup(dir, name).map_err(|error| match error.errno() {
                Errno::NOENT if wanted.is_some() => Errno::AGAIN,
                _ => errno(&error),
            })?;
            let is_wanted = wanted.is_none_or(|wanted| found == InodeId::root_of(wanted));
            let checked = if is_wanted { self.check_deletion(asked, dir, found) } else { Err(Errno::AGAIN) };
            self.engine.references().forget(found, 1);
            checked?;
            match self.engine.subvolumes().delete_subvolume_if(dir, name, found.subvolume) {
                // Another subvolume has the name by now.
                Err(error) if error.errno() == Errno::AGAIN => {}
                done => return done.map(|_| found.subvolume).map_err(|error| errno(&error)),
            }
        }
    }

    /// Puts a snapshot of `source` in place of a subvolume. The caller needs the rights to delete
    /// it, and if it is the default subvolume, also the right to choose that.
    fn reset_subvolume(
        &self,
        asked: &Asked,
        dir: InodeId,
        name: &[u8],
        source: TreeId,
        open: OwnedFd,
    ) -> Result<TreeId, Errno> {
        self.check_is_directory(dir)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::ACCESS);
        }
        let found = self.engine.directories().lookup(dir, name).map_err(|error| errno(&error))?;
        let checked = self.check_deletion(asked, dir, found);
        self.engine.references().forget(found, 1);
        checked?;
        let default = self.engine.subvolumes().default_subvolume().map_err(|error| errno(&error))?;
        if found.subvolume == default && !asked.powers.administers() {
            return Err(Errno::PERM);
        }
        self.write_pages_of(source, open);
        let done = self.engine.subvolumes().reset_subvolume_if(dir, name, found.subvolume, source);
        done.map(|_| found.subvolume).map_err(|error| errno(&error))
    }

    fn check_deletion(&self, asked: &Asked, dir: InodeId, found: InodeId) -> Result<(), Errno> {
        let powers = &asked.powers;
        if !powers.administers() && !self.facts().unchecked {
            if !self.facts().user_subvol_rm_allowed {
                return Err(Errno::PERM);
            }
            check_root(found)?;
            self.check_access(powers, found, WRITE | SEARCH)?;
        }
        self.check_is_directory(found)?;
        self.check_access(powers, dir, WRITE | SEARCH)?;
        self.check_sticky(powers, dir, found)
    }

    fn set_subvolume_flags(&self, asked: &Asked, id: InodeId, flags: u64) -> Result<(), Errno> {
        self.check_owner(&asked.powers, id)?;
        check_root(id)?;
        if flags & !READ_ONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let read_only = flags & READ_ONLY != 0;
        if self.subvolume_info(id.subvolume)?.read_only == read_only {
            return Ok(());
        }
        if read_only {
            self.take_pages_of(id.subvolume);
        }
        self.engine.subvolumes().set_subvolume_read_only(id.subvolume, read_only).map_err(|error| errno(&error))?;
        if read_only {
            // The kernel remembers that files that were written meanwhile have no capabilities, and
            // so would not ask before the next write (see `opens`).
            self.attributes_changed_in(id.subvolume);
        }
        Ok(())
    }

    /// Sets from what a subvolume was received. The answer also has the transaction and the time of
    /// the receipt.
    fn set_received(&self, asked: &Asked, id: InodeId, from: &Received) -> Result<Vec<u8>, Errno> {
        if self.engine.is_read_only() {
            return Err(Errno::ROFS);
        }
        self.check_owner(&asked.powers, id)?;
        check_root(id)?;
        let (generation, time) =
            self.engine.subvolumes().set_received(id.subvolume, from).map_err(|error| errno(&error))?;
        Ok(answer_to_received(from, generation, time))
    }

    /// Lists the subvolumes in a subvolume, with the directories of their entries. `EOVERFLOW` with
    /// an answer says that there are more.
    fn children(&self, parent: TreeId, least: TreeId) -> Result<Answer, Errno> {
        let key = |offset| Key::new(parent.0, ItemType::ROOT_REF, offset);
        let mut found = Vec::new();
        let visit = &mut |item: ubtrfs::FoundItem| {
            if let Ok(entry) = RootRef::parse(&item.data) {
                found.push((item.key.offset, entry.dirid.0));
            }
            found.len() <= MAX_CHILDREN
        };
        self.engine.search_tree(TreeId::ROOT, key(least.0), key(u64::MAX), visit).map_err(|error| errno(&error))?;
        let has_more = found.len() > MAX_CHILDREN;
        found.truncate(MAX_CHILDREN);
        let next = found.last().map_or(least.0, |(id, _)| id.saturating_add(1));
        let mut answer = next.to_le_bytes().to_vec();
        answer.extend(found.iter().flat_map(|(id, dir)| [*id, *dir]).flat_map(u64::to_le_bytes));
        answer.resize(8 + 16 * MAX_CHILDREN, 0);
        answer.push(found.len() as u8);
        answer.resize(4096, 0);
        Ok((if has_more { -Errno::OVERFLOW.raw_os_error() } else { 0 }, answer))
    }

    /// The path of an inode from the root of its subvolume, with a slash after each name. A caller
    /// that does not administer the volume gets only that of a root directory; `EPERM` for others.
    fn path_of(&self, asked: &Asked, file: InodeId, tree: TreeId, ino: Ino) -> Result<Vec<u8>, Errno> {
        let tree = if tree.0 == 0 { file.subvolume } else { tree };
        if ino != Ino::ROOT_DIR && !asked.powers.administers() {
            return Err(Errno::PERM);
        }
        let mut path = Vec::new();
        for (_, name) in self.names_up_to(tree, ino, Ino::ROOT_DIR)?.iter().rev() {
            path.extend(name);
            path.push(b'/');
        }
        if path.len() >= PATH_SIZE {
            return Err(Errno::NAMETOOLONG);
        }
        let mut answer = [tree.0.to_le_bytes(), ino.0.to_le_bytes()].concat();
        answer.extend(path);
        answer.resize(4096, 0);
        Ok(answer)
    }

    /// The names of a directory and of those above it in the subvolume, up to `top`, each with its
    /// parent directory. `ENOENT` if `top` is not above the directory.
    fn names_up_to(&self, tree: TreeId, from: Ino, top: Ino) -> Result<Vec<(Ino, Vec<u8>)>, Errno> {
        let mut names = Vec::new();
        let (mut at, mut length) = (from, 0);
        while at != top {
            let found = self.engine.directories().shown_name(InodeId::new(tree, at)).map_err(|error| errno(&error))?;
            let (parent, name) = Some(found).filter(|(parent, _)| *parent != at).ok_or(Errno::NOENT)?;
            length += name.len() + 1;
            if length > PATH_SIZE {
                return Err(Errno::NAMETOOLONG);
            }
            names.push((parent, name));
            at = parent;
        }
        Ok(names)
    }

    /// The name of a subvolume and the path of its directory, for a process that may read all
    /// directories above that one.
    fn path_of_subvolume(&self, asked: &Asked, file: InodeId, dir: Ino, id: TreeId) -> Result<Vec<u8>, Errno> {
        let names = self.names_up_to(file.subvolume, dir, file.ino).map_err(|error| match error {
            // The ioctl's directory isn't above `dir`.
            Errno::NOENT => Errno::ACCESS,
            error => error,
        })?;
        for (parent, _) in &names {
            self.check_access(&asked.powers, InodeId::new(file.subvolume, *parent), READ | SEARCH)?;
        }
        let (parent, name) = self.subvolume_info(id)?.entry.ok_or(Errno::NOENT)?;
        if parent != InodeId::new(file.subvolume, dir) {
            return Err(Errno::INVAL);
        }
        let mut path = Vec::new();
        for (_, name) in names.iter().rev() {
            path.extend(name);
            path.push(b'/');
        }
        if path.len() >= USER_PATH_SIZE || name.len() >= NAME_SIZE {
            return Err(Errno::NAMETOOLONG);
        }
        let mut answer = [dir.0.to_le_bytes(), id.0.to_le_bytes()].concat();
        answer.extend(name);
        answer.resize(16 + NAME_SIZE, 0);
        answer.extend(path);
        answer.resize(4096, 0);
        Ok(answer)
    }
}

/// Returns `EINVAL` for any inode but the root directory of a subvolume.
fn check_root(id: InodeId) -> Result<(), Errno> {
    if id.ino == Ino::ROOT_DIR { Ok(()) } else { Err(Errno::INVAL) }
}

/// Encodes `struct btrfs_ioctl_get_subvol_info_args`.
fn described(info: &SubvolumeInfo) -> Vec<u8> {
    const SIZE: usize = 504;
    let (dir, name) = match &info.entry {
        Some((dir, name)) => ((dir.subvolume.0, dir.ino.0), &**name),
        None => ((0, 0), &b""[..]),
    };
    let mut answer = info.id.0.to_le_bytes().to_vec();
    answer.extend(&name[..name.len().min(NAME_SIZE - 1)]);
    answer.resize(8 + NAME_SIZE, 0);
    for number in [dir.0, dir.1, info.generation.0, info.flags] {
        answer.extend(number.to_le_bytes());
    }
    for uuid in [info.uuid, info.parent_uuid, info.received_uuid] {
        answer.extend(uuid.0);
    }
    for transid in info.transids {
        answer.extend(transid.to_le_bytes());
    }
    for Timespec { sec, nsec } in info.times {
        answer.extend(sec.to_le_bytes());
        answer.extend(u64::from(nsec).to_le_bytes());
    }
    answer.resize(SIZE, 0);
    answer
}
