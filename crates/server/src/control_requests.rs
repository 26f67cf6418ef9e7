//! Requests through the control interface: reads of the attributes in [`control`].

use std::sync::Arc;

use ubtrfs::{CompressionMode, FileChange, Filesystem as Engine};
use ubtrfs_fuse::reply::ReplyXattr;
use ubtrfs_fuse::{Caller, Errno};

use crate::change_records;
use crate::control::{self, Question};
use crate::privileges::{Capability, Powers};
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::streams::Stream;

/// The answer of what has no other.
const OK: &[u8] = b"ok";

impl Server {
    /// Answers a read of such an attribute.
    pub(crate) fn get_control(&self, caller: &Caller<'_>, name: &[u8], reply: ReplyXattr) {
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
            name if name == control::FORCE.as_bytes() => return self.expect_force(caller, reply),
            name => match change(name) {
                Some(change) => return self.change_mount(caller, change, reply),
                None => return self.get_stream(caller, name, reply),
            },
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

    /// Notes that the mount is about to be ended by force.
    fn expect_force(&self, caller: &Caller<'_>, reply: ReplyXattr) {
        if !Powers::of(caller).administers() {
            return reply.error(Errno::PERM);
        }
        if reply.room() == 0 {
            return reply.length(OK.len());
        }
        self.shared().expect_force();
        reply.value(OK);
    }

    /// Answers a request of a remount.
    fn change_mount(&self, caller: &Caller<'_>, change: Change, reply: ReplyXattr) {
        if !Powers::of(caller).has(Capability::Administrator) {
            return reply.error(Errno::PERM);
        }
        if reply.room() == 0 {
            return reply.length(OK.len());
        }
        match change {
            Change::Compression(mode) => self.shared().engine.set_compression(mode),
            Change::NewFiles(flags) => self.shared().engine.set_new_file_flags(flags),
            Change::Threads(threads) => self.shared().set_compression_threads(threads),
        }
        reply.value(OK);
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
        match question {
            Question::Changes { old, new } => {
                put_changes(stream, |visit| ubtrfs::changes(&self.engine, old, new, visit))
            }
            Question::ChangesSince { subvolume, generation } => {
                put_changes(stream, |visit| ubtrfs::changes_since(&self.engine, subvolume, generation, visit))
            }
        }
    }
}

/// What a remount changes of the server.
#[derive(Clone, Copy)]
enum Change {
    /// How data is compressed; that none is, perhaps.
    Compression(Option<CompressionMode>),
    /// Flags of new regular files.
    NewFiles(u64),
    /// The threads that compress data of one file.
    Threads(usize),
}

/// What is to be changed, if a request says that.
fn change(name: &[u8]) -> Option<Change> {
    let option = std::str::from_utf8(name).ok()?.strip_prefix(control::REMOUNT)?;
    if let Some((_, flags)) = control::NEW_FILES.iter().find(|(name, _)| *name == option) {
        return Some(Change::NewFiles(*flags));
    }
    match option.split_once('=')? {
        ("compress", value) => CompressionMode::parse(value, false).map(Change::Compression),
        ("compress-force", value) => CompressionMode::parse(value, true).map(Change::Compression),
        ("thread_pool", value) => value.parse().ok().filter(|threads| *threads > 0).map(Change::Threads),
        _ => None,
    }
}

/// Puts the changes that `show` shows into a stream.
fn put_changes(
    stream: &Stream,
    show: impl FnOnce(&mut dyn FnMut(FileChange) -> bool) -> ubtrfs::Result<()>,
) -> Result<(), Errno> {
    let mut is_whole = true;
    let done = show(&mut |change| {
        let record = change_records::encode(&change);
        // Either may be large, and the record may wait for long.
        drop(change);
        is_whole = record.is_some_and(|record| stream.put(&record));
        is_whole
    });
    done.map_err(|error| errno(&error))?;
    // Without a reader nobody sees this error; a record that is too long has one.
    if is_whole { Ok(()) } else { Err(Errno::OVERFLOW) }
}
