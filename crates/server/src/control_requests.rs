//! Answers to the ioctls that control the server, and to reads of its statistics.

use std::sync::Arc;

use ubtrfs::FileChange;
use ubtrfs_fuse::Errno;
use ubtrfs_fuse::reply::{ReplyIoctl, ReplyXattr};

use crate::admission::Admitted;
use crate::change_records;
use crate::control::{self, Question};
use crate::control_ioctls::{Change, ControlIoctl, MAX_PIECE, encode_piece};
use crate::ioctl_table::Runs;
use crate::server::Server;
use crate::shared::{Shared, errno};
use crate::streams::{Stream, Streams};

impl Server {
    /// Answers a read of an attribute in the server's own namespace: the statistics, or `ENODATA`.
    pub(crate) fn get_statistics(&self, name: &[u8], reply: ReplyXattr) {
        if name != control::STATS.as_bytes() {
            return reply.error(Errno::NODATA);
        }
        match serde_json::to_vec(&self.shared().report()) {
            Ok(report) => reply.value(&report),
            Err(_) => reply.error(Errno::IO),
        }
    }

    /// Answers an ioctl that controls the server.
    pub(crate) fn control(&self, admitted: &Admitted<'_>, runs: Runs, asked: ControlIoctl, reply: ReplyIoctl) {
        let (streams, pid) = (Arc::clone(&self.streams), admitted.caller.pid);
        self.run(runs, admitted, reply, move |shared, _| shared.control(asked, &streams, pid));
    }
}

impl Shared {
    /// Serves a request of the process `pid`.
    fn control(self: &Arc<Self>, asked: ControlIoctl, streams: &Streams, pid: u32) -> Result<Vec<u8>, Errno> {
        match asked {
            ControlIoctl::Sync => self.engine.durability().sync().map_err(|error| errno(&error))?,
            ControlIoctl::Force => self.expect_force(),
            ControlIoctl::Remount(change) => self.change_mount(change)?,
            ControlIoctl::Ask(question) => {
                let shared = Arc::clone(self);
                let number = streams.begin(pid, move |stream| shared.answer_question(question, stream))?;
                return Ok(number.to_le_bytes().to_vec());
            }
            ControlIoctl::Next(number) => return streams.take(number, MAX_PIECE).map(|piece| encode_piece(&piece)),
            ControlIoctl::Keep(number) => streams.keep(number)?,
        }
        Ok(Vec::new())
    }

    /// The server's part of a remount.
    fn change_mount(&self, change: Change) -> Result<(), Errno> {
        match change {
            Change::Nothing => {}
            Change::ReadOnly => self.engine.durability().stop_writing().map_err(|error| errno(&error))?,
            Change::Writable => self.engine.durability().write_again().map_err(|error| errno(&error))?,
            Change::Compression(mode) => self.engine.set_compression(mode),
            Change::NewFiles(flags) => self.engine.set_new_file_flags(flags),
            Change::Threads(threads) => self.set_compression_threads(threads),
        }
        Ok(())
    }

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

/// Puts the changes that `show` shows into a stream.
fn put_changes(
    stream: &Stream,
    show: impl FnOnce(&mut dyn FnMut(FileChange) -> bool) -> ubtrfs::Result<()>,
) -> Result<(), Errno> {
    let mut is_whole = true;
    let done = show(&mut |change| {
        let record = change_records::encode(&change);
        // Change and record may be large, and the record may wait long for the reader.
        drop(change);
        is_whole = record.is_some_and(|record| stream.put(&record));
        is_whole
    });
    done.map_err(|error| errno(&error))?;
    // If there is no reader, nobody sees this error; if a record is too long, the reader gets it.
    if is_whole { Ok(()) } else { Err(Errno::OVERFLOW) }
}
