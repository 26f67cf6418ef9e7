//! Requests through the control interface: reads of the attributes in [`control`].

use std::sync::Arc;

use ubtrfs::Filesystem as Engine;
use ubtrfs_fuse::reply::ReplyXattr;
use ubtrfs_fuse::{Caller, Errno};

use crate::change_records;
use crate::control::{self, Question};
use crate::privileges::{Capability, Powers};
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::streams::Stream;

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
            name => return self.get_stream(caller, name, reply),
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

    /// Answers a question with a long answer, or a request for the next piece of one.
    fn get_stream(&self, caller: &Caller<'_>, name: &[u8], reply: ReplyXattr) {
        let question = Question::parse(name);
        let number = name.strip_prefix(control::NEXT.as_bytes());
        if question.is_none() && number.is_none() {
            return reply.error(Errno::NODATA);
        }
        if !Powers::of(caller).administers() {
            return reply.error(Errno::PERM);
        }
        if let Some(question) = question {
            if reply.room() == 0 {
                return reply.error(Errno::INVAL);
            }
            let shared = Arc::clone(self.shared());
            return match self.streams.begin(caller.pid, move |stream| shared.answer_question(question, stream)) {
                Ok(number) => reply.value(number.to_string().as_bytes()),
                Err(errno) => reply.error(errno),
            };
        }
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        let Some(number) = number else { return reply.error(Errno::NXIO) };
        if reply.room() == 0 {
            return match self.streams.keep(number) {
                Ok(()) => reply.length(0),
                Err(errno) => reply.error(errno),
            };
        }
        let streams = Arc::clone(&self.streams);
        self.slow.run(move || match streams.take(number, reply.room() as usize) {
            Ok(piece) => reply.value(&piece),
            Err(errno) => reply.error(errno),
        });
    }
}

impl Shared {
    /// Makes the answer to a question.
    fn answer_question(&self, question: Question, stream: &Stream) -> Result<(), Errno> {
        let mut is_whole = true;
        let visit = |change| {
            is_whole = change_records::encode(&change).is_some_and(|record| stream.put(&record));
            is_whole
        };
        let done = match question {
            Question::Changes { old, new } => self.engine.changes(old, new, visit),
            Question::ChangesSince { subvolume, generation } => self.engine.changes_since(subvolume, generation, visit),
        };
        done.map_err(|error| errno(&error))?;
        // Without a reader nobody sees this error; a record that is too long has one.
        if is_whole { Ok(()) } else { Err(Errno::OVERFLOW) }
    }
}
