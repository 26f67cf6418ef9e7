//! A balance of all chunks, and the removal of a device, leave the files of all snapshots as they
//! were, and also what they share with each other, however many there are: the kernel counts the
//! same shared and exclusive bytes before and after.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ubtrfs::{Filesystem, NewInode, Options, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_format::items::{BalanceFlags, BalanceItem, BlockGroupFlags};
use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::common::volumes::{assert_clean, root};

/// Bytes of a device.
const SIZE: u64 = 512 << 20;
/// Bytes of a device without enough space for the metadata of the largest steps.
const SMALL: u64 = 128 << 20;
const FILES: u64 = 40;

/// A place where snapshots are made and files are written.
trait Place {
    fn write(&self, name: &str, offset: u64, content: &[u8]);
    fn remove(&self, name: &str);
    /// Makes what was written before durable, and takes a snapshot of it.
    fn snapshot(&self, name: &str);
}

impl Place for Arc<Filesystem> {
    fn write(&self, name: &str, offset: u64, content: &[u8]) {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let found = self.directories().lookup(root(), name.as_bytes());
        let file = found.or_else(|_| self.directories().create(root(), name.as_bytes(), &new)).unwrap();
        assert_eq!(self.files().write(file, WriteAt::Offset(offset), content, false).unwrap(), content.len());
        self.references().forget(file, 1);
    }

    fn remove(&self, name: &str) {
        self.directories().unlink(root(), name.as_bytes()).unwrap();
    }

    fn snapshot(&self, name: &str) {
        self.subvolumes().snapshot(TreeId::FS, root(), name.as_bytes(), true).unwrap();
    }
}

impl Place for KernelMount {
    fn write(&self, name: &str, offset: u64, content: &[u8]) {
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(self.path().join(name));
        file.unwrap().write_all_at(content, offset).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).unwrap();
    }

    fn snapshot(&self, name: &str) {
        let line = ["subvolume", "snapshot", "-r"];
        run(command("btrfs", &line).arg(self.path()).arg(self.path().join(name))).ok();
    }
}

/// Makes files that are partly overwritten between snapshots, so that some of the snapshots share
/// each extent.
fn fill(place: &dyn Place, snapshots: u64) {
    let mut rng = Rng::new(snapshots);
    for file in 0..FILES {
        let len = 4096 + rng.below(400_000) as usize;
        place.write(&format!("file {file}"), 0, &rng.noise(len));
    }
    for number in 0..snapshots {
        for _ in 0..6 {
            let (file, offset) = (rng.below(FILES), rng.below(300_000));
            let len = 1 + rng.below(60_000) as usize;
            place.write(&format!("file {file}"), offset, &rng.noise(len));
        }
        if rng.one_in(4) {
            let name = format!("file {}", rng.below(FILES));
            place.write(&name, 0, b"");
            place.remove(&name);
        }
        place.write(&format!("small {}", rng.below(FILES)), 0, &rng.noise(500));
        place.snapshot(&format!("snapshot {number}"));
    }
}

fn open(images: &[&Path]) -> Arc<Filesystem> {
    let volume = Arc::new(Volume::open(devices(images), OpenOptions::default()).unwrap());
    let options = Options { background_commits: false, subvolume_id: Some(TreeId::FS.0), ..Options::default() };
    Filesystem::open(volume, options).unwrap()
}

fn devices(images: &[&Path]) -> Vec<Arc<dyn Device>> {
    let open = |image: &&Path| Arc::new(FileDevice::open(image, OpenMode::ReadWrite, Exclusive::Yes).unwrap()) as _;
    images.iter().map(open).collect()
}

/// What the kernel shows of a volume: the files of all snapshots, how much of each is shared, and
/// how many bytes are data.
#[derive(PartialEq)]
struct Shown {
    files: String,
    shared: String,
    data: Vec<String>,
}

impl Shown {
    fn of(images: &[&Path]) -> Self {
        let kernel = KernelMount::new(images, "ro");
        let line = "cd \"$1\" && find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum";
        let files = run(command("sh", &["-c", line, "sh"]).arg(kernel.path())).ok().stdout;
        let line = "cd \"$1\" && btrfs filesystem du --raw .";
        let shared = run(command("sh", &["-c", line, "sh"]).arg(kernel.path())).ok().stdout;
        let space = run(command("btrfs", &["filesystem", "df", "--raw"]).arg(kernel.path())).ok().stdout;
        let used = |line: &str| line.rsplit_once("used=").map(|(_, used)| used.to_owned());
        let data = space.lines().filter(|line| line.starts_with("Data")).filter_map(used).collect();
        let complaints = kernel.unmount();
        assert!(complaints.is_empty(), "{complaints:?}");
        Self { files, shared, data }
    }

    fn assert_same(&self, images: &[&Path], what: &str) {
        assert_clean(&devices(images), what);
        {
            let devices: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
            run(command("btrfs", &["device", "scan"]).args(devices.iter().map(LoopDevice::path))).ok();
            assert_btrfs_check_clean(devices[0].path());
        }
        let now = Self::of(images);
        assert!(now.files == self.files, "{what}: a file differs");
        let lines = || self.shared.lines().zip(now.shared.lines());
        let differs: Vec<_> = lines().filter(|(before, now)| before != now).take(5).collect();
        assert!(now.shared == self.shared, "{what}: {differs:#?}");
        assert_eq!(now.data, self.data, "{what}");
    }
}

fn moves(snapshots: u64, by_kernel: bool, size: u64) {
    let what = format!("{snapshots} snapshots, made by {}", if by_kernel { "the kernel" } else { "ubtrfs" });
    let dir = scratch_dir();
    let images: [PathBuf; 2] = [0, 1].map(|number| dir.path().join(format!("image{number}")));
    let images = images.each_ref().map(PathBuf::as_path);
    for image in images {
        blank_image(image, size);
    }
    mkfs_btrfs_on(&images, &["-d", "single", "-m", "dup"]);
    let start = Instant::now();
    if by_kernel {
        let kernel = KernelMount::new(&images, "");
        fill(&kernel, snapshots);
        drop(kernel.unmount());
    } else {
        let fs = open(&images);
        fill(&fs, snapshots);
        fs.close().unwrap();
    }
    let filled = start.elapsed();
    let before = Shown::of(&images);
    let fs = open(&images);
    let start = Instant::now();
    let everything = BalanceItem {
        flags: BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM,
        ..BalanceItem::default()
    };
    fs.balancer().start(&everything, &|_| true).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let balanced = start.elapsed();
    fs.close().unwrap();
    drop(fs);
    before.assert_same(&images, &format!("{what}, after a balance"));
    let fs = open(&images);
    let start = Instant::now();
    // Takes a device that has data.
    let chunks = fs.volume().chunk_map().all();
    let (_, of_data) = chunks.iter().find(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap();
    let gone = of_data.stripes[0].devid;
    fs.relocator().remove_device(gone, &|_| true).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let removed = start.elapsed();
    fs.close().unwrap();
    drop(fs);
    before.assert_same(&[images[2 - gone.0 as usize]], &format!("{what}, after device {gone} was removed"));
    eprintln!(
        "{what}: made in {filled:.1?}, balanced in {balanced:.1?}, device {gone} removed in {removed:.1?}; data {:?}",
        before.data
    );
}

#[test]
fn many_snapshots_share_as_much_after_a_balance_and_a_removal() {
    require!(Need::Kernel, Need::Tool("btrfs"));
    moves(30, false, SMALL);
    if soaks() {
        for by_kernel in [false, true] {
            moves(30, by_kernel, SIZE);
            moves(200, by_kernel, SIZE);
        }
    }
}
