//! Serves IOCTL: looks the command up in the table of ioctls, checks that the caller may call it,
//! reads its argument, and has it served where the table says.

use std::sync::Arc;

use ubtrfs::{Defragmentation, InodeId, VerityParameters};
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_fuse::reply::ReplyIoctl;
use ubtrfs_fuse::request::Ioctl;
use ubtrfs_fuse::{Caller, Errno};

use crate::admission::Admitted;
use crate::balance::BalanceIoctl;
use crate::device_ioctls::DeviceIoctl;
use crate::extent_map;
use crate::flags::MaySet;
use crate::ioctl_request::Request;
use crate::ioctl_table::{Runs, row_of};
use crate::long_ioctls::LongIoctl;
use crate::permissions::WRITE;
use crate::privileges::Powers;
use crate::scrub::ScrubIoctl;
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::users_pool::User;
use crate::vacate_ioctls::VacateIoctl;
use crate::verity;

type Answer = Result<Vec<u8>, Errno>;

pub(crate) fn finish(reply: ReplyIoctl, answer: Answer) {
    match answer {
        Ok(answer) => reply.result(0, &answer),
        Err(errno) => reply.error(errno),
    }
}

impl Server {
    /// Answers an ioctl.
    pub(crate) fn answer_ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        let id = match self.inode(node) {
            Ok(id) => id,
            Err(errno) => return reply.error(errno),
        };
        let row = match row_of(what.command) {
            // The kernel's driver supports no ioctl on placeholders of subvolumes, not even on the
            // directory.
            Some(row) if !id.is_placeholder() => row,
            _ => return reply.error(Errno::NOTTY),
        };
        let read = self.shared().admit(caller, node, what, row).and_then(|admitted| {
            let request = Request::parse(row.command, what.data)?;
            Ok((admitted, request))
        });
        let (admitted, request) = match read {
            Ok(read) => read,
            Err(errno) => return reply.error(errno),
        };
        let (admitted, runs) = (&admitted, row.runs);
        match request {
            Request::Flags => self.answer_about_flags(caller, (node, id), what, reply),
            Request::Subvolume(asked) => self.answer_about_subvolumes(admitted, node, asked, reply),
            Request::Control(asked) => self.control(admitted, runs, asked, reply),
            Request::Scrub(asked) => self.scrub(admitted, runs, asked, reply),
            Request::Balance(asked) => self.balance(admitted, runs, asked, reply),
            Request::Vacate(asked) => self.vacate(admitted, runs, asked, reply),
            Request::Device(asked) => self.change_devices(admitted, runs, asked, reply),
            Request::Defragment(how) => self.defragment(admitted, runs, (node, how), reply),
            Request::EnableVerity(parameters) => self.enable_verity(admitted, runs, (node, parameters), reply),
            Request::Version => self.run(runs, admitted, reply, move |shared, _| {
                let is = shared.engine.inodes().attributes(id).map_err(|error| errno(&error))?;
                Ok(is.generation.0.to_ne_bytes().to_vec())
            }),
            Request::MeasureVerity => {
                let argument = what.data.to_vec();
                self.run(runs, admitted, reply, move |shared, _| {
                    verity::measure(&shared.engine, shared.inode(node)?, &argument)
                });
            }
            Request::Extents(from) => self.run(runs, admitted, reply, move |shared, _| {
                let found = shared.engine.files().extents(shared.inode(node)?, from, extent_map::ROOM);
                Ok(extent_map::encode(from, &found.map_err(|error| errno(&error))?))
            }),
            Request::Merge(asked) => {
                let (streams, pid) = (Arc::clone(&self.streams), caller.pid);
                self.run(runs, admitted, reply, move |shared, _| asked.begin(shared, &streams, node, pid));
            }
            Request::Volume(asked) => self.run(runs, admitted, reply, move |shared, _| {
                let id = shared.inode(node)?;
                let answer = asked.answer(&shared.engine, id.subvolume, &shared.devices.by_number(&shared.engine));
                answer.map_err(|error| errno(&error))
            }),
        }
    }

    /// Has `work` done where the table says, and answers with what it returns. `work` gets a
    /// function that it must call again and again, and which returns false if it is to end early.
    pub(crate) fn run(
        &self,
        runs: Runs,
        admitted: &Admitted<'_>,
        mut reply: ReplyIoctl,
        work: impl FnOnce(&Arc<Shared>, &dyn Fn() -> bool) -> Answer + Send + 'static,
    ) {
        let shared = Arc::clone(self.shared());
        let request = admitted.caller.unique;
        match runs {
            Runs::Here => finish(reply, work(&shared, &|| true)),
            Runs::Slow => self.slow.run(move || finish(reply, work(&shared, &|| true))),
            Runs::Long(kind) => {
                let user = User::of(admitted.caller);
                if let Err(errno) = self.long.check(user) {
                    return reply.error(errno);
                }
                match kind {
                    None => self.long.run(user, move || finish(reply, work(&shared, &|| true))),
                    Some(kind) => {
                        let work = until_ended(shared.long_ioctls.begin(request, kind), request, work);
                        self.long.run(user, move || finish(reply, work(&shared)));
                    }
                }
            }
            Runs::Notifying if !reply.may_wait() => reply.error(Errno::BUSY),
            Runs::Notifying => {
                self.notifying.run(User::of(admitted.caller), move || finish(reply, work(&shared, &|| true)));
            }
            Runs::Thread(name) => {
                spawn(name, move || finish(reply, work(&shared, &|| true)));
            }
            Runs::Interruptible(kind) => {
                let work = until_ended(shared.long_ioctls.begin(request, kind), request, work);
                if !spawn(kind.name(), move || finish(reply, work(&shared))) {
                    self.shared().long_ioctls.end(request);
                }
            }
        }
    }

    /// Scrubs a device.
    fn scrub(&self, admitted: &Admitted<'_>, runs: Runs, asked: ScrubIoctl, reply: ReplyIoctl) {
        self.run(runs, admitted, reply, move |shared, goes_on| match asked {
            ScrubIoctl::Cancel => shared.scrubs.cancel().map(|()| Vec::new()),
            ScrubIoctl::Progress(device) => shared.scrubs.progress(device),
            ScrubIoctl::Start(request) => {
                let (done, progress) = shared.scrubs.run(&shared.engine, &request, goes_on);
                done.map(|()| progress)
            }
        });
    }

    /// Balances the volume.
    fn balance(&self, admitted: &Admitted<'_>, runs: Runs, asked: BalanceIoctl, reply: ReplyIoctl) {
        self.run(runs, admitted, reply, |shared, goes_on| asked.answer(&shared.engine, goes_on));
    }

    /// Removes a device from the volume, or resizes it.
    fn vacate(&self, admitted: &Admitted<'_>, runs: Runs, asked: VacateIoctl, reply: ReplyIoctl) {
        if asked.cancels() {
            // A cancellation does not count among the ioctls that it ends.
            return finish(reply, self.shared().long_ioctls.cancel(asked.kind()).map(|()| Vec::new()));
        }
        self.run(runs, admitted, reply, |shared, goes_on| asked.answer(&shared.engine, &shared.devices, goes_on));
    }

    /// Adds or replaces a device.
    fn change_devices(&self, admitted: &Admitted<'_>, runs: Runs, asked: DeviceIoctl, reply: ReplyIoctl) {
        self.run(runs, admitted, reply, |shared, _| asked.answer(&shared.engine, &shared.devices));
    }

    /// Defragments a file that the caller may write to.
    fn defragment(&self, admitted: &Admitted<'_>, runs: Runs, (node, how): (u64, Defragmentation), reply: ReplyIoctl) {
        let powers = admitted.powers();
        self.run(runs, admitted, reply, move |shared, goes_on| {
            let id = shared.inode(node)?;
            let is = shared.engine.inodes().attributes(id).map_err(|error| errno(&error))?;
            if is.file_type == FileType::Directory {
                return Err(Errno::OPNOTSUPP);
            }
            shared.check_defragments(&powers, id)?;
            if is.size > 0 && how.range.start >= is.size {
                return Err(Errno::INVAL);
            }
            shared.engine.files().defragment_while(id, &how, goes_on).map_err(|error| errno(&error))?;
            Ok(Vec::new())
        });
    }

    /// Protects a file by fs-verity after the dirty pages of its mappings have been written.
    /// `EBUSY` if too many requests wait for that.
    fn enable_verity(
        &self,
        admitted: &Admitted<'_>,
        runs: Runs,
        (node, parameters): (u64, VerityParameters),
        reply: ReplyIoctl,
    ) {
        let powers = admitted.powers();
        self.run(runs, admitted, reply, move |shared, _| {
            let id = shared.inode(node)?;
            // By invariant 27: a descriptor for reading suffices, but the caller must have write
            // permission to the file.
            shared.check_access(&powers, id, WRITE)?;
            shared.invalidate_pages(node);
            shared.engine.files().enable_verity(id, &parameters).map_err(|error| errno(&error))?;
            Ok(Vec::new())
        });
    }

    /// Shows or sets flags of an inode.
    fn answer_about_flags(&self, caller: &Caller<'_>, (node, id): (u64, InodeId), what: &Ioctl<'_>, reply: ReplyIoctl) {
        let may = self.shared().may_set(caller, what);
        if self.shared().adds_protection(id, what, &may) {
            return self.protect(caller, node, what, may, reply);
        }
        // A number for another word size than the caller's is no ioctl.
        let result = self.shared().flags_ioctl(id, what, &may).unwrap_or(Err(Errno::NOTTY));
        self.shared().answer_flags(node, what, result, reply);
    }

    /// Answers an ioctl that forbids changes, after the dirty pages of the file's mappings have
    /// been written. `EBUSY` if too many requests wait for that.
    fn protect(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, may: MaySet, mut reply: ReplyIoctl) {
        if !reply.may_wait() {
            return reply.error(Errno::BUSY);
        }
        let shared = Arc::clone(self.shared());
        let (what, data) = (what.with_data(&[]), what.data.to_vec());
        self.notifying.run(User::of(caller), move || {
            shared.invalidate_pages(node);
            let what = what.with_data(&data);
            let result = shared.inode(node);
            let result = result.and_then(|id| shared.flags_ioctl(id, &what, &may).unwrap_or(Err(Errno::NOTTY)));
            shared.answer_flags(node, &what, result, reply);
        });
    }
}

impl Shared {
    /// Returns `EPERM` unless a caller may have a file defragmented. By invariant 27: FUSE would
    /// accept a descriptor for reading.
    fn check_defragments(&self, powers: &Powers, id: InodeId) -> Result<(), Errno> {
        if powers.administers() {
            return Ok(());
        }
        self.check_access(powers, id, WRITE).map_err(|_| Errno::PERM)?;
        if self.flags_of(id)? & InodeFlags::IMMUTABLE != 0 { Err(Errno::PERM) } else { Ok(()) }
    }
}

/// Returns the same work, which goes on until `ioctl`, that of this request, is ended.
fn until_ended(
    ioctl: Arc<LongIoctl>,
    request: u64,
    work: impl FnOnce(&Arc<Shared>, &dyn Fn() -> bool) -> Answer + Send + 'static,
) -> impl FnOnce(&Arc<Shared>) -> Answer + Send + 'static {
    move |shared| {
        let done = ioctl.outcome(work(shared, &|| ioctl.goes_on()));
        shared.long_ioctls.end(request);
        done
    }
}

/// Runs an ioctl in a thread of this name; returns whether there is one. Without one the request is
/// answered with an error when its reply is dropped.
fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> bool {
    let spawned = ubtrfs_threads::thread::Builder::new().name(name.into()).spawn(work);
    if let Err(error) = &spawned {
        tracing::error!(%error, "no thread for the ioctl '{name}'");
    }
    spawned.is_ok()
}
