//! IOCTL: the flags of inodes, and questions about the volume.

use std::sync::Arc;

use ubtrfs::Defragmentation;
use ubtrfs_format::items::FileType;
use ubtrfs_fuse::reply::ReplyIoctl;
use ubtrfs_fuse::request::Ioctl;
use ubtrfs_fuse::{Caller, Errno};

use crate::btrfs_ioctls::VolumeIoctl;
use crate::defragment;
use crate::device_ioctls::DeviceIoctl;
use crate::extent_map;
use crate::flags::MaySet;
use crate::permissions::WRITE;
use crate::privileges::{Capability, Powers};
use crate::scrub::ScrubIoctl;
use crate::server::Server;
use crate::shared::errno;
use crate::subvolume_ioctls::SubvolumeIoctl;

impl Server {
    /// Answers an ioctl.
    pub(crate) fn answer_ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        let may = self.shared().may_set(caller, what);
        if self.inode(node).is_ok_and(|id| self.shared().adds_protection(id, what, &may)) {
            return self.protect(node, what, may, reply);
        }
        if let Some(result) =
            self.inode(node).map_or_else(|errno| Some(Err(errno)), |id| self.shared().flags_ioctl(id, what, &may))
        {
            return self.shared().answer_flags(node, what, result, reply);
        }
        if let Some(asked) = SubvolumeIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.answer_about_subvolumes(caller, node, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = defragment::parse(what.command, what.data) {
            return match asked {
                Ok(how) => self.defragment(caller, node, how, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = extent_map::parse(what.command, what.data) {
            return match asked {
                Ok(from) => self.map_extents(node, from, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = ScrubIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.scrub(caller, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        if let Some(asked) = DeviceIoctl::parse(what.command, what.data) {
            return match asked {
                Ok(asked) => self.change_devices(caller, asked, reply),
                Err(errno) => reply.error(errno),
            };
        }
        match VolumeIoctl::parse(what.command, what.data) {
            Some(Ok(asked)) => self.answer_about_volume(caller, node, asked, reply),
            Some(Err(error)) => reply.error(errno(&error)),
            None => reply.error(Errno::NOTTY),
        }
    }

    /// Trims the volume or reports about it, in a thread that may take its time.
    fn answer_about_volume(&self, caller: &Caller<'_>, node: u64, asked: VolumeIoctl, reply: ReplyIoctl) {
        if !asked.is_allowed(|| Powers::of(caller)) {
            return reply.error(Errno::PERM);
        }
        let shared = Arc::clone(self.shared());
        self.slow.run(move || {
            let answer = shared.inode(node).and_then(|id| {
                let answer = asked.answer(&shared.engine, id.subvolume, &shared.devices.by_number(&shared.engine));
                answer.map_err(|error| errno(&error))
            });
            match answer {
                Ok(answer) => reply.result(0, &answer),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Scrubs a device, in a thread of its own: it takes as long as the device is large.
    fn scrub(&self, caller: &Caller<'_>, asked: ScrubIoctl, reply: ReplyIoctl) {
        if !Powers::of(caller).has(Capability::Administrator) {
            return reply.error(Errno::PERM);
        }
        let answer = |reply: ReplyIoctl, answer: Result<Vec<u8>, Errno>| match answer {
            Ok(answer) => reply.result(0, &answer),
            Err(errno) => reply.error(errno),
        };
        let shared = Arc::clone(self.shared());
        match asked {
            ScrubIoctl::Cancel => answer(reply, shared.scrubs.cancel().map(|()| Vec::new())),
            ScrubIoctl::Progress(device) => answer(reply, shared.scrubs.progress(device)),
            ScrubIoctl::Start(request) => {
                let run = move || {
                    let (done, progress) = shared.scrubs.run(&shared.engine, &request);
                    answer(reply, done.map(|()| progress));
                };
                if let Err(error) = std::thread::Builder::new().name("scrub".into()).spawn(run) {
                    tracing::error!(%error, "no thread for a scrub");
                }
            }
        }
    }

    /// Adds or replaces a device, in a thread of its own.
    fn change_devices(&self, caller: &Caller<'_>, asked: DeviceIoctl, reply: ReplyIoctl) {
        if !Powers::of(caller).administers() {
            return reply.error(Errno::PERM);
        }
        let shared = Arc::clone(self.shared());
        let run = move || match asked.answer(&shared.engine, &shared.devices) {
            Ok(answer) => reply.result(0, &answer),
            Err(errno) => reply.error(errno),
        };
        if let Err(error) = std::thread::Builder::new().name("devices".into()).spawn(run) {
            tracing::error!(%error, "no thread for a change of devices");
        }
    }

    /// Defragments a file that the caller may write to, in a thread that may take its time.
    fn defragment(&self, caller: &Caller<'_>, node: u64, how: Defragmentation, reply: ReplyIoctl) {
        let powers = Powers::of(caller);
        let shared = Arc::clone(self.shared());
        self.slow.run(move || {
            let done = shared.inode(node).and_then(|id| {
                let is = shared.engine.attributes(id).map_err(|error| errno(&error))?;
                if is.file_type == FileType::Directory {
                    return Err(Errno::OPNOTSUPP);
                }
                // By invariant 27: a descriptor for reading would do for FUSE.
                shared.check_access(&powers, id, WRITE).map_err(|_| Errno::PERM)?;
                shared.engine.defragment(id, &how).map_err(|error| errno(&error))
            });
            match done {
                Ok(_) => reply.result(0, &[]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Shows where a file's content is, in a thread that may take its time.
    fn map_extents(&self, node: u64, from: u64, reply: ReplyIoctl) {
        let shared = Arc::clone(self.shared());
        self.slow.run(move || {
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
    fn protect(&self, node: u64, what: &Ioctl<'_>, may: MaySet, mut reply: ReplyIoctl) {
        if !reply.may_wait() {
            return reply.error(Errno::BUSY);
        }
        let shared = Arc::clone(self.shared());
        let (what, data) = (what.with_data(&[]), what.data.to_vec());
        self.notifying.run(move || {
            shared.invalidate_pages(node);
            let what = what.with_data(&data);
            let result = shared.inode(node);
            let result = result.and_then(|id| shared.flags_ioctl(id, &what, &may).unwrap_or(Err(Errno::NOTTY)));
            shared.answer_flags(node, &what, result, reply);
        });
    }
}
