//! A kernel's btrfs is "crashed" at random: its image is copied while it is mounted. Our replay of
//! the log in the copy gives the same as the kernel's, path by path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_random::Rng;
use ubtrfs_testkit::diff::{Options as Compared, diff};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{btrfs_check, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::walk::walk;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::common::fsyncs::{Fsyncs, SUBVOLUME};
use crate::common::tree::{blocks_of, tree_of};

fn open(path: &Path, read_only: bool) -> ubtrfs::Result<Arc<Filesystem>> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(path, mode, Exclusive::Yes).unwrap());
    let volume = Volume::open(vec![device], OpenOptions { read_only }).unwrap();
    Filesystem::open(Arc::new(volume), Options { read_only, background_commits: false, ..Options::default() })
}

fn has_log(path: &Path) -> bool {
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
    let volume = Volume::open(vec![device], OpenOptions { read_only: true }).unwrap();
    volume.superblocks().current().log_root.0 != 0
}

fn faults(path: &Path) -> Vec<String> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
    let report = ubtrfs_check::check(&[device], &ubtrfs_check::Options::default()).unwrap();
    // mkfs.btrfs leaves free-space items behind that cause a warning.
    report.faults.iter().map(ToString::to_string).collect()
}

fn copy(from: &Path, to: &Path) {
    run(command("cp", &["--sparse=always", "--reflink=never"]).arg(from).arg(to)).ok();
}

/// An image as a crash left it, and the operations before.
struct Crash {
    image: PathBuf,
    reported: Vec<String>,
}

/// Works on a volume that the kernel has mounted, and copies its image after some fsyncs.
fn crashes(dir: &Path, seed: u64, wanted: usize) -> Vec<Crash> {
    let mut rng = Rng::new(seed);
    let image = dir.join("image");
    let forms: [&[&str]; 5] =
        [&[], &["-n", "4096"], &["-O", "^no-holes"], &["--csum", "xxhash"], &["-M", "-n", "4096"]];
    let form: &[&str] = forms[rng.index(forms.len())];
    mkfs_btrfs(&image, 256 << 20, form);
    let options = *rng.pick(&["commit=300", "commit=300", "commit=300,compress=zstd", "commit=300,nodatasum"]);
    let mount = KernelMount::new(&[&image], options);
    let top = mount.path();
    let mut work = Fsyncs::new(top, seed);
    if rng.one_in(2) {
        run(command("btrfs", &["subvolume", "create"]).arg(top.join(SUBVOLUME))).ok();
    }
    if !rng.one_in(6) {
        work.begin();
    }
    let mut found = Vec::new();
    for _ in 0..wanted * 4 {
        if found.len() == wanted {
            break;
        }
        if found.is_empty() || rng.one_in(3) {
            // Ends a transaction, which commits everything so far.
            (0..rng.below(60)).for_each(|_| work.step());
            run(command("sync", &["-f"]).arg(top)).ok();
            work.reported.push("sync".to_owned());
        }
        for _ in 0..=rng.below(6) {
            (0..rng.below(6)).for_each(|_| work.step());
            work.sync();
        }
        (0..rng.below(5)).for_each(|_| work.step());
        let crash = Crash { image: dir.join(format!("crash-{}", found.len())), reported: work.reported.clone() };
        copy(&image, &crash.image);
        if has_log(&crash.image) {
            found.push(crash);
        }
    }
    mount.unmount();
    std::fs::remove_file(&image).unwrap();
    found
}

/// Returns the differences between our replay and the kernel's.
fn compare(crash: &Crash) -> Vec<String> {
    let image = &crash.image;
    let mut found: Vec<String> = faults(image).into_iter().map(|fault| format!("before replay: {fault}")).collect();
    let (ours, blocks) = match open(image, true) {
        Ok(fs) => {
            let tree = tree_of(&fs);
            let blocks = blocks_of(&fs, &tree);
            (tree, blocks)
        }
        Err(error) => return vec![format!("read-only: {error:?}")],
    };
    let written = image.with_extension("written");
    copy(image, &written);
    match open(&written, false) {
        Ok(fs) => {
            found
                .extend(diff(&ours, &tree_of(&fs), Compared::SAME_VOLUME).into_iter().map(|d| format!("written: {d}")));
            fs.close().unwrap();
        }
        Err(error) => found.push(format!("read-write: {error:?}")),
    }
    found.extend(faults(&written).into_iter().map(|fault| format!("written: {fault}")));
    let checked = btrfs_check(&written);
    if !checked.success() {
        found.push(format!("written: {}", checked.report()));
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    match KernelMount::try_new(&[image], "") {
        Ok(mount) => {
            let mut theirs = walk(mount.path());
            for (path, ours) in blocks {
                let seen = std::fs::symlink_metadata(mount.path().join(OsStr::from_bytes(&path)));
                if let Ok(theirs) = seen.map(|meta| meta.blocks())
                    && theirs != ours
                {
                    found.push(format!("{}: {ours} blocks, the kernel {theirs}", path.escape_ascii()));
                }
            }
            // The kernel's replay sets the ctime of an inode from which it removes a name; ours
            // does not change it.
            for entry in theirs.entries.values_mut() {
                entry.ctime = entry.ctime.filter(|ctime| *ctime < (now.tv_sec, now.tv_nsec as u32));
            }
            found.extend(mount.unmount().into_iter().map(|line| format!("the kernel says: {line}")));
            found.extend(diff(&ours, &theirs, Compared::SAME_VOLUME));
        }
        Err(refusal) => found.push(format!("the kernel refuses: {}", refusal.report())),
    }
    std::fs::remove_file(&written).unwrap();
    found
}

#[test]
fn a_crashed_kernels_log_is_replayed_as_the_kernel_does() {
    require!(Need::Kernel);
    let mut compared = 0;
    let mut wrong = Vec::new();
    let seeds = seeds(if soaks() { 500 } else { 8 });
    for seed in &seeds {
        let dir = scratch_dir();
        for (number, crash) in crashes(dir.path(), *seed, 5).into_iter().enumerate() {
            let differences = compare(&crash);
            compared += 1;
            if !differences.is_empty() {
                let reported = crash.reported.join("\n");
                wrong.push(format!(
                    "seed {seed}, crash {number} (left: ours, right: the kernel's):\n{}\nafter\n{reported}",
                    differences.join("\n")
                ));
            }
        }
    }
    eprintln!("{compared} logs replayed");
    assert!(wrong.is_empty(), "{} of {compared} logs replayed otherwise:\n\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(compared >= seeds.len() * 2, "only {compared} logs");
}
