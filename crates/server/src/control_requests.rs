//! Requests through the control interface: reads of the attributes in [`control`].

use std::sync::Arc;

use ubtrfs::Filesystem as Engine;
use ubtrfs_fuse::reply::ReplyXattr;
use ubtrfs_fuse::{Caller, Errno};

use crate::control;
use crate::privileges::{Capability, Powers};
use crate::server::Server;
use crate::shared::errno;

impl Server {
    /// Answers a read of such an attribute.
    pub(crate) fn get_control(&self, caller: &Caller<'_>, name: &[u8], reply: ReplyXattr) {
        const OK: &[u8] = b"ok";
        let work = match name {
            name if name == control::SYNC.as_bytes() => Engine::sync,
            name if name == control::READ_ONLY.as_bytes() => Engine::stop_writing,
            name if name == control::WRITABLE.as_bytes() => Engine::write_again,
            name if name == control::STATS.as_bytes() => {
                return match serde_json::to_vec(&self.shared().report()) {
                    Ok(report) => reply.value(&report),
                    Err(_) => reply.error(Errno::IO),
                };
            }
            _ => return reply.error(Errno::NODATA),
        };
        if name != control::SYNC.as_bytes() && !Powers::of(caller).has(Capability::Administrator) {
            return reply.error(Errno::PERM);
        }
        if reply.room() == 0 {
            return reply.length(OK.len());
        }
        let shared = Arc::clone(self.shared());
        self.slow.run(move || match work(&shared.engine) {
            Ok(()) => reply.value(OK),
            Err(error) => reply.error(errno(&error)),
        });
    }
}
