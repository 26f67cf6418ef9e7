//! Writers: each writes and fsyncs files of its own, and reads them again.

use std::sync::Arc;

use ubtrfs::scheduling::nonblocking;
use ubtrfs::{Filesystem, InodeId, SetAttributes, TimeChange, WriteAt};
use ubtrfs_server::Pool;
use ubtrfs_simulator::Random;
use ubtrfs_threads::atomic::Ordering;
use ubtrfs_threads::mpsc::channel;

use crate::files::File;
use crate::stage::Stage;

/// Performs `operations` operations on the files of a writer. The threads of `pool` lead its
/// fsyncs, as those of a server do.
pub(crate) fn write(stage: &Arc<Stage>, pool: &Pool, writer: usize, seed: u64, operations: usize) {
    let mut random = Random::new(seed ^ (writer as u64 + 1) << 32);
    let own: Vec<&(InodeId, File)> = stage.files.iter().filter(|(_, file)| file.writer == writer).collect();
    for _ in 0..operations {
        let (id, file) = own[random.below(own.len() as u64) as usize];
        match random.below(13) {
            0..5 => next_version(stage, *id, file),
            12 => change_time(stage, *id, file),
            5..7 => sync_file(stage, *id, file, random.one_in(2)),
            7..9 => sync_by_pool(stage, pool, *id, file, random.one_in(2)),
            9 => sync_all(stage),
            _ => read_again(stage, *id, file),
        }
    }
    stage.working.fetch_sub(1, Ordering::AcqRel);
}

fn next_version(stage: &Stage, id: InodeId, file: &File) {
    let version = file.begin(stage.events());
    let content = file.content(version);
    loop {
        stage.notes.add(format!("writer {}: version {version} of file {}", file.writer, file.number));
        let result = if File::is_punched(version) {
            stage.fs.files().punch_hole(id, 0, file.length as u64)
        } else {
            stage.fs.files().write(id, WriteAt::Offset(0), &content, false).map(drop)
        };
        if stage.succeeds("a write", result, &[]).is_some() {
            file.end(version);
            return;
        }
        if stage.fs.abort_reason().is_some() || stage.is_tight {
            return;
        }
        ubtrfs_threads::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Changes the times of a file, which joins the open transaction without a change of data.
fn change_time(stage: &Stage, id: InodeId, file: &File) {
    stage.notes.add(format!("writer {}: new times of file {}", file.writer, file.number));
    let changes = SetAttributes { atime: Some(TimeChange::Now), ..SetAttributes::default() };
    stage.succeeds("a change of times", stage.fs.inodes().set_attributes(id, &changes).map(drop), &[]);
}

fn sync_file(stage: &Stage, id: InodeId, file: &File, data_only: bool) {
    let version = file.done();
    stage.notes.add(format!("writer {}: fsync of version {version} of file {}", file.writer, file.number));
    let result = if data_only { stage.fs.durability().fdatasync(id) } else { stage.fs.durability().fsync(id) };
    if stage.succeeds("an fsync", result, &[]).is_some() {
        file.promise(stage.events(), version);
    }
}

/// Fsyncs a file as a thread of a server does that must not block: this thread begins the fsync,
/// one of the pool leads it, and the answer comes from the thread that ends it.
fn sync_by_pool(stage: &Arc<Stage>, pool: &Pool, id: InodeId, file: &File, data_only: bool) {
    let version = file.done();
    stage.notes.add(format!("writer {}: pool's fsync of version {version} of file {}", file.writer, file.number));
    let (sender, answer) = channel();
    let done = Box::new(move |result| drop(sender.send(result)));
    if let Some(leader) = nonblocking(|| stage.fs.durability().join_fsync(id, data_only, done)) {
        let stage = Arc::clone(stage);
        pool.run(move || stage.fs.durability().lead_fsync(leader));
    }
    match answer.recv() {
        Ok(result) => {
            if stage.succeeds("an fsync", result, &[]).is_some() {
                file.promise(stage.events(), version);
            }
        }
        Err(error) => panic!("an fsync was never answered: {error:?}"),
    }
}

/// Commits the volume, and notes which version of each file that has made durable.
pub(crate) fn sync_all(stage: &Stage) {
    let versions: Vec<usize> = stage.files.iter().map(|(_, file)| file.done()).collect();
    stage.notes.add("a sync".into());
    if stage.succeeds("a sync", stage.fs.durability().sync(), &[]).is_some() {
        let events = stage.events();
        for ((_, file), version) in stage.files.iter().zip(versions) {
            file.promise(events, version);
        }
    }
}

fn read_again(stage: &Stage, id: InodeId, file: &File) {
    let before = file.done();
    let Some(found) = stage.succeeds("a read", read(&stage.fs, id), &[]) else { return };
    let versions = crate::files::Versions { least: before, ..file.now() };
    if let Err(what) = file.judge(&found, versions) {
        panic!("a read: {what}");
    }
}

/// Reads a whole file.
pub(crate) fn read(fs: &Filesystem, id: InodeId) -> ubtrfs::Result<Vec<u8>> {
    let size = fs.inodes().size(id)?;
    fs.files().read(id, 0, size as usize)
}
