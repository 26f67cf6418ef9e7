//! Operations on names.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::{DIRS, Writer};
use crate::promises::Name;

impl Writer<'_> {
    pub(super) fn rename(&mut self) -> std::io::Result<()> {
        let (Some(from), mut to) = (self.taken_name(), self.some_name()) else { return Ok(()) };
        if self.rng.one_in(3) {
            to = self.taken_name().unwrap_or(to);
        }
        self.rename_to(&from, &to)
    }

    pub(super) fn rename_to(&mut self, from: &Name, to: &Name) -> std::io::Result<()> {
        if self.promises.holder(from) == self.promises.holder(to) {
            return Ok(());
        }
        let (old, new) = (self.path(from), self.path(to));
        let sequence = self.promises.begin(&format!("rename {} to {}", self.shown(from), self.shown(to)));
        self.promises.renaming(sequence, from, to);
        std::fs::rename(old, new)
    }

    pub(super) fn exchange(&mut self) -> std::io::Result<()> {
        let (Some(one), Some(two)) = (self.taken_name(), self.taken_name()) else { return Ok(()) };
        if self.promises.holder(&one) == self.promises.holder(&two) {
            return Ok(());
        }
        let sequence = self.promises.begin(&format!("exchange {} and {}", self.shown(&one), self.shown(&two)));
        self.promises.exchanging(sequence, &one, &two);
        Ok(rustix::fs::renameat_with(CWD, self.path(&one), CWD, self.path(&two), RenameFlags::EXCHANGE)?)
    }

    /// Replaces a file as careful programs do: it writes a new file, makes it durable and renames
    /// it over the old one.
    pub(super) fn replace(&mut self) -> std::io::Result<()> {
        let to = self.some_name();
        let from = (to.0, format!("{}new", self.prefix));
        if self.promises.holder(&from).is_some() {
            return self.rename_to(&from, &to);
        }
        let (number, file) = self.create_at(&from)?;
        self.fill(number, &file)?;
        self.sync_file(number, &file, false)?;
        self.rename_to(&from, &to)?;
        if self.rng.one_in(2) { self.sync_dir(to.0) } else { Ok(()) }
    }

    pub(super) fn link(&mut self) -> std::io::Result<()> {
        let (Some(from), to) = (self.taken_name(), self.some_name()) else { return Ok(()) };
        if self.promises.holder(&to).is_some() {
            return self.rename_to(&from, &to);
        }
        let number = self.promises.holder(&from).expect("a name that is taken");
        let sequence = self.promises.begin(&format!("link {} to {}", self.shown(&from), self.shown(&to)));
        self.promises.linking(sequence, number, &to);
        std::fs::hard_link(self.path(&from), self.path(&to))
    }

    pub(super) fn unlink(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let path = self.path(&name);
        let number = self.promises.holder(&name).expect("a name that is taken");
        let sequence = self.promises.begin(&format!("unlink {}", self.shown(&name)));
        self.promises.unlinking(sequence, &name);
        std::fs::remove_file(path)?;
        // Sometimes the last name is removed while the file is open; more often the file is closed.
        if self.rng.one_in(2) {
            self.held.retain(|(held, _)| *held != number);
        }
        Ok(())
    }

    /// Makes a file without a name, sometimes makes it durable, and links it.
    pub(super) fn nameless(&mut self) -> std::io::Result<()> {
        let name = self.some_name();
        if self.promises.holder(&name).is_some() {
            return self.fsync(false);
        }
        let sequence = self.promises.begin(&format!("a file without a name for {}", self.shown(&name)));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(self.dir_path(name.0), flags, Mode::from_raw_mode(0o640))?);
        let meta = file.metadata()?;
        let number = meta.ino();
        self.promises.created(sequence, None, number, false, meta.mode() & 0o7777);
        self.fill(number, &file)?;
        if self.rng.one_in(2) {
            self.sync_file(number, &file, false)?;
        }
        let sequence = self.promises.begin(&format!("link inode {number} to {}", self.shown(&name)));
        self.promises.linking(sequence, number, &name);
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, own, CWD, self.path(&name), AtFlags::SYMLINK_FOLLOW)?;
        if self.rng.one_in(3) { self.sync_file(number, &file, true) } else { Ok(()) }
    }

    pub(super) fn make_dir(&mut self) -> std::io::Result<()> {
        let dir = self.some_dir();
        let name = (dir, format!("{}d{}", self.prefix, self.rng.below(DIRS)));
        let deep = self.dir_path(dir).components().count() > self.place.components().count() + 3;
        if deep || self.promises.holder(&name).is_some() {
            return self.fsync_dir();
        }
        let path = self.path(&name);
        let sequence = self.promises.begin(&format!("mkdir {}", self.shown(&name)));
        self.promises.creating(sequence, &name);
        std::fs::create_dir(&path)?;
        let meta = std::fs::symlink_metadata(&path)?;
        self.promises.created(sequence, Some(&name), meta.ino(), true, meta.mode() & 0o7777);
        Ok(())
    }

    fn is_empty(&self, dir: u64) -> bool {
        let mut entries = self.promises.names.range((dir, String::new())..(dir + 1, String::new()));
        entries.all(|(_, holder)| holder.now().is_none())
    }

    pub(super) fn remove_dir(&mut self) -> std::io::Result<()> {
        let Some((name, number)) = self.own_dir() else { return Ok(()) };
        if !self.is_empty(number) {
            return Ok(());
        }
        let path = self.path(&name);
        let sequence = self.promises.begin(&format!("rmdir {}", self.shown(&name)));
        self.promises.unlinking(sequence, &name);
        std::fs::remove_dir(path)
    }

    pub(super) fn rename_dir(&mut self) -> std::io::Result<()> {
        let (Some((from, number)), dir) = (self.own_dir(), self.some_dir()) else { return Ok(()) };
        let to = (dir, format!("{}d{}", self.prefix, self.rng.below(DIRS)));
        let below = self.dir_path(dir).starts_with(self.path(&from));
        let over = self.promises.holder(&to);
        let moves = from.0 != dir && self.only_logs;
        if below || moves || over == Some(number) || over.is_some_and(|over| !self.is_empty(over)) {
            return Ok(());
        }
        self.rename_to(&from, &to)
    }
}
