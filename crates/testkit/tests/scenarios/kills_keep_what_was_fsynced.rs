//! The server is killed at random times, again and again on one volume, while programs work.
//! Everything that was promised to them is there, whether ubtrfs or the kernel replays the log, and
//! both checkers find no fault.
//!
//! The time of a kill does not depend on the seed, which therefore doesn't reproduce a failure:
//! `UBTRFS_KEEP=DIR` keeps in that directory the image as it was right after the kill that caused
//! the failure, and the operations of the writers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::load::{Database, JOURNALS, Journal, Programs, Repository, bench};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs, ubtrfs_check};
use ubtrfs_testkit::promises::{Promises, Writer};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::{mount_points, scratch_dir};
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::{Mount, Subject, settle};

const SIZE: u64 = 3 << 30;

/// Threads that record what is durable.
const WRITERS: u64 = 3;

/// Layouts of volumes, one per seed.
const LAYOUTS: [&[&str]; 4] = [&[], &["-n", "4k", "-m", "single"], &["-n", "64k", "--csum", "xxhash"], &["-d", "dup"]];

#[test]
fn fsynced_data_survives_kills() {
    require!(
        Need::Kernel,
        Need::Fuse,
        Need::Ubtrfs,
        Need::Tool("git"),
        Need::Tool("sqlite3"),
        Need::Tool("fio"),
        Need::Tool("dbench")
    );
    let (most, kills) = if soaks() { (10, 20) } else { (1, 4) };
    for seed in seeds(1).into_iter().take(most) {
        let mut volume = Volume::new(seed);
        for round in 0..kills {
            volume.round(round);
        }
    }
}

/// Lets `work` work on a new volume, which is committed after `prepare`, and kills the server.
/// Returns the image.
fn killed_after(dir: &Path, prepare: impl FnOnce(&Path), work: impl FnOnce(&Path)) -> PathBuf {
    let image = dir.join("image");
    mkfs_btrfs(&image, SIZE, &[]);
    let mount = Subject::ubtrfs().mount(&[&image], "commit=300");
    let Mount::Ubtrfs(server) = &mount else { unreachable!("a mount of ubtrfs") };
    prepare(mount.path());
    sync_all(mount.path());
    work(mount.path());
    server.kill_server();
    mount.unmount();
    settle(&image);
    image
}

fn sync_all(place: &Path) {
    File::open(place).and_then(|place| Ok(rustix::fs::syncfs(place)?)).expect("sync");
}

/// Tests the test: if the log is removed, it notices that fsynced data is missing.
#[test]
fn a_lost_log_is_noticed() {
    /// A sync(2) by another program of this machine may commit everything just before the kill, so
    /// several tries are needed.
    const TRIES: usize = 20;
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    assert!((1..=TRIES).any(|_| a_log_is_needed()), "nothing was missed without the log, {TRIES} times");
}

/// Returns whether fsynced data is missing after the log was removed. With the log it never is.
fn a_log_is_needed() -> bool {
    let dir = scratch_dir();
    let mut promises = Promises::default();
    let image = killed_after(dir.path(), Writer::prepare, |place| {
        let writer = Writer::new(place, 0, &mut promises, 1).only_logs(true);
        writer.run(&AtomicBool::new(false), 300).unwrap_or_else(|fault| panic!("{fault}"));
    });
    let lost = dir.path().join("lost");
    run(command("cp", &["--sparse=always"]).arg(&image).arg(&lost)).ok();
    let binary = ubtrfs_binary().expect("the ubtrfs binary");
    run(Command::new(binary).args(["rescue", "zero-log", "--yes"]).arg(&lost)).ok();
    let [whole, lost] = [image, lost].map(|image| {
        let mount = Subject::ubtrfs().mount(&[&image], "");
        let faults = promises.faults(mount.path(), &Writer::prefix(0));
        mount.unmount();
        faults
    });
    assert!(whole.is_empty(), "{}", whole.join("\n"));
    !lost.is_empty()
}

/// A file with two names loses the first one, and then the second one to another file, which is
/// fsynced. When that is durable, the first name must be gone, too, or the file would have a set of
/// names that it never had.
#[test]
fn a_replaced_file_has_no_name_that_it_lost_before() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let prepare = |place: &Path| {
        Writer::prepare(place);
        std::fs::write(place.join("one/old"), "old").expect("write");
        std::fs::hard_link(place.join("one/old"), place.join("two/old")).expect("link");
    };
    let image = killed_after(dir.path(), prepare, |place| {
        std::fs::remove_file(place.join("two/old")).expect("unlink");
        let new = File::create(place.join("one/new")).expect("create");
        std::fs::rename(place.join("one/new"), place.join("one/old")).expect("rename");
        new.sync_all().expect("fsync");
    });
    let copy = dir.path().join("copy");
    run(command("cp", &["--sparse=always"]).arg(&image).arg(&copy)).ok();
    for (subject, image) in [(Subject::Kernel, copy), (Subject::ubtrfs(), image)] {
        let mount = subject.mount(&[&image], "");
        let left = |name: &str| std::fs::read(mount.path().join(name)).ok();
        assert_eq!((left("one/old"), left("two/old")), (Some(Vec::new()), None), "replayed by {}", subject.name());
        mount.unmount();
        assert_btrfs_check_clean(&image);
    }
}

/// A volume whose server is killed again and again, with all that must be on it.
struct Volume {
    dir: tempfile::TempDir,
    seed: u64,
    rng: Rng,
    promises: Vec<Promises>,
    databases: Vec<(Database, Journal)>,
    repository: Repository,
}

impl Volume {
    fn new(seed: u64) -> Self {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, SIZE, LAYOUTS[seed as usize % LAYOUTS.len()]);
        let mount = Subject::ubtrfs().mount(&[&image], "");
        let place = mount.path();
        Writer::prepare(place);
        let databases = ["first.db", "second.db"].map(|name| (Database::new(place, name), JOURNALS[0])).into();
        let repository = Repository::new(&place.join("git"), seed);
        mount.unmount();
        let promises = vec![Promises::default(); WRITERS as usize];
        Self { dir, seed, rng: Rng::new(seed), promises, databases, repository }
    }

    /// Returns the path of the volume, or of a copy: the state right after the last kill, or what
    /// the kernel made of that.
    fn image(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        run(command("cp", &["--sparse=always"]).arg(self.image(from)).arg(self.image(to))).ok();
    }

    /// Lets programs work, kills the server, and checks the result, with which the next round
    /// continues.
    fn round(&mut self, round: u64) {
        let what = format!("seed {}, round {round}", self.seed);
        let image = self.image("image");
        let mount = Subject::ubtrfs().mount(&[&image], "");
        let report = self.work_until_killed(&mount, round);
        mount.unmount();
        settle(&image);
        self.copy("image", "killed");
        eprintln!("{what}: {}", report.unwrap_or_else(|fault| panic!("{what}, before the kill: {fault}")));

        assert_check_clean(&what, &image);
        if round % 3 == self.seed % 3 {
            self.copy("killed", "kernel");
            let image = self.image("kernel");
            let mount = KernelMount::new(&[&image], "");
            self.assert_kept(&format!("{what}, replayed by the kernel"), mount.path());
            assert_eq!(mount.unmount(), [""; 0], "{what}: the kernel complained");
            assert_btrfs_check_clean(&image);
        }
        if self.rng.one_in(2) {
            self.kill_while_mounting();
        }
        let mount = Subject::ubtrfs().mount(&[&image], "");
        self.assert_kept(&format!("{what}, replayed by ubtrfs"), mount.path());
        self.adopt(mount.path());
        mount.unmount();
        assert_check_clean(&what, &image);
        if round % 3 == (self.seed + 1) % 3 {
            assert_btrfs_check_clean(&image);
        }
    }

    /// Lets programs work for a while, and kills the server under them. Returns their progress, or
    /// an error before the kill.
    fn work_until_killed(&mut self, mount: &Mount, round: u64) -> Result<String, String> {
        let Mount::Ubtrfs(server) = mount else { unreachable!("a mount of ubtrfs") };
        let place = mount.path();
        let git = place.join("git");
        let rng = &mut self.rng;
        let time = Duration::from_millis(200 + rng.below(2800));
        let (programs, noise, dying) = (Programs::default(), Programs::default(), AtomicBool::new(false));
        let writers = 1 + rng.below(WRITERS) as usize;
        let databases = rng.index(self.databases.len() + 1);
        let commits = rng.one_in(2);
        let only_logs = rng.one_in(2);
        let mut done = vec![format!("{time:?}")];
        for number in 0..rng.below(3) {
            done.push(bench::start(&noise, &place.join(format!("noise-{round}-{number}")), rng).to_owned());
        }
        let mut wrong = Vec::new();
        std::thread::scope(|scope| {
            let (programs, dying) = (&programs, &dying);
            let mut threads = vec![scope.spawn(move || remove_noise(place, round, dying))];
            for (promises, number) in self.promises.iter_mut().zip(0..).take(writers) {
                let seed = rng.next_u64();
                threads.push(scope.spawn(move || {
                    Writer::new(place, number, promises, seed).only_logs(only_logs).run(dying, u64::MAX)?;
                    Ok(format!("{} operations", promises.operations()))
                }));
            }
            for (database, journal) in self.databases.iter_mut().take(databases) {
                *journal = *rng.pick(&JOURNALS);
                threads.push(scope.spawn(move || {
                    let count = database.run(place, *journal, programs, dying)?;
                    Ok(format!("{count} transactions ({})", journal.mode()))
                }));
            }
            if commits {
                let repository = &mut self.repository;
                threads.push(scope.spawn(move || Ok(format!("{} commits", repository.run(&git, dying)?))));
            }
            std::thread::sleep(time);
            if noise.ended() > 0 {
                wrong.push("dbench or fio has failed".to_owned());
            }
            dying.store(true, Ordering::SeqCst);
            let report = server.kill_server();
            done.push(format!("{} writes of the log, {} commits", report["log_writes"], report["commits"]));
            programs.end();
            for thread in threads {
                match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                    Ok(report) => done.push(report),
                    Err(fault) => wrong.push(fault),
                }
            }
        });
        if wrong.is_empty() { Ok(done.join(", ")) } else { Err(wrong.join("\n")) }
    }

    /// Begins to mount, and so to replay the log, and kills the server soon.
    fn kill_while_mounting(&mut self) {
        let (place, programs) = (scratch_dir(), Programs::default());
        let binary = ubtrfs_binary().expect("the ubtrfs binary");
        let mut line = Command::new(&binary);
        line.args(["mount", "--foreground"]).arg(self.image("image")).arg(place.path());
        programs.start(line.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        std::thread::sleep(Duration::from_micros(self.rng.below(60_000)));
        programs.end();
        if mount_points().iter().any(|point| point == place.path()) {
            run(Command::new(binary).arg("umount").arg(place.path())).ok();
        }
        settle(&self.image("image"));
    }

    /// Fails the test unless all promises are kept.
    #[track_caller]
    fn assert_kept(&self, what: &str, place: &Path) {
        let mut faults = Vec::new();
        for (promises, number) in self.promises.iter().zip(0..) {
            let found = promises.faults(place, &Writer::prefix(number));
            if !found.is_empty() {
                faults.extend(found);
                faults.push(format!("the last operations of writer {number}:\n{}", promises.recent()));
            }
        }
        for (database, journal) in &self.databases {
            faults.extend(database.faults(place, *journal));
        }
        faults.extend(self.repository.faults(&place.join("git")));
        assert!(faults.is_empty(), "{what}:\n{}", faults.join("\n"));
    }

    /// Takes the present state as the beginning of the next round.
    fn adopt(&mut self, place: &Path) {
        for (promises, number) in self.promises.iter_mut().zip(0..) {
            promises.adopt(place, &Writer::prefix(number));
        }
        for (database, journal) in &mut self.databases {
            database.adopt(place, *journal);
        }
        self.repository.recover(&place.join("git"));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(keep) = std::env::var_os("UBTRFS_KEEP")
        {
            for (promises, number) in self.promises.iter().zip(0..) {
                let book = Path::new(&keep).join(format!("writer-{number}-{}", self.seed));
                let written = std::fs::write(&book, promises.book());
                eprintln!("kept as {}: {written:?}", book.display());
            }
            for name in ["image", "killed"] {
                let kept = Path::new(&keep).join(format!("{name}-{}", self.seed));
                let outcome = run(command("cp", &["--sparse=always"]).arg(self.image(name)).arg(&kept));
                eprintln!("kept as {}: {}", kept.display(), outcome.report());
            }
        }
    }
}

/// Removes what the load programs of earlier rounds have left.
fn remove_noise(place: &Path, round: u64, dying: &AtomicBool) -> Result<String, String> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let old = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("noise-") && !name.starts_with(&format!("noise-{round}-"))
    };
    for path in entries.filter(old) {
        match std::fs::remove_dir_all(&path) {
            Err(error) if !dying.load(Ordering::SeqCst) => return Err(format!("{}: {error}", path.display())),
            _ => {}
        }
    }
    Ok("old ones removed".to_owned())
}

#[track_caller]
fn assert_check_clean(what: &str, image: &Path) {
    let outcome = ubtrfs_check(image);
    assert!(outcome.success(), "{what}: {}", outcome.report());
}
