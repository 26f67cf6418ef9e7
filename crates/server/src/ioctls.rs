//! IOCTL: the flags of inodes, and questions about the volume.

use std::sync::Arc;

use ubtrfs::{Defragmentation, InodeId, VerityParameters};
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_fuse::reply::ReplyIoctl;
use ubtrfs_fuse::request::Ioctl;
use ubtrfs_fuse::{Caller, Errno};

use crate::admission::Admitted;
use crate::balance::BalanceIoctl;
use crate::btrfs_ioctls::VolumeIoctl;
use crate::defragment;
use crate::device_ioctls::DeviceIoctl;
use crate::extent_map;
use crate::flags::MaySet;
use crate::long_ioctls::Kind;
use crate::merge_ioctl::Merge;
use crate::permissions::WRITE;
use crate::scrub::ScrubIoctl;
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::subvolume_ioctls::SubvolumeIoctl;
use crate::users_pool::User;
use crate::vacate_ioctls::VacateIoctl;
use crate::verity;

/// `FS_IOC_GETVERSION`: the transaction in which the inode was made.
const GET_VERSION: u32 = 0x8008_7601;

fn finish(reply: ReplyIoctl, answer: Result<Vec<u8>, Errno>) {
    match answer {
        Ok(answer) => reply.result(0, &answer),
        Err(errno) => reply.error(errno),
    }
}

impl Server {
    /// Answers an ioctl.
    pub(crate) fn answer_ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        // The kernel's driver knows no ioctl of these, not even on the directory.
        if self.inode(node).is_ok_and(InodeId::is_placeholder) {
            return reply.error(Errno::NOTTY);
        }
        let may = self.shared().may_set(caller, what);
        if self.inode(node).is_ok_and(|id| self.shared().adds_protection(id, what, &may)) {
            return self.protect(caller, node, what, may, reply);
        }
        if let Some(result) =
            self.inode(node).map_or_else(|errno| Some(Err(errno)), |id| self.shared().flags_ioctl(id, what, &may))
        {
            return self.shared().answer_flags(node, what, result, reply);
        }
        let admitted = match self.shared().admit(caller, node, what) {
            Ok(admitted) => admitted,
            Err(errno) => return reply.error(errno),
        };
        let admitted = &admitted;
        if let Some(asked) = SubvolumeIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.answer_about_subvolumes(admitted, node, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = defragment::parse(what.command, what.data) {
            return match asked {
                Ok(how) => self.defragment(admitted, node, how, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = extent_map::parse(what.command, what.data) {
            return match asked {
                Ok(from) => self.map_extents(caller, node, from, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = ScrubIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.scrub(admitted, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = DeviceIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.change_devices(admitted, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = VacateIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.vacate(admitted, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = BalanceIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.balance(admitted, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = Merge::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.merge(admitted, node, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if what.command == GET_VERSION {
            let answer = self.shared().inode(node).and_then(|id| {
                let is = self.shared().engine.attributes(id).map_err(|error| errno(&error))?;
                Ok(is.generation.0.to_ne_bytes().to_vec())
            });
            return finish(reply, answer);
        }
        if let Some(asked) = verity::parse_enable(what.command, what.data) {
            return match asked {
                Ok(parameters) => self.enable_verity(admitted, node, parameters, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if verity::measures(what.command) {
            return self.measure(node, what.data.to_vec(), reply);
        }
        match VolumeIoctl::parse(what.command, what.data) {
            Some(Ok(asked)) => self.answer_about_volume(admitted, node, asked, reply),
            Some(Err(error)) => reply.error(errno(&error)),
            None => reply.error(Errno::NOTTY),
        }
    }

    /// Trims the volume or reports about it, in a thread that may take its time.
    fn answer_about_volume(&self, admitted: &Admitted<'_>, node: u64, asked: VolumeIoctl, reply: ReplyIoctl) {
        if !asked.is_allowed(|| admitted.powers()) {
            return reply.error(Errno::PERM);
        }
        let shared = Arc::clone(self.shared());
        self.slow.run(move || {
            let answer = shared.inode(node).and_then(|id| {
                let answer = asked.answer(&shared.engine, id.subvolume, &shared.devices.by_number(&shared.engine));
                answer.map_err(|error| errno(&error))
            });
            finish(reply, answer);
        });
    }

    /// Answers an ioctl that takes as long as a device is large, from a thread of its own. `work`
    /// is given what to ask again and again whether to go on.
    fn at_length(
        &self,
        admitted: &Admitted<'_>,
        kind: Kind,
        reply: ReplyIoctl,
        work: impl FnOnce(&Shared, &dyn Fn() -> bool) -> Result<Vec<u8>, Errno> + Send + 'static,
    ) {
        let (shared, request) = (Arc::clone(self.shared()), admitted.caller.unique);
        let ioctl = shared.long_ioctls.begin(request, kind);
        let run = move || {
            let done = ioctl.outcome(work(&shared, &|| ioctl.goes_on()));
            shared.long_ioctls.end(request);
            finish(reply, done);
        };
        if let Err(error) = ubtrfs_threads::thread::Builder::new().name(kind.name().into()).spawn(run) {
            self.shared().long_ioctls.end(request);
            tracing::error!(%error, "no thread for a {}", kind.name());
        }
    }

    /// Scrubs a device.
    fn scrub(&self, admitted: &Admitted<'_>, asked: ScrubIoctl, reply: ReplyIoctl) {
        if !admitted.powers().administers() {
            return reply.error(Errno::PERM);
        }
        match asked {
            ScrubIoctl::Cancel => finish(reply, self.shared().scrubs.cancel().map(|()| Vec::new())),
            ScrubIoctl::Progress(device) => finish(reply, self.shared().scrubs.progress(device)),
            ScrubIoctl::Start(request) => self.at_length(admitted, Kind::Scrub, reply, move |shared, goes_on| {
                let (done, progress) = shared.scrubs.run(&shared.engine, &request, goes_on);
                done.map(|()| progress)
            }),
        }
    }

    /// Balances the volume.
    fn balance(&self, admitted: &Admitted<'_>, asked: BalanceIoctl, reply: ReplyIoctl) {
        if !admitted.powers().administers() {
            return reply.error(Errno::PERM);
        }
        self.at_length(admitted, Kind::Balance, reply, |shared, goes_on| asked.answer(&shared.engine, goes_on));
    }

    /// Merges subvolumes into that of the inode.
    fn merge(&self, admitted: &Admitted<'_>, node: u64, asked: Merge, reply: ReplyIoctl) {
        if !admitted.powers().administers() {
            return reply.error(Errno::PERM);
        }
        finish(reply, asked.begin(self.shared(), &self.streams, node, admitted.caller.pid));
    }

    /// Takes a device out of the volume, or gives it another size.
    fn vacate(&self, admitted: &Admitted<'_>, asked: VacateIoctl, reply: ReplyIoctl) {
        if !admitted.powers().administers() {
            return reply.error(Errno::PERM);
        }
        if asked.cancels() {
            return finish(reply, self.shared().long_ioctls.cancel(asked.kind()).map(|()| Vec::new()));
        }
        self.at_length(admitted, asked.kind(), reply, |shared, goes_on| {
            asked.answer(&shared.engine, &shared.devices, goes_on)
        });
    }

    /// Adds or replaces a device, in a thread of its own.
    fn change_devices(&self, admitted: &Admitted<'_>, asked: DeviceIoctl, reply: ReplyIoctl) {
        if !admitted.powers().administers() {
            return reply.error(Errno::PERM);
        }
        let shared = Arc::clone(self.shared());
        let run = move || finish(reply, asked.answer(&shared.engine, &shared.devices));
        if let Err(error) = ubtrfs_threads::thread::Builder::new().name("devices".into()).spawn(run) {
            tracing::error!(%error, "no thread for a change of devices");
        }
    }

    /// Defragments a file that the caller may write to, in a thread that may take its time.
    fn defragment(&self, admitted: &Admitted<'_>, node: u64, how: Defragmentation, reply: ReplyIoctl) {
        let powers = admitted.powers();
        let shared = Arc::clone(self.shared());
        let user = User::of(admitted.caller);
        if let Err(errno) = self.long.check(user) {
            return reply.error(errno);
        }
        let request = admitted.caller.unique;
        let ioctl = shared.long_ioctls.begin(request, Kind::Defragment);
        self.long.run(user, move || {
            let done = shared.inode(node).and_then(|id| {
                let is = shared.engine.attributes(id).map_err(|error| errno(&error))?;
                if is.file_type == FileType::Directory {
                    return Err(Errno::OPNOTSUPP);
                }
                // By invariant 27: a descriptor for reading would do for FUSE.
                if !powers.administers() {
                    shared.check_access(&powers, id, WRITE).map_err(|_| Errno::PERM)?;
                    if shared.flags_of(id)? & InodeFlags::IMMUTABLE != 0 {
                        return Err(Errno::PERM);
                    }
                }
                if is.size > 0 && how.range.start >= is.size {
                    return Err(Errno::INVAL);
                }
                let defragmented = shared.engine.defragment_while(id, &how, &|| ioctl.goes_on());
                ioctl.outcome(defragmented.map_err(|error| errno(&error)))
            });
            shared.long_ioctls.end(request);
            match done {
                Ok(_) => reply.result(0, &[]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Puts a file under the protection of fs-verity, after what mappings of the file have changed
    /// so far has been written. `EBUSY` where too many wait for that.
    fn enable_verity(&self, admitted: &Admitted<'_>, node: u64, parameters: VerityParameters, mut reply: ReplyIoctl) {
        if !reply.may_wait() {
            return reply.error(Errno::BUSY);
        }
        let powers = admitted.powers();
        let shared = Arc::clone(self.shared());
        self.notifying.run(User::of(admitted.caller), move || {
            let done = shared.inode(node).and_then(|id| {
                // By invariant 27: a descriptor for reading does, and the file has to be writable.
                shared.check_access(&powers, id, WRITE)?;
                shared.invalidate_pages(node);
                shared.engine.enable_verity(id, &parameters).map_err(|error| errno(&error))
            });
            finish(reply, done.map(|()| Vec::new()));
        });
    }

    /// Measures a file that fs-verity protects, in a thread that may read its descriptor.
    fn measure(&self, node: u64, argument: Vec<u8>, reply: ReplyIoctl) {
        let shared = Arc::clone(self.shared());
        self.slow.run(move || {
            finish(reply, shared.inode(node).and_then(|id| verity::measure(&shared.engine, id, &argument)));
        });
    }

    /// Shows where a file's content is, in a thread that may take its time.
    fn map_extents(&self, caller: &Caller<'_>, node: u64, from: u64, reply: ReplyIoctl) {
        let (shared, user) = (Arc::clone(self.shared()), User::of(caller));
        if let Err(errno) = self.long.check(user) {
            return reply.error(errno);
        }
        self.long.run(user, move || {
            let found = shared
                .inode(node)
                .and_then(|id| shared.engine.extents(id, from, extent_map::ROOM).map_err(|error| errno(&error)));
            match found {
                Ok(found) => reply.result(0, &extent_map::encode(from, &found)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers an ioctl that forbids changes, after what mappings of the file have changed so far
    /// has been written. `EBUSY` where too many wait for that.
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
