//! An export that another writer takes over while its writer is stopped, and the promises to both.
//!
//! A writer is stopped at some look at its clock, and so with any requests in any queue, since
//! nothing is sent without such a look. The other writer finds it silent, writes and commits. Then
//! the first writer goes on, and much time has passed by its clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ubtrfs::{Filesystem, InodeId, NewInode, Options, WriteAt};
use ubtrfs_errors::sentence;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_random::Rng;
use ubtrfs_testkit::lossy_server::LossyServer;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{BootTime, Clock, Device, Error, LeaseCheck, OverlayDevice, WriterTiming, open_elsewhere};

use crate::examine::check;
use crate::{Random, make_volume};

const SIZE: u64 = 96 << 20;
/// How long the first writer is stopped, by its clock.
const STOPPED: Duration = Duration::from_secs(40);
/// Files that the first writer writes.
const FILES: u64 = 14;
/// The timing of the first writer, which renews its mark often.
const FIRST: WriterTiming = WriterTiming {
    renewal: Duration::from_millis(30),
    silence: Duration::from_secs(30),
    lease: Duration::from_secs(15),
    settling: Duration::from_millis(300),
};
/// The timing of the second writer, which need not watch for long.
const SECOND: WriterTiming = WriterTiming {
    renewal: Duration::from_secs(3600),
    silence: Duration::from_millis(60),
    lease: Duration::from_secs(3600),
    settling: Duration::from_millis(5),
};

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The writer finished before it could be stopped.
    Unstopped,
    /// It was stopped, and all promises were kept.
    Kept,
}

/// A clock at which its user can be stopped.
#[derive(Debug, Default)]
struct StoppingClock {
    state: Mutex<Stopping>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stopping {
    /// Looks at the clock until the user is stopped, if it has to be.
    left: Option<u64>,
    is_stopped: bool,
    passed: Duration,
}

impl Clock for StoppingClock {
    fn now(&self) -> Duration {
        let mut state = lock(&self.state);
        state.left = state.left.map(|left| left.saturating_sub(1));
        while state.left == Some(0) {
            state.is_stopped = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        BootTime.now() + state.passed
    }
}

impl StoppingClock {
    fn stop_after(&self, looks: u64) {
        lock(&self.state).left = Some(looks);
    }

    fn is_stopped(&self) -> bool {
        lock(&self.state).is_stopped
    }

    fn go_on(&self) {
        let mut state = lock(&self.state);
        state.left = None;
        state.passed += STOPPED;
        self.changed.notify_all();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The letter of the writer, and the number of its file.
type FileName = (char, u64);

fn content((who, number): FileName) -> Vec<u8> {
    let mut random = Random::new(number << 8 | u64::from(who as u8));
    let len = 100_000 + random.below(1_900_000) as usize;
    let words = std::iter::repeat_with(|| random.number().to_le_bytes());
    words.take(len / 8).flatten().collect()
}

fn root() -> InodeId {
    InodeId::new(TreeId::FS, Ino::ROOT_DIR)
}

fn write(fs: &Filesystem, name: FileName) -> ubtrfs::Result<InodeId> {
    let (who, number) = name;
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let file = fs.directories().create(root(), format!("{who}{number}").as_bytes(), &new)?;
    fs.files().write(file, WriteAt::Offset(0), &content(name), false)?;
    Ok(file)
}

fn holds(fs: &Filesystem, name: FileName) -> Result<(), String> {
    let (who, number) = name;
    let failed = |error: ubtrfs::Error| format!("file {who}{number}: {}", error.chain());
    let file = fs.directories().lookup(root(), format!("{who}{number}").as_bytes()).map_err(failed)?;
    let (expected, found) = (content(name), fs.files().read(file, 0, content(name).len() + 1).map_err(failed)?);
    fs.references().forget(file, 1);
    if found == expected { Ok(()) } else { Err(format!("file {who}{number} has another content")) }
}

fn mount(device: Arc<dyn Device>) -> Result<Arc<Filesystem>, String> {
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open_devices(vec![device], options).map_err(|error| format!("mount: {}", error.chain()))
}

/// Does the first writer's work, and notes in `durable` what was acknowledged as durable.
fn work(fs: &Filesystem, durable: &Mutex<Vec<FileName>>) -> ubtrfs::Result<()> {
    let mut written = Vec::new();
    for number in 0..FILES {
        let file = write(fs, ('a', number))?;
        match number % 3 {
            0 => {
                fs.durability().fsync(file)?;
                lock(durable).push(('a', number));
            }
            1 => written.push(('a', number)),
            _ => {
                fs.durability().sync()?;
                lock(durable).append(&mut written);
                lock(durable).push(('a', number));
            }
        }
    }
    Ok(())
}

/// Returns the second writer's device, as soon as the first writer's mark does not change.
fn take_over(uri: &str) -> Result<Arc<dyn Device>, String> {
    loop {
        match open_elsewhere(uri, SECOND, Arc::new(BootTime), LeaseCheck::AsSent) {
            Ok(device) => return Ok(device),
            // Requests from before the stop have arrived.
            Err(Error::Held { .. }) => {}
            Err(error) => return Err(format!("takeover: {}", sentence(&error))),
        }
    }
}

fn write_and_sync(fs: &Filesystem, names: &[FileName]) -> Result<(), String> {
    let written = names.iter().try_for_each(|name| write(fs, *name).map(drop)).and_then(|()| fs.durability().sync());
    written.map_err(|error| format!("the second writer: {}", error.chain()))
}

/// Lets a writer work until its `looks`th look at its clock and then, unless `is_alone`, another
/// one. Returns a sentence if a promise is broken.
pub fn run(looks: u64, check_of_lease: LeaseCheck, is_alone: bool) -> Result<Ended, String> {
    let options = MkfsOptions { metadata_profile: Some(Profile::Single), ..MkfsOptions::new(SIZE) };
    let dir = scratch_dir();
    let server = LossyServer::start_with_fua(&dir.path().join("socket"), make_volume(&options).to_vec());
    let clock = Arc::new(StoppingClock::default());
    let first =
        open_elsewhere(&server.uri(), FIRST, clock.clone(), check_of_lease).map_err(|error| sentence(&error))?;
    let first = mount(first)?;
    let durable = Arc::new(Mutex::new(Vec::new()));
    clock.stop_after(looks);
    let (working, promised) = (Arc::clone(&first), Arc::clone(&durable));
    let worker = thread::spawn(move || work(&working, &promised));
    while !clock.is_stopped() && !worker.is_finished() {
        thread::sleep(Duration::from_millis(1));
    }
    if !clock.is_stopped() {
        clock.go_on();
        return Ok(Ended::Unstopped);
    }
    // More of its requests get into the queues.
    thread::sleep(Duration::from_millis(20));
    let mut promises = Vec::new();
    let end_first = || {
        clock.go_on();
        let worked = worker.join().map_err(|_| "the first writer panicked".to_owned());
        let worked = worked.map(|worked| worked.and_then(|()| first.close()));
        drop(first);
        worked
    };
    if is_alone {
        end_first()?
            .map_err(|error| format!("nobody took the volume over, and its writer fails: {}", error.chain()))?;
        promises.clone_from(&lock(&durable));
    } else {
        let second = take_over(&server.uri());
        promises.clone_from(&lock(&durable));
        let second = second.and_then(mount);
        let new: Vec<FileName> = (0..4).map(|number| ('b', number)).collect();
        let written = second.as_ref().map_err(Clone::clone).and_then(|second| {
            promises.iter().try_for_each(|name| holds(second, *name))?;
            write_and_sync(second, &new)
        });
        // The first writer ends in any case.
        let _ = end_first()?;
        written?;
        if lock(&durable).len() > promises.len() {
            return Err("something was acknowledged to the first writer afterwards".into());
        }
        let second = second?;
        let more: Vec<FileName> = (4..8).map(|number| ('b', number)).collect();
        write_and_sync(&second, &more)?;
        second.close().map_err(|error| format!("the second writer: {}", error.chain()))?;
        promises.extend(new.into_iter().chain(more));
    }
    server.crash(&mut Rng::new(looks));
    let left = OverlayDevice::new(server.durable().into());
    check(&[left.fork()])?;
    let fs = mount(Arc::new(left))?;
    promises.iter().try_for_each(|name| holds(&fs, *name))?;
    Ok(Ended::Kept)
}
