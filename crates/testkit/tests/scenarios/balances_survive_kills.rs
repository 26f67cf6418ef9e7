//! A balance that ends with its mount, by a kill at any time or by a pause, goes on at the next
//! mount, of ubtrfs or the kernel, whichever of them began it; and no file differs afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_random::Rng;
use ubtrfs_testkit::fixture;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_testkit::subject::{Mount, Subject};

use crate::device_images::{command_of, ubtrfs};

const SIZE: u64 = 512 << 20;
/// The time in which a balance has to end.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a command that ends by itself, or with its mount.
fn spawn(mut line: Command) -> Child {
    line.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn spawn_btrfs(words: &[&str], place: &Path) -> Child {
    let mut line = command("btrfs", words);
    line.arg(place);
    spawn(line)
}

/// The devices of a volume, and the files on it.
struct Rig {
    _dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Rig {
    fn new(devices: usize) -> Self {
        let dir = scratch_dir();
        let place = dir.path().to_owned();
        Self::within(dir, &place, devices)
    }

    /// Makes a volume of the kernel, with data in single chunks and a snapshot of some of it. Its
    /// images are in the directory `place`.
    fn within(dir: tempfile::TempDir, place: &Path, devices: usize) -> Self {
        let images: Vec<PathBuf> = (0..devices).map(|number| place.join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, SIZE);
        }
        let mut rig = Self { _dir: dir, images, files: BTreeMap::new() };
        mkfs_btrfs_on(&rig.images(), &["-d", "single", "-m", "raid1"]);
        let mount = Subject::Kernel.mount(&rig.images(), "");
        let top = mount.path().to_owned();
        let mut rng = Rng::new(devices as u64);
        for number in 0..35 {
            rig.write(&top, &format!("large {number}"), rng.noise(6 << 20));
        }
        for number in 0..300 {
            rig.write(&top, &format!("small {number}"), rng.noise(10_000));
        }
        run(command("btrfs", &["subvolume", "snapshot"]).args([top.as_path(), &top.join("snapshot")])).ok();
        let kept: Vec<_> =
            rig.files.iter().map(|(name, content)| (format!("snapshot/{name}"), content.clone())).collect();
        rig.files.extend(kept);
        for number in 0..10 {
            rig.write(&top, &format!("large {number}"), rng.noise(300_000));
        }
        mount.unmount();
        rig
    }

    fn images(&self) -> Vec<&Path> {
        self.images.iter().map(PathBuf::as_path).collect()
    }

    fn write(&mut self, top: &Path, name: &str, content: Vec<u8>) {
        std::fs::write(top.join(name), &content).unwrap();
        self.files.insert(name.to_owned(), content);
    }

    fn verify(&self, top: &Path, what: &str) {
        for (name, content) in &self.files {
            let found = std::fs::read(top.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *content, "{what}: {name} differs");
        }
    }

    fn check(&self) {
        ubtrfs(&["check"], &self.images()).ok();
        let devices: Vec<LoopDevice> = self.images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        run(command("btrfs", &["device", "scan"]).args(devices.iter().map(LoopDevice::path))).ok();
        assert_btrfs_check_clean(devices[0].path());
    }

    /// Asserts that the balance ends on this mount, and that then all data is in chunks of this
    /// profile.
    fn end_on(&self, mount: Mount, profile: &str, what: &str) {
        self.verify(mount.path(), what);
        let is_ours = matches!(mount, Mount::Ubtrfs(_));
        let deadline = Instant::now() + TIMEOUT;
        while is_under_way(mount.path(), is_ours) {
            assert!(Instant::now() < deadline, "{what}: it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.verify(mount.path(), what);
        mount.unmount();
        self.check();
        for subject in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = subject.mount(&self.images(), "");
            self.verify(mount.path(), &format!("{what}, at last by {}", subject.name()));
            if let Mount::Kernel(_) = mount {
                let shown = run(command("btrfs", &["filesystem", "df"]).arg(mount.path())).ok().stdout;
                let data: Vec<&str> = shown.lines().filter(|line| line.starts_with("Data")).collect();
                assert!(data.len() == 1 && data[0].starts_with(&format!("Data, {profile}:")), "{what}: {shown}");
            }
            mount.unmount();
        }
    }
}

fn is_under_way(top: &Path, is_ours: bool) -> bool {
    if is_ours {
        return !ubtrfs(&["balance", "status"], &[top]).ok().stdout.contains("no balance");
    }
    // The exit status shows whether there is a balance.
    !run(command("btrfs", &["balance", "status"]).arg(top)).stdout.contains("No balance found")
}

/// Waits until a balance on a mount of ours has emptied so many chunks, or has ended. Returns
/// whether it is still under way.
fn wait_for(top: &Path, chunks: u64) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    let mut has_begun = false;
    loop {
        let shown = ubtrfs(&["balance", "status"], &[top]).ok().stdout;
        let done = shown.split_whitespace().find_map(|word| word.parse::<u64>().ok());
        match done {
            Some(done) if done >= chunks => return true,
            Some(_) => has_begun = true,
            None if has_begun => return false,
            None => {}
        }
        assert!(Instant::now() < deadline, "{shown}");
    }
}

#[test]
fn a_conversion_is_finished_by_either_after_the_server_was_killed() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let all = [
        (3, 1, 0, Subject::ubtrfs(), ""),
        (2, 0, 5, Subject::Kernel, ""),
        (3, 1, 40, Subject::Kernel, "skip_balance"),
        (3, 0, 60, Subject::Kernel, ""),
        (2, 1, 5, Subject::Kernel, ""),
        (2, 2, 0, Subject::ubtrfs(), "skip_balance"),
        (3, 2, 30, Subject::ubtrfs(), ""),
        (2, 3, 10, Subject::Kernel, ""),
    ];
    let count = if soaks() { all.len() } else { 2 };
    for (devices, chunks, more, finisher, options) in &all[..count] {
        let what = format!("{devices} devices, {chunks} chunks and {more} ms, {} {options}", finisher.name());
        let mut rig = Rig::new(*devices);
        let mount = Subject::ubtrfs().mount(&rig.images(), "");
        let mut client = spawn(command_of(&["balance", "start", "-d=convert=raid1"], &[mount.path()]));
        assert!(wait_for(mount.path(), *chunks), "{what}: it has ended before");
        let top = mount.path().to_owned();
        rig.write(&top, "meanwhile", Rng::new(7).noise(100_000));
        std::fs::File::open(top.join("meanwhile")).and_then(|file| file.sync_all()).unwrap();
        std::thread::sleep(Duration::from_millis(*more));
        let Mount::Ubtrfs(killed) = &mount else { unreachable!() };
        killed.kill_server();
        let is_interrupted = !client.wait().unwrap().success();
        drop(mount);
        eprintln!("{what}: {}", if is_interrupted { "interrupted" } else { "it had ended" });
        assert!(is_interrupted || *more > 0, "{what}: it has ended before");
        let mount = finisher.mount(&rig.images(), options);
        if !options.is_empty() && is_interrupted {
            let is_ours = matches!(mount, Mount::Ubtrfs(_));
            assert!(is_under_way(mount.path(), is_ours), "{what}: it is paused");
            if is_ours {
                ubtrfs(&["balance", "resume"], &[mount.path()]).ok();
            } else {
                run(command("btrfs", &["balance", "resume"]).arg(mount.path())).ok();
            }
        }
        rig.end_on(mount, "RAID1", &what);
    }
}

#[test]
fn a_conversion_that_the_kernel_began_and_paused_is_finished_by_ubtrfs() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let rig = Rig::new(2);
    let kernel = KernelMount::new(&rig.images(), "");
    // The balance may have ended before it is paused.
    let profile = ["raid1", "single"].into_iter().cycle().take(20).find(|profile| {
        let mut client = spawn_btrfs(&["balance", "start", &format!("-dconvert={profile}")], kernel.path());
        while client.try_wait().unwrap().is_none() {
            run(command("btrfs", &["balance", "pause"]).arg(kernel.path()));
        }
        is_under_way(kernel.path(), false)
    });
    assert!(kernel.unmount().is_empty());
    let mount = Subject::ubtrfs().mount(&rig.images(), "");
    let profile = if profile.expect("a balance that was paused") == "raid1" { "RAID1" } else { "single" };
    rig.end_on(mount, profile, "begun by the kernel");
}

/// Checks the content of the volumes with reloc trees: see tests/fixtures.
fn verify_reloc_fixture(top: &Path, what: &str) {
    const EVERY: usize = 47;
    for (dir, rounds) in [("d", 2), ("s1/d", 0), ("s2/d", 1)] {
        let is_changed = |number: usize, round: usize| number >= round && (number - round).is_multiple_of(EVERY);
        let is_sampled = |number: &usize| number.is_multiple_of(7) || (1..=2).any(|round| is_changed(*number, round));
        for number in (0..9000).filter(is_sampled) {
            let mut content = format!("{number} ").repeat(1400);
            content.truncate(5000);
            for round in (1..=rounds).filter(|round| is_changed(number, *round)) {
                content.extend([&*number.to_string(), &*round.to_string(), "\n"]);
            }
            let found = std::fs::read_to_string(top.join(dir).join(number.to_string())).unwrap();
            assert!(found == content, "{what}: {dir}/{number}");
        }
    }
}

/// Returns what the kernel says that the subvolumes of these volumes share.
fn shared_in_reloc_fixture(image: &Path) -> String {
    let mount = Subject::Kernel.mount(&[image], "skip_balance");
    let places = ["d", "s1", "s2"].map(|name| mount.path().join(name));
    let shown = run(command("btrfs", &["filesystem", "du", "--raw", "-s"]).args(places)).ok().stdout;
    mount.unmount();
    let numbers = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    shown.lines().map(numbers).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_balance_of_the_kernel_that_a_crash_ended_in_a_chunk_goes_on_here() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"), Need::Tool("zstd"));
    for name in ["reloc-trees", "reloc-trees-to-merge"] {
        let dir = scratch_dir();
        let (image, other) = (dir.path().join("image"), dir.path().join("other"));
        let packed = fixture::directory().join(format!("{name}.img.zst"));
        run(command("zstd", &["-d", "-q", "--sparse"]).arg(packed).arg("-o").arg(&image)).ok();
        std::fs::copy(&image, &other).unwrap();
        let trees = || run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "1"]).arg(&image)).ok().stdout;
        assert!(trees().contains("TREE_RELOC ROOT_ITEM"), "{name}");
        let mount = Subject::ubtrfs().mount(&[&image], "skip_balance");
        verify_reloc_fixture(mount.path(), name);
        mount.unmount();
        assert!(!trees().contains("TREE_RELOC ROOT_ITEM"), "{name}");
        ubtrfs(&["check"], &[&image]).ok();
        assert_btrfs_check_clean(&image);
        let shared = shared_in_reloc_fixture(&image);
        // The kernel, which merges its reloc trees, gives the same.
        assert_eq!(shared, shared_in_reloc_fixture(&other), "{name}");
        ubtrfs(&["balance", "resume"], &[&image]).ok();
        ubtrfs(&["check"], &[&image]).ok();
        assert_btrfs_check_clean(&image);
        assert_eq!(shared_in_reloc_fixture(&image), shared, "{name}");
        for subject in [Subject::Kernel, Subject::ubtrfs()] {
            let mount = subject.mount(&[&image], "");
            verify_reloc_fixture(mount.path(), name);
            mount.unmount();
        }
    }
}

/// The kernel's devices are files on a mount of ours, whose server is killed: the crash loses what
/// was not flushed. If some reloc trees are merged and others are not, ubtrfs only shows the
/// volume, with `ro`, and the kernel has to finish.
#[test]
#[ignore = "soak: takes a minute"]
fn a_conversion_of_the_kernel_that_crashed_is_shown_or_finished() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    for moment in [20, 40, 60, 80, 100, 150, 200, 300, 400] {
        let what = format!("after {moment} ms");
        let dir = scratch_dir();
        let below = dir.path().join("below");
        blank_image(&below, 4 * SIZE);
        ubtrfs(&["mkfs"], &[&below]).ok();
        let host = Subject::ubtrfs().mount(&[&below], "");
        let mut rig = Rig::within(dir, host.path(), 2);
        let kernel = KernelMount::new(&rig.images(), "");
        let mut client = spawn_btrfs(&["balance", "start", "-dconvert=raid1"], kernel.path());
        std::thread::sleep(Duration::from_millis(moment));
        // The sync makes the present step durable, which may be in the middle of a chunk.
        run(command("btrfs", &["filesystem", "sync"]).arg(kernel.path()));
        let Mount::Ubtrfs(killed) = &host else { unreachable!() };
        killed.kill_server();
        let _ = client.wait();
        drop(kernel.unmount());
        drop(host);
        let host = Subject::ubtrfs().mount(&[&below], "");
        rig.images = (0..2).map(|number| host.path().join(format!("image{number}"))).collect();
        let mount = Subject::ubtrfs().try_mount(&rig.images(), "").unwrap_or_else(|refused| {
            eprintln!("{what}: in the middle of a merge");
            assert!(refused.stderr.contains("a balance of the volume was interrupted"), "{}", refused.report());
            let shown = Subject::ubtrfs().mount(&rig.images(), "ro");
            rig.verify(shown.path(), &what);
            shown.unmount();
            Subject::Kernel.mount(&rig.images(), "")
        });
        rig.end_on(mount, "RAID1", &what);
        host.unmount();
    }
}
